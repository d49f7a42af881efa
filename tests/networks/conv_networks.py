"""Convolutional networks small enough for tests, each with its torch.nn counterpart."""

from tests.networks import torch_modules
from utils.networks.network import Network
from utils.networks.registry import conv_network
from utils.runs.seeding import generator

import torch
from torch import Tensor

SMALL = {
    "optunet": (lambda: conv_network("optunet", (1, 20, 19)), torch_modules.OptuNet),
    "lenet": (
        lambda: conv_network("lenet", (2, 16, 16), width=3),
        lambda: torch_modules.LeNet(2, 1, 3),
    ),
    "resnet8_frn": (
        lambda: conv_network("resnet8_frn", (3, 8, 8), width=4),
        lambda: torch_modules.frn_resnet(1, 4),
    ),
    "resnet20_frn": (
        lambda: conv_network("resnet20_frn", (3, 8, 8), width=3),
        lambda: torch_modules.frn_resnet(3, 3),
    ),
    "resnet18": (
        lambda: conv_network("resnet18", (3, 8, 8), width=4),
        lambda: torch_modules.resnet18(4),
    ),
}


def small(name: str) -> Network:
    return SMALL[name][0]()


def drawn_weights(network: Network, seed: int = 0, dtype=torch.float64) -> Tensor:
    """Draw weights of which no two are equal: parameters of norms and statistics vary, too."""
    random = generator(seed, "weights")
    weights = network.initial_weights(random).to(dtype)
    for slot in network.slots:
        if not slot.bound:
            values = slot.of(weights)
            values += 0.5 * torch.rand(values.shape, generator=random, dtype=dtype) - 0.2
    return weights


def drawn_images(network: Network, count: int, seed: int = 0, dtype=torch.float64) -> Tensor:
    shape = (count, *network.input_shape)
    return torch.randn(shape, generator=generator(seed, "images"), dtype=dtype)
