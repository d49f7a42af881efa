"""Pruning networks: in which order weights are kept, and what is left of the accuracy.

An order ranks weights, the first to be kept; keeping X % of them sets the others to zero, on a
copy. As every mask takes the first of the same ranking, masks are nested. Chance is the average
over several random orders.
"""

from collections.abc import Callable, Sequence

from utils.evaluation.metrics import accuracy
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.gaussian import Gaussian

import torch
from torch import Tensor

KEPT_PERCENT = (100, 90, 80, 70, 60, 50, 40, 30, 20, 10, 5, 1)  # as in the paper's Figure 5
LOSSES = (0.01, 0.05)  # of accuracy, at which the sparsity reached is told
NUM_RANDOM = 10  # orders


def orders(posterior: Gaussian, random: torch.Generator) -> dict[str, list[Tensor]]:
    """Weights [d] in the order in which they are kept, by each criterion; several at random."""
    mean = posterior.mean.abs()
    return {
        "std": [by_std(posterior.std)],
        "abs_mean": [mean.argsort(descending=True, stable=True)],
        "signal_to_noise": [by_signal_to_noise(posterior)],
        "random": [
            torch.randperm(len(mean), generator=random).to(mean.device) for _ in range(NUM_RANDOM)
        ],
    }


def by_std(std: Tensor) -> Tensor:
    """The most certain weights first: the paper's order."""
    return std.argsort(stable=True)


def by_signal_to_noise(posterior: Gaussian) -> Tensor:
    """Weights that are surely not zero first; where all σ are 0, those of largest |μ|."""
    mean, std = posterior.mean.double().abs(), posterior.std.double()
    smallest = torch.finfo(torch.float32).tiny  # for σ of 0, where all samples agree
    return (mean / std.clamp(min=smallest)).argsort(descending=True, stable=True)


def without(order: Tensor, excluded: Tensor) -> Tensor:
    """The order of the weights that the mask [d] does not exclude."""
    return order[~excluded[order]]


def prune(weights: Tensor, order: Tensor, share: float) -> Tensor:
    """A copy in which all but the first `share` of the order are zero.

    What is not in the order stays as it is.
    """
    pruned = weights.clone()
    pruned[order[round(share * len(order)) :]] = 0
    return pruned


def accuracy_curve(
    network: Network,
    weights: Tensor,
    order: Tensor,
    images: Tensor,
    labels: Tensor,
    on_point: Callable[[], None] = lambda: None,
) -> list[float]:
    """Accuracy with each of KEPT_PERCENT of the weights in the order kept."""
    curve = []
    for percent in KEPT_PERCENT:
        pruned = prune(weights, order, percent / 100)
        curve.append(accuracy(class_probabilities(network, pruned, images), labels))
        on_point()
    return curve


def sparsity_at(curve: Sequence[float], loss: float) -> float:
    """Share of weights set to zero when this much accuracy is lost, on a line between points.

    Accuracy that falls and comes back does not count.
    """
    bound = curve[0] - loss
    zeros = [1 - percent / 100 for percent in KEPT_PERCENT]
    for point in range(1, len(curve)):
        if curve[point] < bound:
            way = (curve[point - 1] - bound) / (curve[point - 1] - curve[point])
            return zeros[point - 1] + way * (zeros[point] - zeros[point - 1])
    return zeros[-1]
