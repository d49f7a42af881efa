"""Move networks to where a normal form puts them, and prove that they compute what they did.

A normal form maps weights to an element of the symmetry group; `matching` has those that align a
network to a reference.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from utils.networks.network import Network
from utils.rebasin.assignment import Matcher, Matching, check_finite
from utils.rebasin.response_matching import RESOLUTION
from utils.settings.errors import UserError
from utils.symmetry.transformation import Transformation, check_same_function, check_same_units

from torch import Tensor


class Rebased(NamedTuple):
    weights: Tensor  # [d]
    matching: Matching


def rebase(network: Network, weights: Tensor, matcher: Matcher) -> Rebased:
    """Move a network's hidden units to where they match the matcher's reference best."""
    check_finite(weights)  # not every weight takes part in the matching
    matching = matcher(weights)
    return Rebased(move(weights, matching.transformation), matching)


def rebase_all(network: Network, samples: Iterable[Tensor], matcher: Matcher) -> Iterator[Rebased]:
    """Rebase networks one after the other, in the memory of one."""
    return (rebase(network, weights, matcher) for weights in samples)


def move(weights: Tensor, transformation: Transformation) -> Tensor:
    """Transform a network and check that it computes what it did."""
    moved = transformation.apply(weights)
    check_same_function(transformation.network, weights, moved)
    if not (transformation.log_scales or transformation.signs):
        check_same_units(transformation.network, weights, moved)
    return moved


# ---- references


def mean_weights(samples: Iterable[Tensor]) -> Tensor:
    """Return the mean of weight vectors, summed in float64, in their own precision."""
    total, count = 0, 0
    for weights in samples:
        total = total + weights.double()
        count += 1
    if not count:
        raise UserError("There is no mean of no samples.")
    return (total / count).to(weights.dtype)


class IteratedMean(NamedTuple):
    weights: Tensor  # [d]
    rounds: int
    at_rest: bool  # else it was stopped after the last round


def iterated_mean(
    network: Network,
    samples: Sequence[Tensor],
    matcher_for: Callable[[Tensor], Matcher],
    max_rounds: int = 20,
) -> IteratedMean:
    """Rebase all samples to their mean, take the mean of the result, and repeat until it rests.

    Every round goes through the samples once; `matcher_for(reference)` makes the matchers.
    """
    reference = mean_weights(samples)
    for number in range(1, max_rounds + 1):
        rebased = rebase_all(network, samples, matcher_for(reference))
        before, reference = reference, mean_weights(moved.weights for moved in rebased)
        if (reference - before).norm() <= RESOLUTION * before.norm():
            return IteratedMean(reference, number, True)
    return IteratedMean(reference, max_rounds, False)
