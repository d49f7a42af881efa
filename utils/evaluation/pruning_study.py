"""All prunings of an evaluation, with standard errors of accuracies and sparsities.

Errors have independent origins and add in squares: the test images; for chance, the random orders;
and for orders by the truth's own Gaussian, its samples. For these the Gaussian is fitted again to
resampled blocks of the samples (`refit_moments`), and orders by the refit, and its mean, are pruned
again. Where σ is nothing but noise, that error is a fifth too small. No error covers the training
of other posteriors or the choice of a single network. With REPAIR units of pruned networks get back
the mean and deviation over training images that they had.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from utils.data.datasets import Dataset
from utils.evaluation.metrics import resample, resample_chains
from utils.evaluation.pruning import (
    COARSE_PERCENT,
    KEPT_PERCENT,
    LOSSES,
    ORDER_BY,
    accuracy_curve,
    by_std,
    hits,
    random_orders,
    refined,
    sparsity_at,
    without,
)
from utils.evaluation.views import refit_moments
from utils.evaluation.weight_space import WeightSpace
from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.moments import Moments
from utils.rebasin.repair import repaired, unit_moments
from utils.runs.progress import progress_bar
from utils.runs.seeding import generator

import numpy as np
import torch
from torch import Tensor

RANDOM = "random"  # the criterion of chance
REPAIRED = "std_repaired"  # the criterion of networks pruned by σ and repaired
REPAIR_ON = 2000  # training images
NUM_RESAMPLES = 200  # of the test images, and of the random orders
NUM_REFITS = 10  # of the truth's Gaussian


@dataclass(frozen=True)
class Pruning:
    """A network and the order in which its weights are kept."""

    network: str  # "<posterior> mean" or "<posterior> single"
    by: str  # the posterior that gives the order
    criterion: str  # one of ORDER_BY, RANDOM or REPAIRED
    weights: Tensor  # [d]
    orders: list[Tensor]  # one, or several whose curves are averaged

    @property
    def name(self) -> str:
        return f"{self.network}, {self.criterion} of {self.by}"

    def depends_on(self, truth: str) -> bool:
        """Return whether the truth's Gaussian gives the order, so that refits change it."""
        return self.by == truth and self.criterion in ORDER_BY

    @property
    def kept(self) -> tuple[float, ...]:
        """Where its curves are computed."""
        return COARSE_PERCENT if self.criterion == RANDOM else KEPT_PERCENT

    def by_refit(self, gaussian: Gaussian) -> "Pruning":
        """Return the same with another Gaussian of the posterior that gives the order."""
        is_mean = self.network == f"{self.by} mean"
        weights = gaussian.mean if is_mean else self.weights
        return replace(self, weights=weights, orders=[ORDER_BY[self.criterion](gaussian)])


class Refits(NamedTuple):
    """The truth's Gaussian fitted to resampled blocks of its samples, in one way of resampling."""

    gaussians: list[Gaussian]
    factor: float  # standard error / deviation between them


def refit(blocks: list[Moments], num_chains: int, seed: int) -> list[Refits]:
    """Fit Gaussians again to resampled blocks of samples, and to whole chains if there are several.

    Every chain has as many blocks, one after the other.
    """
    return [
        Refits([refit_moments(blocks, chosen.tolist()) for chosen in each.choices], each.factor)
        for each in resample_chains(len(blocks), num_chains, NUM_REFITS, seed, "pruning")
    ]


def list_prunings(space: WeightSpace, seed: int) -> list[Pruning]:
    """Return the mean of every posterior by every criterion; and others by every posterior's σ.

    These others are single networks, and the means of sets of networks other than the truth.
    Single networks are also pruned at random.
    """
    prunings = []
    gaussians = space.gaussians["after"]
    random = random_orders(space.alive, generator(seed, "random_order"))
    for by, gaussian in gaussians.items():
        several = {criterion: [order(gaussian)] for criterion, order in ORDER_BY.items()}
        if isinstance(space.network, MLP):
            several[REPAIRED] = several["std"]
        for criterion, each in (several | {RANDOM: random}).items():
            prunings.append(Pruning(f"{by} mean", by, criterion, gaussian.mean, each))
    for by, gaussian in gaussians.items():
        order = [by_std(gaussian.std)]
        for name in space.singles:
            if name not in (by, space.truth):
                prunings.append(Pruning(f"{name} mean", by, "std", gaussians[name].mean, order))
        for name, single in space.singles.items():
            prunings.append(Pruning(f"{name} single", by, "std", single, order))
    for name, single in space.singles.items():
        prunings.append(Pruning(f"{name} single", name, RANDOM, single, random))
    return prunings


