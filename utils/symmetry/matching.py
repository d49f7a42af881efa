"""Rebasin: find the permutation that aligns a network's hidden units to those of a reference.

A matcher is built for a reference and called with the weights of the network to be moved:

    ActivationMatcher   units that respond alike to the images: max Σ_i Σ_n a_i(n) b_π(i)(n)
    WeightMatcher       units with like weights, incoming, bias and outgoing: max ⟨W_ref, π(W)⟩,
                        which is min ‖W_ref − π(W)‖ (Ainsworth et al. 2023, Git Re-Basin)
    CosineMatcher       units whose incoming weight vectors point the same way

`rebase` moves the network and makes sure that its function stayed what it was.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from utils.networks.mlp import Network, hidden_activations, layer_outputs, logits
from utils.networks.predictions import CHUNK_ROWS
from utils.runs.errors import UserError
from utils.runs.seeding import generator
from utils.symmetry.permutation import (
    Permutation,
    compose,
    hidden_sizes,
    identity,
    permute_weights,
)

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

METHODS = ("activation", "weight", "cosine")

# Sums Σ_n a(n) b(n) over images in fp32 are good to about this, relative to ‖a‖ ‖b‖: similarities
# that differ by less are equal as far as the data can tell.
RESOLUTION = 1e-6
# A step of the descent must gain more than float64 can lose, or it could go round in circles.
LEAST_GAIN = 1e-12
# Logits in float64 may change by this, relative to their size: rounding, from another order of
# summation.
SAME_FUNCTION = 1e-9


@dataclass(frozen=True)
class Matching:
    """The permutation that aligns a network, and what the images left open, over all its layers.

    Only matching by activation counts that.
    """

    permutation: Permutation
    dead: int | None = None  # units of the network that no image activates
    reference_dead: int | None = None  # units of the reference that none activates
    tied: int | None = None  # living units that respond to the reference just as another one does
    reference_tied: int | None = None  # such units of the reference, beside the network


Matcher = Callable[[Tensor], Matching]


def make_matcher(method: str, network: Network, reference: Tensor, images: Tensor) -> Matcher:
    """The matcher of one of METHODS; only matching by activation looks at the images."""
    if method not in METHODS:
        raise UserError(f"There is no matching by {method!r}; there is: {', '.join(METHODS)}.")
    if method == "activation":
        return ActivationMatcher(network, reference, images)
    return {"weight": WeightMatcher, "cosine": CosineMatcher}[method](network, reference)


# ---- by activation


@dataclass(frozen=True)
class Stack:
    """Networks of one architecture, computed one after the other."""

    network: Network
    weights: Tensor  # [K, d]

    def outputs(self, rows: Tensor) -> Iterator[list[Tensor]]:
        """Hidden activations and logits of each network on some images."""
        return (layer_outputs(self.network, weights, rows) for weights in self.weights)


class ActivationMatcher:
    """Matches networks to a reference whose activations are computed once and kept.

    Units compared this way are compared whatever the order of the units below them, so every
    hidden layer is an assignment problem of its own, and its solution is exact. What the images
    cannot decide, where dead units go and which of several equal ones, the cosine of the incoming
    weights does: a network is matched to itself by the identity, and to its permuted copy by
    the permutation, even so. Images are cast to the precision of the weights.
    """

    def __init__(self, network: Network, reference: Tensor, images: Tensor):
        self.network, self.reference, self.images = network, reference, images
        sizes = hidden_sizes(network)
        self._activations = [
            images.new_empty(len(images), size, dtype=reference.dtype) for size in sizes
        ]
        for rows, kept in self._chunks():
            values = hidden_activations(network, reference, rows.to(reference.dtype))
            for target, layer_values in zip(kept, values, strict=True):
                target.copy_(layer_values)
        self._squares = [
            sum(_squares(chunk) for chunk in layer.split(CHUNK_ROWS)) for layer in self._activations
        ]

    def __call__(self, weights: Tensor) -> Matching:
        return self.match_all(Stack(self.network, weights[None]))[0]

    def match_all(self, networks) -> list[Matching]:
        """Match each of several networks: a `Stack`, or another with its two attributes."""
        sizes, device = hidden_sizes(self.network), self.images.device
        comparisons = [[_Comparison(size, device) for size in sizes] for _ in networks.weights]
        for rows, references in self._chunks():
            rows = rows.to(networks.weights.dtype)
            for layers, outputs in zip(comparisons, networks.outputs(rows), strict=True):
                for comparison, reference, values in zip(
                    layers, references, outputs[:-1], strict=True
                ):
                    comparison.add(reference, values)
        pairs = zip(networks.weights, comparisons, strict=True)
        return [self._match(weights, layers) for weights, layers in pairs]

    def _chunks(self) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Some images, and views of what is kept of the reference's activations on them."""
        for start in range(0, len(self.images), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            yield self.images[chunk], [layer[chunk] for layer in self._activations]

    def _match(self, weights: Tensor, comparisons: list["_Comparison"]) -> Matching:
        permutation, below = [], None
        layers = zip(self.network.layers(self.reference), self.network.layers(weights), strict=True)
        measured = zip(self._squares, comparisons, strict=True)
        for ((reference, _), (weight, _)), (squares, comparison) in zip(
            layers, measured, strict=False
        ):
            resolution = _resolution(squares.sqrt(), comparison.squares.sqrt())
            tie_break = resolution * _cosines(reference, weight, below)
            below = _assign(comparison.similarity + tie_break)
            permutation.append(below)
        return Matching(
            permutation,
            dead=sum(_num_dead(comparison.squares) for comparison in comparisons),
            reference_dead=sum(_num_dead(squares) for squares in self._squares),
            tied=sum(_num_tied(each.similarity, each.squares) for each in comparisons),
            reference_tied=sum(
                _num_tied(each.similarity.T, squares)
                for each, squares in zip(comparisons, self._squares, strict=True)
            ),
        )


class _Comparison:
    """How one layer's units respond beside the reference's, gathered chunk by chunk of images."""

    def __init__(self, size: int, device: torch.device):
        self.similarity = torch.zeros(size, size, dtype=torch.float64, device=device)
        self.squares = torch.zeros(size, dtype=torch.float64, device=device)  # Σ_n b_j(n)²

    def add(self, reference: Tensor, values: Tensor) -> None:
        """Products over a chunk are made in fp32; their sum Σ_n a_i(n) b_j(n) is in float64."""
        self.similarity += reference.T @ values.to(reference.dtype)
        self.squares += _squares(values)


def _squares(values: Tensor) -> Tensor:
    """Σ_n b_j(n)² of every unit j over a chunk of images."""
    return values.square().sum(0).double()


def _num_dead(squares: Tensor) -> int:
    return int((squares == 0).sum())


def _num_tied(similarity: Tensor, squares: Tensor) -> int:
    """How many living units, the columns, have the same similarities, to rounding, as another."""
    columns = similarity[:, squares > 0]
    products = columns.T @ columns
    lengths = products.diagonal()
    squared_distances = lengths[:, None] + lengths - 2 * products
    equal = squared_distances <= RESOLUTION**2 * lengths
    return int((equal.sum(1) > 1).sum())


def _resolution(first: Tensor, second: Tensor) -> Tensor | float:
    """By how much similarities [n, n] of units of these lengths ‖a‖, ‖b‖ must differ to count.

    Dead units have no length: they count as much as the faintest of the others, so that their
    tie-break decides among them and takes no place from the living.
    """
    if not (first.any() and second.any()):
        return 1.0  # with a dead layer the tie-break is all there is
    first, second = (lengths.clamp(min=lengths[lengths != 0].min()) for lengths in (first, second))
    return RESOLUTION * torch.outer(first, second)


# ---- by weight


class Step(NamedTuple):
    """Where the coordinate descent is after a step."""

    permutation: Permutation
    objective: float


class WeightMatcher:
    """Maximises ⟨W_ref, π(W)⟩ over all weights and biases, one hidden layer at a time.

    Given the permutations of its neighbours, a layer's is an assignment problem. With one hidden
    layer that is all; with several, layers take turns at random until none of them can gain
    anything. That is a local optimum, so the best of several ends counts: from the identity, from
    the matching by cosines, and from `restarts` random permutations of what that leads to. All
    but the first begin at the same network whatever the order its hidden units come in; the
    identity begins at the network as it comes, and is there so that matching never worsens it.
    """

    def __init__(self, network: Network, reference: Tensor, restarts: int = 3, seed: int = 0):
        self.network, self.reference = network, reference
        self.restarts, self.seed = restarts, seed
        self._layers = network.layers(reference.double())

    def __call__(self, weights: Tensor) -> Matching:
        ends = []
        for number, start in enumerate(self._starts(weights)):
            random = generator(self.seed, "weight_matching_order", number)
            *_, end = self.descend(weights, start, random)
            ends.append(end)
        return Matching(max(ends, key=lambda end: end.objective).permutation)

    def _starts(self, weights: Tensor) -> Iterator[Permutation]:
        yield identity(self.network)
        sizes = hidden_sizes(self.network)
        if len(sizes) <= 1:
            return  # every start leads to the one best assignment
        by_cosines = CosineMatcher(self.network, self.reference)(weights).permutation
        yield by_cosines
        for number in range(self.restarts):
            random = generator(self.seed, "weight_matching_start", number)
            drawn = [torch.randperm(size, generator=random) for size in sizes]
            yield compose(by_cosines, drawn)

    def descend(
        self, weights: Tensor, start: Permutation, random: torch.Generator
    ) -> Iterator[Step]:
        """The start, then every step that gained something."""
        layers = self.network.layers(weights.double())
        permutation, objective = start, self._objective(layers, start)
        yield Step(permutation, objective)
        waiting = set(range(len(permutation)))  # layers that may gain something
        while waiting:
            drawn = torch.randint(len(waiting), (), generator=random).item()
            layer = sorted(waiting)[drawn]
            similarity = self._similarity(layers, permutation, layer)
            best = _assign(similarity)
            places = torch.arange(len(best))
            gain = (similarity[places, best] - similarity[places, permutation[layer]]).sum().item()
            # This is the best beside these neighbours: it waits again once one of them moves.
            waiting.remove(layer)
            if gain > LEAST_GAIN * similarity.abs().max().item() * len(best):
                permutation = [*permutation[:layer], best, *permutation[layer + 1 :]]
                objective += gain
                waiting |= {layer - 1, layer + 1} & set(range(len(permutation)))
                yield Step(permutation, objective)

    def _objective(self, layers: list[tuple[Tensor, Tensor]], permutation: Permutation) -> float:
        total, below = 0.0, slice(None)
        moved = zip(self._layers, layers, [*permutation, slice(None)], strict=True)
        for (reference, reference_bias), (weight, bias), perm in moved:
            total += (reference * weight[perm][:, below]).sum() + reference_bias @ bias[perm]
            below = perm
        return float(total)

    def _similarity(
        self, layers: list[tuple[Tensor, Tensor]], permutation: Permutation, layer: int
    ) -> Tensor:
        """What putting unit j to place i of this layer adds to the objective, [n, n]."""
        below = permutation[layer - 1] if layer else slice(None)
        above = permutation[layer + 1] if layer + 1 < len(permutation) else slice(None)
        (incoming, bias), (outgoing, _) = layers[layer : layer + 2]
        (ref_incoming, ref_bias), (ref_outgoing, _) = self._layers[layer : layer + 2]
        similarity = ref_incoming @ incoming[:, below].T
        similarity += torch.outer(ref_bias, bias)
        return similarity.addmm_(ref_outgoing.T, outgoing[above])


class CosineMatcher:
    """Compares the directions of incoming weight vectors, layer by layer from the input on."""

    def __init__(self, network: Network, reference: Tensor):
        self.network, self._reference = network, network.layers(reference)

    def __call__(self, weights: Tensor) -> Matching:
        permutation, below = [], None
        layers = list(zip(self._reference, self.network.layers(weights), strict=True))
        for (reference, _), (weight, _) in layers[:-1]:
            below = _assign(_cosines(reference, weight, below))
            permutation.append(below)
        return Matching(permutation)


def _cosines(reference: Tensor, weight: Tensor, below: Tensor | None) -> Tensor:
    """Cosines [n, n] of the rows of two weight matrices, the second's inputs moved by `below`."""
    if below is not None:
        weight = weight[:, below]
    normalize = torch.nn.functional.normalize
    return normalize(reference.double(), dim=1) @ normalize(weight.double(), dim=1).T


def _assign(similarity: Tensor) -> Tensor:
    """The assignment perm [n] of units to places that maximises Σ_i similarity[i, perm[i]]."""
    _check_finite(similarity)
    _, units = linear_sum_assignment(similarity.cpu().numpy(), maximize=True)
    return torch.from_numpy(units)


def _check_finite(values: Tensor) -> None:
    if not values.isfinite().all():
        raise UserError(
            "These networks cannot be matched: their weights, or the activations they give, are "
            "not all finite numbers."
        )


# ---- moving networks


class Rebased(NamedTuple):
    weights: Tensor  # [d]
    matching: Matching


def rebase(network: Network, weights: Tensor, matcher: Matcher) -> Rebased:
    """The network with its hidden units where they match the matcher's reference best."""
    _check_finite(weights)  # not every weight takes part in the matching
    matching = matcher(weights)
    return Rebased(move(network, weights, matching.permutation), matching)


def move(network: Network, weights: Tensor, permutation: Permutation) -> Tensor:
    """The network with its hidden units in their new places, and its function as it was."""
    moved = permute_weights(network, weights, permutation)
    check_same_function(network, weights, moved)
    return moved


def rebase_all(network: Network, samples: Iterable[Tensor], matcher: Matcher) -> Iterator[Rebased]:
    """Rebase networks one after the other, in the memory of one."""
    return (rebase(network, weights, matcher) for weights in samples)


def check_same_function(network: Network, before: Tensor, after: Tensor) -> None:
    """Compare the two networks' logits, in float64, on a few random inputs, and their units.

    Inputs have both signs, so that a unit which is dead on one of them is hardly so on all. What
    is done to a unit that is dead on all of them shows in the weights that meet there.
    """
    random = generator(0, "probe_inputs")
    probe = torch.randn(16, network.sizes[0], generator=random, dtype=torch.float64)
    pair = torch.stack([before, after]).double()
    old, new = logits(network, pair, probe.to(pair.device))
    change = (new - old).abs().max().item()
    if not change <= SAME_FUNCTION * (1 + old.abs().max().item()):
        raise AssertionError(f"A permutation changed the network's logits by {change}.")
    for number, (units, moved) in enumerate(_unit_sums(network, pair), start=1):
        if not torch.equal(units, moved):
            raise AssertionError(f"A permutation took a unit of hidden layer {number} apart.")


def _unit_sums(network: Network, weights: Tensor) -> Iterator[Tensor]:
    """For every hidden layer the sums [K, n] of all weights and the bias of each unit, sorted.

    What is summed are float64's bits as whole numbers: exact, whatever the order.
    """
    for (incoming, bias), (outgoing, _) in itertools.pairwise(
        network.layers(weights.view(torch.int64))
    ):
        yield (incoming.sum(-1) + bias + outgoing.sum(-2)).sort(-1).values


# ---- references


class IteratedMean(NamedTuple):
    weights: Tensor  # [d]
    rounds: int
    still: bool  # whether it had stopped moving by the last round


def mean_weights(samples: Iterable[Tensor]) -> Tensor:
    """The mean of weight vectors, summed in float64, in their own precision."""
    total, count = 0, 0
    for weights in samples:
        total = total + weights.double()
        count += 1
    if not count:
        raise UserError("There is no mean of no samples.")
    return (total / count).to(weights.dtype)


def iterated_mean(
    network: Network,
    samples: Iterable[Tensor],
    matcher_for: Callable[[Tensor], Matcher],
    max_rounds: int = 20,
) -> IteratedMean:
    """Rebase all samples to their mean, take the mean of what results, and so on until it rests.

    The samples are gone through once a round; `matcher_for(reference)` makes the matchers.
    """
    if isinstance(samples, Iterator):
        raise UserError(
            "The samples are gone through once a round, but a generator only once: give a list."
        )
    reference, still, rounds = mean_weights(samples), False, 0
    while not still and rounds < max_rounds:
        rebased = rebase_all(network, samples, matcher_for(reference))
        updated = mean_weights(moved.weights for moved in rebased)
        still = bool((updated - reference).norm() <= RESOLUTION * reference.norm())
        reference, rounds = updated, rounds + 1
    return IteratedMean(reference, rounds, still)
