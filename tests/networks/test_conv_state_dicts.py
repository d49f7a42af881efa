"""state_dicts of convolutional networks: to flat vectors and back, by name or by order."""

from collections import OrderedDict

from tests.networks.conv_networks import SMALL, drawn_weights, small
from utils.networks.mlp import MLP
from utils.networks.state_dicts import default_layout, read_layout, read_networks
from utils.settings.errors import UserError

import pytest
import torch


def state_dict_of(name, seed=0) -> dict:
    network = small(name)
    return default_layout(network).state_dict(drawn_weights(network, seed, torch.float32))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_there_and_back_is_exact(name, prefix, dtype):
    """The module's own state_dict, in its order and types, counters of batches included."""
    torch.manual_seed(0)
    module = SMALL[name][1]().to(dtype)
    state_dict = {prefix + key: tensor for key, tensor in module.state_dict().items()}
    layout = read_layout(state_dict, network=small(name))
    weights = layout.flatten(state_dict)
    assert len(weights) == small(name).num_weights
    back = layout.state_dict(weights)
    assert list(back) == list(state_dict)
    assert all(torch.equal(back[key], tensor) for key, tensor in state_dict.items())
    assert all(back[key].dtype == tensor.dtype for key, tensor in state_dict.items())


@pytest.mark.parametrize("name", SMALL)
def test_the_default_layout_has_the_modules_names(name):
    SMALL[name][1]().load_state_dict(state_dict_of(name), strict=True)


def test_other_names_are_taken_by_order():
    """torchvision calls the shortcut downsample and the last layer fc."""
    ours = state_dict_of("resnet18")
    renamed = OrderedDict(
        (key.replace("shortcut", "downsample").replace("linear", "fc"), tensor)
        for key, tensor in ours.items()
    )
    network = small("resnet18")
    layout = read_layout(renamed, network=network)
    weights = layout.flatten(renamed)
    assert torch.equal(weights, default_layout(network).flatten(ours))
    assert list(layout.state_dict(weights)) == list(renamed)


def changed(name, key, value) -> dict:
    return state_dict_of(name) | {key: value}


REFUSED = {
    "another network": (
        "lenet", state_dict_of("optunet"), "This is not a state_dict of lenet.*no conv1.bias",
    ),
    "another width": (
        "lenet", changed("lenet", "fc1.weight", torch.zeros(60, 9)),
        r"fc1.weight has the shape \[60, 9\], but lenet of width 3 for .* needs \[60, 8\]",
    ),
    "a tensor too many": (
        "optunet", changed("optunet", "fc2.weight", torch.zeros(3)),
        "not a state_dict of optunet",
    ),
    "not finite": (
        "optunet", changed("optunet", "fc.bias", torch.full((10,), torch.nan)),
        r"fc.bias has entries that are NaN or infinite \(10\)",
    ),
    "whole numbers": (
        "optunet", changed("optunet", "fc.bias", torch.zeros(10, dtype=torch.int64)),
        "fc.bias is of torch.int64",
    ),
    "a checkpoint": (
        "optunet", {"epoch": 3, "model": state_dict_of("optunet")}, "the state_dict in it alone",
    ),
    "an MLP": ("optunet", {"0.weight": torch.zeros(3, 4)}, "no conv1.weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    network, state_dict, sentence = REFUSED[name]
    with pytest.raises(UserError, match=sentence):
        read_layout(state_dict, network=small(network))


def test_an_mlp_is_refused_where_another_one_is_expected():
    layers = {"0.weight": torch.zeros(3, 4), "0.bias": torch.zeros(3)}
    assert read_layout(layers, network=MLP((4, 3))).network == MLP((4, 3))
    with pytest.raises(UserError, match="This is a network 4-3, not 5-3"):
        read_layout(layers, network=MLP((5, 3)))


def test_files_of_a_network(tmp_path):
    paths = [tmp_path / f"{seed}.pt" for seed in (1, 2)]
    for seed, path in enumerate(paths, start=1):
        torch.save(state_dict_of("optunet", seed), path)
    _, stack = read_networks(paths, network=small("optunet"))
    expected = [drawn_weights(small("optunet"), seed, torch.float32) for seed in (1, 2)]
    assert torch.equal(stack, torch.stack(expected))
