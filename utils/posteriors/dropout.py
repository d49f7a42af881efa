"""Monte Carlo dropout: one network of which every draw leaves out random hidden units.

A unit is dropped with probability p, its rate. Its outgoing weights are 0 then, else they are
multiplied by 1/(1 − p). That is the same as multiplying the unit's activation, so draws are weight
vectors like all others, and prediction knows nothing of dropout (Gal and Ghahramani 2016). The
average of draws is the network itself.

A unit of a convolution is a channel with all of its positions. The channels of a residual stream
are dropped for everything that reads them, in all blocks of their stage alike. Units that others
lie within, such as the blocks of OptuNet, are not dropped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from utils.networks.network import Network, Slot
from utils.posteriors.samples import save_kind
from utils.runs.files import save_arrays
from utils.symmetry.transformation import Transformation, line_up

import torch
from torch import Tensor

Rates = dict[str, float]  # of groups of units; groups that are absent are kept


@dataclass(frozen=True)
class DropoutMasks:
    """The weights [d] with random units dropped."""

    weights: Tensor
    rates: Rates
    network: Network

    @property
    def mean(self) -> Tensor:
        return self.weights

    def draw(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        for _ in range(count):
            weights = self.weights.clone()
            multiply_outgoing(
                self.network, weights, draw_factors(self.network, self.rates, generator)
            )
            yield weights

    def moved(self, transformation: Transformation) -> "DropoutMasks":
        """Move the weights; units are dropped independently, whatever their place and scale."""
        return replace(
            self, weights=transformation.apply(self.weights), network=transformation.network
        )

    def save(self, directory: Path) -> None:
        """Write dropout.npz: weights [d], and the rate of each of the network's groups."""
        rates = [self.rates.get(name, 0.0) for name in self.network.groups]
        save_arrays(directory / "dropout.npz", weights=self.weights, rates=rates)
        save_kind(directory, "DropoutMasks", self.network)


def droppable_groups(network: Network, last: bool = False) -> list[str]:
    """Return the groups of units that can be dropped, or only those that the last layer reads."""
    parents = {group.within for group in network.groups.values()}
    return [
        name
        for name in network.groups
        if name not in parents
        and any(not last or slot.axes[0] is None for slot, _ in outgoing(network, name))
    ]


def outgoing(network: Network, name: str) -> list[tuple[Slot, int]]:
    """Return the slots with a group's outgoing weights, and the axis of its units in each."""
    places = [(slot, slot.axes.index(name)) for slot in network.slots_of(name)]
    return [(slot, axis) for slot, axis in places if slot.powers[axis] < 0]


def draw_factors(
    network: Network, rates: Rates, generator: torch.Generator, stack: tuple[int, ...] = ()
) -> dict[str, Tensor]:
    """Draw what units are multiplied by, 0 or 1/(1 − p): [*units] by group, or [K, *units]."""
    factors = {}
    for name, rate in rates.items():
        kept = torch.rand(*stack, *network.units(name), generator=generator) >= rate
        factors[name] = kept / (1 - rate)
    return factors


def multiply_outgoing(network: Network, weights: Tensor, factors: dict[str, Tensor]) -> None:
    """Multiply the outgoing weights of units in [d] or [K, d], in place.

    The same turns the gradient by these products into that by the weights.
    """
    for name, each in factors.items():
        for slot, axis in outgoing(network, name):
            slot.of(weights).mul_(line_up(network, slot, axis, each.to(weights)))
