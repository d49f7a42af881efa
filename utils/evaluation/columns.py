"""The columns of Table 1: predictions and their scores."""

from dataclasses import dataclass

from utils.evaluation.metrics import (
    accuracy,
    agreement,
    brier,
    calibration_error,
    mean_nll,
    total_variation,
)
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.moments import block_of

import torch
from torch import Tensor

ROWS = (
    "agreement", "total_variation", "sample_accuracy", "mean_accuracy", "nll", "ece", "brier",
)  # fmt: skip
COLUMNS = {
    "hmc_sample": "HMC samples",
    "hmc_direct": "HMC q_d",
    "hmc_rebased": "HMC q_r",
    "hmc_mean_reference": "HMC q_r, to mean",
    "hmc_low_rank": "HMC q_r, low rank",
    "ensemble_sample": "Ensemble",
    "ensemble_direct": "Ensemble q_d",
    "ensemble_rebased": "Ensemble q_r",
    "vi": "VI q",
}
TRUTH = "hmc_sample"  # the column that agreement and total variation are measured against


@dataclass(frozen=True)
class Column:
    """Test predictions of a posterior: averages over parts of its samples or draws."""

    parts: Tensor  # [parts, N, classes], float64
    sizes: Tensor  # [parts]: samples in each
    mean_network: Tensor | None = None  # [N, classes]: of the network at the mean, if it has one

    def average(self, chosen: Tensor | None = None) -> Tensor:
        """Of all its samples, or of those in the chosen parts, [N, classes] in float64."""
        sizes = self.sizes.double()
        if chosen is not None:
            sizes = sizes * torch.bincount(chosen, minlength=len(sizes))
        return torch.einsum("p,pnc->nc", sizes / sizes.sum(), self.parts)

    def halves(self) -> tuple[Tensor, Tensor]:
        """Averages of the first and of the second half of the parts, [N, classes] each."""
        numbers = torch.arange(len(self.sizes), device=self.parts.device)
        first = numbers < len(numbers) // 2
        return self.average(numbers[first]), self.average(numbers[~first])


class PartAverages:
    """Averages over contiguous parts of a stream of predictions in float64, as they come."""

    def __init__(self, num_samples: int, num_parts: int):
        self._num_samples, self._num_parts = num_samples, min(num_parts, num_samples)
        self._sums, self._sizes = [None] * self._num_parts, [0] * self._num_parts
        self._seen = 0

    def add(self, probabilities: Tensor) -> None:
        part = block_of(self._seen, self._num_samples, self._num_parts)
        before = self._sums[part]
        self._sums[part] = probabilities if before is None else before + probabilities
        self._sizes[part] += 1
        self._seen += 1

    def column(self, mean_network: Tensor | None = None) -> Column:
        sizes = torch.tensor(self._sizes, device=self._sums[0].device)
        return Column(torch.stack(self._sums) / sizes[:, None, None], sizes, mean_network)


def draw_column(
    network: Network, posterior, images: Tensor, num_draws: int, num_parts: int, random
) -> Column:
    """Predictions of weights drawn from a Gaussian, and of the network at its mean."""
    parts = PartAverages(num_draws, num_parts)
    for weights in posterior.draw(num_draws, random):
        parts.add(class_probabilities(network, weights, images))
    return parts.column(class_probabilities(network, posterior.mean, images))


def scores(
    predicted: Tensor, mean_network: Tensor | None, true_posterior: Tensor, labels: Tensor
) -> dict[str, float]:
    """One column: agreement and TV are against the HMC samples' predictions."""
    column = {
        "agreement": agreement(predicted, true_posterior),
        "total_variation": total_variation(predicted, true_posterior),
        "sample_accuracy": accuracy(predicted, labels),
    }
    if mean_network is not None:
        column["mean_accuracy"] = accuracy(mean_network, labels)
    return column | {
        "nll": mean_nll(predicted, labels),
        "ece": calibration_error(predicted, labels),
        "brier": brier(predicted, labels),
    }


def make_table(columns: dict[str, Column], labels: Tensor) -> dict[str, dict[str, float]]:
    """Scores of every column by name."""
    truth = columns[TRUTH].average()
    return {
        name: scores(column.average(), column.mean_network, truth, labels)
        for name, column in columns.items()
    }
