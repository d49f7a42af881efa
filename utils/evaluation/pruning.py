"""Prune networks: in which order weights are kept, and what accuracy is left.

An order ranks weights, the first to be kept. Keeping X % of them sets the others to zero in a copy.
All masks of an order are nested. Chance is the average over several random orders.
"""

from collections.abc import Callable, Sequence

from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.gaussian import Gaussian

import numpy as np
import torch
from torch import Tensor

KEPT_PERCENT = (
    100, 99, 98, 97, 96, 95, 92.5, 90, 87.5, 85, 82.5, 80, 77.5, 75, 72.5, 70, 67.5, 65, 62.5, 60,
    57.5, 55, 52.5, 50, 47.5, 45, 42.5, 40, 35, 30, 25, 20, 15, 10, 7, 5, 4, 3, 2, 1,
)  # fmt: skip
# Where many curves are averaged or compared. It has the twelve points of the paper's Figure 5.
COARSE_PERCENT = (*range(100, 0, -5), 1)
LOSSES = (0.01, 0.05)  # of accuracy, for which the sparsity is reported
NUM_RANDOM = 10  # orders


def random_orders(like: Tensor, random: torch.Generator) -> list[Tensor]:
    """Return several orders of the weights of networks like this one."""
    count = len(like)
    return [torch.randperm(count, generator=random).to(like.device) for _ in range(NUM_RANDOM)]


def by_std(std: Tensor) -> Tensor:
    """Order weights by certainty, as the paper does."""
    return std.argsort(stable=True)


def by_signal_to_noise(posterior: Gaussian) -> Tensor:
    """Order weights by |μ|/σ; by |μ| if all σ are 0."""
    mean, std = posterior.mean.double().abs(), posterior.std.double()
    smallest = torch.finfo(torch.float32).tiny  # for σ of 0, where all samples agree
    return (mean / std.clamp(min=smallest)).argsort(descending=True, stable=True)


ORDER_BY: dict[str, Callable[[Gaussian], Tensor]] = {
    "std": lambda posterior: by_std(posterior.std),
    "abs_mean": lambda posterior: posterior.mean.abs().argsort(descending=True, stable=True),
    "signal_to_noise": by_signal_to_noise,
}  # the order [d] by each


def without(order: Tensor, excluded: Tensor) -> Tensor:
    """Return the order of the weights that the mask [d] does not exclude."""
    return order[~excluded[order]]


def prune(weights: Tensor, order: Tensor, share: float) -> Tensor:
    """Return a copy in which all but the first `share` of the order are zero.

    Weights that are not in the order stay as they are.
    """
    pruned = weights.clone()
    pruned[order[round(share * len(order)) :]] = 0
    return pruned


def hits(
    network: Network, weights: Tensor, order: Tensor, images: Tensor, labels: Tensor,
    kept: Sequence[float] = KEPT_PERCENT, on_point: Callable[[], None] = lambda: None,
    repair: Callable[[Tensor], Tensor] = lambda pruned: pruned,
) -> Tensor:  # fmt: skip
    """Return which images are classified rightly [points, N] with each share of the order kept.

    `repair` is applied to the pruned networks.
    """
    rows = []
    for percent in kept:
        pruned = repair(prune(weights, order, percent / 100))
        rows.append(class_probabilities(network, pruned, images).argmax(-1) == labels)
        on_point()
    return torch.stack(rows)


def accuracy_curve(*arguments, **options) -> list[float]:
    """Return the shares of the images that `hits`, of the same arguments, returns."""
    return hits(*arguments, **options).double().mean(-1).tolist()


def refined(curve: Sequence[float]) -> np.ndarray:
    """Return a curve at COARSE_PERCENT at all of KEPT_PERCENT, linear in between."""
    zeros, coarse = (100 - np.array(kept) for kept in (KEPT_PERCENT, COARSE_PERCENT))
    return np.interp(zeros, coarse, curve)


def sparsity_at(curve: Sequence[float], loss: float) -> float:
    """Return the share of zeros at which this much accuracy is lost, by linear interpolation.

    It is the first such share: accuracy that recovers later does not count.
    """
    bound = curve[0] - loss
    zeros = [1 - percent / 100 for percent in KEPT_PERCENT]
    for point in range(1, len(curve)):
        if curve[point] < bound:
            way = (curve[point - 1] - bound) / (curve[point - 1] - curve[point])
            return zeros[point - 1] + way * (zeros[point] - zeros[point - 1])
    return zeros[-1]
