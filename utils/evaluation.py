"""The columns of Table 1: predictions, their scores, and how uncertain the scores are."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from utils.compact import LowRankGaussian, Moments, block_of, merge_all
from utils.metrics import (
    accuracy,
    agreement,
    brier,
    calibration_error,
    mean_nll,
    total_variation,
)
from utils.mlp import Network
from utils.predict import class_probabilities
from utils.seeding import generator
from utils.vi import GaussianPosterior

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


def bootstrap(
    columns: dict[str, Column], labels: Tensor, num_replicates: int, seed: int
) -> dict[str, dict[str, float]]:
    """Standard errors of the table, from resampled test points and resampled parts.

    The parts of HMC's samples are contiguous blocks of the chain, so that samples which resemble
    their neighbours do not look like more than they are.
    """
    replicates = []
    for number in range(num_replicates):
        random = generator(seed, "bootstrap", number)
        points = torch.randint(len(labels), (len(labels),), generator=random).to(labels.device)
        resampled = {}
        for name, column in columns.items():
            count = len(column.sizes)
            chosen = torch.randint(count, (count,), generator=random).to(labels.device)
            mean_network = column.mean_network
            resampled[name] = Column(
                column.average(chosen)[None, points],
                torch.ones(1, device=labels.device),
                None if mean_network is None else mean_network[points],
            )
        replicates.append(make_table(resampled, labels[points]))
    return {
        name: {row: _deviation(r[name][row] for r in replicates) for row in replicates[0][name]}
        for name in columns
    }


def refit_errors(
    network: Network,
    refit: Callable[[list[int]], GaussianPosterior | LowRankGaussian],
    num_blocks: int,
    images: Tensor,
    labels: Tensor,
    true_posterior: Tensor,
    num_refits: int,
    num_draws: int,
    seed: int,
) -> dict[str, float]:
    """Standard errors of a Gaussian's column that come from the samples it was fitted to.

    `refit(chosen)` fits it again to blocks of samples that are resampled. All refits draw their
    weights with the same noise, so that they differ in nothing but the fit.
    """
    rows = []
    for number in range(num_refits):
        random = generator(seed, "refit_blocks", number)
        posterior = refit(torch.randint(num_blocks, (num_blocks,), generator=random).tolist())
        noise = generator(seed, "refit_noise")
        column = draw_column(network, posterior, images, num_draws, 1, noise)
        rows.append(scores(column.average(), column.mean_network, true_posterior, labels))
    return {row: _deviation(scored[row] for scored in rows) for row in rows[0]}


def refit_moments(blocks: list[Moments], chosen: list[int]) -> GaussianPosterior:
    """The mean-field Gaussian of some blocks, each as often as it is chosen."""
    return merge_all([blocks[block] for block in chosen]).gaussian()


def refit_low_rank(
    low_rank: LowRankGaussian, blocks: list[Moments], chosen: list[int]
) -> LowRankGaussian:
    """The low-rank Gaussian of some blocks of its samples.

    Its mean is the blocks': a rank that is too small leaves out some ways in which it can move.
    """
    num_samples = len(low_rank.coordinates)
    owners = [block_of(position, num_samples, len(blocks)) for position in range(num_samples)]
    times = torch.tensor(chosen).bincount(minlength=len(blocks))
    refitted = low_rank.resampled(times[owners].to(low_rank.mean.device))
    return replace(refitted, mean=refit_moments(blocks, chosen).mean)


def add_errors(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """Errors of independent origin together."""
    return {row: (first[row] ** 2 + second[row] ** 2) ** 0.5 for row in first}


def _deviation(values: Iterable[float]) -> float:
    return torch.tensor(list(values), dtype=torch.float64).std().item()
