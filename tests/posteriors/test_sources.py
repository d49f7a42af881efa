"""Finding runs and reading what they left."""

import json
from dataclasses import asdict, dataclass
from types import SimpleNamespace

from utils.data.datasets import Dataset
from utils.networks.mlp import MLP
from utils.posteriors.moments import block_of
from utils.posteriors.sources import (
    check_network,
    find_sources,
    locate,
    open_gaussian,
    open_samples,
    open_weight_space,
)
from utils.runs.config import Config
from utils.runs.errors import UserError
from utils.runs.files import save_json

import numpy as np
import pytest
import torch

NETWORK = MLP((4, 3, 2))


@dataclass(frozen=True, kw_only=True)
class AnyConfig(Config):
    pass


@pytest.fixture
def config(tmp_path) -> AnyConfig:
    return AnyConfig(out_dir=str(tmp_path))


def make_run(out_dir, name: str, dataset: str = "MNIST", num_train=None, finished: bool = True):
    directory = out_dir / "default" / name
    directory.mkdir(parents=True)
    recorded = {"dataset": dataset, "num_train": num_train, "config_name": "x", "run_name": ""}
    save_json(directory / "config.yaml", recorded)  # JSON is YAML
    save_json(directory / "meta.json", {"wandb_id": name})
    if finished:
        (directory / "DONE").touch()
    return directory


def make_samples(directory, count: int, num_chains: int = 1):
    directory.mkdir(exist_ok=True)
    samples = np.arange(count)[:, None] * np.ones(NETWORK.num_weights, np.float32)
    np.save(directory / "samples.npy", samples)
    save_json(directory / "network.json", asdict(NETWORK))
    layout = {"num_chains": num_chains, "samples_per_chain": count // num_chains}
    (directory / "chains.json").write_text(json.dumps(layout))
    return directory


def numbers(samples) -> list[int]:
    return [int(weights[0]) for weights in samples]


def test_the_batchs_finished_run_is_found_or_none_is_wanted(config, tmp_path):
    make_run(tmp_path, "HMC-MNIST-unfinished", finished=False)
    run = make_run(tmp_path, "HMC-MNIST-paper")
    assert locate(config, "HMC", "newest") == run
    assert locate(config, "HMC", "none") is None
    with pytest.raises(UserError, match=r"MNIST_VI\.py .* --vi with a path, or --vi none\.$"):
        locate(config, "VI", "newest")


def test_a_path_must_exist_and_be_of_the_data_set(config, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        locate(config, "HMC", str(tmp_path / "nowhere"))
    run = make_run(tmp_path, "HMC-KMNIST-a", "KMNIST")
    with pytest.raises(UserError, match="give --dataset KMNIST"):
        locate(config, "HMC", str(run))


def test_samples_are_evenly_spaced_and_chains_start_late(tmp_path):
    assert numbers(open_samples(make_samples(tmp_path / "a", 10))) == list(range(10))
    assert numbers(open_samples(tmp_path / "a", most=4)) == [0, 3, 6, 9]
    assert numbers(open_samples(tmp_path / "a", discard=0.5)) == [5, 6, 7, 8, 9]
    two = make_samples(tmp_path / "b", 20, num_chains=2)
    found = open_samples(two, discard=0.2, most=8)
    assert found.indices.shape == (2, 4)
    assert numbers(found) == [2, 4, 7, 9, 12, 14, 17, 19]
    assert numbers(open_samples(two / "samples.npy")) == list(range(20))


def test_of_chains_that_still_run_only_what_is_stored_is_read(tmp_path, capsys):
    two = make_samples(tmp_path / "a", 20, num_chains=2)
    layout = {"num_chains": 2, "samples_per_chain": 10, "stored_per_chain": 4}
    (two / "chains.json").write_text(json.dumps(layout))
    found = open_samples(two, discard=0.25)
    assert numbers(found) == [1, 2, 3, 11, 12, 13]
    assert "not finished: its 4 samples so far, of 10" in capsys.readouterr().out


def test_no_block_has_samples_of_two_chains(tmp_path):
    two = open_samples(make_samples(tmp_path / "a", 20, num_chains=2))
    assert [two.num_blocks(most) for most in (1, 2, 5, 20, 99)] == [2, 2, 4, 20, 20]
    for most in (2, 5, 7):
        count = two.num_blocks(most)
        blocks = [block_of(position, 20, count) for position in range(20)]
        assert not set(blocks[:10]) & set(blocks[10:])
        assert len(set(blocks)) == count
    assert open_samples(tmp_path / "a", most=2).num_blocks(20) == 2


def test_as_in_the_paper_samples_are_500_to_9899(tmp_path):
    found = open_samples(make_samples(tmp_path / "a", 9900), discard=0.0505, most=1000)
    assert (numbers(found)[0], numbers(found)[-1], len(found)) == (500, 9899, 1000)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((3, 5)), r"of the shape \[3, 5\]"),
        (np.zeros(23), r"of the shape \[23\]"),
        (
            np.full((3, 23), "1.5"),
            r"has <U3 of the shape \[3, 23\]: .* needs numbers \[samples, 23\]",
        ),
    ],
)
def test_samples_of_another_shape_are_refused(tmp_path, array, sentence):
    make_samples(tmp_path / "a", 3)
    np.save(tmp_path / "a" / "samples.npy", array)
    with pytest.raises(UserError, match=sentence):
        open_samples(tmp_path / "a")


