"""Masses: the metric of momenta, learnt in burn-in from the curvature along the chain.

With an estimate Σ = L Lᵀ of the posterior's covariance the mass is M = Σ⁻¹. A momentum p = L⁻ᵀ q
with q ~ N(0, 1) then has the kinetic energy ½‖q‖², and a leapfrog step in terms of q is

    q ← q − ½ε Lᵀ ∂U/∂θ,   θ ← θ + ε L q,   q ← q − ½ε Lᵀ ∂U/∂θ

M is the likelihood's generalised Gauss-Newton matrix (GGN), averaged over the states of burn-in,
plus the prior's precision: so few states could not tell the covariance in all directions. For the
gain over the matrix of one mode see docs/hmc.md.
"""

from typing import NamedTuple

from utils.networks.network import Network
from utils.runs.ranks import Ranks
from utils.settings.errors import UserError

import torch
from torch import Tensor

MASSES = ("identity", "diagonal", "dense")
LARGEST_DENSE = 2000  # weights: the matrix and its factor have their number squared
MEMORY = 3  # the average is over the last third of the states
HOT_STATES = 30  # the average is over a third of so many while an annealed likelihood cools down


class MassMatrix(NamedTuple):
    """L: None for the identity, [d] for a diagonal, [d, d] for a dense one."""

    factor: Tensor | None = None

    def velocity(self, momentum: Tensor) -> Tensor:
        """Return L q."""
        return self._times(self.factor, momentum)

    def force(self, gradient: Tensor) -> Tensor:
        """Return Lᵀ ∂U/∂θ."""
        dense = self.factor is not None and self.factor.dim() == 2
        return self._times(self.factor.mT if dense else self.factor, gradient)

    @staticmethod
    def _times(factor: Tensor | None, vector: Tensor) -> Tensor:
        if factor is None:
            return vector
        return factor * vector if factor.dim() == 1 else factor @ vector


IDENTITY = MassMatrix()


class MassAdaptation(NamedTuple):
    """The mass of a chain, and the curvature it is made from."""

    mass: MassMatrix
    count: int  # states that the average is over
    curvature: Tensor  # average GGN [d, d], or its diagonal [d], in float64

    @classmethod
    def start(cls, kind: str, weights: Tensor) -> "MassAdaptation":
        """Return the adaptation of a chain at these weights, before any curvature is known."""
        shape = (len(weights),) * (2 if kind == "dense" else 1)
        curvature = torch.zeros(shape, dtype=torch.float64, device=weights.device)
        return cls(MassMatrix(torch.zeros_like(curvature, dtype=weights.dtype)), 0, curvature)

    @property
    def dense(self) -> bool:
        return self.curvature.dim() == 2

    def learn(
        self, target, state: Tensor, generator: torch.Generator, hot: bool = False
    ) -> "MassAdaptation":
        """Return the adaptation with the target's curvature at a further state."""
        count = min(self.count, HOT_STATES if hot else self.count) + 1
        share = min(1.0, MEMORY / (count + MEMORY - 1))
        average = self.curvature.lerp(target.curvature(state, self.dense, generator), share)
        factor = factor_of(target.precision_of(average)).to(self.mass.factor.dtype)
        return MassAdaptation(MassMatrix(factor), count, average)

    def shared(self, ranks: Ranks, owner: int = 0) -> "MassAdaptation":
        """Return the owner's adaptation."""
        count = ranks.share(torch.tensor([self.count], dtype=torch.float64), owner).item()
        factor = ranks.share(self.mass.factor, owner)
        return MassAdaptation(MassMatrix(factor), int(count), ranks.share(self.curvature, owner))


def factor_of(precision: Tensor) -> Tensor:
    """Return L with L Lᵀ the inverse of the precision."""
    if precision.dim() == 1:
        return precision.rsqrt()
    lower = torch.linalg.cholesky(precision)  # (C Cᵀ)⁻¹ = L Lᵀ for L = C⁻ᵀ
    return torch.linalg.inv(lower).mT.contiguous()


def check_size(kind: str, network: Network) -> None:
    if kind == "dense" and network.num_weights > LARGEST_DENSE:
        raise UserError(
            f"A dense mass is for networks of at most {LARGEST_DENSE:,} weights, and {network} has "
            f"{network.num_weights:,}: give --mass diagonal."
        )
