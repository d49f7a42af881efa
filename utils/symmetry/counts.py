"""Count the symmetries of a network, and the transpositions that random ones take."""

import math
from typing import NamedTuple

from utils.networks.network import RELU, TANH, Network
from utils.symmetry.permutation import expected_transpositions, transpositions_deviation


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


class Chance(NamedTuple):
    """NoT of uniformly random permutations of all units, over all groups."""

    mean: float
    deviation: float


def chance_transpositions(network: Network) -> Chance:
    """Return mean and standard deviation of NoT by chance.

    Of n units NoT is n less the number of cycles. A cycle of units that others lie within is a
    permutation of each kind of these, as random as any, so its number of cycles is added.
    """

    def cycles(name: str) -> tuple[float, float]:
        """Return mean and variance for a group within one unit, with all that lies within it."""
        size = network.groups[name].size
        within = [cycles(other) for other, group in network.groups.items() if group.within == name]
        mean, variance = size - expected_transpositions(size), transpositions_deviation(size) ** 2
        of_each = 1 + sum(each for each, _ in within)
        spread = sum(spread for _, spread in within)
        return mean * of_each, mean * spread + variance * of_each**2

    outermost = [cycles(name) for name, group in network.groups.items() if not group.within]
    means = (expected_transpositions(*network.units(name)) for name in network.groups)
    return Chance(sum(means), sum(variance for _, variance in outermost) ** 0.5)
