"""How uncertain the cells of the table are.

Their errors have independent origins: the test points, the weights drawn from Gaussians, and the
samples of each posterior. One origin at a time is resampled while the others stay, and the errors
add in squares. The samples of the truth change their own column, the Gaussians fitted to them, and
what every other column is compared with.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from utils.evaluation.metrics import Prediction, scores
from utils.evaluation.predictions import SAMPLE, Column, PartPredictions, predict_draws
from utils.evaluation.setting import Setting
from utils.evaluation.views import Fit
from utils.runs.seeding import generator

import torch
from torch import Tensor

MIN_PARTS = 10  # for a bootstrap: with 5 parts it is wrong by a factor of 2 to 5 for the NLL
MetricValues = dict[str, float]  # by metric, of one column


# ---- resampling


@dataclass(frozen=True)
class Resampling:
    """Choices of parts that scores are computed for."""

    choices: list[Tensor]  # the numbers of parts, each as often as it is chosen
    factor: float  # standard error / deviation between the choices


def resample(num_parts: int, num_replicates: int, seed: int, *stream) -> Resampling:
    """Return a bootstrap; for few parts the jackknife, which leaves out each in turn.

    Of one part alone the error is unknown: NaN. See Efron & Tibshirani (1993).
    """
    if num_parts == 1:
        return Resampling([torch.zeros(1, dtype=torch.long)], float("nan"))
    if num_parts < MIN_PARTS:
        parts = torch.arange(num_parts)
        others = [parts[parts != left_out] for left_out in range(num_parts)]
        return Resampling(others, (num_parts - 1) / num_parts**0.5)
    choices = []
    for number in range(num_replicates):
        random = generator(seed, "bootstrap", *stream, number)
        choices.append(torch.randint(num_parts, (num_parts,), generator=random))
    return Resampling(choices, 1.0)


def resample_chains(
    num_blocks: int, num_chains: int, num_replicates: int, seed: int, *stream
) -> list[Resampling]:
    """Resample blocks of samples, and whole chains if there are several.

    Chains that have not mixed differ by more than the blocks within them show.
    """
    resamplings = [resample(num_blocks, num_replicates, seed, *stream)]
    if num_chains > 1:
        blocks = torch.arange(num_blocks).reshape(num_chains, -1)
        chains = resample(num_chains, num_replicates, seed, *stream, "chains")
        choices = [blocks[chosen].flatten() for chosen in chains.choices]
        resamplings.append(replace(chains, choices=choices))
    return resamplings


def deviations(
    score: Callable[[Tensor], MetricValues], resamplings: list[Resampling]
) -> MetricValues:
    """Return the standard errors of scores of chosen parts, the largest of several resamplings."""
    errors = []
    for resampling in resamplings:
        rows = [score(chosen) for chosen in resampling.choices]
        values = torch.tensor([list(row.values()) for row in rows], dtype=torch.float64)
        deviation = values.std(0, correction=min(1, len(rows) - 1))
        errors.append(resampling.factor * deviation)
    return dict(zip(rows[0], torch.stack(errors).amax(0).tolist(), strict=True))


# ---- the table's errors


@dataclass(frozen=True)
class TableErrors:
    """Standard errors of all columns of a table."""

    setting: Setting
    predictions: dict[Column, PartPredictions]
    fits: dict[Column, Fit]
    num_chains: dict[str, int]  # by posterior, of those that are sets of samples
    truth: Column

    def table(self) -> dict[Column, MetricValues]:
        errors = {}
        for column in self.predictions:
            origins = [self.of_points(column)]
            if column in self.fits:
                origins.append(self.of_draws(column))
            origins += [
                self.of_samples(column, method)
                for method in self.num_chains
                if method in (column.method, self.truth.method)
            ]
            errors[column] = add_errors(*origins)
        return errors

    def of_points(self, column: Column) -> MetricValues:
        """Return the errors due to the choice of test points."""
        prediction = self._compared(self.predictions[column])
        points = len(self._labels)
        resampling = resample(points, self._config.num_bootstraps, self._config.seed, "points")
        return deviations(lambda chosen: scores(prediction.at(chosen)), [resampling])

    def of_draws(self, column: Column) -> MetricValues:
        """Return the errors due to the weights drawn from a distribution."""
        predictions = self.predictions[column]
        count = len(predictions.sizes)
        resampling = resample(count, self._config.num_bootstraps, self._config.seed, "draws")
        return deviations(lambda chosen: scores(self._compared(predictions, chosen)), [resampling])

    def of_samples(self, column: Column, method: str) -> MetricValues:
        """Return the errors due to the samples of a posterior that the column depends on.

        All refits draw their weights with the same noise, so they differ in the fit alone. The ELBO
        is not computed for refits: its error is that of its draws.
        """
        config, samples, fit = self._config, Column(method, SAMPLE), self.fits.get(column)
        refitted = fit is not None and fit.again is not None and column.method == method
        refits = config.further_refits if column.view.way else config.num_refits
        known, truth = self.predictions[column], self.predictions[self.truth]
        sizes = self.predictions[samples].sizes.cpu()
        unknown = dict.fromkeys(scores(self._compared(known)), float("nan"))
        if refitted and not (config.num_refits and refits):
            return unknown

        def score(chosen: Tensor) -> MetricValues:
            ours = known
            if refitted:
                if sizes[chosen].sum() < 2:
                    return unknown  # a single sample has no deviation
                ours = predict_draws(
                    self.setting.network, fit.again(chosen.tolist()), self.setting.data.test_images,
                    config.refit_draws, 1, generator(config.seed, "refit_noise"),
                )  # fmt: skip
            average = ours.average(chosen if column == samples else None)
            true_average = truth.average(chosen if self.truth == samples else None)
            return scores(
                Prediction(average, true_average, self._labels, ours.mean_network, known.elbo())
            )

        replicates = refits if refitted else config.num_bootstraps
        resamplings = resample_chains(
            len(sizes), self.num_chains[method], replicates, config.seed, method
        )
        return deviations(score, resamplings)

    def _compared(self, predictions: PartPredictions, chosen: Tensor | None = None) -> Prediction:
        return predictions.compared(self.predictions[self.truth], self._labels, chosen)

    @property
    def _config(self):
        return self.setting.config

    @property
    def _labels(self) -> Tensor:
        return self.setting.data.test_labels


def add_errors(*errors: MetricValues) -> MetricValues:
    """Return the errors of independent origins together."""
    return {row: sum(each[row] ** 2 for each in errors) ** 0.5 for row in errors[0]}
