"""Transitions of Hamiltonian Monte Carlo, and several chains that make them.

With momentum p ~ N(0, M) a transition follows the leapfrog integrator and accepts its end with
probability min(1, exp(−ΔH)) (Neal 2011, "MCMC using Hamiltonian dynamics").
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from utils.methods.hmc.adaptation import HMCSettings, StepSizeAdaptation
from utils.methods.hmc.leapfrog import DIVERGENT, WayBack, leapfrog, returns, way_back
from utils.methods.hmc.mass import IDENTITY, MassAdaptation, MassMatrix
from utils.runs.ranks import ALONE, Ranks
from utils.runs.seeding import generator

import torch
from torch import Tensor


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
    lowest_margin: float = math.inf  # of the points that were violations
    followed_back: bool = False
    reversal_miss: float = 0.0  # as in `WayBack`, if the way back was followed
    reversal_gap: float = 0.0

    @property
    def returned(self) -> bool:
        """Whether the way back led to the start, as far as is known."""
        return returns(self.reversal_miss, self.reversal_gap)

    @classmethod
    def from_numbers(cls, numbers: list[float]) -> "Transition":
        """Return the transition that ranks share as a row of float64 numbers."""
        made = cls(*numbers)
        return made._replace(
            accepted=bool(made.accepted), divergent=bool(made.divergent),
            followed_back=bool(made.followed_back),
            num_steps=int(made.num_steps), violations=int(made.violations),
        )  # fmt: skip


def transition(
    target, weights: Tensor, step_size: float, num_steps: int, *stream,
    on_step: Callable[[], None] = lambda: None, mass: MassMatrix = IDENTITY,
    reversal_every: int = 0,
) -> tuple[Tensor, Transition]:  # fmt: skip
    """Return the chain's next state and what happened; randomness comes from (seed, *names).

    One in `reversal_every` trajectories is followed back, and refused if it does not return.
    """
    started = time.perf_counter()
    seed, *names = stream
    momentum = torch.randn(
        weights.shape, generator=generator(seed, "momentum", *names), dtype=weights.dtype
    ).to(weights.device)
    path = leapfrog(target, weights, momentum, step_size, num_steps, on_step, mass)
    change = path.delta_energy
    divergent = not change < DIVERGENT  # NaN is divergent, too
    accept_prob = 0.0 if divergent else math.exp(min(0.0, -change))
    uniform = torch.rand((), generator=generator(seed, "accept", *names), dtype=torch.float64)
    back = WayBack(0.0, 0.0)
    chosen = torch.rand((), generator=generator(seed, "reversal", *names), dtype=torch.float64)
    follow = reversal_every > 0 and chosen.item() < 1 / reversal_every and not divergent
    if follow:
        back = way_back(target, weights, path, step_size, num_steps, on_step, mass)
    accepted = uniform.item() < accept_prob and back.returned
    end = path.end if accepted else path.start
    return (path.weights if accepted else weights), Transition(
        accept_prob, accepted, change, end.potential, end.nll, step_size, num_steps, divergent,
        path.list_rows, path.violations, time.perf_counter() - started, path.lowest_margin,
        follow, *back,
    )  # fmt: skip


@dataclass(frozen=True)
class Chains:
    """C chains. Those that a run was extended by come after the others until they catch up."""

    weights: Tensor  # [C, d]
    adaptations: tuple[StepSizeAdaptation, ...]
    iterations: tuple[int, ...]  # transitions that each chain has made
    masses: tuple[MassAdaptation, ...] = ()  # none for the identity

    @property
    def iteration(self) -> int:
        """The transitions that all chains have made."""
        return min(self.iterations)

    @property
    def active(self) -> list[int]:
        """The chains that move next: those that have made no more than that."""
        return [k for k, made in enumerate(self.iterations) if made == self.iteration]

    def joined(self, others: "Chains") -> "Chains":
        """Return these chains and others behind them."""
        return Chains(
            torch.cat([self.weights, others.weights]), self.adaptations + others.adaptations,
            self.iterations + others.iterations, self.masses + others.masses,
        )  # fmt: skip


def start_chains(weights: Tensor, settings: HMCSettings, mass: str = "identity") -> Chains:
    """Return chains before their first transition; they learn a mass of this kind."""
    adaptation = StepSizeAdaptation.start(settings.step_size)
    learnt = () if mass == "identity" else weights
    masses = tuple(MassAdaptation.start(mass, state) for state in learnt)
    return Chains(weights, (adaptation,) * len(weights), (0,) * len(weights), masses)


def advance(
    target, chains: Chains, settings: HMCSettings, seed: int, ranks: Ranks = ALONE,
    spread_chains: bool = False, on_step: Callable[[], None] = lambda: None,
    mass: MassMatrix = IDENTITY,
) -> tuple[Chains, list[Transition]]:  # fmt: skip
    """Move every active chain one transition further; call `on_step` before each leapfrog step.

    `mass` is that of chains that do not learn one.

    Several ranks either move the chains side by side, one each (`spread_chains`), or make each
    transition together, each with its part of the data.
    """
    weights, results, iteration = chains.weights.clone(), [], chains.iteration
    masses = list(chains.masses)
    learning = bool(masses) and settings.learns_mass_at(iteration)
    heat = settings.heat_at(iteration)
    target = target.heated(heat) if heat != 1 else target
    at_a_time, mine = (ranks.size, ranks.number) if spread_chains else (1, 0)
    active = chains.active
    for first in range(0, len(active), at_a_time):
        group = active[first : first + at_a_time]
        reports = torch.zeros(len(group), len(Transition._fields), dtype=torch.float64)
        if mine < len(group):
            k = group[mine]
            adaptation = chains.adaptations[k]
            if learning:
                stream = generator(seed, "curvature", k, iteration)
                masses[k] = masses[k].learn(target, weights[k], stream, heat != 1)
            weights[k], result = transition(
                target, weights[k], settings.step_size_at(adaptation, iteration),
                settings.draw_steps(adaptation, iteration, seed, "length", k, iteration),
                seed, k, iteration, on_step=on_step, mass=masses[k].mass if masses else mass,
                reversal_every=settings.reversal_every,
            )  # fmt: skip
            reports[mine] = torch.tensor(result, dtype=torch.float64)
        for owner, k in enumerate(group):  # ranks never part, whatever rounding does
            ranks.share(weights[k], owner)
            ranks.share(reports[owner], owner)
            if learning:
                masses[k] = masses[k].shared(ranks, owner)
        results += [Transition.from_numbers(report) for report in reports.tolist()]
    iterations = tuple(made + (k in active) for k, made in enumerate(chains.iterations))
    chains = replace(chains, weights=weights, iterations=iterations, masses=tuple(masses))
    return adapt(chains, active, results, settings), results


def adapt(
    chains: Chains, moved: list[int], results: list[Transition], settings: HMCSettings
) -> Chains:
    """Return the chains with the step sizes that the moved ones learn, if in burn-in.

    Where an annealed likelihood is cold, the adaptation begins again.
    """
    adaptations = list(chains.adaptations)
    for k, result in zip(moved, results, strict=True):
        made = chains.iterations[k]
        if not settings.adapt_step_size or made > settings.num_burnin:
            continue
        adaptations[k] = adaptations[k].update(result.accept_prob, settings.target_acceptance)
        if made == settings.hot_transitions:
            adaptations[k] = StepSizeAdaptation.start(math.exp(adaptations[k].log_average))
    return replace(chains, adaptations=tuple(adaptations))
