"""Targets whose posterior is known, and normal draws."""

from utils.methods.hmc.potential import Energy

import torch


class Gaussian:
    """U(θ) = ½ (θ − m)ᵀ A (θ − m)."""

    def __init__(self, precision, mean=0.0):
        self.precision, self.mean = torch.as_tensor(precision, dtype=torch.float64), mean

    def energy(self, weights):
        gradient = self.precision @ (weights - self.mean)
        return Energy(0.5 * ((weights - self.mean) @ gradient).item(), 0.0, gradient)

    def trajectory(self, weights):
        return self.energy(weights), self

    def __call__(self, weights):
        return self.energy(weights).gradient

    def counts(self):
        return 0.0, 0


class Quartic(Gaussian):
    """U(θ) = ¼ Σ θ⁴ + ½ θᵀ A θ: no linear dynamics."""

    def energy(self, weights):
        quadratic = super().energy(weights)
        potential = quadratic.potential + 0.25 * weights.pow(4).sum().item()
        return Energy(potential, 0.0, quadratic.gradient + weights.pow(3))


PRECISION = [[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
