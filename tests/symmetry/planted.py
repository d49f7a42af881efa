"""Permutations to be found again."""

import math

from utils.networks.network import Network
from utils.symmetry.transformation import Transformation

import torch


def any_permutation(network: Network, seed: int) -> Transformation:
    """Draw a permutation of every group's units, uniformly."""
    random, drawn = torch.Generator().manual_seed(seed), Transformation(network)
    for name in network.groups:
        *parents, size = network.units(name)
        rows = [torch.randperm(size, generator=random) for _ in range(math.prod(parents))]
        drawn.permutations[name] = torch.stack(rows).reshape(*parents, size)
    return drawn


def same(first: Transformation, second: Transformation) -> bool:
    return torch.equal(first.to_row(), second.to_row())
