"""Whether trajectories lead back to where they began.

Detailed balance needs trajectories that are reversible: from the end, with the momentum turned
round, the same steps have to return to the start. Rounding breaks this in chaotic posteriors, and
neighbour lists that overlook a point may. A check follows a trajectory back with the chain's own
force and refuses it if the way back misses (Zappa, Holmes-Cerfon and Goodman 2018). If all
trajectories are checked, the chain is reversible within the tolerances. A check of some of them,
chosen at random whatever the state, measures how often the others are not.
"""

from typing import NamedTuple

from utils.methods.hmc.leapfrog import Trajectory, leapfrog
from utils.methods.hmc.mass import MassMatrix

from torch import Tensor

LARGEST_MISS = 0.01  # of the distance that a trajectory has gone
LARGEST_GAP = 1.0  # nats


class WayBack(NamedTuple):
    miss: float  # distance of the way back's end from the start, in distances from start to end
    gap: float  # ΔH there + ΔH back, in nats: 0 if the way back is the same

    @property
    def returned(self) -> bool:
        return self.miss <= LARGEST_MISS and abs(self.gap) <= LARGEST_GAP  # NaN is not


def way_back(
    target, start: Tensor, path: Trajectory, step_size: float, num_steps: int,
    on_step, mass: MassMatrix,
) -> WayBack:  # fmt: skip
    """Follow a trajectory from its end to its start."""
    back = leapfrog(target, path.weights, -path.momentum, step_size, num_steps, on_step, mass)
    distance = (path.weights - start).double().norm().item()
    miss = (back.weights - start).double().norm().item() / max(distance, 1e-300)
    return WayBack(miss, path.delta_energy + back.delta_energy)
