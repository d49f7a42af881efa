"""Prune networks: in which order weights are kept, and what accuracy is left.

An order ranks weights, the first to be kept. Keeping X % of them sets the others to zero in a copy.
All masks of an order are nested. Chance is the average over several random orders. With REPAIR
units of pruned networks get back the mean and deviation over training images that they had.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from utils.data.datasets import Dataset
from utils.evaluation.metrics import accuracy
from utils.evaluation.weight_space import WeightSpace
from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.gaussian import Gaussian
from utils.rebasin.repair import repaired, unit_moments
from utils.runs.progress import progress_bar
from utils.runs.seeding import generator

import numpy as np
import torch
from torch import Tensor

KEPT_PERCENT = (100, 90, 80, 70, 60, 50, 40, 30, 20, 10, 5, 1)  # as in the paper's Figure 5
LOSSES = (0.01, 0.05)  # of accuracy, for which the sparsity is reported
NUM_RANDOM = 10  # orders
REPAIRED = "std_repaired"  # the criterion of networks pruned by σ and repaired
REPAIR_ON = 2000  # training images


def orders(posterior: Gaussian, random: torch.Generator) -> dict[str, list[Tensor]]:
    """Return the orders [d] of each criterion: one, or several random ones."""
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
    """Order weights by certainty, as the paper does."""
    return std.argsort(stable=True)


def by_signal_to_noise(posterior: Gaussian) -> Tensor:
    """Order weights by |μ|/σ; by |μ| if all σ are 0."""
    mean, std = posterior.mean.double().abs(), posterior.std.double()
    smallest = torch.finfo(torch.float32).tiny  # for σ of 0, where all samples agree
    return (mean / std.clamp(min=smallest)).argsort(descending=True, stable=True)


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


def accuracy_curve(
    network: Network, weights: Tensor, order: Tensor, images: Tensor, labels: Tensor, on_point:
    Callable[[], None] = lambda: None, repair: Callable[[Tensor], Tensor] = lambda pruned: pruned,
) -> list[float]:  # fmt: skip
    """Return the accuracy with each of KEPT_PERCENT of the weights in the order kept.

    `repair` is applied to the pruned networks.
    """
    curve = []
    for percent in KEPT_PERCENT:
        pruned = repair(prune(weights, order, percent / 100))
        curve.append(accuracy(class_probabilities(network, pruned, images), labels))
        on_point()
    return curve


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


# ---- all prunings of an evaluation


@dataclass(frozen=True)
class Pruning:
    """A network and the order in which its weights are kept."""

    network: str  # "<posterior> mean" or "<posterior> single"
    by: str  # the posterior that gives the order
    criterion: str  # one of those of `orders`
    weights: Tensor  # [d]
    orders: list[Tensor]  # one, or several whose curves are averaged

    @property
    def name(self) -> str:
        return f"{self.network}, {self.criterion} of {self.by}"


def list_prunings(space: WeightSpace, seed: int) -> list[Pruning]:
    """Return the mean of every posterior by every criterion; and others by every posterior's σ.

    These others are single networks, and the means of sets of networks other than the truth.
    """
    prunings = []
    gaussians = space.gaussians["after"]
    for by, gaussian in gaussians.items():
        by_criterion = orders(gaussian, generator(seed, "random_order"))
        for criterion, several in by_criterion.items():
            prunings.append(Pruning(f"{by} mean", by, criterion, gaussian.mean, several))
        if isinstance(space.network, MLP):
            several = by_criterion["std"]
            prunings.append(Pruning(f"{by} mean", by, REPAIRED, gaussian.mean, several))
    for by, gaussian in gaussians.items():
        order = [by_std(gaussian.std)]
        for name in space.singles:
            if name not in (by, space.truth):
                prunings.append(Pruning(f"{name} mean", by, "std", gaussians[name].mean, order))
        for name, single in space.singles.items():
            prunings.append(Pruning(f"{name} single", by, "std", single, order))
    return prunings


def prune_all(
    space: WeightSpace, data: Dataset, prunings: list[Pruning]
) -> dict[str, dict[str, dict]]:
    """Return {"all" or "alive": {name of the pruning: its curve and sparsities}}.

    "alive" prunes only weights that are not behind dead pixels.
    """
    curves: dict[str, dict[str, dict]] = {"all": {}, "alive": {}}
    num_networks = 2 * len(KEPT_PERCENT) * sum(len(pruning.orders) for pruning in prunings)
    with progress_bar(num_networks, "pruning", unit="network") as bar:
        for pruning in prunings:
            alive = [without(order, ~space.alive) for order in pruning.orders]
            for part, several in (("all", pruning.orders), ("alive", alive)):
                accuracies = [
                    accuracy_curve(
                        space.network, pruning.weights, order, data.test_images, data.test_labels,
                        bar.update, repair_for(space.network, pruning, data.train_images),
                    )
                    for order in several
                ]  # fmt: skip
                curves[part][pruning.name] = describe_curve(pruning, accuracies)
    return curves


def repair_for(network: Network, pruning: Pruning, images: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what is done to the pruned networks: REPAIR, or nothing."""
    if pruning.criterion != REPAIRED:
        return lambda pruned: pruned
    some = images[:REPAIR_ON]
    target = unit_moments(network, pruning.weights, some)
    return lambda pruned: repaired(network, pruned, some, target)


def describe_curve(pruning: Pruning, accuracies: list[list[float]]) -> dict:
    """Average the curves of several orders."""
    curve = np.mean(accuracies, axis=0).tolist()
    described = {
        "network": pruning.network,
        "by": pruning.by,
        "criterion": pruning.criterion,
        "accuracy": curve,
        "sparsity": {str(loss): sparsity_at(curve, loss) for loss in LOSSES},
    }
    if len(accuracies) > 1:
        described["deviation"] = np.std(accuracies, axis=0, ddof=1).tolist()
    return described
