"""Hamiltonian Monte Carlo with identity mass (Neal 2011, "MCMC using Hamiltonian dynamics").

With potential U(θ), momentum p ~ N(0, 1) and H(θ, p) = U(θ) + ½‖p‖², a transition follows the
leapfrog integrator and accepts where it ends with probability min(1, exp(−ΔH)).

A target, such as `posterior.Posterior`, has `trajectory(weights) -> (Energy, force)`.
`force(weights)` is ∂U/∂θ, called once in each step but the last, where `force.energy(weights)` is
the Energy at the end; `force.counts()` tells at what cost. U must not be negative.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from utils.parallel import ALONE, Ranks
from utils.posterior import Energy
from utils.seeding import generator

import torch
from torch import Tensor

# ΔH beyond which a trajectory has left the energy surface for good (as in Stan).
DIVERGENT = 1000.0
# An adapted step size stays within this factor of the configured one: a few rejections in a row
# at the start would else bring trajectories of hundreds of thousands of steps.
LARGEST_CHANGE = 100.0


class Trajectory(NamedTuple):
    """Where leapfrog steps ended, with the energies at both ends."""

    weights: Tensor
    momentum: Tensor
    start: Energy
    end: Energy
    delta_energy: float  # H at the end − H at the start, in nats
    list_rows: float  # training points looked at per step
    violations: int  # points that came near while the neighbour list left them out


class Transition(NamedTuple):
    """What a transition did; potential and NLL are those of the state it led to."""

    accept_prob: float
    accepted: bool
    delta_energy: float
    potential: float
    nll: float
    step_size: float
    num_steps: int
    divergent: bool
    list_rows: float
    violations: int
    seconds: float

    @classmethod
    def from_numbers(cls, numbers: list[float]) -> "Transition":
        kinds = cls.__annotations__.values()
        return cls(*(kind(number) for kind, number in zip(kinds, numbers, strict=True)))


def transition(
    target,
    weights: Tensor,
    step_size: float,
    num_steps: int,
    *stream,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Tensor, Transition]:
    """The chain's next state, and what happened; chance comes from the stream (seed, …)."""
    began = time.perf_counter()
    seed, *names = stream
    momentum = torch.randn(
        weights.shape, generator=generator(seed, "momentum", *names), dtype=weights.dtype
    ).to(weights.device)
    path = leapfrog(target, weights, momentum, step_size, num_steps, on_step)
    change = path.delta_energy
    divergent = not change < DIVERGENT  # NaN is divergent, too
    accept_prob = 0.0 if divergent else math.exp(min(0.0, -change))
    uniform = torch.rand((), generator=generator(seed, "accept", *names), dtype=torch.float64)
    accepted = uniform.item() < accept_prob
    end = path.end if accepted else path.start
    return (path.weights if accepted else weights), Transition(
        accept_prob, accepted, change, end.potential, end.nll, step_size, num_steps, divergent,
        path.list_rows, path.violations, time.perf_counter() - began,
    )  # fmt: skip


def leapfrog(
    target,
    weights: Tensor,
    momentum: Tensor,
    step_size: float,
    num_steps: int,
    on_step: Callable[[], None] = lambda: None,
) -> Trajectory:
    """`num_steps` steps of size ε from (θ, p):

        p ← p − ½ε ∂U/∂θ,   θ ← θ + ε p,   p ← p − ½ε ∂U/∂θ

    As U is not negative, a kinetic energy above H + DIVERGENT at the start is a divergence
    already, and the rest of the way is spared.
    """
    start, force = target.trajectory(weights)
    energy = start.potential + kinetic_energy(momentum)
    weights = weights.clone()
    momentum = momentum - 0.5 * step_size * start.gradient
    for step in range(1, num_steps + 1):
        weights.add_(momentum, alpha=step_size)
        on_step()
        if step < num_steps:  # two half steps in one
            momentum.add_(force(weights), alpha=-step_size)
            if not kinetic_energy(momentum) < energy + DIVERGENT:
                break
    end = force.energy(weights)
    momentum.add_(end.gradient, alpha=-0.5 * step_size)
    delta_energy = end.potential + kinetic_energy(momentum) - energy
    return Trajectory(weights, momentum, start, end, delta_energy, *force.counts())


def kinetic_energy(momentum: Tensor) -> float:
    """½‖p‖², summed in float64."""
    momentum = momentum.double()
    return 0.5 * momentum.dot(momentum).item()