def prune_all(
    space: WeightSpace, data: Dataset, prunings: list[Pruning], refits: list[Refits], seed: int
) -> dict[str, dict[str, dict]]:
    """Return {"all" or "alive": {name of the pruning: its curve and sparsities}}.

    "alive" prunes only weights that are not behind dead pixels. What depends on the truth's
    Gaussian has no errors without refits of it, or with REPAIR.
    """
    dead = {"all": torch.zeros_like(space.alive), "alive": ~space.alive}
    count = sum(len(each.orders) * len(each.kept) for each in prunings)
    num_refits = sum(len(each.gaussians) for each in refits)
    count += num_refits * len(COARSE_PERCENT) * sum(p.depends_on(space.truth) for p in prunings)
    curves: dict[str, dict[str, dict]] = {part: {} for part in dead}
    with progress_bar(len(dead) * count, "pruning", unit="network") as bar:
        for part, excluded in dead.items():
            for pruning in prunings:
                found = hits_of(space.network, data, pruning, excluded, bar.update)
                measured = measure(found, seed)
                if pruning.depends_on(space.truth):
                    more = refit_error(space.network, data, pruning, refits, excluded, bar.update)
                    measured = measured._replace(errors=np.hypot(measured.errors, more))
                if pruning.by == space.truth and pruning.criterion == REPAIRED:
                    measured = measured._replace(errors=np.nan * measured.errors)
                curves[part][pruning.name] = described(pruning, measured)
    return curves


def hits_of(
    network: Network, data: Dataset, pruning: Pruning, excluded: Tensor, on_point: Callable
) -> Tensor:
    """Return which test images are classified rightly [orders, points, N]."""
    repair = repair_for(network, pruning, data.train_images)
    return torch.stack(
        [
            hits(
                network, pruning.weights, without(order, excluded), data.test_images,
                data.test_labels, pruning.kept, on_point, repair,
            )
            for order in pruning.orders
        ]
    )  # fmt: skip


def repair_for(network: Network, pruning: Pruning, images: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what is done to the pruned networks: REPAIR, or nothing."""
    if pruning.criterion != REPAIRED:
        return lambda pruned: pruned
    some = images[:REPAIR_ON]
    target = unit_moments(network, pruning.weights, some)
    return lambda pruned: repaired(network, pruned, some, target)


# ---- what is read off a curve, and its errors


class MeasuredCurve(NamedTuple):
    """Accuracies at KEPT_PERCENT and then the sparsities at LOSSES, with their errors."""

    values: np.ndarray
    errors: np.ndarray
    deviations: np.ndarray | None  # of accuracies between several orders


def measure(found: Tensor, seed: int) -> MeasuredCurve:
    """Measure the average over orders of hits [orders, points, N].

    Errors are those of resampled test images, and of resampled orders if there are several.
    """
    count = found.shape[-1]
    average = found.double().mean(0).cpu()  # [points, N]
    choices = resample(count, NUM_RESAMPLES, seed, "points").choices
    shares = torch.stack([chosen.bincount(minlength=count) / len(chosen) for chosen in choices])
    errors = deviation_of((shares.double() @ average.mT).numpy())
    curves, deviations = found.double().mean(-1).cpu(), None
    if len(curves) > 1:
        orders = resample(len(curves), NUM_RESAMPLES, seed, "random_orders")
        of_orders = orders.factor * deviation_of(
            [curves[c].mean(0).numpy() for c in orders.choices]
        )
        errors = np.hypot(errors, of_orders)
        deviations = np.std([on_all_points(curve) for curve in curves.numpy()], axis=0, ddof=1)
    return MeasuredCurve(values_of(average.mean(-1).numpy()), errors, deviations)


def refit_error(
    network: Network, data: Dataset, pruning: Pruning, refits: list[Refits], excluded: Tensor,
    on_point: Callable,
) -> np.ndarray:  # fmt: skip
    """Return the errors due to the truth's samples: NaN without refits.

    They are the largest of several ways of resampling.
    """
    errors = [np.full(len(KEPT_PERCENT) + len(LOSSES), np.nan)]
    for gaussians, factor in refits:
        curves = []
        for gaussian in gaussians:
            again = pruning.by_refit(gaussian)
            order = without(again.orders[0], excluded)
            curves.append(
                accuracy_curve(
                    network, again.weights, order, data.test_images, data.test_labels,
                    COARSE_PERCENT, on_point,
                )
            )  # fmt: skip
        errors.append(factor * deviation_of(curves))
    return np.fmax.reduce(errors)


def deviation_of(curves: Sequence) -> np.ndarray:
    """Return the deviations between what is read off several curves."""
    rows = [values_of(curve) for curve in curves]
    return np.std(rows, axis=0, ddof=min(1, len(rows) - 1))


def values_of(curve: Sequence[float]) -> np.ndarray:
    """Return the accuracies at KEPT_PERCENT and the sparsities at LOSSES."""
    curve = on_all_points(curve)
    return np.array([*curve, *(sparsity_at(curve, loss) for loss in LOSSES)])


def on_all_points(curve: Sequence[float]) -> Sequence[float]:
    return curve if len(curve) == len(KEPT_PERCENT) else refined(curve)


def described(pruning: Pruning, measured: MeasuredCurve) -> dict:
    """Return what pruning.json says of a curve."""
    points, losses = len(KEPT_PERCENT), [str(loss) for loss in LOSSES]

    def split(values: np.ndarray) -> tuple[list[float], dict[str, float]]:
        return values[:points].tolist(), dict(zip(losses, values[points:].tolist(), strict=True))

    accuracy, sparsity = split(measured.values)
    accuracy_error, sparsity_error = split(measured.errors)
    content = {
        "network": pruning.network, "by": pruning.by, "criterion": pruning.criterion,
        "accuracy": accuracy, "accuracy_error": accuracy_error,
        "sparsity": sparsity, "sparsity_error": sparsity_error,
    }  # fmt: skip
    if measured.deviations is not None:
        content["deviation"] = measured.deviations.tolist()
    return content
