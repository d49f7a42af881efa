"""torch.nn's networks as flat vectors and back: the same function, bits and names."""

import itertools
import os

from utils.networks.mlp import MLP
from utils.networks.safetensors import write_tensors
from utils.networks.state_dicts import (
    default_layout,
    read_layout,
    read_networks,
    read_state_dict,
)
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import pytest
import torch
from torch import nn


class Named(nn.Module):
    """Layers under names of the user's own, in modules within modules."""

    def __init__(self):
        super().__init__()
        self.eyes = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.5))
        self.brain = nn.ModuleDict({"deep": nn.Linear(5, 5), "deeper": nn.Linear(5, 4)})
        self.mouth = nn.Linear(4, 3)

    def forward(self, inputs):
        values = self.eyes(inputs)
        for layer in self.brain.values():
            values = torch.tanh(layer(values))
        return self.mouth(values)


def sequential(*sizes, activation=nn.ReLU) -> nn.Sequential:
    """Linear layers of these sizes with the activation between them."""
    modules = []
    for inputs, outputs in itertools.pairwise(sizes):
        modules += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*modules[:-1])


NETWORKS = {
    "one hidden layer": (lambda: sequential(6, 5, 3), (6, 5, 3), "relu"),
    "no hidden layer": (lambda: nn.Linear(6, 3), (6, 3), "relu"),
    "three, equal": (lambda: sequential(6, 6, 6, 6, 3), (6, 6, 6, 6, 3), "relu"),
    "own names, tanh": (Named, (6, 5, 5, 4, 3), "tanh"),
    "no bias": (lambda: nn.Linear(6, 3, bias=False), (6, 3), "relu"),
    "a layer without bias": (
        lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)),
        (6, 5, 3),
        "tanh",
    ),
    "DataParallel": (lambda: nn.DataParallel(sequential(6, 5, 3)), (6, 5, 3), "relu"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_flat_network_computes_what_the_module_does(name):
    make, sizes, activation = NETWORKS[name]
    torch.manual_seed(0)
    net = make().double().eval()
    layout = read_layout(net.state_dict(), activation)
    assert layout.network == MLP(sizes, activation)
    inputs = torch.randn(9, 6, generator=generator(0), dtype=torch.float64)
    ours = layout.network.outputs(layout.flatten(net.state_dict()), inputs)
    torch.testing.assert_close(ours, net(inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_there_and_back_is_exact(name, dtype):
    make, _, activation = NETWORKS[name]
    state_dict = make().to(dtype).state_dict()
    layout = read_layout(state_dict, activation)
    back = layout.state_dict(layout.flatten(state_dict))
    assert list(back) == list(state_dict)
    for key, tensor in state_dict.items():
        assert back[key].dtype == dtype
        assert torch.equal(back[key], tensor)
        assert back[key].untyped_storage().nbytes() == tensor.nbytes  # no whole vector in the file
    make().to(dtype).load_state_dict(back)


def test_missing_biases_are_zeros_that_all_networks_lack():
    without = nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)).state_dict()
    whole = sequential(6, 5, 3).state_dict()
    layout = read_layout(without)
    assert layout.no_bias.nonzero().flatten().tolist() == list(range(30, 35))
    assert not layout.flatten(without)[30:35].any()
    with pytest.raises(UserError, match=r"This network has a 0.bias, but the first network has no"):
        layout.flatten(whole)
    with pytest.raises(UserError, match=r"This network has no 0.bias, but the first network has"):
        read_layout(whole).flatten(without)


def test_types_and_the_order_of_keys_may_be_mixed():
    net = sequential(6, 5, 3)
    net[2].double()
    order = ("0.bias", "0.weight", "2.bias", "2.weight")
    state_dict = {key: net.state_dict()[key] for key in order}
    layout = read_layout(state_dict)
    weights = layout.flatten(state_dict)
    assert weights.dtype == torch.float64
    back = layout.state_dict(weights)
    assert list(back) == list(state_dict)
    assert [tensor.dtype for tensor in back.values()] == [torch.float32] * 2 + [torch.float64] * 2
    assert all(torch.equal(back[key], state_dict[key]) for key in back)


def test_one_layout_takes_networks_of_other_names():
    net = sequential(6, 5, 3)
    renamed = {f"module.{key}": tensor for key, tensor in net.state_dict().items()}
    layout = read_layout(net.state_dict())
    back = layout.state_dict(layout.flatten(renamed))
    assert all(torch.equal(tensor, net.state_dict()[key]) for key, tensor in back.items())


def test_neither_way_shares_memory_with_the_network():
    net = sequential(6, 5, 3)
    layout = read_layout(dict(net.named_parameters()))
    weights = layout.flatten(dict(net.named_parameters()))
    assert not weights.requires_grad
    before = net[0].bias.detach().clone()
    back = layout.state_dict(weights)
    weights.zero_()
    assert torch.equal(net[0].bias, before)
    assert torch.equal(back["0.bias"], before)


def test_weights_without_a_module_fit_a_sequential_one():
    network = MLP((6, 5, 4, 3), "tanh")
    weights = torch.randn(network.num_weights, generator=generator(0))
    net = sequential(6, 5, 4, 3, activation=nn.Tanh)
    net.load_state_dict(default_layout(network).state_dict(weights))
    inputs = torch.randn(9, 6, generator=generator(1))
    torch.testing.assert_close(network.outputs(weights, inputs), net(inputs))


# ---- what is refused


def changed(entries: dict) -> dict:
    """The state_dict of 6-5-3 with some entries changed or added."""
    return dict(sequential(6, 5, 3).state_dict()) | entries


def with_nan() -> dict:
    weight = torch.zeros(5, 6)
    weight[1, 2], weight[3, 4] = torch.nan, -torch.inf
    return changed({"0.weight": weight})


def tied() -> dict:
    net = sequential(6, 6, 6, 3)
    net[2].weight = net[0].weight
    return net.state_dict()


REFUSED = {
    "empty": ({}, "This is not a state_dict with weights"),
    "a tensor": (torch.zeros(3), "This is not a state_dict with weights"),
    "convolution": (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).state_dict(),
        r"0.weight has the shape \[4, 1, 3, 3\].*convolution.*docs/networks.md",
    ),
    "batch norm": (
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).state_dict(),
        r"1.weight has the shape \[5\].*fuse_linear_bn_eval",
    ),
    "layer norm": (
        nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)).state_dict(),
        r"1.weight has the shape \[5\].*no linear layer can replace it",
    ),
    "batch norm without weights": (
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False)).state_dict(),
        r"1.running_mean is neither the weight nor the bias.*fuse_linear_bn_eval",
    ),
    "weight norm": (
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)).state_dict(),
        r"the layer has a bias but no weight.*remove_parametrizations",
    ),
    "layers in another order": (
        {k: v for k, v in reversed(sequential(6, 5, 3).state_dict().items())},
        r"2.weight has 3 outputs, but 0.weight after it 6 inputs.*in the order in which they are",
    ),
    "two heads": (
        changed({"4.weight": torch.zeros(3, 5), "4.bias": torch.zeros(3)}),
        r"2.weight has 3 outputs, but 4.weight after it 5 inputs",
    ),
    "bias of another size": (
        changed({"2.bias": torch.zeros(4)}),
        r"2.bias has the shape \[4\], but 2.weight is \[3, 5\]",
    ),
    "bias for each weight": (
        changed({"2.bias": torch.zeros(3, 5)}),
        r"2.bias has the shape \[3, 5\], but 2.weight is \[3, 5\]",
    ),
    "whole numbers": (
        changed({"0.weight": torch.zeros(5, 6, dtype=torch.int8)}),
        r"0.weight is of torch.int8: weights must be floating-point numbers",
    ),
    "complex numbers": (
        changed({"2.bias": torch.zeros(3, dtype=torch.complex64)}),
        r"2.bias is of torch.complex64: weights must be floating-point numbers",
    ),
    "not finite": (with_nan(), r"0.weight has entries that are NaN or infinite \(2\)"),
    "a checkpoint": (
        {"epoch": 3, "model": changed({})},
        r"'epoch' is no tensor but int.*torch.save\(model.state_dict\(\), PATH\)",
    ),
    "shared weights": (tied(), r"0.weight and 2.weight are one tensor.*cannot be rebased"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_mlp_is_refused(name):
    state_dict, sentence = REFUSED[name]
    with pytest.raises(UserError, match=sentence):
        read_layout(state_dict)


def test_what_the_sentences_advise_works():
    """Batch norm folded and parametrisations undone: the same function."""
    torch.manual_seed(0)
    inputs = torch.randn(9, 6)
    normed = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    normed(inputs)  # moves the running mean and variance away from 0 and 1
    normed.eval()
    folded = nn.utils.fusion.fuse_linear_bn_eval(normed[0], normed[1])
    fused = nn.Sequential(folded, nn.ReLU(), normed[3])
    parametrised = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), nn.ReLU(), nn.Linear(5, 3)
    )
    expected = parametrised(inputs)
    nn.utils.parametrize.remove_parametrizations(parametrised[0], "weight")
    for state_dict, outputs in (
        (fused.state_dict(), normed(inputs)),
        (parametrised.state_dict(), expected),
    ):
        layout = read_layout(state_dict)
        ours = layout.network.outputs(layout.flatten(state_dict), inputs)
        torch.testing.assert_close(ours, outputs)


