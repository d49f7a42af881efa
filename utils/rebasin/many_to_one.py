"""Let each unit of a reference take the most similar unit of a network, however often it is taken.

Unlike a permutation this changes the network's function: units that no place takes are lost. What
several places share goes out from each in equal parts.
"""

from dataclasses import dataclass, field

from utils.networks.network import TANH, Network
from utils.rebasin.response_matching import ActivationMatcher, Stack
from utils.symmetry.transformation import Transformation, numbered

import torch
from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """For each place of each group the unit that it takes, within its parents' units."""

    network: Network
    units: dict[str, Tensor]  # [*units of parents, size]
    signs: dict[str, Tensor] = field(default_factory=dict)  # ±1 of what each place takes, of tanh

    def apply(self, weights: Tensor) -> Tensor:
        """Return the network [d] of the selected units."""
        selection = Transformation(self.network, self.units)
        flips = Transformation(self.network, signs=self.signs)
        selected = torch.empty_like(weights)
        for slot in self.network.slots:
            tensor = selection.apply_to_slot(slot, slot.of(weights))
            tensor = flips.apply_to_slot(slot, tensor)
            for name, power in zip(slot.axes, slot.powers, strict=True):
                if power < 0:
                    shares = Transformation(self.network, log_scales={name: self._log_uses(name)})
                    tensor = shares.apply_to_slot(slot, tensor)
            slot.of(selected).copy_(tensor)
        return selected

    def lost(self) -> dict[str, int]:
        """Return how many units of each group no place takes."""
        return {
            name: units.numel()
            - sum(len(row.unique()) for row in units.reshape(-1, units.shape[-1]))
            for name, units in self.units.items()
        }

    def _log_uses(self, name: str) -> Tensor:
        """Return for each place the logarithm of how many places take its unit."""
        units = self.units[name]
        return (units.unsqueeze(-1) == units.unsqueeze(-2)).sum(-1).double().log()


def most_similar(matcher: ActivationMatcher, weights: Tensor) -> Selection:
    """Select for each unit of the reference the one whose response has the largest cosine with it.

    Units of tanh are taken with the sign that makes it larger. Blocks of nested units are matched
    one to one. A unit of the reference that no image activates keeps the unit that one-to-one
    matching gives it.
    """
    network = matcher.network
    comparisons = matcher.compare(Stack(network, weights[None]))[0]
    units = matcher.match(weights, comparisons).transformation.permutations
    signs = {}
    blocks = {name: perm for name, perm in units.items() if name not in comparisons}
    for name, comparison in comparisons.items():
        places = numbered(network, name)
        candidates = Transformation(network, blocks).follow(name, places)
        pairs = places.unsqueeze(-1), candidates.unsqueeze(-2)
        lengths = comparison.squares.sqrt().clamp(min=torch.finfo(torch.float64).tiny)
        cosines = comparison.similarity[pairs] / lengths[candidates].unsqueeze(-2)
        is_odd = network.groups[name].kind == TANH
        best = (cosines.abs() if is_odd else cosines).argmax(-1)
        if is_odd:
            taken = cosines.gather(-1, best.unsqueeze(-1)).squeeze(-1)
            signs[name] = torch.where(taken < 0, -1, 1)
        dead = comparison.reference_squares[places] == 0
        units = units | {name: torch.where(dead, units[name], best)}
    return Selection(network, units, signs)
