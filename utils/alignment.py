"""One pass over posterior samples: what they predict, and their moments before and after rebasin."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from utils.compact import Compact, LowRankFit, Moments, block_of, merge_all, no_moments
from utils.evaluation import Column, PartAverages
from utils.matching import Matcher, Matching, Rebased, rebase
from utils.mlp import Network
from utils.permutation import Permutation, permute_weights
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
        _enter(aligned.direct_blocks, block, weights)
        _enter(aligned.rebased_blocks, block, moved)
        aligned.permutations.append(matching.permutation)
        aligned.watched_direct.append(weights[watched])
        aligned.watched_rebased.append(moved[watched])
        if low_rank:
            low_rank.add(moved)
        on_sample(aligned)
    aligned.column = parts.column()
    return aligned


def _rebase(
    network: Network, weights: Tensor, matcher: Matcher, permutation: Permutation | None
) -> Rebased:
    if permutation is None:
        return rebase(network, weights, matcher)
    return Rebased(permute_weights(network, weights, permutation), Matching(permutation))


def _enter(blocks: list[Moments], block: int, weights: Tensor) -> None:
    if block == len(blocks):
        blocks.append(no_moments(weights))
    blocks[block] = blocks[block].add(weights)
