"""Masses: the metric of momenta, from the curvature at the start and from samples of burn-in.

With an estimate Σ = L Lᵀ of the posterior's covariance the mass is M = Σ⁻¹. A momentum p = L⁻ᵀ q
with q ~ N(0, 1) then has the kinetic energy ½‖q‖², and a leapfrog step in terms of q is

    q ← q − ½ε Lᵀ ∂U/∂θ,   θ ← θ + ε L q,   q ← q − ½ε Lᵀ ∂U/∂θ

Σ begins as the inverse of the Gauss-Newton matrix plus the prior's precision. Burn-in is divided
into windows (Stan's reference manual, "Automatic parameter tuning"). At the end of each but the
first, Σ becomes the covariance of the window's states, shrunk towards a multiple of the Σ before.
While samples are stored the mass is fixed, so the chain is exact.
"""

from collections.abc import Callable
from typing import NamedTuple

from utils.networks.network import Network
from utils.runs.errors import UserError

import torch
from torch import Tensor

MASSES = ("identity", "diagonal", "dense")
LARGEST_DENSE = 2000  # weights: the matrix and its factor have their number squared
WINDOW_ENDS = (0.1, 0.2, 0.4, 0.8)  # shares of burn-in; after the last only the step size adapts
SMALLEST_WINDOW = 10  # states from which a covariance is estimated
CURVATURE_IMAGES = 1000  # from which the Gauss-Newton matrix is estimated
ROWS_TOGETHER = 50


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
    """The mass of a chain, and the moments of its states in the present window."""

    mass: MassMatrix
    count: int
    mean: Tensor  # [d]
    squares: Tensor  # Σ (θ − mean)² [d], or Σ (θ − mean)(θ − mean)ᵀ [d, d]

    @classmethod
    def start(cls, factor: Tensor) -> "MassAdaptation":
        zeros = torch.zeros_like(factor, dtype=torch.float64)
        return cls(MassMatrix(factor), 0, zeros if factor.dim() == 1 else zeros[0].clone(), zeros)

    def add(self, state: Tensor) -> "MassAdaptation":
        """Return the adaptation with a further state in the window (Welford 1962)."""
        count = self.count + 1
        before = state.double() - self.mean
        mean = self.mean + before / count
        after = state.double() - mean
        products = before * after if self.squares.dim() == 1 else torch.outer(before, after)
        return MassAdaptation(self.mass, count, mean, self.squares + products)

    def next_window(self, learn: bool) -> "MassAdaptation":
        """Return the adaptation at the start of the next window, with the mass learnt from this."""
        if not learn or self.count < SMALLEST_WINDOW:
            return MassAdaptation.start(self.mass.factor)
        covariance = self.squares / (self.count - 1)
        learn_factor = diagonal_factor if covariance.dim() == 1 else dense_factor
        factor = learn_factor(self.mass.factor.double(), covariance, self.count)
        return MassAdaptation.start(factor.to(self.mass.factor.dtype))


def diagonal_factor(before: Tensor, variance: Tensor, count: int) -> Tensor:
    """Return √ of the window's variances, shrunk towards a multiple of those before."""
    relative = variance / before.square()
    weight = count / (count + 5)  # as in Stan
    return before * (weight * relative + (1 - weight) * relative.mean()).sqrt()


def dense_factor(before: Tensor, covariance: Tensor, count: int) -> Tensor:
    """Return L of the window's covariance, shrunk in the coordinates L⁻¹θ of the mass before.

    There it is shrunk towards a multiple of the identity, by as much as is best for independent
    Gaussian draws (OAS: Chen, Wiesel, Eldar and Hero 2010), of which it counts half as many.
    """
    half = torch.linalg.solve(before, covariance)
    relative = torch.linalg.solve(before, half.mT)
    size, effective = len(relative), count / 2
    average, squares = relative.trace() / size, relative.square().sum()
    spread = squares - size * average.square()
    rest = (1 - 2 / size) * squares + (size * average).square()
    share = (rest / ((effective + 1 - 2 / size) * spread)).clamp(max=1) if spread > 0 else 1.0
    shrunk = (1 - share) * (relative + relative.mT) / 2
    scale = relative.diagonal().log().mean().exp()  # few wide directions do not stretch all others
    shrunk.diagonal().add_(share * scale)
    return before @ torch.linalg.cholesky(shrunk)


