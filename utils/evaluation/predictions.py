"""What posteriors predict on the test images, in parts that standard errors resample.

A column of the table is a posterior and the view of it that is scored.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from utils.evaluation.metrics import Prediction
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.moments import block_of
from utils.posteriors.posterior import Posterior

import torch
from torch import Tensor


class View(NamedTuple):
    """What is scored; a further q_r has a way of rebasin, a scale of σ, perhaps repaired units."""

    key: str  # how the keys of its columns end, in files
    title: str
    way: str = ""  # of rebasin, behind a further q_r: a key of `alignment.WAYS`
    scale: str = ""  # of σ, found on training images: TAU or TAUS; else 1
    repair: bool = False  # units of all networks, as in `rebasin.repair`


TAU, TAUS = "one number", "one number for each layer"

SAMPLE = View("sample", "{}")  # the weight vectors themselves
DIRECT = View("direct", "{} q_d")  # a Gaussian fitted to them
REBASED = View("rebased", "{} q_r")  # the same after they are rebased to the first
MEAN_REFERENCE = View("mean_reference", "{} q_r, to mean")  # rebased to their mean
LOW_RANK = View("low_rank", "{} q_r, low rank")  # a Gaussian with covariances
OWN = View("", "{} q")  # the distribution that a method fits

CONTRIBUTION = View("contribution", "{} q_r, by contribution", "contribution")

FURTHER = {  # that settings can ask for, beyond the paper's
    view.key: view
    for view in (
        View("rebased_tau", "{} q_r, τ", "activation", TAU),
        View("rebased_repair", "{} q_r, REPAIR", "activation", repair=True),
        CONTRIBUTION,
        View("contribution_tau", "{} q_r, by contribution, τ", "contribution", TAU),
        View("contribution_to_mean", "{} q_r, by contribution, to mean", "contribution_to_mean"),
        View(
            "contribution_to_mean_tau",
            "{} q_r, by contribution, to mean, τ",
            "contribution_to_mean",
            TAU,
        ),
        View("consensus", "{} q_r, by contribution, no reference", "consensus"),
        View("consensus_tau", "{} q_r, no reference, τ", "consensus", TAU),
        View("consensus_taus", "{} q_r, no reference, τ by layer", "consensus", TAUS),
        View("consensus_repair", "{} q_r, no reference, REPAIR", "consensus", repair=True),
        View("consensus_repair_tau", "{} q_r, no reference, τ, REPAIR", "consensus", TAU, True),
    )
}
VIEWS = (  # as tables show them
    SAMPLE, DIRECT, REBASED, MEAN_REFERENCE, LOW_RANK, *FURTHER.values(), OWN,
)  # fmt: skip


class Column(NamedTuple):
    method: str  # the posterior's name
    view: View

    @property
    def key(self) -> str:
        """Return what files call the column."""
        return "_".join(filter(None, (self.method, self.view.key)))

    def title(self, names: dict[str, str]) -> str:
        """Return what tables call the column; `names` says what posteriors are called."""
        return self.view.title.format(names[self.method])


def columns_of(methods: Iterable[str]) -> dict[str, Column]:
    """Return all columns that these posteriors may have by key, in the order of tables."""
    columns = (Column(method, view) for method in methods for view in VIEWS)
    return {column.key: column for column in columns}


# ---- predictions


@dataclass(frozen=True)
class PartPredictions:
    """Average predictions of parts of a posterior's samples or draws."""

    parts: Tensor  # [parts, N, classes], float64
    sizes: Tensor  # [parts]: samples in each
    mean_network: Tensor | None = None  # [N, classes]: of the network at the mean, if it has one
    bounds: Tensor | None = None  # estimates of the ELBO, if it has one

    def average(self, chosen: Tensor | None = None) -> Tensor:
        """Return the average [N, classes] over all samples, or over those of the chosen parts."""
        sizes = self.sizes.double()
        if chosen is not None:
            sizes = sizes * torch.bincount(chosen.to(sizes.device), minlength=len(sizes))
        return torch.einsum("p,pnc->nc", sizes / sizes.sum(), self.parts)

    def halves(self) -> tuple[Tensor, Tensor]:
        """Return the averages [N, classes] over the first and the second half of the parts."""
        numbers = torch.arange(len(self.sizes), device=self.parts.device)
        first = numbers < len(numbers) // 2
        return self.average(numbers[first]), self.average(numbers[~first])

    def compared(
        self, truth: "PartPredictions", labels: Tensor, chosen: Tensor | None = None
    ) -> Prediction:
        """Return what metrics score: the average, or that of the chosen parts, beside the truth."""
        return Prediction(
            self.average(chosen), truth.average(), labels, self.mean_network, self.elbo(chosen)
        )

    def elbo(self, chosen: Tensor | None = None) -> float | None:
        """Return the average estimate of the ELBO, over all of them or the chosen ones.

        Estimates are chosen by the numbers of parts, and begin again where there are fewer.
        """
        if self.bounds is None:
            return None
        resampled = self.bounds if chosen is None else self.bounds[chosen.cpu() % len(self.bounds)]
        return resampled.mean().item()


class PartAverages:
    """Averages of a stream of predictions over contiguous parts, in float64."""

    def __init__(self, num_samples: int, num_parts: int):
        self._num_samples, self._num_parts = num_samples, min(num_parts, num_samples)
        self._sums, self._sizes = [None] * self._num_parts, [0] * self._num_parts
        self._count = 0

    def add(self, probabilities: Tensor) -> None:
        part = block_of(self._count, self._num_samples, self._num_parts)
        before = self._sums[part]
        self._sums[part] = probabilities if before is None else before + probabilities
        self._sizes[part] += 1
        self._count += 1

    def predictions(self) -> PartPredictions:
        sizes = torch.tensor(self._sizes, device=self._sums[0].device)
        return PartPredictions(torch.stack(self._sums) / sizes[:, None, None], sizes)


def predict_samples(
    network: Network, samples: Iterable[Tensor], count: int, images: Tensor, num_parts: int
) -> PartPredictions:
    """Predict with each of `count` weight vectors."""
    parts = PartAverages(count, num_parts)
    for weights in samples:
        parts.add(class_probabilities(network, weights.to(images.device), images))
    return parts.predictions()


def predict_draws(
    network: Network, posterior: Posterior, images: Tensor, num_draws: int, num_parts: int,
    random: torch.Generator,
) -> PartPredictions:  # fmt: skip
    """Predict with weights drawn from a distribution, and with the network at its mean."""
    drawn = posterior.draw(num_draws, random)
    predictions = predict_samples(network, drawn, num_draws, images, num_parts)
    if posterior.mean is None:
        return predictions
    at_mean = class_probabilities(network, posterior.mean.to(images.device), images)
    return replace(predictions, mean_network=at_mean)
