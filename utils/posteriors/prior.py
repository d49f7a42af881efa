"""The prior N(0, s²) on every weight and bias, wherever a formula contains it.

Weight decay λ with the mean cross-entropy of N images is the prior with s = (N λ)^−½.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prior:
    std: float | Tensor = 1.0  # s: one number, or one of every weight [d]

    @property
    def precision(self) -> float | Tensor:
        return 1 / (self.std * self.std)

    def potential(self, weights: Tensor) -> float:
        """Return ½ Σ w²/s² in float64."""
        scaled = weights.double() / self.std
        return 0.5 * scaled.dot(scaled).item()

    def add_gradient(self, gradient: Tensor, weights: Tensor) -> None:
        """Add w/s² to the gradient, in place."""
        if isinstance(self.std, Tensor):
            gradient.addcmul_(weights, self.precision)
        else:
            gradient.add_(weights, alpha=self.precision)

    def kl(self, mean: Tensor, log_std: Tensor) -> float:
        """Return KL(N(mean, std²) ‖ N(0, s²)), summed over weights, in nats."""
        variance = (2 * log_std).double().exp()
        log_ratio = log_std.double() - _log(self.std)
        scaled = (variance + mean.double().square()) * self.precision
        return (0.5 * (scaled - 1) - log_ratio).sum().item()

    def draw(self, num_weights: int, generator: torch.Generator) -> Tensor:
        """Draw weights [d] from the prior."""
        return torch.randn(num_weights, generator=generator) * self.std


def _log(std: float | Tensor) -> float | Tensor:
    return std.log() if isinstance(std, Tensor) else math.log(std)
