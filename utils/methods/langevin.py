"""Langevin dynamics with gradients of minibatches, which SGLD and SGHMC share.

The target is p(w) ∝ exp(−U(w)/T) with U = Σ_n CE_n + ½ Σ w²/s² and the temperature T. Let g be the
gradient of U, its first part estimated from a minibatch and scaled to all N images. With
h = learning rate / N, a momentum β and z ~ N(0, I), a step is

    v ← β v − h g + √(2 (1 − β) h T) z        w ← w + v

This is SGHMC in the form of Chen et al. (2014, eq. 15), with η = h, α = 1 − β and no estimate of
the gradients' noise. With β = 0 it is SGLD (Welling and Teh 2011) with the step size ε = 2h. At
T = 0 it is SGD on the mean cross-entropy with weight decay, so learning rate and momentum mean the
same as there. docs/methods.md has its errors, and cyclical steps (Zhang et al. 2020).

The temperature of the velocities, (1 + β) v² / (2h), is T on average where gradients are exact and
h is small. It is recorded where steps are constant: velocities lag behind steps that change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from utils.data.batches import PlainBatches
from utils.methods.method import Method, Problem, Scores, scores_along
from utils.methods.shared_settings import AugmentationConfig, ModesConfig, PriorConfig
from utils.methods.training import check_losses
from utils.posteriors.posterior import Posterior
from utils.posteriors.samples import Points
from utils.runs.seeding import generator
from utils.settings.config import option
from utils.settings.errors import UserError
from utils.settings.wording import plural

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LangevinConfig(PriorConfig, ModesConfig, AugmentationConfig):
    learning_rate: float = option(0.1, "step size: h times the number of images, as SGD's", above=0)
    batch_size: int = option(100, "images per step", minimum=1)
    num_epochs: int = option(60, "passes over the training images, in each mode", minimum=1)
    num_burnin: int = option(30, "constant steps: epochs before samples are collected", minimum=0)
    store_every: int = option(1, "epochs from one sample to the next", minimum=1)
    num_cycles: int = option(
        0, "cycles in which the step size falls to 0; 0: it is constant", minimum=0
    )
    exploration: float = option(
        0.8, "share of each cycle that is without noise and leaves no samples", minimum=0, below=1
    )
    num_draws: int = option(1000, "samples that the scores average over, at most", minimum=1)

    def __post_init__(self):
        super().__post_init__()
        self.refuse_flat_prior()
        check_cycles(self.num_epochs, self.num_cycles)
        if not self.num_cycles and self.num_burnin >= self.num_epochs:
            raise UserError(
                f"A burn-in of {plural(self.num_burnin, 'epoch')} leaves none of "
                f"{self.num_epochs} to collect samples in: give more --num_epochs, or a shorter "
                "--num_burnin."
            )

    @property
    def cycle_epochs(self) -> int:
        """The length of a cycle; constant steps are one long one."""
        return self.num_epochs // max(self.num_cycles, 1)

    def pace(self, epochs: float) -> tuple[float, float]:
        """Return the learning rate and the temperature after so many epochs."""
        if not self.num_cycles:
            return self.learning_rate, self.temperature
        place = epochs / self.cycle_epochs % 1
        rate = cosine_rate(self.learning_rate, place)
        return rate, self.temperature if place >= self.exploration else 0.0

    def collects(self, epoch: int) -> bool:
        """Return whether the state after this epoch, counted from 1, is a sample."""
        place = (epoch - 1) % self.cycle_epochs + 1
        first = self.exploration * self.cycle_epochs if self.num_cycles else self.num_burnin
        return place > first and (self.cycle_epochs - place) % self.store_every == 0


def cosine_rate(largest: float, place: float) -> float:
    """Return the learning rate when a share of the cycle, `place`, is over."""
    return largest * (1 + math.cos(math.pi * place)) / 2


def check_cycles(num_epochs: int, num_cycles: int) -> None:
    if num_epochs % max(num_cycles, 1):
        raise UserError(
            f"{plural(num_epochs, 'epoch')} cannot be shared equally by {num_cycles} cycles: give "
            "a --num_epochs that is a multiple of --num_cycles."
        )


class ChainState(NamedTuple):
    """A chain after `epoch` epochs."""

    modes: Tensor  # [1]
    weights: Tensor  # [1, d]
    velocity: Tensor  # [1, d]
    samples: Tensor  # [samples so far, d]
    epoch: int = 0


def langevin_step(
    weights: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    noise: Tensor,
    *,
    step: float,
    momentum: float,
    temperature: float,
) -> None:
    """Move weights and velocity by one step h, in place; the gradient is U's, the noise N(0, I)."""
    velocity.mul_(momentum).sub_(gradient, alpha=step)
    if temperature:
        velocity.add_(noise, alpha=math.sqrt(2 * (1 - momentum) * step * temperature))
    weights.add_(velocity)