def test_samples_that_are_not_finite_are_named(tmp_path):
    make_samples(tmp_path / "a", 5)
    array = np.load(tmp_path / "a" / "samples.npy")
    array[3, -1] = np.nan
    np.save(tmp_path / "a" / "samples.npy", array)
    found = open_samples(tmp_path / "a", discard=0.4)  # of samples 2 to 4
    assert len(found[0]) == 23
    with pytest.raises(UserError, match=r"Sample 3 of .* has NaN or infinite weights"):
        found[1]


def test_archives_and_damaged_layouts_are_refused(tmp_path):
    two = make_samples(tmp_path / "a", 4, num_chains=2)
    (two / "chains.json").write_text('{"num_chains": 2, "stored_per_chain": "2"}')
    with pytest.raises(UserError, match="needs a whole number stored_per_chain, and not '2'"):
        open_samples(two)
    np.savez(two / "samples.npz", samples=np.zeros((3, 23)))
    with pytest.raises(UserError, match="Cannot read the samples"):
        open_samples(two / "samples.npz")


def test_what_is_missing_is_named(tmp_path):
    make_samples(tmp_path / "a", 3)
    (tmp_path / "a" / "samples.npy").write_bytes(b"no array")
    with pytest.raises(UserError, match="Cannot read the samples"):
        open_samples(tmp_path / "a")
    (tmp_path / "a" / "network.json").unlink()
    with pytest.raises(UserError, match=r"network.json is missing"):
        open_samples(tmp_path / "a")


def test_too_few_samples_are_said_before_the_work_begins(tmp_path):
    make_samples(tmp_path / "a", 4)
    with pytest.raises(UserError, match="of which 1 are left"):
        open_samples(tmp_path / "a", discard=0.8)
    (tmp_path / "a" / "chains.json").write_text('{"num_chains": 3}')
    with pytest.raises(UserError, match="not 3 chains of equal length"):
        open_samples(tmp_path / "a")


def test_a_network_json_that_says_nothing_is_shown_what_it_is_like(tmp_path):
    make_samples(tmp_path / "a", 3)
    for text in ("[4, 3, 2]", "{", '{"sizes": "4-3-2", "activation": "relu"}', '{"sizes": [4]}'):
        (tmp_path / "a" / "network.json").write_text(text)
        with pytest.raises(UserError, match=r'like this: {"sizes": \[784, 512, 10\]'):
            open_samples(tmp_path / "a")


@pytest.mark.parametrize("text", ["{", "[]", '{"num_chains": null}', '{"num_chains": 0}'])
def test_chains_json_that_says_nothing_is_named(tmp_path, text):
    make_samples(tmp_path / "a", 4)
    (tmp_path / "a" / "chains.json").write_text(text)
    with pytest.raises(UserError, match=r"chains\.json"):
        open_samples(tmp_path / "a")


def test_a_gaussian_is_read_from_its_run_or_file(tmp_path):
    run = make_samples(tmp_path / "a", 3)
    mean, std = np.random.default_rng(0).random((2, NETWORK.num_weights))
    np.savez(run / "posterior.npz", mean=mean, std=std)
    for path in (run, run / "posterior.npz"):
        network, posterior = open_gaussian(path)
        assert network == NETWORK
        np.testing.assert_allclose(posterior.std, std, rtol=1e-6)


