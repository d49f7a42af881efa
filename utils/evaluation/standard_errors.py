"""How uncertain the cells of Table 1 are.

Their errors have origins that are independent of each other: the test points, the weights that are
drawn from Gaussians, and the samples of each method. One origin at a time is drawn once more while
all else stays, and the errors add in squares. What rests on HMC's samples changes with them: their
own column, the Gaussians that are fitted to them, and the truth that every column is held against.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from utils.evaluation.columns import ROWS, TRUTH, Column, draw_column, scores
from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRank
from utils.posteriors.moments import Moments, block_of, merge_all
from utils.runs.seeding import generator

import torch
from torch import Tensor

FEWEST_PARTS = 10  # for a bootstrap: one of 5 parts is wrong by a factor of 2 to 5 for the NLL
Scores = dict[str, float]  # by row, of one column


# ---- parts once more


@dataclass(frozen=True)
class Resampling:
    """Choices of parts, between which scores differ."""

    choices: list[Tensor]  # the numbers of parts, each as often as it is chosen
    factor: float  # standard error / deviation between the choices


def resample(num_parts: int, num_replicates: int, seed: int, *stream) -> Resampling:
    """A bootstrap; of few parts the jackknife, which leaves out each in turn (Efron & Tibshirani).

    One part alone tells no error: it is NaN.
    """
    if num_parts == 1:
        return Resampling([torch.zeros(1, dtype=torch.long)], float("nan"))
    if num_parts < FEWEST_PARTS:
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
    """Blocks of samples, which resemble their neighbours in a chain; and chains, if several.

    Chains that have not mixed differ by more than the blocks within them tell.
    """
    found = [resample(num_blocks, num_replicates, seed, *stream)]
    if num_chains > 1:
        blocks = torch.arange(num_blocks).reshape(num_chains, -1)
        chains = resample(num_chains, num_replicates, seed, *stream, "chains")
        choices = [blocks[chosen].flatten() for chosen in chains.choices]
        found.append(replace(chains, choices=choices))
    return found


def deviations(score: Callable[[Tensor], Scores], resamplings: list[Resampling]) -> Scores:
    """Standard errors of what `score` makes of chosen parts, the largest of several ways."""
    errors = []
    for resampling in resamplings:
        rows = [score(chosen) for chosen in resampling.choices]
        values = torch.tensor([list(row.values()) for row in rows], dtype=torch.float64)
        deviation = values.std(0, correction=min(1, len(rows) - 1))
        errors.append(resampling.factor * deviation)
    return dict(zip(rows[0], torch.stack(errors).amax(0).tolist(), strict=True))


# ---- Gaussians once more


@dataclass(frozen=True)
class Fit:
    """A Gaussian that is fitted to a method's samples, and how it is fitted to some blocks."""

    method: str
    again: Callable[[list[int]], Gaussian | LowRank]


def refit_moments(blocks: list[Moments], chosen: list[int]) -> Gaussian:
    """The mean-field Gaussian of some blocks, each as often as it is chosen."""
    return merge_all([blocks[block] for block in chosen]).gaussian()


def refit_low_rank(low_rank: LowRank, blocks: list[Moments], chosen: list[int]) -> LowRank:
    """The low-rank Gaussian of some blocks of its samples.

    Its mean is the blocks': a rank that is too small leaves out some ways in which it can move.
    """
    num_samples = len(low_rank.coordinates)
    owners = [block_of(position, num_samples, len(blocks)) for position in range(num_samples)]
    times = torch.tensor(chosen).bincount(minlength=len(blocks))
    refitted = low_rank.resampled(times[owners].to(low_rank.mean.device))
    return replace(refitted, mean=refit_moments(blocks, chosen).mean)


# ---- the table's errors


@dataclass(frozen=True)
class TableErrors:
    """Standard errors of a table's columns; `<method>_sample` is that of a method's samples."""

    columns: dict[str, Column]
    labels: Tensor
    fits: dict[str, Fit]  # by column
    num_chains: dict[str, int]  # by method that has samples
    network: Network
    images: Tensor
    num_bootstraps: int
    num_refits: int
    refit_draws: int
    seed: int

    def table(self) -> dict[str, Scores]:
        errors = {}
        for name, column in self.columns.items():
            origins = [self.of_points(column)]
            if column.mean_network is not None:
                origins.append(self.of_draws(column))
            origins += [self.of_samples(name, m) for m in self.num_chains if self._rests(name, m)]
            errors[name] = add_errors(*origins)
        return errors

    def of_points(self, column: Column) -> Scores:
        """From the choice of test points."""
        predicted, mean_network, truth = column.average(), column.mean_network, self._truth()

        def score(points: Tensor) -> Scores:
            points = points.to(self.labels.device)
            at_mean = None if mean_network is None else mean_network[points]
            return scores(predicted[points], at_mean, truth[points], self.labels[points])

        count = len(self.labels)
        return deviations(score, [resample(count, self.num_bootstraps, self.seed, "points")])

    def of_draws(self, column: Column) -> Scores:
        """From the choice of weights that are drawn from a Gaussian."""
        count, truth = len(column.sizes), self._truth()

        def score(chosen: Tensor) -> Scores:
            return scores(self._part(column, chosen), column.mean_network, truth, self.labels)

        return deviations(score, [resample(count, self.num_bootstraps, self.seed, "draws")])

    def of_samples(self, name: str, method: str) -> Scores:
        """From a method's samples, for a column that rests on them.

        All refits draw their weights with the same noise, and differ in nothing but the fit.
        """
        column, samples = self.columns[name], self.columns[f"{method}_sample"]
        fit = self.fits.get(name)
        fitted = fit is not None and fit.method == method

        def score(chosen: Tensor) -> Scores:
            if fitted and samples.sizes.cpu()[chosen].sum() < 2:
                return dict.fromkeys(ROWS, float("nan"))  # a single sample has no deviation
            now = column
            if fitted:
                noise = generator(self.seed, "refit_noise")
                now = draw_column(
                    self.network, fit.again(chosen.tolist()), self.images, self.refit_draws, 1,
                    noise,
                )  # fmt: skip
            predicted = self._part(column, chosen) if column is samples else now.average()
            truth = self._part(samples, chosen) if method == TRUTH_METHOD else self._truth()
            return scores(predicted, now.mean_network, truth, self.labels)

        replicates = self.num_refits if fitted else self.num_bootstraps
        ways = resample_chains(
            len(samples.sizes), self.num_chains[method], replicates, self.seed, method
        )
        return deviations(score, ways)

    def _rests(self, name: str, method: str) -> bool:
        """Whether a column would be another with other samples of this method."""
        fit = self.fits.get(name)
        return (
            method == TRUTH_METHOD
            or name == f"{method}_sample"
            or (fit is not None and fit.method == method)
        )

    def _truth(self) -> Tensor:
        return self.columns[TRUTH].average()

    def _part(self, column: Column, chosen: Tensor) -> Tensor:
        return column.average(chosen.to(column.parts.device))


TRUTH_METHOD = TRUTH.removesuffix("_sample")


def add_errors(*errors: Scores) -> Scores:
    """Errors of independent origins together."""
    return {row: sum(each[row] ** 2 for each in errors) ** 0.5 for row in errors[0]}