class StepSizeAdaptation(NamedTuple):
    """Dual averaging of log ε towards a target acceptance (Hoffman & Gelman 2014, section 3.2)."""

    log_step: float  # to be used next while adapting
    log_average: float  # to be used when adaptation ends
    error: float  # H̄: average of target − acceptance
    center: float  # μ = log ε₀; their log(10 ε₀) reaches for steps that would be unstable here
    count: int

    @classmethod
    def start(cls, step_size: float) -> "StepSizeAdaptation":
        log_step = math.log(step_size)
        return cls(log_step, log_step, 0.0, log_step, 0)

    def update(self, accept_prob: float, target: float) -> "StepSizeAdaptation":
        """After another transition: with t its number, γ = 0.05, t₀ = 10 and κ = 0.75,

        H̄ ← (1 − 1/(t+t₀)) H̄ + (target − accept)/(t+t₀)
        log ε = μ − √t/γ · H̄,   log ε̄ ← t^−κ log ε + (1 − t^−κ) log ε̄

        with log ε kept within log LARGEST_CHANGE of μ.
        """
        t = self.count + 1
        error = self.error + (target - accept_prob - self.error) / (t + 10)
        most = math.log(LARGEST_CHANGE)
        log_step = self.center - min(most, max(-most, math.sqrt(t) / 0.05 * error))
        share = t**-0.75
        average = share * log_step + (1 - share) * self.log_average
        return StepSizeAdaptation(log_step, average, error, self.center, t)


@dataclass(frozen=True)
class HMCSettings:
    """Of every chain. A trajectory has a fixed number of steps, or else a length."""

    step_size: float
    num_burnin: int
    num_steps: int | None = None
    trajectory_length: float | None = None
    jitter: float = 0.0
    grow_trajectories: bool = False  # linearly over burn-in, from short ones to full length
    adapt_step_size: bool = False  # in burn-in
    target_acceptance: float = 0.8

    def step_size_at(self, adaptation: StepSizeAdaptation, iteration: int) -> float:
        if not self.adapt_step_size:
            return self.step_size
        adapting = iteration < self.num_burnin
        return math.exp(adaptation.log_step if adapting else adaptation.log_average)

    def expected_steps(self, adaptation: StepSizeAdaptation, iteration: int) -> float:
        """Leapfrog steps of a transition before jitter and rounding."""
        steps = self.num_steps or self.trajectory_length / self.step_size_at(adaptation, iteration)
        if self.grow_trajectories and iteration < self.num_burnin:
            steps *= (iteration + 1) / self.num_burnin
        return steps

    def draw_steps(self, adaptation: StepSizeAdaptation, iteration: int, *stream) -> int:
        """Leapfrog steps of a transition; the share by which they vary is uniform in ± jitter.

        Without it a chain could move periodically along near-harmonic directions (Neal 2011).
        """
        uniform = torch.rand((), generator=generator(*stream), dtype=torch.float64).item()
        factor = 1 + self.jitter * (2 * uniform - 1)
        return max(1, round(factor * self.expected_steps(adaptation, iteration)))


@dataclass(frozen=True)
class Chains:
    """C chains after `iteration` transitions each."""

    weights: Tensor  # [C, d]
    adaptations: tuple[StepSizeAdaptation, ...]
    iteration: int = 0


def start_chains(weights: Tensor, settings: HMCSettings) -> Chains:
    adaptation = StepSizeAdaptation.start(settings.step_size)
    return Chains(weights, (adaptation,) * len(weights))


def advance(
    target,
    chains: Chains,
    settings: HMCSettings,
    seed: int,
    ranks: Ranks = ALONE,
    spread_chains: bool = False,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Chains, list[Transition]]:
    """Every chain a transition further.

    Over several ranks either each chain belongs to one of them (`spread_chains`), or all ranks
    make each transition together, each with its part of the data. Then all adopt what the chain's
    owner, or the first rank, arrived at: ranks never part, whatever rounding does.
    """
    iteration = chains.iteration
    weights, adaptations, results = chains.weights.clone(), [], []
    owners = [k % ranks.size if spread_chains else 0 for k in range(len(weights))]
    report = torch.zeros(len(weights), len(Transition._fields), dtype=torch.float64)
    for k, adaptation in enumerate(chains.adaptations):
        if spread_chains and owners[k] != ranks.number:
            continue
        step_size = settings.step_size_at(adaptation, iteration)
        num_steps = settings.draw_steps(adaptation, iteration, seed, "length", k, iteration)
        weights[k], result = transition(
            target, weights[k], step_size, num_steps, seed, k, iteration, on_step=on_step
        )
        report[k] = torch.tensor(result, dtype=torch.float64)
    for k, adaptation in enumerate(chains.adaptations):
        ranks.share(weights[k], owners[k])
        result = Transition.from_numbers(ranks.share(report[k], owners[k]).tolist())
        if settings.adapt_step_size and iteration < settings.num_burnin:
            adaptation = adaptation.update(result.accept_prob, settings.target_acceptance)
        adaptations.append(adaptation)
        results.append(result)
    return Chains(weights, tuple(adaptations), iteration + 1), results