def test_a_damaged_gaussian_names_the_script_that_makes_it(tmp_path):
    run = make_samples(tmp_path / "a", 3)
    np.savez(run / "posterior.npz", mean=np.zeros(23), std=np.ones(23))
    whole = (run / "posterior.npz").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 255
    for content in (b"", whole[: len(whole) // 2], b"no archive", bytes(flipped)):
        (run / "posterior.npz").write_bytes(content)
        with pytest.raises(UserError, match=r"posterior\.npz .*python MNIST_VI\.py makes it"):
            open_gaussian(run)
    np.savez(run / "posterior.npz", mean=np.zeros(5))
    with pytest.raises(UserError, match=r"shapes \[5\] and \[0\]"):
        open_gaussian(run)


def test_an_evaluation_is_given_by_its_directory_or_its_file(tmp_path):
    run = make_samples(tmp_path / "a", 3)
    arrays = {f"hmc_{frame}_{part}": np.ones(23) for frame in ("before", "after")
              for part in ("mean", "std")}  # fmt: skip
    arrays |= {"hmc_single": np.ones(23), "alive": np.ones(23, bool)}
    np.savez(run / "weight_space.npz", **arrays)
    for path in (run, run / "weight_space.npz"):
        space = open_weight_space(path, torch.device("cpu"))
        assert space.gaussians["after"].keys() == {"hmc"}


@pytest.mark.parametrize("name", ["alive", "hmc_single", "hmc_after_mean"])
def test_an_evaluation_of_another_version_is_said_to_be_one(tmp_path, name):
    run = make_samples(tmp_path / "a", 3)
    needed = {"alive", "hmc_single", "hmc_after_mean"} - {name}
    np.savez(run / "weight_space.npz", **{other: np.ones(23) for other in needed})
    with pytest.raises(UserError, match=f"another version .it has no {name}.: .* --overwrite"):
        open_weight_space(run, torch.device("cpu"))


def test_a_config_of_the_users_own_does_not_matter_and_a_runs_own_does(config, tmp_path):
    own = make_samples(tmp_path / "a", 3)
    (own / "config.yaml").write_text("- a list")
    assert locate(config, "HMC", str(own)) == own
    (own / "meta.json").write_text("{}")
    with pytest.raises(UserError, match=r"config\.yaml is damaged"):
        locate(config, "HMC", str(own))


def test_no_evaluation_no_pruning(tmp_path):
    run = make_samples(tmp_path / "a", 3)
    with pytest.raises(UserError, match=r"python MNIST_eval\.py makes it"):
        open_weight_space(run, torch.device("cpu"))


def test_samples_given_as_a_file_are_of_the_data_set_too(config, tmp_path):
    run = make_run(tmp_path, "HMC-KMNIST-a", "KMNIST")
    make_samples(run, 3)
    with pytest.raises(UserError, match="give --dataset KMNIST"):
        locate(config, "HMC", str(run / "samples.npy"))


@pytest.mark.parametrize("sizes", [(784, 10), (100, 5, 10), (784, 5, 3)])
def test_networks_of_other_data_are_refused(sizes, tmp_path):
    data = Dataset("MNIST", torch.zeros(2, 784), *[torch.zeros(2)] * 3)
    check_network(MLP((784, 5, 10)), data, tmp_path)
    with pytest.raises(UserError, match=f"{sizes[0]}-.*784 inputs, hidden units and 10 outputs"):
        check_network(MLP(sizes), data, tmp_path)


def test_double_precision_is_accepted(tmp_path):
    make_samples(tmp_path / "a", 3)
    np.save(tmp_path / "a" / "samples.npy", np.ones((3, NETWORK.num_weights)))
    assert open_samples(tmp_path / "a")[2].dtype.is_floating_point
    assert open_samples(tmp_path / "a")[2].itemsize == 4


@pytest.mark.parametrize(("num_train", "warned"), [(None, True), (3000, False)])
def test_posteriors_of_different_images_are_warned_of(config, tmp_path, capsys, num_train, warned):
    hmc = make_samples(make_run(tmp_path, "HMC-MNIST-x", num_train=3000), 3)
    ensemble = make_samples(make_run(tmp_path, "ensemble-MNIST-x", num_train=num_train), 3)
    given = evaluation(config, hmc=str(hmc), ensemble=str(ensemble), vi="none")
    find_sources(given)
    message = "different training images (HMC 3000, ensemble all)"
    assert (message in capsys.readouterr().out) == warned


def test_other_methods_runs_are_found_by_the_chains_network_and_data(config, tmp_path):
    """Though their configs have other names, and another run is newer."""
    hmc = make_samples(make_run(tmp_path, "HMC-MNIST-laptop", num_train=3000), 3)
    wanted = make_samples(make_run(tmp_path, "ensemble-MNIST-quick", num_train=3000), 3)
    make_samples(make_run(tmp_path, "ensemble-MNIST-paper"), 3)
    sources = find_sources(evaluation(config, vi="none"))
    assert sources.paths == {"HMC": hmc, "ensemble": wanted, "VI": None}
    assert sources.num_train == 3000


@pytest.mark.parametrize("kind", ["VI", None])
def test_samples_of_another_method_are_not_taken_for_hmcs(config, tmp_path, kind):
    run = make_samples(make_run(tmp_path, "VI-MNIST-x" if kind is None else "renamed"), 3)
    save_json(run / "meta.json", {"kind": kind} if kind else {})
    with pytest.raises(UserError, match="is a run of kind VI, not HMC: give another"):
        find_sources(evaluation(config, hmc=str(run)))
    others = {"ensemble": "none", "vi": "none"}
    assert find_sources(evaluation(config, samples=str(run), **others)).label == "samples"


def evaluation(config, **given) -> SimpleNamespace:
    """The settings of an evaluation."""
    settings = dict.fromkeys(("hmc", "ensemble", "vi"), "newest") | {"samples": None}
    return SimpleNamespace(**asdict(config), **(settings | given), discard=0.0, num_samples=None)
