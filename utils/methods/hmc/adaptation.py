"""Settings of the sampler: step sizes, adapted or not, and lengths of trajectories."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from utils.runs.seeding import generator

import torch

# An adapted step size stays within this factor of the configured one. Otherwise a few rejections in
# a row at the start could lead to trajectories of hundreds of thousands of steps.
LARGEST_CHANGE = 100.0
MASS_STATES = 500  # of burn-in, about as many as a mass is learnt from: more add little
HOT_SHARE = 0.5  # of burn-in, in which an annealed likelihood cools down


class StepSizeAdaptation(NamedTuple):
    """Dual averaging of log ε towards a target acceptance (Hoffman & Gelman 2014, section 3.2)."""

    log_step: float  # used next while adapting
    log_average: float  # used when adaptation has ended
    error: float  # H̄: average of target − acceptance
    center: float  # μ = log ε₀; their log(10 ε₀) tries steps that are unstable here
    count: int

    @classmethod
    def start(cls, step_size: float) -> "StepSizeAdaptation":
        log_step = math.log(step_size)
        return cls(log_step, log_step, 0.0, log_step, 0)

    def update(self, accept_prob: float, target: float) -> "StepSizeAdaptation":
        """Return the state after transition t = count + 1: with γ = 0.05, t₀ = 10, κ = 0.75,

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
    """Settings of every chain. A trajectory has a fixed number of steps, or else a length."""

    step_size: float
    num_burnin: int
    num_steps: int | None = None
    trajectory_length: float | None = None
    jitter: float = 0.0
    grow_trajectories: bool = False  # linearly over burn-in, from short ones to full length
    adapt_step_size: bool = False  # in burn-in
    target_acceptance: float = 0.8
    max_steps: int | None = None  # of a trajectory that has a length
    reversal_every: int = 0  # one in so many trajectories is followed back; 0: none
    anneal_from: float = 1.0  # the factor of the likelihood's temperature in the first transition

    @property
    def hot_transitions(self) -> int:
        """The transitions in which the likelihood is hotter than later."""
        return round(HOT_SHARE * self.num_burnin) if self.anneal_from > 1 else 0

    def heat_at(self, iteration: int) -> float:
        """Return the factor of the likelihood's temperature, which falls geometrically to 1."""
        if iteration >= self.hot_transitions:
            return 1.0
        return self.anneal_from ** (1 - iteration / self.hot_transitions)

    def learns_mass_at(self, iteration: int) -> bool:
        every = max(1, self.num_burnin // MASS_STATES)
        return iteration < self.num_burnin and iteration % every == 0

    def step_size_at(self, adaptation: StepSizeAdaptation, iteration: int) -> float:
        if not self.adapt_step_size:
            return self.step_size
        adapting = iteration < self.num_burnin
        return math.exp(adaptation.log_step if adapting else adaptation.log_average)

    def expected_steps(self, adaptation: StepSizeAdaptation, iteration: int) -> float:
        """Return the leapfrog steps of a transition before jitter and rounding."""
        steps = self.num_steps or self.trajectory_length / self.step_size_at(adaptation, iteration)
        steps = min(steps, self.max_steps or steps)
        if self.grow_trajectories and iteration < self.num_burnin:
            steps *= (iteration + 1) / self.num_burnin
        return steps

    def draw_steps(self, adaptation: StepSizeAdaptation, iteration: int, *stream) -> int:
        """Draw the leapfrog steps of a transition; they vary uniformly by ± jitter.

        Without jitter a chain could move periodically along near-harmonic directions (Neal 2011).
        """
        uniform = torch.rand((), generator=generator(*stream), dtype=torch.float64).item()
        factor = 1 + self.jitter * (2 * uniform - 1)
        return max(1, round(factor * self.expected_steps(adaptation, iteration)))
