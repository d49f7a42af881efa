"""What a method of approximating the posterior is, and what it works on.

A method steps a state of tensors forward and leaves a posterior. `utils.driver` runs any of them:
it opens, resumes, logs, checkpoints, scores and finishes the run.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from utils.data.batches import Batches
from utils.data.datasets import Dataset, load_dataset, network_inputs
from utils.evaluation.metrics import accuracy, mean_nll
from utils.methods.shared_settings import AugmentationConfig
from utils.networks.network import Network, initial_stack
from utils.networks.predictions import class_probabilities, mean_probabilities
from utils.networks.registry import inputs_for, network_for
from utils.posteriors.gaussian import Gaussian, elbo_estimates, log_likelihood
from utils.posteriors.posterior import Mixture, Posterior, is_set
from utils.posteriors.prior import Prior, prior_of
from utils.report import figures
from utils.report.figures import Look
from utils.runs.compute import choose_device
from utils.runs.seeding import generator
from utils.settings.errors import UserError
from utils.settings.wording import plural

import torch
from torch import Tensor

MOST_SCORED = 100  # epochs of a training, about
ELBO_DRAWS = 20  # passes over the training images
MOST_DRAWS = 1000  # of sets whose settings do not say


class Problem(NamedTuple):
    """The posterior to approximate.

    Training images that are augmented stay as they were loaded, in a quarter of the memory.
    """

    network: Network
    data: Dataset
    prior: Prior  # of the potential U
    device: torch.device
    batches: Batches | None = None  # augmented training images
    temperature: float = 1.0

    @property
    def train_inputs(self) -> Tensor:
        """The training images as the network takes them; with augmentation, made for each call."""
        images, network = self.data.train_images, self.network
        if self.batches is None:
            return images
        normalisation = self.data.normalisation(network.normalisation)
        return network_inputs(images, network.input_shape, normalisation)

    @property
    def tempered_prior(self) -> Prior:
        """The prior of exp(−U/T)."""
        return self.prior.tempered(self.temperature)


class Scores(NamedTuple):
    """What a run says about its posterior when it is finished."""

    summary: dict  # summary.json
    rows: list[list]  # [name, test accuracy, test NLL]
    remarks: Sequence[str] = ()  # lines to print


class Method:
    """A method. Its states are named tuples of tensors with a counter `epoch`.

    Modes, such as the members of an ensemble, are numbered. Each has random streams of its own, so
    a mode is the same whatever others are made beside it.
    """

    name: str  # key of columns and files
    kind: str  # how its run directories begin
    title: str  # in tables and figures
    look: Look
    Config: type  # extends PriorConfig or RecipeConfig; has num_epochs and num_draws
    takes_batch_norm = True  # whether networks with batch normalisation make sense with it

    def modes(self, config) -> list[Sequence[int]]:
        """Return the numbers of the modes, in groups that are trained side by side."""
        return [[number] for number in range(config.num_modes)]

    def stream(self, mode: int):
        """Return what names a mode's random streams; other methods' have other names."""
        return (self.name, mode)

    def streams(self, state) -> list:
        return [self.stream(mode) for mode in state.modes.tolist()]

    def initial_weights(self, problem: Problem, config, modes: Sequence[int]) -> Tensor:
        """Draw where each mode starts, [modes, d]."""
        streams = map(self.stream, modes)
        return initial_stack(problem.network, config.seed, streams, problem.device)

    def init(self, problem: Problem, config, modes: Sequence[int]):
        """Return the state of a group of modes before the first step."""
        raise TypeError(f"{type(self).__name__} does not say how it begins")

    def step(self, problem: Problem, state, config) -> tuple:
        """Return the state one epoch or more later, and its records for metrics.jsonl."""
        raise TypeError(f"{type(self).__name__} does not say how it goes on")

    def posterior(self, problem: Problem, state, config) -> Posterior:
        """Return the posterior that a final state stands for."""
        raise TypeError(f"{type(self).__name__} does not say what it leaves")

    def choose(self, places: Sequence[Path], config) -> None:
        """Mark what the posterior leaves out of what modes have saved in these directories."""

    def scores(self, problem: Problem, posterior: Posterior, config, newest: dict) -> Scores:
        """Score the average prediction of draws, and the mean network where there is one.

        `newest` has the last value of everything in metrics.jsonl.
        """
        data, network = problem.data, problem.network
        average = predict(problem, posterior, config, data.test_images)
        summary = scores_on("test", average, data.test_labels)
        rows = [[plural(num_draws(posterior, config), "draw"), *summary.values()]]
        if posterior.mean is not None:
            mean = posterior.mean.to(problem.device)
            probabilities = class_probabilities(network, mean, data.test_images)
            own = scores_on("mean_test", probabilities, data.test_labels)
            rows.append(["μ", *own.values()])
            summary |= own
        return Scores(summary, rows)

    def figure(self, source: Path):
        """Draw the training from metrics.jsonl."""
        return figures.training(source)


def set_up(method: Method, config) -> Problem:
    """Return the posterior that a method is to approximate with these settings."""
    device = choose_device(config.device)
    images = load_dataset(config.dataset, config.data_dir, config.num_train, config.num_valid)
    images = images.to(device)
    network = network_for(config, images)
    if network.has_buffers and not method.takes_batch_norm:
        raise UserError(
            f"{method.title} cannot take {network.name}, whose batch normalisation makes the loss "
            f"of an image depend on its batch: choose another --network, such as resnet20_frn."
        )
    batches = config.batches(images, network) if isinstance(config, AugmentationConfig) else None
    if batches is None:
        inputs = inputs_for(network, images)
    else:
        pixels = images.train_images
        inputs = inputs_for(network, replace(images, train_images=pixels[:0]))
        inputs = replace(inputs, train_images=pixels)
    return problem_of(config, network, inputs, device, batches)


def problem_of(config, network: Network, data: Dataset, device, batches=None) -> Problem:
    """Return the posterior of a network on inputs, with the prior and temperature of a config."""
    prior = prior_of(asdict(config), network, len(data.train_labels), device)
    return Problem(network, data, prior, device, batches, config.temperature)


def scores_on(part: str, probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracy and NLL under the names that begin with `part`."""
    return {
        f"{part}_accuracy": accuracy(probabilities, labels),
        f"{part}_nll": mean_nll(probabilities, labels),
    }


