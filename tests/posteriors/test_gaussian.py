"""Posteriors of independent weights: moved, rebased, and drawn from."""

import math

from tests.networks.toy_networks import NETWORKS
from tests.symmetry.planted import any_permutation, same
from utils.networks.mlp import MLP
from utils.posteriors.gaussian import Gaussian, rebase_gaussian
from utils.rebasin.weight_matching import WeightMatcher
from utils.runs.seeding import generator
from utils.symmetry.transformation import random_transformation

import pytest
import torch

NETWORK = MLP((6, 5, 3))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_moved_gaussian_has_the_moments_of_moved_draws(name):
    """A draw is mean + std ∘ ε, and moving it is linear."""
    network = NETWORKS[name]
    mean, std = torch.rand(2, network.num_weights, generator=generator(3), dtype=torch.float64)
    posterior = Gaussian(mean, std)
    drawn = random_transformation(network, generator(4))
    moved = posterior.moved(drawn)
    torch.testing.assert_close(moved.mean, drawn.apply(mean))
    shifts = drawn.apply(mean + std) - drawn.apply(mean)  # ± one deviation of each weight
    torch.testing.assert_close(moved.std, shifts.abs())
    back = moved.moved(drawn.inverse())
    torch.testing.assert_close((back.mean, back.std), (mean, std))


def test_a_gaussian_is_rebased_as_its_mean_is():
    mean = NETWORK.initial_weights(generator(0))
    std = torch.rand(NETWORK.num_weights, generator=generator(1))
    planted = any_permutation(NETWORK, 2)
    posterior = Gaussian(planted.apply(mean), planted.apply(std))
    moved, found = rebase_gaussian(NETWORK, posterior, WeightMatcher(NETWORK, mean))
    assert torch.equal(moved.mean, mean)
    assert torch.equal(moved.std, std)
    assert same(found.transformation, planted.inverse())


def test_draws_have_the_posteriors_moments():
    posterior = Gaussian(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]))
    draws = torch.stack(list(posterior.draw(20_000, generator(0))))
    # 5 standard errors: false alarm below 3e-6
    errors = 5 * posterior.std / math.sqrt(20_000)
    assert ((draws.mean(0) - posterior.mean).abs() < errors).all()
    assert ((draws.std(0) - posterior.std).abs() < errors).all()
