"""Sets of networks in safetensors files and tars: the same weights, read in parts."""

import io
import tarfile

from tests.networks.conv_networks import SMALL, drawn_weights, small
from tests.networks.torch_modules import LeNet
from utils.networks.mlp import MLP
from utils.networks.registry import conv_network
from utils.networks.safetensors import write_tensors
from utils.networks.state_dicts import default_layout
from utils.posteriors import exchange
from utils.posteriors.exchange import export_tars, import_networks, read_all
from utils.posteriors.files import open_members, open_posterior
from utils.posteriors.named_samples import save_named_samples
from utils.posteriors.samples import Points
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch

LENET = small("lenet")
HALF, SINGLE = torch.float16, torch.float32


def networks_of(network, count: int = 3) -> torch.Tensor:
    return torch.stack([drawn_weights(network, seed, SINGLE) for seed in range(count)])


def saved(directory, network, weights, dtype=HALF):
    directory.mkdir()
    save_named_samples(directory, network, weights, len(weights), dtype)
    return open_posterior(directory)


def write_file(file, network, weights, dtype=HALF, rename=lambda name: name) -> None:
    tensors = default_layout(network).state_dict(weights)
    write_tensors(file, {rename(key): each.to(dtype) for key, each in tensors.items()})


def make_tar(path, network, weights, mode="w:gz", **details):
    """Write a tar as the published ones are: a folder with a file for each network."""
    with tarfile.open(path, mode) as archive:
        for number, row in enumerate(weights):
            content = io.BytesIO()
            write_file(content, network, row, **details)
            member = tarfile.TarInfo(f"{path.stem}/{path.stem}-{number}.safetensors")
            member.size = content.tell()
            content.seek(0)
            archive.addfile(member, content)
    return path


def imported(tmp_path, *paths, network=None, activation="relu"):
    place = tmp_path / "imported"
    place.mkdir()
    done = import_networks(read_all(paths), place, network, activation)
    posterior = open_posterior(place)
    assert len(posterior) == done.count
    return posterior


@pytest.mark.parametrize("dtype", [HALF, SINGLE])
@pytest.mark.parametrize("name", SMALL)
def test_every_network_comes_back_from_stacked_tensors(name, dtype, tmp_path):
    network = small(name)
    weights = networks_of(network)
    posterior = saved(tmp_path / "set", network, weights, dtype)
    assert posterior.network == network
    assert torch.equal(torch.stack(list(posterior)), weights.to(dtype).float())
    assert torch.equal(open_members(tmp_path / "set").weights[:, 0], weights.to(dtype).float())
    alone = open_posterior(tmp_path / "set" / "networks.safetensors")
    assert torch.equal(alone[2], posterior[2])


@pytest.mark.parametrize("name", SMALL)
def test_every_network_comes_back_from_tars(name, tmp_path):
    """With a prefix before the names, as checkpoints of trainers have it."""
    network = small(name)
    weights = networks_of(network)
    path = make_tar(tmp_path / "net-0-2.tgz", network, weights, rename="model.{}".format)
    posterior = imported(tmp_path, path, network=network)
    assert torch.equal(torch.stack(list(posterior)), weights.half().float())
    assert np.load(tmp_path / "imported" / "mode-000" / "samples.npy").dtype == np.float16


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_tars_are_read_in_parts(mode, tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "PART_BYTES", 2 * 4 * LENET.num_weights)
    sizes, save = [], Points.save
    monkeypatch.setattr(
        Points, "save", lambda self, place: (sizes.append(len(self)), save(self, place))
    )
    weights = networks_of(LENET, 5)
    path = make_tar(tmp_path / "lenets.tar", LENET, weights, mode)
    posterior = imported(tmp_path, path, network=LENET)
    assert sizes == [2, 2, 1]
    assert torch.equal(torch.stack(list(posterior)), weights.half().float())


def test_ours_are_tars_of_the_published_kind(tmp_path):
    weights = networks_of(LENET, 5)
    paths = export_tars(tmp_path, "lenet", Points(weights, LENET), SINGLE, per_tar=2)
    assert [path.name for path in paths] == ["lenet-0-1.tgz", "lenet-2-3.tgz", "lenet-4-4.tgz"]
    first = paths[0].read_bytes()
    (again,) = export_tars(tmp_path, "lenet", Points(weights[:2], LENET), SINGLE)
    assert again == paths[0]
    assert paths[0].read_bytes() == first
    posterior = imported(tmp_path, *paths, network=LENET)
    assert torch.equal(torch.stack(list(posterior)), weights)
    with tarfile.open(paths[2]) as archive:
        assert archive.getnames() == ["lenet-4.safetensors"]


