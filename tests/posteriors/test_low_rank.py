"""The low-rank Gaussian, beside the covariance that numpy finds."""

from tests.symmetry.planted import any_permutation
from utils.networks.mlp import MLP
from utils.posteriors.low_rank import LowRankFit
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(count: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, size, generator=random(seed))


def covariance(low_rank) -> np.ndarray:
    return (low_rank.factor.T @ low_rank.factor).numpy()


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_with_enough_rank_the_low_rank_covariance_is_the_samples(chunk):
    samples = 10 + vectors(23, 40) * torch.linspace(0.1, 3, 40)
    fit = LowRankFit(rank=30, chunk=chunk)
    for weights in samples:
        fit.add(weights)
    found = fit.gaussian()
    np.testing.assert_allclose(found.mean, samples.mean(0), rtol=1e-5)
    np.testing.assert_allclose(covariance(found), np.cov(samples.numpy().T), atol=2e-5)


def test_samples_of_a_plane_need_no_more_rank_than_it_has():
    samples = vectors(50, 3, 1) @ vectors(3, 40, 2) + 5
    fit = LowRankFit(rank=3, chunk=4)
    for weights in samples:
        fit.add(weights)
    assert fit.gaussian().factor.shape == (3, 40)
    np.testing.assert_allclose(covariance(fit.gaussian()), np.cov(samples.numpy().T), atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_samples_vary_along_one_direction_less_than_there_are(chunk):
    fit = LowRankFit(rank=30, chunk=chunk)
    for weights in 10 + vectors(16, 40):
        fit.add(weights)
    assert fit.gaussian().factor.shape == (15, 40)


def test_copies_of_one_network_vary_along_no_direction():
    fit = LowRankFit(rank=3, chunk=2)
    for _ in range(5):
        fit.add(vectors(1, 40)[0])
    found = fit.gaussian()
    assert found.variance() == 0
    assert all(torch.equal(draw, found.mean) for draw in found.draw(2, random(3)))
    assert torch.equal(found.resampled(torch.tensor([2, 0, 1, 1, 1])).mean, found.mean)


def test_too_little_rank_keeps_the_leading_directions():
    samples = vectors(30, 40) * torch.linspace(0.1, 3, 40)
    fit = LowRankFit(rank=6)
    for weights in samples:
        fit.add(weights)
    found = fit.gaussian()
    eigenvalues = np.linalg.eigvalsh(np.cov(samples.numpy().T))[::-1]
    assert found.variance() == pytest.approx(eigenvalues[:6].sum(), rel=1e-4)


def test_draws_have_the_covariance():
    samples = vectors(8, 6) * torch.tensor([1.0, 2, 3, 1, 2, 3])
    fit = LowRankFit(rank=8)
    for weights in samples:
        fit.add(weights)
    draws = torch.stack(list(fit.gaussian().draw(20_000, random(3)))).numpy()
    expected = np.cov(samples.numpy().T)
    # entries are off by about √(2 / 20,000) of the variances: 36 entries within 5 of that
    np.testing.assert_allclose(np.cov(draws.T), expected, atol=0.05 * expected.diagonal().max())
    np.testing.assert_allclose(draws.mean(0), samples.mean(0), atol=0.13)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_low_rank_gaussian_knows_its_samples_and_is_fitted_again_to_some(chunk):
    samples = 10 + vectors(23, 40) * torch.linspace(0.1, 3, 40)
    fit = LowRankFit(rank=30, chunk=chunk)
    for weights in samples:
        fit.add(weights)
    found = fit.gaussian()
    again = found.mean + found.coordinates.float() @ found.factor
    torch.testing.assert_close(again, samples, atol=2e-5, rtol=0)
    counts = torch.randint(3, (23,), generator=random(4))
    chosen = samples.repeat_interleave(counts, 0)
    refitted = found.resampled(counts)
    np.testing.assert_allclose(refitted.mean, chosen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(covariance(refitted), np.cov(chosen.numpy().T), atol=3e-5)


def test_a_low_rank_gaussian_is_permuted_as_a_whole_and_saved(tmp_path):
    network = MLP((5, 4, 2))
    planted = any_permutation(network, 1)
    samples = vectors(6, network.num_weights)
    fits = LowRankFit(rank=9), LowRankFit(rank=9)
    for weights in samples:
        fits[0].add(weights)
        fits[1].add(planted.apply(weights))
    moved, expected = fits[0].gaussian().moved(planted), fits[1].gaussian()
    torch.testing.assert_close(moved.mean, expected.mean)
    np.testing.assert_allclose(covariance(moved), covariance(expected), atol=1e-5)
    moved.write(tmp_path / "low_rank.npz")
    saved = np.load(tmp_path / "low_rank.npz")
    np.testing.assert_array_equal(saved["mean"], moved.mean)
    np.testing.assert_array_equal(saved["factor"], moved.factor)


def test_one_sample_has_no_covariance():
    fit = LowRankFit(rank=3)
    fit.add(torch.zeros(5))
    with pytest.raises(UserError, match="needs at least two samples"):
        fit.gaussian()
