"""One pass over posterior samples: predictions, and moments before and after rebasin."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from utils.compact import (
    Compact,
    LowRankFit,
    Moments,
    block_of,
    enter_block,
    merge_all,
)
from utils.evaluation import Column, PartAverages
from utils.matching import Matcher, Matching, Rebased, rebase
from utils.mlp import Network
from utils.permutation import Permutation, compose, permute_weights
from utils.predict import class_probabilities
from utils.vi import GaussianPosterior


@dataclass
class Aligned:
    """What the pass has gathered; lists have an entry per sample, or per block of them."""

    reference: Tensor  # [d]
    column: Column | None = None
    direct_blocks: list[Moments] = field(default_factory=list)
    rebased_blocks: list[Moments] = field(default_factory=list)
    permutations: list[Permutation] = field(default_factory=list)
    watched_direct: list[Tensor] = field(default_factory=list)  # [watched] of each sample
    watched_rebased: list[Tensor] = field(default_factory=list)

    def direct(self) -> GaussianPosterior:
        """q_d"""
        return merge_all(self.direct_blocks).gaussian()

    def rebased(self) -> GaussianPosterior:
        """q_r"""
        return merge_all(self.rebased_blocks).gaussian()

    def watched(self) -> dict[str, np.ndarray]:
        """Values [K, watched] of the watched weights, before and after rebasin."""
        pairs = {"before": self.watched_direct, "after": self.watched_rebased}
        return {name: torch.stack(rows).cpu().numpy() for name, rows in pairs.items()}

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
    aligned = Aligned(reference)
    parts = PartAverages(len(samples), num_blocks)
    device = test_images.device
    for position in range(len(samples)):
        weights = samples[position].to(device)
        permutation = known[position] if position < len(known) else None
        moved, matching = _rebase(network, weights, matcher, permutation)
        parts.add(class_probabilities(network, weights, test_images, torch.float64))
        block = block_of(position, len(samples), num_blocks)
        enter_block(aligned.direct_blocks, block, weights)
        enter_block(aligned.rebased_blocks, block, moved)
        aligned.permutations.append(matching.permutation)
        aligned.watched_direct.append(weights[watched])
        aligned.watched_rebased.append(moved[watched])
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
    aligned = Aligned(reference)
    for position, weights in enumerate(rebased):
        moved, matching = rebase(network, weights, matcher)
        block = block_of(position, len(rebased), num_blocks)
        enter_block(aligned.rebased_blocks, block, moved)
        first = rebased.permutations[position]
        aligned.permutations.append(compose(first, matching.permutation))
        on_sample()
    return aligned


def _rebase(
    network: Network, weights: Tensor, matcher: Matcher, permutation: Permutation | None
) -> Rebased:
    if permutation is None:
        return rebase(network, weights, matcher)
    return Rebased(permute_weights(network, weights, permutation), Matching(permutation))


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