def test_a_module_saved_under_names_of_its_own(tmp_path):
    """Files have lost the order of layers: layer 10 comes after layer 2, biases after weights."""
    module, foreign = LeNet(2, 1, 3), {"conv1": 0, "conv2": 2, "fc1": 5, "fc2": 7, "fc3": 10}
    tensors = {}
    for name, tensor in module.state_dict().items():
        layer, part = name.split(".")
        tensors[f"net.{foreign[layer]}.{part}"] = tensor
    with open(tmp_path / "a.safetensors", "wb") as file:
        write_tensors(file, tensors)
    posterior = imported(tmp_path, tmp_path / "a.safetensors", network=LENET)
    images = torch.rand(4, 2, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(LENET.outputs(posterior[0], images), module(images))


def test_an_mlp_is_recognised_by_its_sizes(tmp_path):
    network = MLP((6, 4, 4, 4, 4, 4, 3), "tanh")  # layers 0, 2, …, 10
    weights = networks_of(network, 2)
    folder = tmp_path / "files"
    folder.mkdir()
    for number in (2, 10):
        with open(folder / f"net-{number}.safetensors", "wb") as file:
            write_file(file, network, weights[number // 10], SINGLE)
    torch.save(default_layout(network).state_dict(weights[0]), folder / "net-11.pt")
    posterior = imported(tmp_path, folder, activation="tanh")
    assert posterior.network == network
    assert torch.equal(torch.stack(list(posterior)), weights[[0, 1, 0]])


def test_files_that_name_their_network_need_no_help(tmp_path):
    weights = networks_of(LENET)
    saved(tmp_path / "set", LENET, weights)
    posterior = imported(tmp_path, tmp_path / "set" / "networks.safetensors")
    assert posterior.network == LENET
    assert torch.equal(posterior[1], weights[1].half().float())


def test_what_float16_cannot_hold_is_refused(tmp_path):
    weights = networks_of(LENET)
    weights[1, 5] = 7e4
    with pytest.raises(UserError, match=r"Network 1 has weights beyond 65504.*--dtype float32"):
        saved(tmp_path / "half", LENET, weights)
    assert torch.equal(saved(tmp_path / "single", LENET, weights, SINGLE)[1], weights[1])


def test_precisions_are_not_mixed_silently(tmp_path):
    weights = networks_of(LENET, 2)
    half = make_tar(tmp_path / "a.tar", LENET, weights)
    single = make_tar(tmp_path / "b.tar", LENET, weights, dtype=SINGLE)
    with pytest.raises(UserError, match=r"b-0.safetensors in .*b.tar is not of float16"):
        imported(tmp_path, half, single, network=LENET)


def test_damaged_tars_are_refused(tmp_path):
    whole = make_tar(tmp_path / "whole.tgz", LENET, networks_of(LENET)).read_bytes()
    wrong = {"cut": whole[: len(whole) // 2], "other": b"no tar", "empty": b""}
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 0xFF
    for name, content in (wrong | {"changed": bytes(changed)}).items():
        (tmp_path / f"{name}.tgz").write_bytes(content)
        with pytest.raises(UserError, match=rf"^Cannot read .*{name}.tgz|{name}.tgz has no"):
            next(read_all([tmp_path / f"{name}.tgz"]))
    fewer = make_tar(tmp_path / "net-0-1023.tgz", LENET, networks_of(LENET, 2))
    with pytest.raises(UserError, match="has 2 networks, but 1024 by its name"):
        list(read_all([fewer]))
    with tarfile.open(tmp_path / "none.tar", "w"):
        pass
    with pytest.raises(UserError, match=r"none.tar has no safetensors files"):
        list(read_all([tmp_path / "none.tar"]))


def test_other_networks_and_missing_tensors_are_refused(tmp_path):
    path = make_tar(tmp_path / "a.tar", LENET, networks_of(LENET, 1))
    other = conv_network("lenet", (2, 16, 16), width=6)
    with pytest.raises(UserError, match=r"a-0.safetensors in .*conv1.weight has the shape"):
        imported(tmp_path, path, network=other)
    with pytest.raises(UserError, match="not a state_dict of optunet"):
        import_networks(read_all([path]), tmp_path, small("optunet"), "relu")
    tensors = default_layout(LENET).state_dict(networks_of(LENET)[0])
    del tensors["fc2.bias"]
    with open(tmp_path / "less.safetensors", "wb") as file:
        write_tensors(file, tensors)
    with pytest.raises(UserError, match=r"less.safetensors: .*there is no fc2.bias"):
        import_networks(read_all([tmp_path / "less.safetensors"]), tmp_path, LENET, "relu")


@pytest.mark.parametrize("kind", ["points", "stacked"])
def test_a_changed_number_is_noticed_when_it_is_read(kind, tmp_path):
    weights = networks_of(LENET)
    if kind == "stacked":
        saved(tmp_path / "set", LENET, weights)
        path = tmp_path / "set" / "networks.safetensors"
    else:
        (tmp_path / "set").mkdir()
        Points(weights, LENET).save(tmp_path / "set")
        path = tmp_path / "set" / "samples.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # in the last network
    path.write_bytes(content)
    posterior = open_posterior(tmp_path / "set")
    assert len(posterior[0]) == LENET.num_weights
    with pytest.raises(UserError, match=r"Weight vector 2 in .* is not the one that was saved"):
        posterior[2]


def test_checksums_have_to_fit(tmp_path):
    Points(networks_of(LENET), LENET).save(tmp_path)
    np.save(tmp_path / "checksums.npy", np.zeros(2, np.uint32))
    with pytest.raises(UserError, match=r"has 2 checksums, but .* 3 weight vectors"):
        open_posterior(tmp_path)
    (tmp_path / "checksums.npy").write_bytes(b"abc")
    with pytest.raises(UserError, match=r"Cannot read .*checksums.npy"):
        open_posterior(tmp_path)
