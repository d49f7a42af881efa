"""Weights where matching did not look, and noise on dead pixels, where the answer is known."""

from types import SimpleNamespace

from tests.evaluation.toy_setting import NETWORK, noisy_copies, random, setting
from tests.symmetry.planted import any_permutation
from utils.evaluation.limits import cross_fitted, dead_pixel_noise
from utils.evaluation.predictions import DIRECT, REBASED, Column
from utils.evaluation.views import Fit, Views
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.samples import Points

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


def test_noise_on_dead_pixels_reaches_those_with_weights_there():
    where, weights = setting(study_samples=4), noisy_copies(4, noise=0)
    without = weights.clone()
    NETWORK.pixel_slot.of(without)[..., :3] = 0
    loud = weights.clone()
    NETWORK.pixel_slot.of(loud)[..., :3] = 20
    gaussian = Gaussian(without[0], torch.zeros(NETWORK.num_weights), NETWORK)
    fits = {Column("hmc", REBASED): Fit(gaussian), Column("hmc", DIRECT): Fit(gaussian)}
    candidates = {"hmc": Points(loud, NETWORK), "map": Points(without, NETWORK)}
    found = dead_pixel_noise(where, candidates, "hmc", Views({}, fits, None))
    assert found["blank_pixels"] == 3
    for name in ("map", "hmc_rebased"):
        assert len({row["nll"] for row in found["rows"][name]}) == 1
    calm, *_, noisy = (row["nll"] for row in found["rows"]["hmc"])
    assert noisy > calm + 0.5
    assert not SimpleNamespace(**found["rows"]["hmc"][0]).noise


def test_where_no_pixel_is_dead_there_is_no_result():
    where = setting()
    where.data.train_images.fill_(1)
    assert dead_pixel_noise(where, {}, "hmc", Views({}, {}, None)) is None
