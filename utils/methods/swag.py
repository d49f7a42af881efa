"""SWAG: a Gaussian with the first two moments of the iterates of SGD.

Maddox et al. 2019, "A simple baseline for Bayesian uncertainty in deep learning". After training,
SGD goes on at a constant learning rate. With the mean w̄ of its iterates after every epoch, their
variances σ² and the last K deviations D from the running mean, weights are drawn as

    w = w̄ + σ z₁ / √2 + D z₂ / √(2 (K − 1))

so that half of the variance of each weight comes from σ² and half from D. At temperature T this
variance is T times as large.

w̄ alone is stochastic weight averaging, SWA (Izmailov et al. 2018): the scores have it as μ.

With batch normalisation, running statistics belong to one set of weights. Then the posterior is a
set of `num_draws` draws with w̄ beside them, and the statistics of each are computed again.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from utils.methods.method import Problem
from utils.methods.training import RecipeConfig, TrainedMethod, epoch_record
from utils.networks.predictions import recompute_statistics
from utils.posteriors.low_rank import LowRank
from utils.posteriors.posterior import Mixture, Posterior
from utils.posteriors.samples import Points
from utils.report.figures import PURPLE, Look
from utils.runs.seeding import generator
from utils.settings.config import option
from utils.settings.errors import UserError

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SWAGConfig(RecipeConfig):
    learning_rate: float = option(0.05, "step size before iterates are collected", above=0)
    num_pretrain_epochs: int = option(20, "epochs before iterates are collected", minimum=0)
    collect_learning_rate: float = option(
        0.01, "constant step size while iterates are collected", above=0
    )
    rank: int = option(20, "largest number of deviations kept for the covariance", minimum=2)
    num_draws: int = option(30, "weight samples that the predictions average over", minimum=1)

    def __post_init__(self):
        super().__post_init__()
        if self.num_epochs - self.num_pretrain_epochs < 2:
            raise UserError(
                f"SWAG needs two iterates or more: give a --num_epochs of at least "
                f"{self.num_pretrain_epochs + 2}, or fewer --num_pretrain_epochs."
            )


class SWAGState(NamedTuple):
    """After `epoch` epochs; the moments are those of the iterates collected so far."""

    modes: Tensor  # [K]
    weights: Tensor  # [K, d]
    momentum: Tensor  # [K, d]
    mean: Tensor  # [K, d]
    square: Tensor  # [K, d]: mean of w²
    deviations: Tensor  # [K, rank, d]: the newest first; 0 where there are fewer
    second_moment: Tensor | None = None  # [K, d], of Adam
    epoch: int = 0


class SWAG(TrainedMethod):
    name, kind, title = "swag", "SWAG", "SWAG"
    look = Look(PURPLE, "-.", "D")
    Config = SWAGConfig

    def init(self, problem: Problem, config, modes: Sequence[int]) -> SWAGState:
        start = super().init(problem, config, modes)
        mean, square = torch.zeros_like(start.weights), torch.zeros_like(start.weights)
        deviations = mean.new_zeros(len(modes), config.rank, mean.shape[1])
        return SWAGState(
            start.modes, start.weights, start.momentum, mean, square, deviations,
            start.second_moment,
        )  # fmt: skip

    def step(self, problem: Problem, state: SWAGState, config) -> tuple:
        if state.epoch < config.num_pretrain_epochs:
            state, losses = self.train_epoch(problem, state, config)
            return state, [epoch_record(problem, state, losses, state.weights[0], config)]
        rate = config.collect_learning_rate
        state, losses = self.train_epoch(
            problem, state, config, learning_rate=rate, schedule="constant"
        )
        state = collect(state, state.epoch - config.num_pretrain_epochs)
        return state, [epoch_record(problem, state, losses, state.mean[0], config)]

    def posterior(self, problem: Problem, state: SWAGState, config) -> Posterior:
        count = min(config.num_epochs - config.num_pretrain_epochs, config.rank)
        variance = (state.square - state.mean.square()).clamp(min=0) * problem.temperature
        rank_scale = (2 * (count - 1) / problem.temperature) ** 0.5
        modes = [
            LowRank(
                mean, deviations[:count] / rank_scale, network=problem.network,
                diagonal=(each / 2).sqrt(),
            )
            for mean, each, deviations in zip(state.mean, variance, state.deviations, strict=True)
        ]  # fmt: skip
        if problem.network.has_buffers:
            each_with = zip(modes, state.modes.tolist(), self.streams(state), strict=True)
            modes = [draws_of(*each, problem, config) for each in each_with]
        return modes[0] if len(modes) == 1 else Mixture(modes)


def draws_of(
    gaussian: LowRank, mode: int, stream: Hashable, problem: Problem, config
) -> Points:  # fmt: skip
    """Return draws and the mean, each with statistics of its own, from the training images."""
    draws = gaussian.draw(config.num_draws, generator(config.seed, "swag_draws", stream))
    network, images = problem.network, problem.train_inputs
    mean, *weights = (
        recompute_statistics(network, each, images) for each in [gaussian.mean, *draws]
    )
    numbers = torch.full((len(weights),), mode)
    return Points(torch.stack(weights), network, {"modes": numbers}, mean=mean)


def collect(state: SWAGState, count: int) -> SWAGState:
    """Add the current weights to the moments, as the iterate number `count` (from 1)."""
    weights = state.weights
    mean = state.mean + (weights - state.mean) / count
    square = state.square + (weights.square() - state.square) / count
    newest = (weights - mean).unsqueeze(1)
    deviations = torch.cat([newest, state.deviations[:, :-1]], 1)
    return state._replace(mean=mean, square=square, deviations=deviations)
