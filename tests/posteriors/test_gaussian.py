"""Posteriors of independent weights: permuted, and drawn from."""

import math

from utils.networks.mlp import MLP
from utils.posteriors.gaussian import Gaussian
from utils.runs.seeding import generator
from utils.symmetry.permutation import invert, permute_weights

import torch

NETWORK = MLP((6, 5, 3))


def test_a_gaussian_is_permuted_as_a_whole():
    posterior = Gaussian(*torch.rand(2, NETWORK.num_weights, generator=generator(3)))
    order = [torch.tensor([2, 0, 1, 4, 3])]
    moved = posterior.permuted(NETWORK, order)
    for part in ("mean", "std"):
        expected = permute_weights(NETWORK, getattr(posterior, part), order)
        assert torch.equal(getattr(moved, part), expected)
    assert torch.equal(moved.permuted(NETWORK, invert(order)).std, posterior.std)


def test_draws_have_the_posteriors_moments():
    posterior = Gaussian(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]))
    draws = torch.stack(list(posterior.draw(20_000, generator(0))))
    # 5 standard errors: false alarm below 3e-6
    errors = 5 * posterior.std / math.sqrt(20_000)
    assert ((draws.mean(0) - posterior.mean).abs() < errors).all()
    assert ((draws.std(0) - posterior.std).abs() < errors).all()
