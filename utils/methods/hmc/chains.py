"""Transitions of Hamiltonian Monte Carlo, and several chains that make them.

With momentum p ~ N(0, M) a transition follows the leapfrog integrator and accepts its end with
probability min(1, exp(−ΔH)) (Neal 2011, "MCMC using Hamiltonian dynamics").
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from utils.methods.hmc.adaptation import HMCSettings, StepSizeAdaptation
from utils.methods.hmc.leapfrog import DIVERGENT, leapfrog
from utils.methods.hmc.mass import (
    IDENTITY,
    MassAdaptation,
    MassMatrix,
    first_step_size,
    window_ends,
)
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
    mass: MassMatrix = IDENTITY,
) -> tuple[Tensor, Transition]:
    """Return the chain's next state and what happened; randomness comes from (seed, *names)."""
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
    accepted = uniform.item() < accept_prob
    end = path.end if accepted else path.start
    return (path.weights if accepted else weights), Transition(
        accept_prob, accepted, change, end.potential, end.nll, step_size, num_steps, divergent,
        path.list_rows, path.violations, time.perf_counter() - started,
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

    def mass(self, chain: int) -> MassMatrix:
        return self.masses[chain].mass if self.masses else IDENTITY


def start_chains(weights: Tensor, settings: HMCSettings, factors: Sequence[Tensor] = ()) -> Chains:
    """Return chains before their first transition, with masses of these factors if there are."""
    adaptation = StepSizeAdaptation.start(settings.step_size)
    masses = tuple(MassAdaptation.start(factor) for factor in factors)
    return Chains(weights, (adaptation,) * len(weights), (0,) * len(weights), masses)


def advance(
    target,
    chains: Chains,
    settings: HMCSettings,
    seed: int,
    ranks: Ranks = ALONE,
    spread_chains: bool = False,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Chains, list[Transition]]:
    """Move every active chain one transition further; call `on_step` before each leapfrog step.

    Several ranks either move the chains side by side, one each (`spread_chains`), or make each
    transition together, each with its part of the data.
    """
    chains = find_step_sizes(target, chains, settings, seed)
    weights, results, iteration = chains.weights.clone(), [], chains.iteration
    at_a_time, mine = (ranks.size, ranks.number) if spread_chains else (1, 0)
    active = chains.active
    for first in range(0, len(active), at_a_time):
        group = active[first : first + at_a_time]
        reports = torch.zeros(len(group), len(Transition._fields), dtype=torch.float64)
        if mine < len(group):
            k = group[mine]
            adaptation = chains.adaptations[k]
            weights[k], result = transition(
                target, weights[k], settings.step_size_at(adaptation, iteration),
                settings.draw_steps(adaptation, iteration, seed, "length", k, iteration),
                seed, k, iteration, on_step=on_step, mass=chains.mass(k),
            )  # fmt: skip
            reports[mine] = torch.tensor(result, dtype=torch.float64)
        for owner, k in enumerate(group):  # ranks never part, whatever rounding does
            ranks.share(weights[k], owner)
            ranks.share(reports[owner], owner)
        results += [Transition.from_numbers(report) for report in reports.tolist()]
    iterations = tuple(made + (k in active) for k, made in enumerate(chains.iterations))
    chains = replace(chains, weights=weights, iterations=iterations)
    return adapt(chains, active, results, settings), results


def adapt(
    chains: Chains, moved: list[int], results: list[Transition], settings: HMCSettings
) -> Chains:
    """Return the chains with what the moved ones learn from their transition, if in burn-in."""
    adaptations, masses = list(chains.adaptations), list(chains.masses)
    for k, result in zip(moved, results, strict=True):
        if chains.iterations[k] > settings.num_burnin:
            continue
        if settings.adapt_step_size:
            adaptations[k] = adaptations[k].update(result.accept_prob, settings.target_acceptance)
        if masses:
            state, made = chains.weights[k], chains.iterations[k]
            masses[k] = adapt_mass(masses[k], state, made, settings.num_burnin)
    return replace(chains, adaptations=tuple(adaptations), masses=tuple(masses))


def adapt_mass(
    adaptation: MassAdaptation, state: Tensor, iteration: int, num_burnin: int
) -> MassAdaptation:
    """Return the adaptation after a transition of burn-in; at the end of a window the mass is new.

    The first window is the way to the typical set, of which nothing is learnt.
    """
    adaptation, ends = adaptation.add(state), window_ends(num_burnin)
    return adaptation.next_window(iteration > ends[0]) if iteration in ends else adaptation


def find_step_sizes(target, chains: Chains, settings: HMCSettings, seed: int) -> Chains:
    """Let the adaptation of step sizes begin anew where the mass is new."""
    beginnings = [0, *window_ends(settings.num_burnin)]
    new = chains.masses and settings.adapt_step_size and chains.iteration in beginnings
    if not new or chains.iteration >= settings.num_burnin:
        return chains

    def begin(k: int) -> StepSizeAdaptation:
        size = settings.step_size_at(chains.adaptations[k], chains.iteration)
        momentum = torch.randn(
            chains.weights[k].shape, dtype=chains.weights.dtype,
            generator=generator(seed, "first_step", k, chains.iteration),
        ).to(chains.weights.device)  # fmt: skip

        def energy_change(size: float) -> float:
            path = leapfrog(target, chains.weights[k], momentum, size, 1, mass=chains.mass(k))
            return path.delta_energy

        return StepSizeAdaptation.start(first_step_size(energy_change, size))

    each = enumerate(chains.adaptations)
    adaptations = tuple(begin(k) if k in chains.active else old for k, old in each)
    return replace(chains, adaptations=adaptations)
