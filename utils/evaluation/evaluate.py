"""Compare posteriors with one of them, the truth: as functions and weight by weight.

Posteriors are known by names that the user chooses: `Candidate` is one that is opened and checked.
Nothing here depends on what made them.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from utils.data.datasets import Dataset
from utils.evaluation.alignment import WAYS
from utils.evaluation.checks import check_posteriors
from utils.evaluation.limits import find_limits
from utils.evaluation.metrics import (
    MetricValues,
    Prediction,
    add_errors,
    deviations,
    resample,
    resample_chains,
    scores,
)
from utils.evaluation.predictions import (
    FURTHER,
    LOW_RANK,
    SAMPLE,
    Column,
    PartPredictions,
    columns_of,
    predict_draws,
)
from utils.evaluation.setting import Setting
from utils.evaluation.views import Fit, fit_views, possible_columns, predict_views
from utils.evaluation.weight_space import fit_weight_space
from utils.networks.registry import inputs_for
from utils.posteriors.files import open_posterior
from utils.posteriors.posterior import Posterior, is_set
from utils.posteriors.prior import Prior, StatedPrior, prior_of, stated_prior
from utils.runs.lookup import PastRun, existing, find_run, identify
from utils.runs.progress import check_space
from utils.runs.run import Run
from utils.runs.seeding import generator
from utils.settings.config import option
from utils.settings.errors import UserError

from torch import Tensor

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")  # of a posterior: part of keys in files
RESERVED = ("rebased",)  # dead_pixels_rebased in diagnostics.json is about the truth


@dataclass(frozen=True)
class Candidate:
    name: str  # part of keys in files
    title: str  # in tables and figures
    posterior: Posterior
    run: PastRun
    identity: dict  # of the run when it was opened
    remedy: str  # what a user can give instead

    def __str__(self) -> str:
        if not is_set(self.posterior):
            return type(self.posterior).__name__
        chains = self.posterior.num_chains
        several = f", {chains} chains" if chains > 1 else ""
        return f"{len(self.posterior)} weight vectors{several}"


def open_candidate(name: str, title: str, path: Path, remedy: str = "", **thinning) -> Candidate:
    """Open the posterior in a run directory, or in one of its files."""
    identity = identify(path)  # before its samples are read: a chain may still run
    posterior = open_posterior(path, **thinning)
    return Candidate(name, title, posterior, PastRun(path), identity, remedy)


def named_paths(config, given: Sequence[str], flag: str = "--posteriors") -> dict[str, Path]:
    """Read texts name=PATH."""
    paths = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not path or name in paths:
            raise UserError(f"{flag} takes name=PATH with different names, got {text!r}.")
        paths[name] = existing(config, path)
    return paths


def sets_option():
    """Declare the option that takes sets of networks or chains, as `named_or_newest` reads it."""
    text = "sets of networks or chains, each as NAME=PATH; by default the newest HMC and ensemble "
    return option([], f"{text}runs", metavar="NAME=PATH", changeable=True)


def named_or_newest(config, made_by: Mapping[str, str]) -> dict[str, Path]:
    """Return what `config.posteriors` names; without any, the batch's HMC and ensemble runs.

    `made_by` says which script makes runs of a kind.
    """
    if config.posteriors:
        return named_paths(config, config.posteriors)
    flag = "--posteriors NAME=PATH"
    return {kind: find_run(config, kind, made_by[kind], flag) for kind in ("HMC", "ensemble")}


def check_names(names: Iterable[str]) -> None:
    """Refuse names that cannot be parts of keys, or would make two of them equal."""
    names = list(names)
    for name in names:
        if not NAME.fullmatch(name) or name in RESERVED:
            raise UserError(
                f"{name!r} cannot name a posterior: names have letters, digits and underscores, "
                f"begin with a letter, and are not {RESERVED[0]!r}."
            )
    keys = [key.lower() for name in names for key in columns_of([name])]
    if len(set(keys)) < len(keys):
        raise UserError(f"The names {', '.join(names)} are too alike: choose others.")


def check_candidates(candidates: dict[str, Candidate], truth: str) -> None:
    """Refuse a truth that is a distribution, and posteriors of different networks."""
    true = candidates[truth]
    if not is_set(true.posterior):
        raise UserError(
            f"Posteriors are compared with a set of weight vectors, but {truth} is a {true}: give "
            "another --truth."
        )
    for candidate in candidates.values():
        if candidate.posterior.network != true.posterior.network:
            raise UserError(
                f"{candidate.run.path} is of the network {candidate.posterior.network}, but "
                f"{true.run.path} of {true.posterior.network}: {candidate.remedy}."
            )


def check_data(candidate: Candidate, data: Dataset) -> None:
    """Refuse a network without hidden units, or for other images and classes."""
    network = candidate.posterior.network
    fits = math.prod(network.input_shape) == data.num_pixels
    if not network.groups or not fits or network.num_classes != data.num_classes:
        raise UserError(
            f"{candidate.run.path} is of the network {network}: give samples of one with "
            f"{data.num_pixels} inputs, hidden units and {data.num_classes} outputs, as "
            f"{data.name} needs it."
        )


def prior_in(candidate: Candidate, num_points: int, device="cpu") -> Prior:
    """Return the prior of the potential of a run, N(0, 1) for those that do not say."""
    return prior_of(candidate.run.config, candidate.posterior.network, num_points, device)


def temperature_of(candidate: Candidate) -> float:
    return candidate.run.config.get("temperature", 1.0)


def stated_prior_in(candidate: Candidate, num_points: int) -> StatedPrior:
    """Return the prior that a run states; `num_points` is that of runs that take all images."""
    run = candidate.run
    return stated_prior(run.config, run.data.get("num_train") or num_points)


def warn_of_other_priors(candidates: Iterable[Candidate], num_points: int) -> None:
    """Say so if runs have other priors: then not even their modes are the same.

    `num_points` is the number of training images of runs that do not say.
    """
    priors = {each.title: stated_prior_in(each, num_points) for each in candidates}
    first, *others = priors.values()
    if not all(first.matches(other) for other in others):
        listed = "; ".join(f"{title}: {prior}" for title, prior in priors.items())
        print(f"Warning: these are posteriors with different priors ({listed}).")


def warn_of_other_posteriors(candidates: Iterable[Candidate], num_points: int) -> None:
    """Say so if runs are of different posteriors, as far as their settings are known."""
    candidates = list(candidates)
    warn_of_other_data(candidates)
    warn_of_other_priors(candidates, num_points)
    temperatures = {each.title: temperature_of(each) for each in candidates}
    if len(set(temperatures.values())) > 1:
        listed = ", ".join(f"{title} T = {each:g}" for title, each in temperatures.items())
        print(f"Warning: these are posteriors at different temperatures ({listed}).")
    settings = {each.title: each.run.config for each in candidates}
    augmented = [
        title for title, each in settings.items() if each.get("padding") or each.get("flips")
    ]
    if 0 < len(augmented) < len(settings):
        print(
            f"Warning: {', '.join(augmented)} have seen random crops or flips, and others have "
            "not, so these are different posteriors."
        )
    held = [title for title, each in settings.items() if each.get("fixed_share")]
    if 0 < len(held) < len(settings):
        print(
            f"Warning: some weights of {', '.join(held)} were fixed (--fixed_share) and none of "
            "the others', so these are different posteriors."
        )


def warn_of_other_data(candidates: Iterable[Candidate]) -> None:
    """Say so if runs have seen different numbers of images: their posteriors differ."""
    data = {candidate.title: candidate.run.data for candidate in candidates}
    counts = {title: each["num_train"] for title, each in data.items() if "num_train" in each}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{title} {count or 'all'}" for title, count in counts.items())
        print(f"Warning: these are posteriors of different training images ({listed}).")


# ---- standard errors of the table


@dataclass(frozen=True)
class TableErrors:
    """Standard errors of all columns of a table.

    They have independent origins: the test points, the weights drawn from Gaussians, and the
    samples of each posterior. One origin at a time is resampled while the others stay, and the
    errors add in squares. The samples of the truth change their own column, the Gaussians fitted to
    them, and what every other column is compared with.
    """

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


# ---- comparing them


def evaluate(
    candidates: dict[str, Candidate], truth: str, images: Dataset, run: Run, about: dict,
    beside: Mapping[str, Candidate] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Compare all candidates, of one network, with the truth, which is a set of weight vectors.

    Those `beside` them, of any network, are only in the study of noise on dead pixels.
    `run` has the settings, an EvaluationConfig, and what an interrupted session has found. Table,
    errors, diagnostics.json, which begins with `about`, and all arrays are written to it.
    """
    true = candidates[truth]
    data = inputs_for(true.posterior.network, images)
    num_points = len(data.train_labels)
    warn_of_other_posteriors(candidates.values(), num_points)
    temperature = temperature_of(true)
    prior = prior_in(true, num_points, data.train_labels.device).tempered(temperature)
    posteriors = {name: candidates[name].posterior for name in (truth, *candidates)}
    network, first = true.posterior.network, true.posterior[0].to(data.train_images.device)
    further = possible_columns(network, first, data.train_images[:2], run.config.further)
    config = replace(run.config, further=further)
    setting = Setting(network, data, config, prior, temperature, images)
    check_resources(setting, posteriors, run)
    views = fit_views(setting, posteriors, truth, run)
    predictions = predict_views(setting, posteriors, views)
    true_predictions = predictions[Column(truth, SAMPLE)]
    table = {
        column.key: scores(each.compared(true_predictions, data.test_labels))
        for column, each in predictions.items()
    }
    chains = {name: posteriors[name].num_chains for name in views.aligned}
    errors = TableErrors(setting, predictions, views.fits, chains, Column(truth, SAMPLE)).table()
    space = fit_weight_space(setting, posteriors, truth, views)
    checks = check_posteriors(setting, true.posterior, views, predictions, space)
    if setting.config.limit_draws:
        others = {name: each.posterior for name, each in beside.items()}
        checks["limits"] = find_limits(setting, posteriors, truth, views, predictions, others)
    run.save_json("table1.json", table)
    run.save_json("table1_errors.json", {column.key: row for column, row in errors.items()})
    run.save_json("diagnostics.json", about | checks)
    for name, aligned in views.compacts(truth).items():
        aligned.compact().save(run.path(f"{name}.npz"))
    if low_rank := views.fits.get(Column(truth, LOW_RANK)):
        low_rank.posterior.write(run.path("low_rank.npz"))
    save_predictions(run, predictions, data.test_labels)
    space.save(run)


