"""Noise on dead pixels, where the answer is known."""

from types import SimpleNamespace

from tests.evaluation.toy_setting import NETWORK, noisy_copies, setting
from utils.evaluation.limits import dead_pixel_noise
from utils.evaluation.predictions import DIRECT, REBASED, Column
from utils.evaluation.views import Fit, Views
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.samples import Points

import torch


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