def test_another_activation_is_refused():
    with pytest.raises(UserError, match="Unknown activation 'gelu'; choose one of relu, tanh"):
        read_layout(sequential(6, 5, 3).state_dict(), "gelu")


# ---- files


def save(path, net) -> str:
    torch.save(net.state_dict() if isinstance(net, nn.Module) else net, path)
    return path


def test_files_are_read_in_their_order(tmp_path):
    nets = [sequential(6, 5, 3), sequential(6, 5, 3).double(), sequential(6, 5, 3)]
    paths = [save(tmp_path / f"{k}.pt", net) for k, net in enumerate(nets)]
    layout, weights = read_networks(paths)
    assert weights.dtype == torch.float64
    assert set(layout.dtypes.values()) == {torch.float32}
    for net, row in zip(nets, weights, strict=True):
        parameters = nn.utils.parameters_to_vector(net.double().parameters())
        assert torch.equal(row, parameters.detach())


def test_mistakes_in_files_name_the_file(tmp_path):
    good = save(tmp_path / "good.pt", sequential(6, 5, 3))
    wide = save(tmp_path / "wide.pt", sequential(6, 7, 3))
    with pytest.raises(UserError, match=r"wide.pt: This is a network 6-7-3, not 6-5-3"):
        read_networks([good, wide])
    bad = save(tmp_path / "bad.pt", with_nan())
    with pytest.raises(UserError, match=r"bad.pt: 0.weight has entries that are NaN"):
        read_networks([good, bad])
    with pytest.raises(UserError, match=r"Cannot read .*nowhere.pt: No such file"):
        read_networks([good, tmp_path / "nowhere.pt"])
    with pytest.raises(UserError, match=r"Cannot read .*: Is a directory"):
        read_networks([tmp_path])


