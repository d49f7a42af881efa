"""Further ways of rebasin: by what units are matched, and to what.

Samples are rebased to the first of them, to their mean, which is iterated until it rests, or to the
order in which they are most similar, with no reference. Every way is described by the variance that
it leaves and by its cycle error: the share of units that do not return to their place if one sample
is matched to another directly, and then back through the common order.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from utils.evaluation.alignment import Aligned, RebasedSamples, align_again, spaced_positions
from utils.symmetry.consensus import consensus
from utils.symmetry.matching import make_matcher
from utils.symmetry.rebasin import iterated_mean
from utils.symmetry.transformation import Transformation

import torch
from torch import Tensor

FIRST, MEAN, NONE = "first", "mean", "none"


class Way(NamedTuple):
    matching: str  # one of matching.METHODS
    reference: str  # FIRST, MEAN or NONE
    title: str


WAYS = {
    "contribution": Way("contribution", FIRST, "by contribution, to the first"),
    "contribution_to_mean": Way("contribution", MEAN, "by contribution, to their mean"),
    "consensus": Way("contribution", NONE, "by contribution, no reference"),
}


@dataclass(frozen=True)
class WayAligned:
    """Samples rebased in a way; iterated ways also have rounds, and come to rest or not."""

    aligned: Aligned
    rounds: int | None = None
    at_rest: bool | None = None


@dataclass(frozen=True)
class WayLimits:
    images: Tensor  # training images to match on
    consensus_images: int  # of these, for matching without a reference
    max_rounds: int
    study_samples: int  # that the mean is found from
    num_blocks: int  # of moments


def align_in_way(
    way: Way, rebased: RebasedSamples, reference: Tensor, limits: WayLimits,
    on_sample: Callable[[], None] = lambda: None,
) -> WayAligned:  # fmt: skip
    """Rebase samples, which may be rebased already; transformations are of the original ones."""
    network, rounds, at_rest = rebased.network, None, None

    def matcher_for(weights: Tensor):
        return make_matcher(way.matching, network, weights, limits.images)

    if way.reference == NONE:
        images = limits.images[: limits.consensus_images]
        common = consensus(network, rebased, images, way.matching, limits.max_rounds)
        rounds, at_rest, moves = common.rounds, common.at_rest, iter(common.transformations)
        reference = common.transformations[0].apply(reference)  # the first sample in that order

        def find(weights: Tensor) -> Transformation:
            return next(moves)
    else:
        if way.reference == MEAN:
            some = list(rebased.spaced(limits.study_samples))
            mean = iterated_mean(network, some, matcher_for, limits.max_rounds)
            reference, rounds, at_rest = mean.weights, mean.rounds, mean.at_rest
        matcher = matcher_for(reference)

        def find(weights: Tensor) -> Transformation:
            return matcher(weights).transformation

    aligned = align_again(network, rebased, find, reference, limits.num_blocks, on_sample)
    return WayAligned(aligned, rounds, at_rest)


def describe_way(
    samples, matching: str, way: WayAligned, direct_variance: Tensor, mask: Tensor,
    images: Tensor, num_pairs: int,
) -> dict:  # fmt: skip
    """Return what a way leaves, over the masked weights: its cycle error and how it ended."""
    variance = way.aligned.rebased().variance()[mask].sum() / direct_variance[mask].sum()
    errors = cycle_errors(samples, way.aligned, matching, images, num_pairs)
    return {
        "remaining_variance": variance.item(),
        "cycle_error": errors.mean().item(),
        "cycle_error_se": (errors.std() / len(errors) ** 0.5).item(),
        "rounds": way.rounds,
        "at_rest": way.at_rest,
    }


def cycle_errors(
    samples, aligned: Aligned, matching: str, images: Tensor, num_pairs: int
) -> Tensor:
    """Return for some pairs of samples the share of units that direct matching puts elsewhere."""
    positions, shares = spaced_positions(len(samples), num_pairs + 1), []
    for first, second in itertools.pairwise(positions):
        pair = [samples[position].to(images.device) for position in (first, second)]
        direct = make_matcher(matching, aligned.network, pair[0], images)(pair[1]).transformation
        shares.append(share_elsewhere(direct, _through(aligned, second, first)))
    return torch.tensor(shares, dtype=torch.float64)


def _through(aligned: Aligned, source: int, target: int) -> Transformation:
    """Return how one sample moves to the order of another, through the common order."""
    moves = aligned.transformations
    return moves[source].then(moves[target].inverse())


def share_elsewhere(first: Transformation, second: Transformation) -> float:
    """Return the share of units that two transformations move to different places."""
    return (first.to_row() != second.to_row()).double().mean().item()
