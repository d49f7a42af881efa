"""Jacobians from recorded layers beside those of a copy of the network per image, and autograd."""

from tests.networks.conv_networks import SMALL, drawn_images, drawn_weights, small
from utils.networks.jacobians import (
    is_linear,
    jacobians,
    jacobians_of_copies,
    linear_layers,
)
from utils.networks.mlp import MLP
from utils.networks.registry import conv_network

import pytest
import torch

NETWORKS = {name: small(name) for name in SMALL} | {
    "optunet whose pooling leaves no rest": conv_network("optunet"),
    "mlp": MLP((6, 5, 4, 3)),
    "silu": MLP((6, 5, 4, 3), "silu"),
    "no hidden units": MLP((6, 3)),
}
each = pytest.mark.parametrize("name", NETWORKS)


def mixed(logits: torch.Tensor) -> torch.Tensor:
    """Return directions [N, C, 2] that differ from image to image."""
    return torch.stack([logits.softmax(-1), logits], 2)


@each
def test_every_layer_has_the_slopes_of_copies(name):
    network = NETWORKS[name]
    weights, images = drawn_weights(network), drawn_images(network, 3)
    expected, logits = jacobians_of_copies(network, weights, images, mixed)
    torch.testing.assert_close(logits, network.outputs(weights, images))
    layers, _ = linear_layers(network, weights, images, mixed)
    for layer in layers:
        torch.testing.assert_close(layer.product(), expected[..., layer.places])
    torch.testing.assert_close(jacobians(network, weights, images, mixed)[0], expected)
    assert is_linear(network, layers) == (not name.startswith("resnet"))
    last, _ = jacobians(network, weights, images, mixed, only_last=True)
    places = layers[-1].places.flatten()
    torch.testing.assert_close(last[..., places], expected[..., places])
    assert last.count_nonzero() == last[..., places].count_nonzero()


@pytest.mark.parametrize("name", ["optunet", "resnet8_frn", "mlp"])
def test_copies_have_the_slopes_of_autograd(name):
    network = NETWORKS[name]
    weights, images = drawn_weights(network), drawn_images(network, 2)
    ours, _ = jacobians_of_copies(network, weights, images)
    expected = torch.autograd.functional.jacobian(lambda w: network.outputs(w, images), weights)
    torch.testing.assert_close(ours, expected)


def test_running_statistics_have_no_slope():
    network = NETWORKS["resnet18"]
    slopes, _ = jacobians(network, drawn_weights(network), drawn_images(network, 2))
    for slot in network.slots:
        assert (slot.of(slopes).abs().sum() == 0) == (slot.role == "buffer")
