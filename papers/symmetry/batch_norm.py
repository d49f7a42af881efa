"""With batch normalisation there is no minimum mass: convolutions before it can be ever smaller.

It divides what a convolution returns by its deviation, so a convolution can be multiplied by any
λ > 0 if the running statistics are scaled with it, and its mass goes to 0 with λ².
"""

from typing import NamedTuple

from utils.networks.layers import BATCH_NORM_EPS
from utils.networks.network import Network
from utils.networks.registry import conv_network
from utils.runs.seeding import generator
from utils.symmetry.mass import mass

import torch
from torch import Tensor


class Shrinkage(NamedTuple):
    """What becomes of a network whose convolutions are multiplied by a factor."""

    network: str
    factor: float
    convolutions: tuple[float, float]  # their mass before and after
    others: float  # mass of all other weights
    change: float  # of the outputs, relative to how much these vary over images


def shrink_network(factor: float = 0.01, seed: int = 0) -> Shrinkage:
    """Shrink the convolutions of a small ResNet-18 with random weights and running variances."""
    network = conv_network("resnet18", (3, 8, 8), width=4)
    random = generator(seed, "batch norm")
    weights = network.initial_weights(random).double()
    for slot in network.slots:
        if slot.name.endswith("running_var"):
            uniform = torch.rand(slot.shape, generator=random, dtype=torch.float64)
            slot.of(weights).copy_(0.5 + uniform)
    images = torch.randn(20, 3, 8, 8, generator=random, dtype=torch.float64)
    shrunk = shrink_convolutions(network, weights, factor)
    before, after = (network.outputs(each, images) for each in (weights, shrunk))
    total, convolutions = mass(network, weights).item(), mass_of_convolutions(network, weights)
    return Shrinkage(
        str(network), factor, (convolutions, mass_of_convolutions(network, shrunk)),
        total - convolutions, ((after - before).abs().max() / before.std(0).min()).item(),
    )  # fmt: skip


def shrink_convolutions(network: Network, weights: Tensor, factor: float) -> Tensor:
    """Return weights with all convolutions times a factor, and statistics that undo it.

    Each convolution has a batch normalisation behind it. Its variance v + ε is multiplied by
    factor²; v itself stays positive if that is more than ε / (v + ε).
    """
    weights = weights.clone()
    for slot in network.slots:
        values = slot.of(weights)
        if len(slot.shape) == 4 or slot.name.endswith("running_mean"):
            values.mul_(factor)
        elif slot.name.endswith("running_var"):
            values.add_(BATCH_NORM_EPS).mul_(factor**2).sub_(BATCH_NORM_EPS)
    return weights


def mass_of_convolutions(network: Network, weights: Tensor) -> float:
    slots = [slot for slot in network.slots if len(slot.shape) == 4]
    return sum(slot.of(weights).square().sum().item() for slot in slots)
