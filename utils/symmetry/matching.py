"""Find the permutation that aligns a network's hidden units to those of a reference.

A matcher is built for a reference and called with the weights of the network to be moved:

    ActivationMatcher   units that respond alike to the images: max Σ_i Σ_n a_i(n) b_π(i)(n)
    ContributionMatcher units that contribute alike to the logits of the images
    WeightMatcher       units with like weights, incoming, bias and outgoing: max ⟨W_ref, π(W)⟩,
                        which is min ‖W_ref − π(W)‖ (Ainsworth et al. 2023, Git Re-Basin)
    CosineMatcher       units whose incoming weight vectors point the same way

Units of tanh are matched together with their signs: all these similarities are linear in a unit's
sign, so the best sign is that of the similarity. Contributions do not depend on it; there the sign
is that of Σ_n a_i(n) b_π(i)(n).
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from utils.networks.network import TANH, Network
from utils.runs.errors import UserError
from utils.runs.seeding import generator
from utils.symmetry.contributions import contributions, head_weights, heads_of
from utils.symmetry.transformation import (
    Transformation,
    has_signs,
    incoming_slots,
    numbered,
    units_first,
)

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

METHODS = ("activation", "contribution", "weight", "cosine")

# Sums Σ_n a(n) b(n) over images in fp32 are good to about this, relative to ‖a‖ ‖b‖: similarities
# that differ by less are equal as far as the data can tell.
RESOLUTION = 1e-6
# A step of the descent must gain more than float64 can lose, or it could go round in circles.
LEAST_GAIN = 1e-12
# The reference's activations are kept if they need less memory than this, else computed again.
KEPT_BYTES = 2e9
# Arrangements of whole blocks of units that matching by weight tries, one after the other.
MOST_ARRANGEMENTS = 24


@dataclass(frozen=True)
class Matching:
    """The transformation that aligns a network, and what the images left open, over all groups.

    Only matching by activation or contribution counts the latter.
    """

    transformation: Transformation
    dead: int | None = None  # units of the network that no image activates
    reference_dead: int | None = None  # units of the reference that none activates
    tied: int | None = None  # living units that respond to the reference just as another one does
    reference_tied: int | None = None  # such units of the reference, beside the network


Matcher = Callable[[Tensor], Matching]


def make_matcher(method: str, network: Network, reference: Tensor, images: Tensor) -> Matcher:
    """Return the matcher of one of METHODS; the first two of them look at the images."""
    if method not in METHODS:
        raise UserError(f"There is no matching by {method!r}; choose from {', '.join(METHODS)}.")
    if method in RESPONSES:
        return RESPONSES[method](network, reference, images)
    return {"weight": WeightMatcher, "cosine": CosineMatcher}[method](network, reference)


# ---- by activation


@dataclass(frozen=True)
class Stack:
    """Networks of one architecture, computed one after the other."""

    network: Network
    weights: Tensor  # [K, d]

    def traces(self, rows: Tensor) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Yield activations and logits of each network on some images."""
        return (self.network.trace(weights, rows) for weights in self.weights)


