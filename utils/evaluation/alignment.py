"""One pass over posterior samples: predictions, and moments before and after rebasin."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from utils.evaluation.columns import Column, PartAverages
from utils.networks.mlp import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.compact import (
    Compact,
    LowRankFit,
    Moments,
    block_of,
    enter_block,
    merge_all,
)
from utils.posteriors.gaussian import GaussianPosterior
from utils.symmetry.matching import Matcher, Matching, Rebased, move, rebase
from utils.symmetry.permutation import Permutation, compose, hidden_sizes, permute_weights

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
        self._permutations = torch.zeros(num_samples, sum(hidden_sizes(network)), dtype=torch.long)
        self._watched = torch.zeros(2, num_samples, num_watched)

    def enter(self, permutation: Permutation, before: Tensor, after: Tensor) -> None:
        """The next sample's permutation, and its watched weights before and after it."""
        self._permutations[self.done] = torch.cat(permutation)
        self._watched[0, self.done], self._watched[1, self.done] = before, after
        self.done += 1

    @property
    def permutation_rows(self) -> Tensor:
        """[samples so far, all hidden units]: those of several layers one after the other."""
        return self._permutations[: self.done]

    @property
    def permutations(self) -> list[Permutation]:
        """Of the samples so far."""
        sizes = hidden_sizes(self.network)
        return [list(row.split(sizes)) for row in self.permutation_rows]

    def rebased(self) -> GaussianPosterior:
        """q_r"""
        return merge_all(self.rebased_blocks).gaussian()

    def watched(self) -> dict[str, np.ndarray]:
        """Values [samples, watched] of the watched weights, before and after rebasin."""
        return dict(zip(("before", "after"), self._watched.numpy(), strict=True))

    def compact(self) -> Compact:
        return Compact(self.rebased(), self.permutations, self.reference)


def align(
    network: Network,
    samples,
    matcher: Matcher,
    reference: Tensor,
    test_images: Tensor,
    num_blocks: int,
    watched: Tensor,
    low_rank: LowRankFit | None = None,
    known: list[Permutation] = (),
    on_sample: Callable[[Aligned], None] = lambda aligned: None,
) -> Aligned:
    """Rebase samples one after the other and gather everything about them.

    `watched` are indices of weights whose values are kept for every sample. The permutations of
    the first samples may be `known` already, as when an interrupted pass is made again.
    """
    aligned = Aligned(network, reference, len(samples), len(watched))
    parts = PartAverages(len(samples), num_blocks)
    device = test_images.device
    for position in range(len(samples)):
        weights = samples[position].to(device)
        permutation = known[position] if position < len(known) else None
        moved, matching = _rebase(network, weights, matcher, permutation)
        parts.add(class_probabilities(network, weights, test_images))
        block = block_of(position, len(samples), num_blocks)
        enter_block(aligned.direct_blocks, block, weights)
        enter_block(aligned.rebased_blocks, block, moved)
        aligned.enter(matching.permutation, weights[watched], moved[watched])
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
        first, nothing = rebased.permutations[position], weights[:0]
        aligned.enter(compose(first, matching.permutation), nothing, nothing)
        on_sample()
    return aligned


def _rebase(
    network: Network, weights: Tensor, matcher: Matcher, permutation: Permutation | None
) -> Rebased:
    if permutation is None:
        return rebase(network, weights, matcher)
    return Rebased(move(network, weights, permutation), Matching(permutation))


@dataclass(frozen=True)
class RebasedSamples:
    """Samples as their permutations move them, read from the disk as often as they are needed."""

    network: Network
    samples: Sequence[Tensor]
    permutations: list[Permutation]
    device: torch.device

    def __len__(self) -> int:
        return len(self.permutations)

    def __iter__(self) -> Iterator[Tensor]:
        for position, permutation in enumerate(self.permutations):
            yield permute_weights(self.network, self.samples[position].to(self.device), permutation)

    def spaced(self, count: int) -> "RebasedSamples":
        """At most so many of them, evenly spaced."""
        chosen = spaced_positions(len(self), count)
        samples = [self.samples[position] for position in chosen]
        permutations = [self.permutations[position] for position in chosen]
        return RebasedSamples(self.network, samples, permutations, self.device)


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
