"""The leapfrog integrator of H(θ, p) = U(θ) + ½‖p‖² (Neal 2011, section 2.3), and ways back.

    p ← p − ½ε ∂U/∂θ,   θ ← θ + ε p,   p ← p − ½ε ∂U/∂θ

With another mass than 1, p stands for the q of `mass`.

A target, such as `Potential`, has `trajectory(weights) -> (Energy, force)`. `force(weights)` is
∂U/∂θ and is called once in each step but the last, where `force.energy(weights)` is the Energy at
the end. `force.counts()` returns (points per call, violations, their lowest margin). U should not
be far below 0, for divergences are judged by the height of H.

Detailed balance needs trajectories that are reversible: from the end, with the momentum turned
round, the same steps have to return to the start. Rounding breaks this in chaotic posteriors, and
neighbour lists that overlook a point may. A check follows a trajectory back with the chain's own
force and refuses it if the way back misses (Zappa, Holmes-Cerfon and Goodman 2018). If all
trajectories are checked, the chain is reversible within the tolerances. A check of some of them,
chosen at random whatever the state, measures how often the others are not.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from utils.methods.hmc.mass import IDENTITY, MassMatrix
from utils.methods.hmc.potential import Energy

from torch import Tensor

# ΔH from which a trajectory has left the energy surface for good (as in Stan).
DIVERGENT = 1000.0
LARGEST_MISS = 0.01  # of a way back, in distances that the trajectory has gone
LARGEST_GAP = 1.0  # nats


class Trajectory(NamedTuple):
    """Where leapfrog steps ended, with the energies at both ends."""

    weights: Tensor
    momentum: Tensor
    start: Energy
    end: Energy
    delta_energy: float  # H at the end − H at the start, in nats
    list_rows: float  # training points per step
    violations: int  # points that came near while the neighbour list skipped them
    lowest_margin: float = math.inf  # of these points


def leapfrog(
    target, weights: Tensor, momentum: Tensor, step_size: float, num_steps: int,
    on_step: Callable[[], None] = lambda: None, mass: MassMatrix = IDENTITY,
) -> Trajectory:  # fmt: skip
    """Make `num_steps` steps of size ε from (θ, p); call `on_step` before each of them.

    A trajectory diverges, and its ΔH is infinite, if ½‖p‖² of any p between two θ exceeds H at
    either end by DIVERGENT. This rule is symmetric in time, as detailed balance needs it. Where
    H at the start is exceeded, the rest of the trajectory is skipped.
    """
    start, force = target.trajectory(weights)
    energy, highest = start.potential + kinetic_energy(momentum), 0.0
    weights, momentum = weights.clone(), momentum - 0.5 * step_size * mass.force(start.gradient)
    for step in range(1, num_steps + 1):
        kinetic = kinetic_energy(momentum)
        if not kinetic < energy + DIVERGENT:  # or NaN
            return Trajectory(weights, momentum, start, start, math.inf, *force.counts())
        highest = max(highest, kinetic)
        on_step()
        weights.add_(mass.velocity(momentum), alpha=step_size)
        if step < num_steps:  # two half steps in one
            momentum.add_(mass.force(force(weights)), alpha=-step_size)
    end = force.energy(weights)
    momentum.add_(mass.force(end.gradient), alpha=-0.5 * step_size)
    end_energy = end.potential + kinetic_energy(momentum)
    change = end_energy - energy if highest < end_energy + DIVERGENT else math.inf
    return Trajectory(weights, momentum, start, end, change, *force.counts())


def kinetic_energy(momentum: Tensor) -> float:
    """Return ½‖p‖², summed in float64."""
    momentum = momentum.double()
    return 0.5 * momentum.dot(momentum).item()


# ---- ways back


class WayBack(NamedTuple):
    miss: float  # distance of the way back's end from the start, in distances from start to end
    gap: float  # ΔH there + ΔH back, in nats: 0 if the way back is the same

    @property
    def returned(self) -> bool:
        return returns(self.miss, self.gap)


def returns(miss: float, gap: float) -> bool:
    """Return whether a way back led to the start, of the miss and gap in `WayBack`."""
    return miss <= LARGEST_MISS and abs(gap) <= LARGEST_GAP  # not if one is NaN


def way_back(
    target, start: Tensor, path: Trajectory, step_size: float, num_steps: int,
    on_step, mass: MassMatrix,
) -> WayBack:  # fmt: skip
    """Follow a trajectory from its end to its start."""
    back = leapfrog(target, path.weights, -path.momentum, step_size, num_steps, on_step, mass)
    distance = (path.weights - start).double().norm().item()
    miss = (back.weights - start).double().norm().item() / max(distance, 1e-300)
    return WayBack(miss, path.delta_energy + back.delta_energy)
