"""Moments of streams of weight vectors, as numpy has them."""

from tests.symmetry.planted import any_permutation
from utils.networks.mlp import MLP
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.moments import block_of, fit_blocks, merge_all, no_moments
from utils.rebasin.matching import make_matcher
from utils.rebasin.rebase import rebase_all
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(count: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, size, generator=random(seed))


def test_moments_of_a_stream_are_numpys_even_far_from_zero():
    samples = 1e4 + vectors(57, 30)  # squares of such numbers would lose the deviations
    moments = merge_all(fit_blocks(iter(samples), 57))
    exact = samples.double().numpy()
    np.testing.assert_allclose(moments.mean, exact.mean(0), rtol=1e-14)
    np.testing.assert_allclose(moments.variance(), exact.var(0, ddof=1), rtol=1e-9)
    assert moments.count == 57


@pytest.mark.parametrize("num_blocks", [1, 2, 7, 57, 100])
def test_blocks_merge_to_the_whole_whatever_their_number(num_blocks):
    samples = 100 + vectors(57, 30)
    blocks = fit_blocks(samples, 57, num_blocks)
    assert len(blocks) == min(num_blocks, 57)
    counts = [block.count for block in blocks]
    assert max(counts) - min(counts) <= 1
    merged = merge_all(blocks)
    np.testing.assert_allclose(merged.mean, samples.double().mean(0), rtol=1e-13)
    np.testing.assert_allclose(merged.variance(), samples.double().var(0), rtol=1e-10)


def test_blocks_are_contiguous():
    blocks = [block_of(position, 10, 3) for position in range(10)]
    assert blocks == sorted(blocks)
    assert set(blocks) == {0, 1, 2}


def test_one_sample_has_no_deviation():
    with pytest.raises(UserError, match="needs at least two samples"):
        no_moments(torch.zeros(3)).add(torch.ones(3)).gaussian()


def test_draws_of_vi_are_samples_too():
    """q_r of a Gaussian's permuted draws has its moments, where activations tell units apart."""
    network, inputs = MLP((6, 5, 3)), torch.rand(200, 6, generator=random(8))
    posterior = Gaussian(vectors(1, network.num_weights)[0], torch.full((53,), 0.05))
    draws = list(posterior.draw(400, random(9)))
    matcher = make_matcher("activation", network, posterior.mean, inputs)
    shuffled = (any_permutation(network, k).apply(weights) for k, weights in enumerate(draws))
    rebased = (moved.weights for moved in rebase_all(network, shuffled, matcher))
    q_r = fit_blocks(rebased, 400)[0].gaussian()
    # the mean of 400 draws is good to 0.05 / 20; 53 weights within 5 of that
    np.testing.assert_allclose(q_r.mean, posterior.mean, atol=0.0125)
    np.testing.assert_allclose(q_r.std, 0.05, rtol=0.2)
