"""Hamiltonian Monte Carlo with identity mass (Neal 2011, "MCMC using Hamiltonian dynamics").

With potential U(θ), momentum p ~ N(0, 1) and H(θ, p) = U(θ) + ½‖p‖², a transition follows the
leapfrog integrator and accepts where it ends with probability min(1, exp(−ΔH)).

A target, such as `posterior.Posterior`, has `trajectory(weights) -> (Energy, force)`.
`force(weights)` is ∂U/∂θ, called once in each step but the last, where `force.energy(weights)` is
the Energy at the end; `force.counts()` tells at what cost. What it remembers of its calls is
`force.state()`, and `force.restore(state)` gives it back. U should not be far below 0: what is high
is judged by it.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from utils.methods.hmc.potential import Energy
from utils.runs.ranks import ALONE, Ranks
from utils.runs.seeding import generator

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


class Flight:
    """A trajectory under way from (θ, p), of whose leapfrog steps `step` are made.

    p ← p − ½ε ∂U/∂θ,   θ ← θ + ε p,   p ← p − ½ε ∂U/∂θ
    """

    def __init__(self, target, weights: Tensor, momentum: Tensor, step_size: float):
        self._began = time.perf_counter()
        self.start, self._force = target.trajectory(weights)
        self._energy = self.start.potential + kinetic_energy(momentum)
        self._step_size, self.step, self._highest = step_size, 0, 0.0
        self._weights = weights.clone()
        self._momentum = momentum - 0.5 * step_size * self.start.gradient

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def to_the_end(self, num_steps: int, on_step: Callable[["Flight"], None]) -> Trajectory:
        """The steps still to be made; of a trajectory that diverges on the way ΔH is infinite.

        It does where ½‖p‖², of any p between two θ, is DIVERGENT above H at one of the ends. From
        both ends that is the same, as it has to be for HMC to be exact. Where it is the start, the
        rest of the way is spared.
        """
        weights, momentum = self._weights, self._momentum
        while self.step < num_steps:
            kinetic = kinetic_energy(momentum)
            if not kinetic < self._energy + DIVERGENT:
                counts = self._force.counts()
                return Trajectory(weights, momentum, self.start, self.start, math.inf, *counts)
            self._highest = max(self._highest, kinetic)
            on_step(self)
            weights.add_(momentum, alpha=self._step_size)
            self.step += 1
            if self.step < num_steps:  # two half steps in one
                momentum.add_(self._force(weights), alpha=-self._step_size)
        end = self._force.energy(weights)
        momentum.add_(end.gradient, alpha=-0.5 * self._step_size)
        energy = end.potential + kinetic_energy(momentum)
        change = energy - self._energy if self._highest < energy + DIVERGENT else math.inf
        return Trajectory(weights, momentum, self.start, end, change, *self._force.counts())

    def state(self) -> dict[str, Tensor]:
        """What `restore` needs to go on from here, in a flight begun at the same place."""
        numbers = torch.tensor([self.step, self._highest, self.seconds], dtype=torch.float64)
        here = {"weights": self._weights, "momentum": self._momentum, "numbers": numbers}
        return here | {f"force_{name}": value for name, value in self._force.state().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        step, self._highest, seconds = state["numbers"].tolist()
        self.step, self._began = int(step), time.perf_counter() - seconds
        self._weights, self._momentum = state["weights"].clone(), state["momentum"].clone()
        of_force = {name: value for name, value in state.items() if name.startswith("force_")}
        self._force.restore({name.removeprefix("force_"): v for name, v in of_force.items()})


def leapfrog(
    target,
    weights: Tensor,
    momentum: Tensor,
    step_size: float,
    num_steps: int,
    on_step: Callable[[Flight], None] = lambda flight: None,
) -> Trajectory:
    """`num_steps` steps of size ε from (θ, p); `on_step` is called before each of them."""
    return Flight(target, weights, momentum, step_size).to_the_end(num_steps, on_step)


def transition(
    target,
    weights: Tensor,
    step_size: float,
    num_steps: int,
    *stream,
    on_step: Callable[[Flight], None] = lambda flight: None,
    resumed: dict[str, Tensor] | None = None,
) -> tuple[Tensor, Transition]:
    """The chain's next state, and what happened; chance comes from the stream (seed, …).

    With `resumed`, the state of a flight of this very transition, it goes on from there.
    """
    seed, *names = stream
    momentum = torch.randn(
        weights.shape, generator=generator(seed, "momentum", *names), dtype=weights.dtype
    ).to(weights.device)
    flight = Flight(target, weights, momentum, step_size)
    if resumed:
        flight.restore(resumed)
    path = flight.to_the_end(num_steps, on_step)
    change = path.delta_energy
    divergent = not change < DIVERGENT  # NaN is divergent, too
    accept_prob = 0.0 if divergent else math.exp(min(0.0, -change))
    uniform = torch.rand((), generator=generator(seed, "accept", *names), dtype=torch.float64)
    accepted = uniform.item() < accept_prob
    end = path.end if accepted else path.start
    return (path.weights if accepted else weights), Transition(
        accept_prob, accepted, change, end.potential, end.nll, step_size, num_steps, divergent,
        path.list_rows, path.violations, flight.seconds,
    )  # fmt: skip


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
    """C chains after `iteration` transitions each, some of the first ones after another one."""

    weights: Tensor  # [C, d]
    adaptations: tuple[StepSizeAdaptation, ...]
    iteration: int = 0
    ahead: tuple[Transition, ...] = ()  # that other one, of as many chains as have made it
    flight: dict[str, Tensor] | None = None  # its state, where the next chain has begun it


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
    on_step: Callable[[Chains, Flight | None], None] = lambda chains, flight: None,
) -> tuple[Chains, list[Transition]]:
    """Every chain a transition further.

    Over several ranks either the chains are moved side by side, one by each of them
    (`spread_chains`), or all ranks make each transition together, each with its part of the data.
    `on_step` is told before each step how far the chains are, and of a process that works alone
    the flight under way; that one moves on.
    """
    while len(chains.ahead) < len(chains.weights):
        chains = _move_next(target, chains, settings, seed, ranks, spread_chains, on_step)
    adaptations = chains.adaptations
    if settings.adapt_step_size and chains.iteration < settings.num_burnin:
        adaptations = tuple(
            adaptation.update(result.accept_prob, settings.target_acceptance)
            for adaptation, result in zip(adaptations, chains.ahead, strict=True)
        )
    return Chains(chains.weights, adaptations, chains.iteration + 1), list(chains.ahead)


def _move_next(
    target, chains: Chains, settings: HMCSettings, seed: int, ranks: Ranks, spread_chains, on_step
) -> Chains:
    """The next chain, or the next ones side by side, a transition further.

    All ranks adopt what the chain's owner, or the first rank, arrived at: they never part,
    whatever rounding does.
    """
    first, iteration = len(chains.ahead), chains.iteration
    count = min(ranks.size, len(chains.weights) - first) if spread_chains else 1
    weights = chains.weights.clone()
    report = torch.zeros(count, len(Transition._fields), dtype=torch.float64)
    mine = ranks.number if spread_chains else 0
    if mine < count:
        k = first + mine
        adaptation = chains.adaptations[k]
        weights[k], result = transition(
            target, weights[k], settings.step_size_at(adaptation, iteration),
            settings.draw_steps(adaptation, iteration, seed, "length", k, iteration),
            seed, k, iteration, resumed=chains.flight,
            on_step=lambda flight: on_step(chains, flight if ranks.size == 1 else None),
        )  # fmt: skip
        report[mine] = torch.tensor(result, dtype=torch.float64)
    for owner in range(count):
        ranks.share(weights[first + owner], owner)
        ranks.share(report[owner], owner)
    results = [Transition.from_numbers(row) for row in report.tolist()]
    return replace(chains, weights=weights, ahead=(*chains.ahead, *results), flight=None)