class ActivationMatcher:
    """Matches networks to a reference by how units respond to images.

    Units compared this way are compared whatever the order of the units below them, so every
    group is an assignment problem of its own, and its solution is exact. The cosine of the incoming
    weights decides what the images cannot: where dead units go, and which of several equal ones.
    So a network is matched to itself by the identity, and to its permuted copy by the permutation.
    Images are cast to the precision of the weights, and pass through in chunks, so memory does not
    grow with images × units beyond KEPT_BYTES.
    """

    def __init__(self, network: Network, reference: Tensor, images: Tensor):
        self.network, self.reference, self.images = network, reference, images
        self._kept: list[dict[str, Tensor]] = []
        self._squares: dict[str, Tensor] = {}
        keeps = None
        for rows in images.split(network.chunk_rows):
            units = self._reference_units(rows)
            for name, values in units.items():
                self._squares[name] = self._squares.get(name, 0) + _squares(values)
            if keeps is None:
                chunk_bytes = sum(values.nbytes for values in units.values())
                keeps = chunk_bytes * len(images) / len(rows) < KEPT_BYTES
            if keeps:
                self._kept.append(units)

    def __call__(self, weights: Tensor) -> Matching:
        return self.match_all(Stack(self.network, weights[None]))[0]

    def match_all(self, networks) -> list[Matching]:
        """Match each of several networks: a `Stack`, or a `Line` between two."""
        pairs = zip(networks.weights, self.compare(networks), strict=True)
        return [self.match(weights, comparisons) for weights, comparisons in pairs]

    def compare(self, networks) -> list[dict[str, "Comparison"]]:
        """Return how the units of each of several networks respond, by group."""
        comparisons = [
            {name: Comparison(squares) for name, squares in self._squares.items()}
            for _ in networks.weights
        ]
        for rows, references in self._chunks():
            rows = rows.to(networks.weights.dtype)
            for groups, units in zip(comparisons, self._responses(networks, rows), strict=True):
                for name, values in units.items():
                    groups[name].add(references[name], values)
        return comparisons

    def _responses(self, networks, rows: Tensor) -> Iterator[dict[str, Tensor]]:
        """Yield how the units of each network respond to some images, [rows, units] by group."""
        for activations, _ in networks.traces(rows):
            yield unit_rows(self.network, activations)

    def _chunks(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield some images and the reference's activations on them."""
        for number, rows in enumerate(self.images.split(self.network.chunk_rows)):
            yield rows, self._kept[number] if self._kept else self._reference_units(rows)

    def _reference_units(self, rows: Tensor) -> dict[str, Tensor]:
        rows = rows.to(self.reference.dtype)
        return next(self._responses(Stack(self.network, self.reference[None]), rows))

    def match(
        self,
        weights: Tensor,
        comparisons: dict[str, "Comparison"],
        signed: dict[str, Tensor] | None = None,
    ) -> Matching:
        """Match one network, whose responses have been compared.

        The signs of tanh units are those of the `signed` similarities [all units, all units], which
        by default are those of the responses.
        """
        cosines = CosineMatcher(self.network, self.reference)

        def similarity(aligned: Transformation, name: str) -> Tensor:
            """Return Σ_n a_i(n) b_j(n) [*parents, n, n]; the cosine decides where it is equal."""
            units = numbered(self.network, name)
            if name not in comparisons:  # blocks of units may have no activations of their own
                return torch.zeros(len(units), len(units))
            comparison = comparisons[name]
            lengths = comparison.reference_squares.sqrt(), comparison.squares.sqrt()
            resolution = _resolution(*lengths)
            pairs = units.unsqueeze(-1), aligned.follow(name, units).unsqueeze(-2)
            tie_break = cosines.similarity(weights, aligned, name)
            return comparison.similarity[pairs] + resolution[pairs] * tie_break

        aligned = assign_all(self.network, similarity, signed)
        return Matching(
            aligned,
            dead=sum(_num_dead(each.squares) for each in comparisons.values()),
            reference_dead=sum(_num_dead(each.reference_squares) for each in comparisons.values()),
            tied=sum(_num_tied(each.similarity, each.squares) for each in comparisons.values()),
            reference_tied=sum(
                _num_tied(each.similarity.T, each.reference_squares)
                for each in comparisons.values()
            ),
        )


class ContributionMatcher(ActivationMatcher):
    """Matches networks to a reference by what units contribute to the logits.

    Neither signs nor scales of units matter, nor anything about other units, so every group is an
    assignment problem of its own here, too.
    """

    def __init__(self, network: Network, reference: Tensor, images: Tensor):
        self._heads, self._activations = heads_of(network, reference, images), None
        super().__init__(network, reference, images)
        for name, slot in self._heads.items():
            self._squares[name] = self._squares[name] * _head_squares(slot, reference)
        if has_signs(network):
            self._activations = ActivationMatcher(network, reference, images)

    def _responses(self, networks, rows: Tensor) -> Iterator[dict[str, Tensor]]:
        return (contributions(self.network, weights, rows) for weights in networks.weights)

    def compare(self, networks) -> list[dict[str, "Comparison"]]:
        """Return how the units of each of several networks contribute, by group."""
        comparisons = super().compare(networks)
        for weights, groups in zip(networks.weights, comparisons, strict=True):
            for name, slot in self._heads.items():
                ours, theirs = (head_weights(slot, each) for each in (self.reference, weights))
                groups[name].similarity *= ours.T @ theirs
                groups[name].squares *= _head_squares(slot, weights)
        return comparisons

    def match_all(self, networks) -> list[Matching]:
        if self._activations is None:
            return super().match_all(networks)
        contributed, responded = self.compare(networks), self._activations.compare(networks)
        return [
            self.match(weights, comparisons, {n: each.similarity for n, each in signed.items()})
            for weights, comparisons, signed in zip(
                networks.weights, contributed, responded, strict=True
            )
        ]


RESPONSES = {"activation": ActivationMatcher, "contribution": ContributionMatcher}


def _head_squares(slot, weights: Tensor) -> Tensor:
    """Return Σ_c v_jc² of every unit j."""
    return head_weights(slot, weights).square().sum(0)


class Comparison:
    """How a group's units respond beside the reference's, gathered chunk by chunk of images."""

    def __init__(self, reference_squares: Tensor):
        self.reference_squares = reference_squares  # Σ_n a_i(n)² over all images
        self.squares = torch.zeros_like(reference_squares)  # Σ_n b_j(n)²
        self.similarity = torch.outer(self.squares, self.squares)

    def add(self, reference: Tensor, values: Tensor) -> None:
        """Products over a chunk are made in fp32; their sum Σ_n a_i(n) b_j(n) is in float64."""
        self.similarity += reference.T @ values.to(reference.dtype)
        self.squares += _squares(values)


def unit_rows(network: Network, activations: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return activations as [images × positions, units]."""
    rows = {}
    for name, values in activations.items():
        levels = len(network.units(name))
        values = values.flatten(1, levels)
        rows[name] = values if values.dim() == 2 else values.flatten(2).mT.flatten(0, 1)
    return rows


def _squares(values: Tensor) -> Tensor:
    """Return Σ_n b_j(n)² of every unit j over a chunk of images."""
    return values.square().sum(0).double()


def _num_dead(squares: Tensor) -> int:
    return int((squares == 0).sum())


def _num_tied(similarity: Tensor, squares: Tensor) -> int:
    """Count the living units, the columns, with the same similarities, to rounding, as another."""
    columns = similarity[:, squares > 0]
    products = columns.T @ columns
    lengths = products.diagonal()
    squared_distances = lengths[:, None] + lengths - 2 * products
    equal = squared_distances <= RESOLUTION**2 * lengths
    return int((equal.sum(1) > 1).sum())


def _resolution(first: Tensor, second: Tensor) -> Tensor:
    """Return by how much similarities [n, n] of units of lengths ‖a‖, ‖b‖ must differ to count.

    Dead units have no length: they count as much as the faintest of the others, so that their
    tie-break decides among them and takes no place from the living.
    """
    if not (first.any() and second.any()):
        return torch.ones(()).expand(len(first), len(second))  # the tie-break decides everything
    first, second = (lengths.clamp(min=lengths[lengths != 0].min()) for lengths in (first, second))
    return RESOLUTION * torch.outer(first, second)


# ---- by weight


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

    def __init__(self, network: Network, reference: Tensor, restarts: int = 3, seed: int = 0):
        self.network, self.reference = network, reference.double()
        self.restarts, self.seed = restarts, seed
        self._free = [name for name in network.groups if not _children(network, name)]
        self._outer = [name for name in network.groups if _children(network, name)]

    def __call__(self, weights: Tensor) -> Matching:
        ends = []
        for number, start in enumerate(self._starts(weights)):
            random = generator(self.seed, "weight_matching_order", number)
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
            random = generator(self.seed, "weight_matching_start", number)
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
        now, objective = start, self._objective(weights, start)
        yield DescentStep(now, objective)
        waiting = set(range(len(self._free)))  # groups that may gain something
        while waiting:
            drawn = torch.randint(len(waiting), (), generator=random).item()
            number = sorted(waiting)[drawn]
            name = self._free[number]
            similarity = self._similarity(weights, now, name)  # [*parents, n, n]
            then = Transformation(self.network, dict(now.permutations), signs=dict(now.signs))
            _place(then, name, similarity)
            chosen, before = (_reached(similarity, each, name) for each in (then, now))
            gain = (chosen - before).sum().item()
            # This is the best beside these neighbours: it waits again once one of them moves.
            waiting.remove(number)
            if gain > LEAST_GAIN * similarity.abs().max().item() * chosen.numel():
                now = then
                objective += gain
                waiting |= {k for k, other in enumerate(self._free) if self._meet(name, other)}
                waiting.discard(number)
                yield DescentStep(now, objective)

    def _meet(self, first: str, second: str) -> bool:
        return any({first, second} <= set(slot.axes) for slot in self.network.slots)

    def _objective(self, weights: Tensor, transformation: Transformation) -> float:
        return float(self.reference @ transformation.apply(weights))

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
        return Matching(
            assign_all(self.network, lambda aligned, name: self.similarity(weights, aligned, name))
        )

    def similarity(self, weights: Tensor, aligned: Transformation, name: str) -> Tensor:
        """Return cosines [*parents, n, n] of incoming weights, whose inputs are aligned already.

        Weights that come from units which are not aligned yet do not count.
        """
        settled = {name, *aligned.permutations, None}
        slots = [slot for slot in incoming_slots(self.network, name) if settled >= set(slot.axes)]
        if not slots:
            units = self.network.units(name)
            return torch.zeros(*units, units[-1], dtype=torch.float64)
        pairs = [
            (slot.of(self._reference), aligned.apply_to_slot(slot, slot.of(weights)))
            for slot in slots
        ]
        reference, ours = (
            torch.cat(
                [units_first(self.network, slot, pair[part].double(), name)
                 for slot, pair in zip(slots, pairs, strict=True)], -1,
            )
            for part in (0, 1)
        )  # fmt: skip
        normalize = torch.nn.functional.normalize
        return normalize(reference, dim=-1) @ normalize(ours, dim=-1).mT


# ---- assignment problems


def assign(similarity: Tensor) -> Tensor:
    """Return the assignment perm [n] that maximises Σ_i similarity[i, perm[i]]."""
    check_finite(similarity)
    _, units = linear_sum_assignment(similarity.cpu().numpy(), maximize=True)
    return torch.from_numpy(units)


def _assign_each(similarity: Tensor) -> Tensor:
    """Return the best assignment [*parents, n] for every matrix of a stack [*parents, n, n]."""
    each = [assign(matrix) for matrix in similarity.reshape(-1, *similarity.shape[-2:])]
    return torch.stack(each).reshape(similarity.shape[:-1])


def check_finite(values: Tensor) -> None:
    if not values.isfinite().all():
        raise UserError(
            "These networks cannot be matched: their weights, or the activations they give, are "
            "not all finite numbers."
        )


def _children(network: Network, name: str) -> list[str]:
    return [other for other, group in network.groups.items() if group.within == name]


def _place(
    aligned: Transformation, name: str, similarity: Tensor, signed: Tensor | None = None
) -> None:
    """Put the units of a group where they are most similar [*parents, n, n], tanh units with signs.

    If signs do not matter to the similarity, they are those of another one, `signed`.
    """
    odd = aligned.network.groups[name].kind == TANH
    best = _assign_each(similarity.abs() if odd and signed is None else similarity)
    aligned.permutations[name] = best
    if odd:
        chosen = similarity if signed is None else signed
        chosen = chosen.take_along_dim(best.unsqueeze(-1).to(chosen.device), -1).squeeze(-1)
        flips = torch.where(chosen < 0, -1, 1).to(best.device)
        aligned.signs[name] = flips.gather(-1, best.argsort(-1))  # by the unit that is moved


def _reached(similarity: Tensor, aligned: Transformation, name: str) -> Tensor:
    """Return the similarity at every place, with the sign that its unit gets."""
    perm = aligned.permutation(name)
    reached = similarity.gather(-1, perm.unsqueeze(-1)).squeeze(-1)
    return reached * aligned.signs[name].gather(-1, perm) if name in aligned.signs else reached


def assign_all(
    network: Network,
    similarity: Callable[[Transformation, str], Tensor],
    signed: dict[str, Tensor] | None = None,
) -> Transformation:
    """Assign the units of all groups, from the input on.

    `similarity(aligned, name)` are those of a group's units [*parents, n, n] beside the units that
    are aligned already. Signs are those of `signed` similarities, if there are any.
    """
    _refuse_nested_signs(network)
    aligned = Transformation(network)
    for name in network.groups:
        if _children(network, name):
            _assign_blocks(aligned, name, similarity)
        elif not network.groups[name].within:
            _place(aligned, name, similarity(aligned, name), (signed or {}).get(name))
    return aligned


def _refuse_nested_signs(network: Network) -> None:
    for name, group in network.groups.items():
        if group.kind == TANH and (group.within or _children(network, name)):
            raise UserError(
                f"{network} cannot be matched: {name} are tanh units in blocks, whose signs "
                "matching does not find."
            )


def _assign_blocks(
    aligned: Transformation, name: str, similarity: Callable[[Transformation, str], Tensor]
) -> None:
    """Assign a group's units together with all units nested in them.

    Each shift of the blocks puts each beside another one; together they make all pairs. A pair is
    as similar as its blocks and the best assignments of the units nested in them.
    """
    network, children = aligned.network, _children(aligned.network, name)
    places = torch.arange(network.groups[name].size)
    blocks, trials = similarity(aligned, name).to("cpu", torch.float64, copy=True), []
    for shift in range(len(places)):
        units = (places + shift) % len(places)
        trial = Transformation(network, aligned.permutations | {name: units})
        for child in children:
            within = similarity(trial, child).cpu()
            perm = trial.permutations[child] = _assign_each(within)
            blocks[places, units] += within.take_along_dim(perm.unsqueeze(-1), -1).sum((-1, -2))
        trials.append(trial)
    chosen = assign(blocks)
    shifts = ((chosen - places) % len(places)).tolist()
    aligned.permutations[name] = chosen
    for child in children:
        rows = [trials[shift].permutations[child][place] for place, shift in enumerate(shifts)]
        aligned.permutations[child] = torch.stack(rows)
