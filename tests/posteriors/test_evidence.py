"""The ELBO of a linear model's exact posterior is its evidence; of any other it is lower."""

from utils.networks.mlp import MLP
from utils.posteriors.gaussian import Gaussian, elbo_estimates, log_likelihood
from utils.posteriors.prior import Prior

import pytest
import torch
from torch.distributions import MultivariateNormal


def linear_model():
    """y = X w + noise, with orthogonal columns, so that the posterior has independent weights."""
    random = torch.Generator().manual_seed(0)
    columns, _ = torch.linalg.qr(torch.randn(12, 4, generator=random, dtype=torch.float64))
    design = columns * torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    answers = design @ torch.randn(4, generator=random, dtype=torch.float64) + 0.3
    noise, prior_std = 0.7, 1.5
    precision = design.square().sum(0) / noise**2 + 1 / prior_std**2
    mean = (design.T @ answers) / noise**2 / precision
    exact = Gaussian(mean.float(), precision.rsqrt().float())
    covariance = prior_std**2 * design @ design.T + noise**2 * torch.eye(12, dtype=torch.float64)
    zeros = torch.zeros(12, dtype=torch.float64)
    evidence = MultivariateNormal(zeros, covariance).log_prob(answers).item()

    def likelihood(weights):
        fit = torch.distributions.Normal(design @ weights.double(), noise)
        return fit.log_prob(answers).sum().item()

    return exact, Prior(prior_std), likelihood, evidence


def bound(posterior, prior, likelihood):
    estimates = elbo_estimates(posterior, prior, likelihood, 4000, torch.Generator().manual_seed(1))
    return estimates.mean().item(), estimates.std().item() / 4000**0.5


def test_of_the_exact_posterior_it_is_the_evidence():
    exact, prior, likelihood, evidence = linear_model()
    value, error = bound(exact, prior, likelihood)
    assert value == pytest.approx(evidence, abs=4 * error)  # 1 in 16,000 by chance
    assert error < 0.03


def test_of_others_it_is_lower_by_the_divergence_from_the_posterior():
    exact, prior, likelihood, evidence = linear_model()
    other = Gaussian(exact.mean + 0.1, 0.6 * exact.std)
    value, error = bound(other, prior, likelihood)
    pairs = [torch.distributions.Normal(g.mean, g.std) for g in (other, exact)]
    divergence = torch.distributions.kl_divergence(*pairs).sum().item()
    assert divergence > 10 * error
    assert value == pytest.approx(evidence - divergence, abs=4 * error)


def test_the_likelihood_of_a_network_is_that_of_its_labels():
    network = MLP((3, 4, 2))
    weights = network.initial_weights(torch.Generator().manual_seed(0))
    images = torch.rand(5, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 1, 1, 0, 1])
    probabilities = network.outputs(weights, images).double().softmax(-1)
    expected = sum(probabilities[n, label].log().item() for n, label in enumerate(labels))
    assert log_likelihood(network, weights, images, labels) == pytest.approx(expected)


def test_without_deviations_there_is_no_bound():
    point = Gaussian(torch.ones(3), torch.tensor([1.0, 0.0, 1.0]))
    random = torch.Generator().manual_seed(0)
    assert elbo_estimates(point, Prior(), lambda weights: 0.0, 2, random) is None
