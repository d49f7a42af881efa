"""One pass over posterior samples: predictions, and moments before and after rebasin."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from utils.evaluation.columns import Column, PartAverages
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.compact import Compact
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRankFit
from utils.posteriors.moments import Moments, block_of, enter_block, merge_all
from utils.symmetry.matching import Matcher, Matching
from utils.symmetry.rebasin import Rebased, move, rebase
from utils.symmetry.transformation import Transformation, from_row

import numpy as np
import torch
from torch import Tensor


class Aligned:
    """What a pass gathers about samples, one after the other.

    What is kept of each goes into tensors that are there from the start: small pieces of memory
    that are taken between large ones keep the large ones from being used again.
    """

    def __init__(self, network: Network, reference: Tensor, num_samples: int, num_watched: int = 0):
        self.network, self.reference = network, reference
        self.column: Column | None = None
        self.direct_blocks: list[Moments] = []
        self.rebased_blocks: list[Moments] = []
        self.done = 0
        num_units = len(Transformation(network).to_row())
        self._permutations = torch.zeros(num_samples, num_units, dtype=torch.long)
        self._watched = torch.zeros(2, num_samples, num_watched)

    def enter(self, transformation: Transformation, before: Tensor, after: Tensor) -> None:
        """Add the next sample's transformation, and its watched weights before and after it."""
        self._permutations[self.done] = transformation.to_row()
        self._watched[0, self.done], self._watched[1, self.done] = before, after
        self.done += 1

    @property
    def permutation_rows(self) -> Tensor:
        """[samples so far, all hidden units]: those of several layers one after the other."""
        return self._permutations[: self.done]

    @property
    def transformations(self) -> list[Transformation]:
        """Of the samples so far."""
        return [from_row(self.network, row) for row in self.permutation_rows]

    def rebased(self) -> Gaussian:
        """q_r"""
        return merge_all(self.rebased_blocks).gaussian()

    def watched(self) -> dict[str, np.ndarray]:
        """Values [samples, watched] of the watched weights, before and after rebasin."""
        return dict(zip(("before", "after"), self._watched.numpy(), strict=True))

    def compact(self) -> Compact:
        return Compact(self.rebased(), self.transformations, self.reference)


def align(
    network: Network,
    samples,
    matcher: Matcher,
    reference: Tensor,
    test_images: Tensor,
    num_blocks: int,
    watched: Tensor,
    low_rank: LowRankFit | None = None,
    known: Sequence[Transformation] = (),
    on_sample: Callable[[Aligned], None] = lambda aligned: None,
) -> Aligned:
    """Rebase samples one after the other and gather everything about them.

    `watched` are indices of weights whose values are kept for every sample. The transformations of
    the first samples may be `known` already, as when an interrupted pass is made again.
    """
    aligned = Aligned(network, reference, len(samples), len(watched))
    parts = PartAverages(len(samples), num_blocks)
    device = test_images.device
    for position in range(len(samples)):
        weights = samples[position].to(device)
        transformation = known[position] if position < len(known) else None
        moved, matching = _rebase(network, weights, matcher, transformation)
        parts.add(class_probabilities(network, weights, test_images))
        block = block_of(position, len(samples), num_blocks)
        enter_block(aligned.direct_blocks, block, weights)
        enter_block(aligned.rebased_blocks, block, moved)
        aligned.enter(matching.transformation, weights[watched], moved[watched])
        if low_rank:
            low_rank.add(moved)
        on_sample(aligned)
    aligned.column = parts.column()
    return aligned


def align_again(
    network: Network,
    rebased: "RebasedSamples",
    matcher: Matcher,
    reference: Tensor,
    num_blocks: int,
    on_sample: Callable[[], None],
) -> Aligned:
    """Rebased samples, rebased to another reference; permutations are from the original ones."""
    aligned = Aligned(network, reference, len(rebased))
    for position, weights in enumerate(rebased):
        moved, matching = rebase(network, weights, matcher)
        block = block_of(position, len(rebased), num_blocks)
        enter_block(aligned.rebased_blocks, block, moved)
        first, nothing = rebased.transformations[position], weights[:0]
        aligned.enter(first.then(matching.transformation), nothing, nothing)
        on_sample()
    return aligned


def _rebase(
    network: Network, weights: Tensor, matcher: Matcher, transformation: Transformation | None
) -> Rebased:
    if transformation is None:
        return rebase(network, weights, matcher)
    return Rebased(move(weights, transformation), Matching(transformation))


@dataclass(frozen=True)
class RebasedSamples:
    """Samples as their permutations move them, read from the disk as often as they are needed."""

    network: Network
    samples: Sequence[Tensor]
    transformations: list[Transformation]
    device: torch.device

    def __len__(self) -> int:
        return len(self.transformations)

    def __iter__(self) -> Iterator[Tensor]:
        for position, transformation in enumerate(self.transformations):
            yield transformation.apply(self.samples[position].to(self.device))

    def spaced(self, count: int) -> "RebasedSamples":
        """At most so many of them, evenly spaced."""
        chosen = spaced_positions(len(self), count)
        samples = [self.samples[position] for position in chosen]
        transformations = [self.transformations[position] for position in chosen]
        return RebasedSamples(self.network, samples, transformations, self.device)


def spaced_positions(length: int, count: int) -> list[int]:
    """At most `count` positions in 0 … length − 1, evenly spaced, with both ends."""
    return np.linspace(0, length - 1, min(length, count)).round().astype(int).tolist()


def spaced_references(samples: np.ndarray, count: int) -> list[int]:
    """At most `count` positions of samples [K, numbers], and of few different ones at most half."""
    different = len({row.tobytes() for row in samples})
    return spaced_positions(len(samples), min(count, max(different // 2, 1)))


def spaced_beside(references: list[int], samples: np.ndarray, count: int) -> list[int]:
    """Such positions of samples [K, numbers] that are no references; none if one alone is left.

    A sample lies on itself: the mean of K samples would resemble a reference among them by 1 / √K,
    even if they had nothing in common. So do the copies that a chain leaves of it when it rejects.
    """
    taken = {samples[position].tobytes() for position in references}
    others = [position for position, row in enumerate(samples) if row.tobytes() not in taken]
    if len(others) < 2:
        return []  # one sample has no deviation
    return [others[position] for position in spaced_positions(len(others), count)]
