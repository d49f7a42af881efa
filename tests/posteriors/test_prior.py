"""The prior beside torch.distributions, with one deviation or one for each weight."""

from utils.posteriors.prior import Prior

import pytest
import torch
from torch.distributions import Normal, kl_divergence

STDS = [1.0, 0.25, torch.tensor([0.5, 2.0, 1.0, 0.1])]


def vectors(count: int) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("std", STDS, ids=str)
def test_potential_is_minus_the_log_density_up_to_a_constant(std):
    first, second = vectors(2)
    ours = Prior(std).potential(first) - Prior(std).potential(second)
    density = Normal(torch.zeros(4, dtype=torch.float64), torch.as_tensor(std).double())
    expected = density.log_prob(second).sum() - density.log_prob(first).sum()
    assert ours == pytest.approx(expected.item())


@pytest.mark.parametrize("std", STDS, ids=str)
def test_gradient_is_that_of_the_potential(std):
    (weights,) = vectors(1)
    leaf = weights.clone().requires_grad_()
    (0.5 * (leaf / std).square().sum()).backward()
    gradient = torch.ones(4, dtype=torch.float64)
    Prior(std).add_gradient(gradient, weights)
    torch.testing.assert_close(gradient, 1 + leaf.grad)


@pytest.mark.parametrize("std", STDS, ids=str)
def test_kl_equals_that_of_torch(std):
    mean, log_std = vectors(2)
    prior = Normal(torch.zeros(4, dtype=torch.float64), torch.as_tensor(std).double())
    expected = kl_divergence(Normal(mean, log_std.exp()), prior).sum()
    assert Prior(std).kl(mean, log_std) == pytest.approx(expected.item())


def test_draws_have_the_priors_deviation():
    """The deviation of 100,000 draws is within 5 standard errors, 1 alarm in a million."""
    draws = Prior(0.3).draw(100_000, torch.Generator().manual_seed(1))
    assert abs(draws.std().item() / 0.3 - 1) < 5 / (2 * 100_000) ** 0.5
