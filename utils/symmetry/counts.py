"""Count the symmetries of a network, as its table of slots has them."""

import math
from typing import NamedTuple

from utils.networks.network import RELU, TANH, Network


class Symmetries(NamedTuple):
    """What can be done to the units of a group, or of all groups, without changing the function."""

    units: int
    log10_permutations: float
    scalings: int  # units with any positive scale
    signs: int  # units with a sign


def count_symmetries(network: Network) -> dict[str, Symmetries]:
    """Return the symmetries of each group.

    A nested group has a set of units for each unit of its parent, and each set is permuted alone.
    """
    counts = {}
    for name, group in network.groups.items():
        units = math.prod(network.units(name))
        log10_factorial = math.lgamma(group.size + 1) / math.log(10)
        counts[name] = Symmetries(
            units,
            units // group.size * log10_factorial,
            units if group.kind == RELU else 0,
            units if group.kind == TANH else 0,
        )
    return counts


def total(counts: dict[str, Symmetries]) -> Symmetries:
    """Return the symmetries of all groups together."""
    return Symmetries(*map(sum, zip(Symmetries(0, 0.0, 0, 0), *counts.values(), strict=True)))