def window_ends(num_burnin: int) -> list[int]:
    """Return after which transitions windows end."""
    return [round(share * num_burnin) for share in WINDOW_ENDS]


def check_size(kind: str, network: Network) -> None:
    if kind == "dense" and network.num_weights > LARGEST_DENSE:
        raise UserError(
            f"A dense mass is for networks of at most {LARGEST_DENSE:,} weights, and {network} has "
            f"{network.num_weights:,}: give --mass diagonal."
        )


# ---- the start


def starting_factor(
    kind: str, network: Network, images: Tensor, weights: Tensor, precision, temperature: float
) -> Tensor:
    """Return L for (G/T + prior's precision)⁻¹, with G the Gauss-Newton matrix at the weights."""
    dense = kind == "dense"
    curvature = gauss_newton(network, images, weights, dense) / temperature
    (curvature.diagonal() if dense else curvature).add_(precision)
    if not dense:
        return curvature.rsqrt().to(weights.dtype)
    lower = torch.linalg.cholesky(curvature)  # (L Lᵀ)⁻¹ = C Cᵀ for L = C⁻ᵀ
    return torch.linalg.inv(lower).mT.contiguous().to(weights.dtype)


def gauss_newton(network: Network, images: Tensor, weights: Tensor, dense: bool) -> Tensor:
    """Return Σ_n Jᵀ (diag p − p pᵀ) J of the cross-entropy [d, d], or its diagonal [d], in float64.

    J is the Jacobian of the logits. The sum is estimated from the first images.
    """
    count = min(len(images), CURVATURE_IMAGES)
    total = torch.zeros((len(weights),) * (1 + dense), dtype=torch.float64, device=weights.device)
    for rows in images[:count].split(ROWS_TOGETHER):
        parts = curvature_rows(network, rows, weights).double()
        total += parts.mT @ parts if dense else parts.square().sum(0)
    return total * (len(images) / count)


def curvature_rows(network: Network, images: Tensor, weights: Tensor) -> Tensor:
    """Return √p_c (J_c − Σ_k p_k J_k) of every image and class c, [images · classes, d]."""
    leaf = weights.detach().expand(len(images), -1).clone().requires_grad_()
    with torch.enable_grad():  # each image is that of a network of its own
        logits = network.outputs(leaf, images.unsqueeze(1))[:, 0]
        rows = [torch.autograd.grad(z.sum(), leaf, retain_graph=True)[0] for z in logits.unbind(1)]
    jacobian = torch.stack(rows, 1)  # [images, classes, d]
    probabilities = logits.detach().softmax(-1).unsqueeze(-1)
    centred = jacobian - (probabilities * jacobian).sum(1, keepdim=True)
    return (probabilities.sqrt() * centred).flatten(0, 1)


def first_step_size(
    energy_change: Callable[[float], float], step_size: float, target: float = 0.8
) -> float:
    """Return a step size at which one leapfrog step is accepted about as often as the target.

    `energy_change` returns its ΔH. The size is doubled or halved (Hoffman & Gelman 2014, algorithm
    4) until the acceptance crosses the target.
    """

    def accepted(size: float) -> bool:
        change = energy_change(size)
        return change < -torch.tensor(target).log().item()  # NaN is not

    grow = accepted(step_size)
    for _ in range(60):
        following = step_size * (2.0 if grow else 0.5)
        if accepted(following) != grow:
            return step_size if grow else following
        step_size = following
    return step_size