def save_predictions(run: Run, predictions: dict[Column, PartPredictions], labels: Tensor) -> None:
    """Write averages [N, classes] by column, and `<column>_mean` of networks at the mean."""
    arrays = {column.key: each.average() for column, each in predictions.items()}
    for column, each in predictions.items():
        if each.mean_network is not None:
            arrays[f"{column.key}_mean"] = each.mean_network
    run.save_arrays("predictions.npz", labels=labels, **arrays)


def check_resources(setting: Setting, candidates: dict[str, Posterior], run: Run) -> None:
    """Refuse what the disk cannot hold, and warn of what the memory cannot.

    Memory grows with the blocks of moments (two of every set, 16 bytes per weight each) and with
    the rank: num_refits, mean_rounds and rank of 0 leave them out.
    """
    config, num_weights = setting.config, setting.network.num_weights
    num_sets = sum(map(is_set, candidates.values()))
    further = {FURTHER[name].way for name in config.further} & set(WAYS)
    num_moments = 2 * num_sets + bool(config.mean_rounds) + len(further)
    blocks = config.num_blocks if config.num_refits else 1
    memory = 16 * num_moments * blocks + 8 * config.rank + 256
    disk = 4 * config.rank + 40 * len(candidates)
    check_space(run.directory, memory_bytes=memory * num_weights, disk_bytes=disk * num_weights)
