"""The gradient of small MLPs in C beside float64 autograd."""

import shutil

from utils.methods.hmc.potential import Potential
from utils.networks.mlp import MLP
from utils.networks.native.small_mlp import (
    MOST_IMAGES,
    MOST_UNITS,
    SmallMLPGradient,
    small_mlp_gradient,
)

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")


def problem(pixels: int, units: int, classes: int, count: int, scale: float = 1.0):
    """Draw a network, images with three dead pixels, labels and weights."""
    random = torch.Generator().manual_seed(pixels + units + count)
    network = MLP((pixels, units, classes))
    images = torch.rand(count, pixels, generator=random)
    images[:, [0, 7, pixels - 1]] = 0
    labels = torch.randint(classes, (count,), generator=random)
    return network, images, labels, scale * torch.randn(network.num_weights, generator=random)


# Sizes that fill blocks of 8 units, 16 lanes and 32 columns, or leave a rest.
@pytest.mark.parametrize(
    ("pixels", "units", "classes", "count"),
    [(66, 8, 10, 2), (34, 16, 16, 30), (70, 3, 7, 13), (50, 17, 2, 1), (98, MOST_UNITS, 10, 101)],
)
@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])  # at 100 most probabilities round to 0 or 1
def test_it_is_that_of_autograd(pixels, units, classes, count, scale):
    network, images, labels, weights = problem(pixels, units, classes, count, scale)
    gradient = torch.full_like(weights, torch.nan)
    nll = small_mlp_gradient(network, images, labels)(weights, gradient)
    exact = weights.double().requires_grad_()
    logits = network.outputs(exact, images.double())
    expected = F.cross_entropy(logits, labels, reduction="none")
    expected.sum().backward()
    rounding = 1e-6 * max(1, logits.abs().max().item())
    torch.testing.assert_close(nll, expected.detach().float(), rtol=1e-6, atol=rounding)
    rounding = 1e-6 * max(1, exact.grad.abs().max().item())
    torch.testing.assert_close(gradient, exact.grad.float(), rtol=1e-5, atol=rounding)
    dead = network.pixel_slot.of(gradient)[:, [0, 7, pixels - 1]]
    assert (dead == 0).all()


def test_weights_that_diverge_are_noticed():
    network, images, labels, weights = problem(40, 8, 10, 5)
    for value in (torch.nan, torch.inf, 1e30):
        weights[3] = value
        gradient = torch.empty_like(weights)
        nll = small_mlp_gradient(network, images, labels)(weights, gradient)
        assert not nll.sum() < 1e20


def test_a_dense_force_uses_it():
    network, images, labels, weights = problem(60, 8, 10, 40)
    potential = Potential(network, images, labels, "dense", temperature=2.0)
    other = Potential(network, images, labels, "active", temperature=2.0)
    assert isinstance(network.whole_gradient(images, labels), SmallMLPGradient)
    ours, theirs = potential.energy(weights), other.energy(weights)
    assert ours.nll == pytest.approx(theirs.nll, rel=1e-6)
    torch.testing.assert_close(ours.gradient, theirs.gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("network", "count", "dtype"),
    [
        (MLP((9, 8, 8, 3)), 5, torch.float32),
        (MLP((9, 8, 3), "tanh"), 5, torch.float32),
        (MLP((9, MOST_UNITS + 1, 3)), 5, torch.float32),
        (MLP((9, 8, 17)), 5, torch.float32),
        (MLP((9, 8, 3)), MOST_IMAGES + 1, torch.float32),
        (MLP((9, 8, 3)), 5, torch.float64),
    ],
)
def test_pytorch_computes_all_others(network, count, dtype):
    images, labels = torch.ones(count, 9, dtype=dtype), torch.zeros(count, dtype=torch.long)
    assert network.whole_gradient(images, labels) is None
