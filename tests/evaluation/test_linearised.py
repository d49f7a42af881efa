"""Predictions of linearised networks: moments of logits, moved posteriors, draws."""

from tests.networks.conv_networks import drawn_images, drawn_weights, small
from utils.evaluation.linearised import (
    averaged_draws,
    covariance_by_layers,
    linearised_predictions,
    logit_moments,
)
from utils.networks.jacobians import jacobians, linear_layers
from utils.networks.mlp import MLP
from utils.posteriors.block_gaussian import BlockGaussian, WeightBlock
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.posterior import Mixture
from utils.runs.seeding import generator
from utils.symmetry.transformation import random_transformation

import pytest
import torch

NETWORKS = {
    "mlp": MLP((5, 4, 3)),
    "tanh": MLP((5, 4, 3), "tanh"),
    "optunet": small("optunet"),
    "resnet18": small("resnet18"),
}


def gaussian(network, seed: int = 0) -> Gaussian:
    std = torch.rand(network.num_weights, generator=generator(seed, "std"), dtype=torch.float64)
    return Gaussian(drawn_weights(network, seed), std / 10, network)


def blocks(network, seed: int = 0) -> BlockGaussian:
    """Return Kronecker blocks of 2 × 3 weights here and there, at last one of 5, and scales."""
    random, count = generator(seed, "blocks"), network.num_weights
    order = torch.randperm(count, generator=random)[:17]
    made = []
    for places in (order[:6].view(2, 3), order[6:12].view(3, 2), order[12:].view(1, 5)):
        noise = [torch.randn(n, n, generator=random, dtype=torch.float64) for n in places.shape]
        std = torch.rand(places.shape, generator=random, dtype=torch.float64)
        made.append(WeightBlock(places, *(torch.linalg.qr(each).Q for each in noise), std))
    scales = torch.rand(count, generator=random, dtype=torch.float64)
    return BlockGaussian(drawn_weights(network, seed), made, network, scales)


@pytest.mark.parametrize("kind", [gaussian, blocks])
@pytest.mark.parametrize("name", NETWORKS)
def test_moving_a_posterior_leaves_its_predictive_distribution(name, kind):
    network = NETWORKS[name]
    posterior, images = kind(network), drawn_images(network, 3)
    before = logit_moments(posterior, images)
    for seed in (1, 2):  # the second moves what the first has moved
        posterior = posterior.moved(random_transformation(network, generator(seed)))
        torch.testing.assert_close(logit_moments(posterior, images), before, rtol=1e-8, atol=1e-9)


def test_covariances_are_those_of_the_drawn_weights():
    """J cov(w) Jᵀ with the covariance of 10,000 draws, each within 6 standard errors."""
    network, images = NETWORKS["mlp"], drawn_images(NETWORKS["mlp"], 1)
    posterior = blocks(network)
    draws = torch.stack(list(posterior.draw(10_000, generator(3))))
    slopes = jacobians(network, posterior.mean, images)[0][0]
    sampled = slopes @ draws.T.cov() @ slopes.T
    _, (expected,) = logit_moments(posterior, images)
    variances = expected.diagonal()
    error = ((torch.outer(variances, variances) + expected.square()) / 10_000).sqrt()
    assert ((sampled - expected).abs() < 6 * error).all()


@pytest.mark.parametrize("name", ["mlp", "optunet"])
def test_layers_have_the_covariance_of_whole_jacobians(name):
    network = NETWORKS[name]
    images, weights = drawn_images(network, 3), drawn_weights(network)
    layers, _ = linear_layers(network, weights, images)
    made, random = [], generator(0)
    for places in (each for layer in layers for each in layer.places):
        if len(made) == 1:  # a dense one
            places = places.flatten()[None]
        noise = [torch.randn(n, n, generator=random, dtype=torch.float64) for n in places.shape]
        std = torch.rand(places.shape, generator=random, dtype=torch.float64)
        made.append(WeightBlock(places, *(torch.linalg.qr(each).Q for each in noise), std))
    scales = torch.full_like(weights, 1.5)
    posterior = BlockGaussian(weights, made, network, scales)
    expected = posterior.output_covariance(jacobians(network, weights, images)[0])
    torch.testing.assert_close(covariance_by_layers(posterior, layers), expected)
    scales[made[0].places[0, 1]] = 2  # now its rows and columns have no factors
    assert covariance_by_layers(posterior, layers) is None


def test_two_classes_by_quadrature():
    """E[sigmoid(z)] for z ~ N(m, v), by 10,000 draws within 5 standard errors (5e-3 each)."""
    covariance = torch.tensor([[[0.5, 0.2], [0.2, 1.0]]], dtype=torch.float64)
    logits = torch.tensor([[0.3, -0.4]], dtype=torch.float64)
    grid = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    density = (-grid.square() / 2).exp() / (-grid.square() / 2).exp().sum()
    expected = (torch.sigmoid(0.7 + grid * 1.1**0.5) * density).sum()
    drawn = averaged_draws(logits, covariance, 10_000, generator(0))
    assert abs(drawn[0, 0] - expected) < 0.025
    assert drawn.sum() == pytest.approx(1)


def test_without_variance_it_is_the_network_and_modes_have_equal_shares():
    network = NETWORKS["mlp"]
    images = drawn_images(network, 4)
    modes = [Gaussian(w, torch.zeros_like(w), network) for w in map(drawn_weights, [network] * 2)]
    modes[1] = Gaussian(2 * modes[1].mean, modes[1].std, network)
    expected = sum(network.outputs(m.mean, images).softmax(-1) for m in modes) / 2
    predictions = linearised_predictions(Mixture(modes), images, 3, generator(0))
    for each in predictions.values():
        torch.testing.assert_close(each, expected)
