"""Match hidden units by their weights: all of them, or the directions of those that come in."""

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from utils.networks.network import Network
from utils.rebasin.assignment import Matching, assign_all, children_of, place, reached_similarity
from utils.runs.seeding import generator
from utils.symmetry.transformation import Transformation, incoming_slots, units_first

import torch
from torch import Tensor

# A step of the descent must gain more than float64 can lose, or it could go round in circles.
LEAST_GAIN = 1e-12
# Arrangements of whole blocks of units that matching by weight tries, one after the other.
MOST_ARRANGEMENTS = 24


class DescentStep(NamedTuple):
    """Where the coordinate descent is after a step."""

    transformation: Transformation
    objective: float


class WeightMatcher:
    """Maximises ⟨W_ref, π(W)⟩ over all weights and biases, one group of units at a time.

    Given the permutations of its neighbours, a group's is an assignment problem. With one group
    that is all. With several, groups take turns at random until none of them can gain anything.
    That is a local optimum, so the best of several ends counts: from the identity, from the
    matching by cosines, and from `restarts` random permutations of what that leads to. All but the
    first begin at the same network whatever the order its hidden units come in; the identity begins
    at the network as it is, so matching never worsens it. Whole blocks of nested units are arranged
    in every possible way, if there are few.
    """

    def __init__(self, network: Network, reference: Tensor, restarts: int = 3):
        self.network, self.reference = network, reference.double()
        self.restarts = restarts
        self._free = [name for name in network.groups if not children_of(network, name)]
        self._outer = [name for name in network.groups if children_of(network, name)]

    def __call__(self, weights: Tensor) -> Matching:
        ends = []
        for number, start in enumerate(self._starts(weights)):
            random = generator(0, "weight_matching_order", number)
            *_, end = self.descend(weights, start, random)
            ends.append(end)
        return Matching(max(ends, key=lambda end: end.objective).transformation)

    def _starts(self, weights: Tensor) -> Iterator[Transformation]:
        yield from self._arrangements()
        if len(self.network.groups) <= 1:
            return  # every start leads to the one best assignment
        by_cosines = CosineMatcher(self.network, self.reference)(weights).transformation
        yield by_cosines
        for number in range(self.restarts):
            random = generator(0, "weight_matching_start", number)
            drawn = Transformation(self.network)
            for name in self._free:
                *parents, size = self.network.units(name)
                count = math.prod(parents)
                rows = [torch.randperm(size, generator=random) for _ in range(count)]
                drawn.permutations[name] = torch.stack(rows).reshape(*parents, size)
            yield by_cosines.then(drawn)

    def _arrangements(self) -> Iterator[Transformation]:
        """Yield the identity, and all other orders of whole blocks of units."""
        orders = [
            itertools.permutations(range(self.network.groups[name].size)) for name in self._outer
        ]
        for chosen in itertools.islice(itertools.product(*orders), MOST_ARRANGEMENTS):
            perms = map(torch.tensor, chosen)
            yield Transformation(self.network, dict(zip(self._outer, perms, strict=True)))

    def descend(
        self, weights: Tensor, start: Transformation, random: torch.Generator
    ) -> Iterator[DescentStep]:
        """Yield the start, then every step that gained something."""
        weights = weights.double()
        now, objective = start, float(self.reference @ start.apply(weights))
        yield DescentStep(now, objective)
        waiting = set(range(len(self._free)))  # groups that may gain something
        while waiting:
            drawn = torch.randint(len(waiting), (), generator=random).item()
            number = sorted(waiting)[drawn]
            name = self._free[number]
            similarity = self._similarity(weights, now, name)  # [*parents, n, n]
            then = Transformation(self.network, dict(now.permutations), signs=dict(now.signs))
            place(then, name, similarity)
            chosen, before = (reached_similarity(similarity, each, name) for each in (then, now))
            gain = (chosen - before).sum().item()
            # This is the best beside these neighbours: it waits again once one of them moves.
            waiting.remove(number)
            if gain > LEAST_GAIN * similarity.abs().max().item() * chosen.numel():
                now = then
                objective += gain
                beside = {each for slot in self.network.slots_of(name) for each in slot.axes}
                waiting |= {k for k, other in enumerate(self._free) if other in beside}
                waiting.discard(number)
                yield DescentStep(now, objective)

    def _similarity(self, weights: Tensor, now: Transformation, name: str) -> Tensor:
        """Return what putting unit j to place i of this group adds to the objective."""
        parts = (
            {other: each for other, each in part.items() if other != name}
            for part in (now.permutations, {}, now.signs)
        )
        moved, total = Transformation(self.network, *parts), 0
        for slot in self.network.slots_of(name):
            ours = moved.apply_to_slot(slot, slot.of(weights))
            reference = units_first(self.network, slot, slot.of(self.reference), name)
            total = total + reference @ units_first(self.network, slot, ours, name).mT
        return total


class CosineMatcher:
    """Compares the directions of incoming weight vectors, group by group from the input on."""

    def __init__(self, network: Network, reference: Tensor):
        self.network, self._reference = network, reference

    def __call__(self, weights: Tensor) -> Matching:
        return Matching(assign_all(self.network, partial(self.similarity, weights)))

    def similarity(self, weights: Tensor, aligned: Transformation, name: str) -> Tensor:
        """Return cosines [*parents, n, n] of incoming weights, whose inputs are aligned already.

        Weights that come from units which are not aligned yet do not count.
        """
        settled = {name, *aligned.permutations, None}
        slots = [slot for slot in incoming_slots(self.network, name) if settled >= set(slot.axes)]
        if not slots:
            units = self.network.units(name)
            return torch.zeros(*units, units[-1], dtype=torch.float64)

        def directions(tensors: list[Tensor]) -> Tensor:
            pairs = zip(slots, tensors, strict=True)
            rows = [units_first(self.network, slot, each.double(), name) for slot, each in pairs]
            return torch.nn.functional.normalize(torch.cat(rows, -1), dim=-1)

        ours = [aligned.apply_to_slot(slot, slot.of(weights)) for slot in slots]
        return directions([slot.of(self._reference) for slot in slots]) @ directions(ours).mT
