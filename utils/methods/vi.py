"""Mean-field Gaussian variational inference.

q(w) = N(μ, diag σ²) minimises E_q[−log p(data | w)] / T + KL(q ‖ prior) by stochastic gradients,
with one weight sample w = μ + σ ε per batch (the reparameterisation trick). At temperature T the
prior is N(0, T s²). σ is parameterised by its log and kept at SMALLEST_STD or above. With several
modes, each is a Gaussian fitted from a start of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from utils.data.batches import PlainBatches
from utils.methods.method import Method, Problem, Scores, scores_along
from utils.methods.shared_settings import ModesConfig, PriorConfig
from utils.methods.training import adam_update, check_losses
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.posterior import Mixture, Posterior
from utils.report import figures
from utils.report.figures import GREEN, Look
from utils.runs.seeding import generator
from utils.settings.config import option

import torch
from scipy.stats import linregress
from torch import Tensor

SMALLEST_STD = 1e-5
RECENT, FEWEST_ELBOS = 0.2, 5  # share and number of epochs that show whether the ELBO is rising
CLEAR_RISE = 3.0  # standard errors by which its slope has to exceed 0


@dataclass(frozen=True, kw_only=True)
class VIConfig(PriorConfig, ModesConfig):
    initial_std: float = option(0.05, "standard deviation of every weight at the start", above=0)
    learning_rate: float = option(1e-3, "step size of Adam", above=0)
    batch_size: int = option(100, "images per step", minimum=1)
    num_epochs: int = option(50, "passes over the training images", minimum=1)
    num_draws: int = option(100, "weight samples that the predictions average over", minimum=1)

    def __post_init__(self):
        super().__post_init__()
        self.refuse_flat_prior()


class VIState(NamedTuple):
    """After `epoch` epochs: μ and log σ as the two rows of each tensor, and Adam's moments."""

    parameters: Tensor  # [2, d]
    momentum: Tensor  # [2, d]
    second_moment: Tensor  # [2, d]
    epoch: int = 0
    mode: Tensor = torch.tensor(0)
    elbos: Tensor = torch.empty(0, dtype=torch.float64)  # [epoch]: of every epoch so far


def start_vi(mean: Tensor, std: float) -> VIState:
    """Return the state before the first step: the given means, the same deviation everywhere."""
    parameters = torch.stack([mean, torch.full_like(mean, math.log(std))])
    return VIState(parameters, torch.zeros_like(parameters), torch.zeros_like(parameters))