def scores_along(problem: Problem, weights: Tensor, epoch: int, config) -> dict[str, float]:
    """Return the test scores of a network [d] after an epoch of training; often nothing.

    Scores take longer than an epoch of few images, so trainings of many epochs are not scored after
    each of them.
    """
    if epoch % max(config.num_epochs // MOST_SCORED, 1) and epoch < config.num_epochs:
        return {}
    probabilities = class_probabilities(problem.network, weights, problem.data.test_images)
    return scores_on("test", probabilities, problem.data.test_labels)


def num_draws(posterior: Posterior, config) -> int:
    """Return how many weight vectors predict; of a set none does so twice."""
    count = getattr(config, "num_draws", MOST_DRAWS)
    return min(count, len(posterior)) if is_set(posterior) else count


def predict(problem: Problem, posterior: Posterior, config, images: Tensor) -> Tensor:
    """Return the average prediction [N, classes] of draws, the same for all images."""
    count = num_draws(posterior, config)
    draws = posterior.draw(count, generator(config.seed, "predictive_draws"))
    return mean_probabilities(problem.network, (w.to(problem.device) for w in draws), images)


# ---- to choose settings by


def images_used(data: Dataset) -> dict:
    """Return what a run notes about its training images, where its settings do not say it."""
    return {} if data.valid_labels is None else {"num_train": len(data.train_labels)}


def selection_scores(problem: Problem, posterior: Posterior, config) -> dict[str, float]:
    """Return the scores on validation images, and the ELBO of Gaussians; {} without either."""
    scores = {}
    if problem.data.valid_labels is not None:
        average = predict(problem, posterior, config, problem.data.valid_images)
        scores = scores_on("valid", average, problem.data.valid_labels)
    modes = posterior.components if isinstance(posterior, Mixture) else [posterior]
    if all(isinstance(mode, Gaussian) and (mode.std > 0).all() for mode in modes):
        streams = [generator(config.seed, "elbo", number) for number in range(len(modes))]
        bounds = [gaussian_elbos(problem, *pair) for pair in zip(modes, streams, strict=True)]
        errors = [(each.var() / len(each)).item() for each in bounds]
        scores["elbo"] = fmean(each.mean().item() for each in bounds)
        scores["elbo_error"] = sum(errors) ** 0.5 / len(bounds)
    return scores


def gaussian_elbos(problem: Problem, posterior: Gaussian, random: torch.Generator) -> Tensor:
    """Return estimates of the bound on the log evidence of all training images, at T of exp(−U/T).

    There is one of each draw.
    """
    images, labels = problem.train_inputs, problem.data.train_labels

    def likelihood(weights: Tensor) -> float:
        return log_likelihood(problem.network, weights, images, labels) / problem.temperature

    moved = posterior.to(problem.device)
    return elbo_estimates(moved, problem.tempered_prior, likelihood, ELBO_DRAWS, random)


def tensors_of(state) -> dict[str, Tensor]:
    """Return what a checkpoint has to hold of a state, besides its epoch."""
    return {name: each for name, each in state._asdict().items() if isinstance(each, Tensor)}