class RunsCode:
    """Unpickled, it would make a directory."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_files_of_other_things_are_refused_and_no_code_is_run(tmp_path):
    torch.save(sequential(6, 5, 3), tmp_path / "module.pt")
    torch.save({"0.weight": RunsCode(tmp_path / "made")}, tmp_path / "code.pt")
    (tmp_path / "text.pt").write_text("no tensors here")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "half.pt").write_bytes((tmp_path / "module.pt").read_bytes()[:500])
    (tmp_path / "bytes.pt").write_bytes(b"junk")
    (tmp_path / "line.pt").write_bytes(b"0")
    for name in ("module", "code", "text", "empty", "half", "bytes", "line"):
        with pytest.raises(UserError, match=rf"{name}.pt is not a file of tensors alone: write"):
            read_state_dict(tmp_path / f"{name}.pt")
    assert not (tmp_path / "made").exists()


def test_safetensors_files_are_read_in_the_order_of_their_layers(tmp_path):
    """Their names are sorted: layer 10 comes before layer 2, and biases before weights."""
    layers = [torch.nn.Linear(4, 4) if k % 2 == 0 else torch.nn.ReLU() for k in range(11)]
    module = torch.nn.Sequential(*layers)
    with open(tmp_path / "a.safetensors", "wb") as file:
        write_tensors(file, module.state_dict())
    state_dict = read_state_dict(tmp_path / "a.safetensors")
    assert list(state_dict) == list(module.state_dict())
    layout = read_layout(state_dict)
    inputs = torch.randn(5, 4)
    outputs = layout.network.outputs(layout.flatten(state_dict), inputs)
    torch.testing.assert_close(outputs, module(inputs).detach())
