"""Match hidden units by what they do on images: their activations, or contributions to logits."""

from collections.abc import Iterator
from dataclasses import dataclass

from utils.networks.network import Network
from utils.rebasin.assignment import Matching, assign_all
from utils.rebasin.contributions import contributions, head_weights, heads_of
from utils.rebasin.weight_matching import CosineMatcher
from utils.symmetry.transformation import Transformation, has_signs, numbered

import torch
from torch import Tensor

# Sums Σ_n a(n) b(n) over images in fp32 are good to about this, relative to ‖a‖ ‖b‖: similarities
# that differ by less are equal as far as the data can tell.
RESOLUTION = 1e-6
# The reference's activations are kept if they need less memory than this, else computed again.
KEPT_BYTES = 2e9


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
        counts = [each.counts() for each in comparisons.values()]
        return Matching(aligned, *map(sum, zip((0, 0, 0, 0), *counts, strict=True)))


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
        each = zip(networks.weights, contributed, responded, strict=True)
        return [
            self.match(weights, comparisons, {n: one.similarity for n, one in signed.items()})
            for weights, comparisons, signed in each
        ]


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

    def counts(self) -> tuple[int, int, int, int]:
        """Return how many units are dead, the reference's, and how many are tied, likewise."""
        ours, references = self.squares, self.reference_squares
        dead = [int((squares == 0).sum()) for squares in (ours, references)]
        return *dead, _num_tied(self.similarity, ours), _num_tied(self.similarity.T, references)


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