class Langevin(Method):
    """Collect the states of one trajectory.

    A subclass has a name, and settings that say `pace` and `collects`, with or without a momentum.
    """

    takes_batch_norm = False

    def init(self, problem: Problem, config, modes: Sequence[int]) -> ChainState:
        weights = self.initial_weights(problem, config, modes)
        samples = weights.new_empty(0, weights.shape[1])
        return ChainState(torch.tensor(modes), weights, torch.zeros_like(weights), samples)

    def step(self, problem: Problem, state: ChainState, config) -> tuple:
        (stream,) = self.streams(state)
        state, loss, heat = run_epoch(problem, state, config, stream)
        check_losses(loss, f"epoch {state.epoch}")
        if config.collects(state.epoch):
            state = state._replace(samples=torch.cat([state.samples, state.weights]))
        record = {"epoch": state.epoch, "train_loss": loss.item()}
        record |= {} if heat is None else {"temperature": heat}
        return state, [record | scores_along(problem, state.weights[0], state.epoch, config)]

    def posterior(self, problem: Problem, state: ChainState, config) -> Points:
        numbers = state.modes.expand(len(state.samples))
        return Points(state.samples, problem.network, {"modes": numbers}, is_chain=True)

    def scores(self, problem: Problem, posterior: Posterior, config, newest: dict) -> Scores:
        scores = super().scores(problem, posterior, config, newest)
        if "temperature" not in newest:
            return scores
        remark = (
            f"The velocities' temperature in the last epoch: {newest['temperature']:.3g}; "
            f"the posterior's: {config.temperature:g}. Noise of minibatches adds to it: smaller "
            "steps or larger batches lower it."
        )
        summary = scores.summary | {"temperature": newest["temperature"]}
        return scores._replace(summary=summary, remarks=[remark])


def run_epoch(
    problem: Problem, state: ChainState, config, stream
) -> tuple[ChainState, Tensor, float | None]:
    """Return the state an epoch later, the mean NLL of the training images along the way, and the
    temperature of the velocities if steps are constant and have noise.
    """
    network, data, epoch = problem.network, problem.data, state.epoch
    momentum, num_points = getattr(config, "momentum", 0.0), len(data.train_images)
    weights, velocity = state.weights.clone(), state.velocity.clone()
    gradient, noise = torch.empty_like(weights), torch.empty_like(weights)
    find_gradient = network.gradient(weights, gradient, min(config.batch_size, num_points))
    random = generator(config.seed, "langevin_noise", stream, epoch, device=weights.device)
    source = problem.batches or PlainBatches(data.train_images, data.train_labels)
    feed = source.epoch(config.batch_size, seed=config.seed, streams=[stream], epoch=epoch)
    num_steps = -(-num_points // config.batch_size)
    nll, speed = torch.zeros(2, dtype=torch.float64, device=weights.device)
    for number, (inputs, labels) in enumerate(feed):
        rate, temperature = config.pace(epoch + number / num_steps)
        step = rate / num_points
        nll += find_gradient(inputs, labels, scale=num_points / labels.shape[1], keep=0).sum()
        problem.prior.add_gradient(gradient, weights)
        if temperature:
            noise.normal_(generator=random)
        langevin_step(
            weights, velocity, gradient, noise,
            step=step, momentum=momentum, temperature=temperature,
        )  # fmt: skip
        speed += velocity.square().mean()
    measured = config.temperature and not config.num_cycles
    heat = (1 + momentum) / (2 * step) * (speed / num_steps).item() if measured else None
    state = state._replace(weights=weights, velocity=velocity, epoch=epoch + 1)
    return state, nll / num_points, heat
