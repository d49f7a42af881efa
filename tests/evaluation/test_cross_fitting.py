"""Weights where matching did not look, where their correlation and its error are known."""

from tests.evaluation.toy_setting import NETWORK, noisy_copies, random, setting
from tests.symmetry.planted import any_permutation
from utils.evaluation.cross_fitting import correlate_units, cross_fitted, fit_on_halves, pixel_half
from utils.evaluation.metrics import deviations, resample
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.samples import Points

import numpy as np
import pytest
import torch


def test_weights_are_correlated_where_matching_did_not_look():
    """The other posterior has the same means in another order; or weights of its own."""
    network, where = NETWORK, setting(study_samples=6)
    copies = noisy_copies(6, noise=0.1)
    moved = any_permutation(network, 3).apply(copies[0])
    same = Gaussian(moved, torch.full_like(moved, 0.1), network)
    other = Gaussian(torch.randn(moved.shape, generator=random(8)), same.std, network)
    candidates = {"hmc": Points(copies, network), "same": same, "other": other}
    found = cross_fitted(where, candidates, "hmc")
    assert found["same"]["mean"] > 0.9
    assert abs(found["other"]["mean"]) < 0.4  # of 36 weights twice; 1 in 1,000 by chance
    assert abs(found["same"]["null"]) < 0.4
    assert cross_fitted(where, {"hmc": candidates["hmc"]}, "hmc") is None


def test_correlations_from_sums_over_units_are_those_over_weights():
    x, y = (torch.randn(2, 7, 5, generator=random(k)).double() for k in (1, 2))
    found = correlate_units({"mean": sums(x, y)})["mean"]
    expected = [np.corrcoef(x[half].flatten(), y[half].flatten())[0, 1] for half in (0, 1)]
    assert found == pytest.approx(np.mean(expected), abs=1e-12)


def test_units_are_resampled_and_not_their_weights():
    """The 50 weights of a unit are all the same, so 400 units are worth 400 numbers."""
    x = torch.randn(400, 1, generator=random(3)).double()
    y = 0.5 * x + 0.75**0.5 * torch.randn(400, 1, generator=random(4)).double()
    repeated = sums(x.expand(400, 50)[None], y.expand(400, 50)[None])

    def score(chosen):
        return correlate_units({"mean": repeated[:, chosen]})

    error = deviations(score, [resample(400, 400, 0)])["mean"]
    assert error == pytest.approx((1 - 0.5**2) / 400**0.5, rel=0.25)


def test_samples_that_vary_make_an_error_and_those_that_do_not_make_none():
    """Only the resampled samples differ: the units are the same in both."""
    where = setting(study_samples=12, num_bootstraps=50)
    other = Gaussian(noisy_copies(1)[0], torch.ones(NETWORK.num_weights), NETWORK)

    def error(noise: float) -> float:
        candidates = {"hmc": Points(noisy_copies(12, noise), NETWORK), "other": other}
        return cross_fitted(where, candidates, "hmc")["other"]["mean_error"]

    assert error(0.01) < 0.02 < error(1.0)


def test_without_refits_there_are_no_errors():
    where = setting(study_samples=6, num_refits=0)
    candidates = {"hmc": Points(noisy_copies(6), NETWORK), "map": Points(noisy_copies(3), NETWORK)}
    found = cross_fitted(where, candidates, "hmc")["map"]
    assert np.isnan(found["mean_error"])
    assert np.isnan(found["null_error"])
    assert found["mean"] > 0.9


def test_chosen_blocks_are_fitted_as_those_samples_alone():
    where, samples = setting(study_samples=6), noisy_copies(6, noise=0.01)
    fit = fit_on_halves(where, Points(samples, NETWORK), [pixel_half(where, 0)])
    (found,) = fit.gaussians(torch.tensor([1, 4, 4]))
    torch.testing.assert_close(found.mean, samples[[1, 4, 4]].mean(0))
    assert fit.gaussians(torch.tensor([2])) is None  # one sample has no deviation


def sums(x, y):
    """Return [halves, units, 6] of weights [halves, units, weights]."""
    return torch.stack([torch.ones_like(x), x, y, x * x, y * y, x * y]).sum(-1).permute(1, 2, 0)