def train_vi_epoch(problem: Problem, state: VIState, config) -> tuple[VIState, float]:
    """Return the state an epoch later, and the mean NLL of the training images along the way."""
    images, labels = problem.data.train_images, problem.data.train_labels
    seed, batch_size, prior = config.seed, config.batch_size, problem.tempered_prior
    parameters, momentum, second_moment = (each.clone() for each in state[:3])
    mean, log_std = parameters
    num_points, num_steps = len(images), -(-len(images) // batch_size)
    steps_done = torch.tensor(float(state.epoch * num_steps), device=images.device)
    stream = streams_of(state.mode.item())
    noise_stream = generator(seed, "weight_noise", *stream, state.epoch, device=images.device)
    noise, std, weights = (torch.empty_like(mean) for _ in range(3))
    gradient = torch.empty_like(parameters)
    mean_gradient, log_std_gradient = gradient
    rows = min(batch_size, num_points)
    find_gradient = problem.network.gradient(weights[None], mean_gradient[None], rows)
    total_nll = torch.zeros((), dtype=torch.float64, device=images.device)
    source = PlainBatches(images, labels)
    feed = source.epoch(batch_size, seed=seed, streams=[stream or "vi"], epoch=state.epoch)
    for inputs, classes in feed:
        torch.exp(log_std, out=std)
        noise.normal_(generator=noise_stream)
        torch.addcmul(mean, std, noise, out=weights)
        scale = num_points / classes.shape[1] / problem.temperature
        nll = find_gradient(inputs, classes, scale=scale, keep=0)
        total_nll += nll.sum()
        # ∂/∂log σ = (g ε + σ/s²) σ − 1 and ∂/∂μ = g + μ/s², where g is the likelihood's gradient
        torch.mul(std, prior.precision, out=weights)  # done with until the next step
        torch.addcmul(weights, mean_gradient, noise, out=log_std_gradient).mul_(std).sub_(1)
        prior.add_gradient(mean_gradient, mean)
        adam_update(parameters, gradient, momentum, second_moment, steps_done, config.learning_rate)
        log_std.clamp_(min=math.log(SMALLEST_STD))
    check_losses(parameters.sum(), f"epoch {state.epoch + 1}")
    trained = dict(parameters=parameters, momentum=momentum, second_moment=second_moment)
    return state._replace(**trained, epoch=state.epoch + 1), total_nll.item() / num_points


def streams_of(mode: int) -> tuple:
    """Return what names a mode's random streams besides their purpose; nothing for mode 0."""
    return ("vi", mode) if mode else ()


def recent_slope(elbos: Tensor) -> tuple[float, float]:
    """Return the slope per epoch of a line through the newest ELBOs, and its standard error."""
    newest = elbos[-max(FEWEST_ELBOS, round(RECENT * len(elbos))) :]
    line = linregress(range(len(newest)), newest.tolist())
    return line.slope, line.stderr


def rises(slope: float, error: float) -> bool:
    """Return whether the ELBO was still rising at the end."""
    return bool(slope > CLEAR_RISE * error)


def rise_remark(slope: float, error: float) -> str:
    """Say whether it was, and how fast."""
    still = "is still rising: more epochs would fit better"
    advice = still if rises(slope, error) else "has stopped rising"
    return f"The ELBO {advice} ({slope:+.3g} ± {error:.2g} nats per epoch at the end)"


class VI(Method):
    name, kind, title = "vi", "VI", "VI"
    look = Look(GREEN, ":", "^")
    takes_batch_norm = False
    Config = VIConfig

    def init(self, problem: Problem, config, modes: Sequence[int]) -> VIState:
        (mode,) = modes
        stream = generator(config.seed, "initial_mean", *streams_of(mode))
        mean = problem.network.initial_weights(stream).to(problem.device)
        return start_vi(mean, config.initial_std)._replace(mode=torch.tensor(mode))

    def step(self, problem: Problem, state: VIState, config) -> tuple:
        state, train_nll = train_vi_epoch(problem, state, config)
        nll = train_nll * len(problem.data.train_images)
        kl = problem.tempered_prior.kl(*state.parameters)
        elbo = -nll / problem.temperature - kl
        record = {"epoch": state.epoch, "nll": nll, "kl": kl, "elbo": elbo}
        state = state._replace(elbos=torch.cat([state.elbos, state.elbos.new_tensor([elbo])]))
        if FEWEST_ELBOS <= state.epoch == config.num_epochs:
            slope, error = recent_slope(state.elbos)
            record |= {"elbo_slope": slope, "elbo_slope_error": error}
            record[f"elbo_rises_{state.mode.item()}"] = rises(slope, error)
        return state, [record | scores_along(problem, state.parameters[0], state.epoch, config)]

    def posterior(self, problem: Problem, state: VIState, config) -> Gaussian:
        mean, log_std = state.parameters
        return Gaussian(mean, log_std.exp(), problem.network)

    def scores(self, problem: Problem, posterior: Posterior, config, newest: dict) -> Scores:
        scores = super().scores(problem, posterior, config, newest)
        if isinstance(posterior, Mixture):
            modes = posterior.components
            kl = fmean(problem.tempered_prior.kl(each.mean, each.std.log()) for each in modes)
        else:
            modes, kl = [posterior], newest["kl"]
        average_std = fmean(each.std.mean().item() for each in modes)
        remarks = [f"KL to the prior {kl:.0f} nats, average σ {average_std:.3f}"]
        if "elbo_slope" in newest:  # with several modes, of the one that ended last
            remarks.append(rise_remark(newest["elbo_slope"], newest["elbo_slope_error"]))
        summary = scores.summary | {"kl": kl, "average_std": average_std}
        rising = [each for name, each in newest.items() if name.startswith("elbo_rises_")]
        if rising:  # of every mode
            summary["converged"] = not any(rising)
        return scores._replace(summary=summary, remarks=remarks)

    def figure(self, source: Path):
        return figures.vi_training(source)
