"""Noise on dead pixels, where the answer is known."""

from dataclasses import replace
from types import SimpleNamespace

from tests.evaluation.toy_setting import NETWORK, noisy_copies, setting
from tests.symmetry.planted import any_permutation
from utils.data.datasets import RIDGE
from utils.evaluation.limits import Networks, dead_pixel_noise, networks_beside, noisy_networks
from utils.evaluation.metrics import mean_nll
from utils.evaluation.predictions import DIRECT, REBASED, Column
from utils.evaluation.views import Fit, Views
from utils.networks.mlp import MLP
from utils.networks.predictions import class_probabilities
from utils.networks.registry import inputs_for
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.samples import Points
from utils.runs.seeding import generator

import pytest
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
    networks = noisy_networks(where, candidates, "hmc", Views({}, fits, None))
    found = dead_pixel_noise(where, networks, {})
    assert found["blank_pixels"] == 3
    for name in ("map", "hmc_rebased"):
        assert len({row["nll"] for row in found["rows"][name]}) == 1
    calm, *_, noisy = (row["nll"] for row in found["rows"]["hmc"])
    assert noisy > calm + 0.5
    assert not SimpleNamespace(**found["rows"]["hmc"][0]).noise


def test_where_no_pixel_is_dead_there_is_no_result():
    where = setting()
    where.data.train_images.fill_(1)
    assert dead_pixel_noise(where, {}, {}) is None


def test_images_may_be_bytes():
    """As they are in files: any() and ~ of uint8 are no truth values."""
    where, weights = setting(study_samples=4), noisy_copies(4, noise=0)
    stored = (255 * where.images.train_images).round().to(torch.uint8)
    images = replace(where.images, train_images=stored, test_images=stored)
    chosen = {"own": Networks(NETWORK, list(weights))}
    found, expected = (
        dead_pixel_noise(each, chosen, {}) for each in (replace(where, images=images), where)
    )
    assert found["blank_pixels"] == expected["blank_pixels"] == 3
    for row, other in zip(found["rows"]["own"], expected["rows"]["own"], strict=True):
        assert row["nll"] == pytest.approx(other["nll"], rel=0.02)


def test_noise_passes_through_empcov_s_root():
    """Dead pixels' columns of Σ^½ are RIDGE^½ of the identity, and so are the weights' effects."""
    network = MLP((12, 8, 4), empcov=120)
    where, weights = setting(study_samples=4), noisy_copies(4, noise=0)
    data = inputs_for(network, where.images)
    found = networks_beside(where, {"own": Points(weights, network)})
    assert set(found) == {"own"}
    assert found["own"].network == network
    rows = dead_pixel_noise(where, {}, found)["beside"]["own"]
    noise = torch.randn((120, 1, 1, 12), generator=generator(0, "limits", "dead_pixels"))
    noise[..., 3:] = 0
    inputs = data.test_images + 2 * RIDGE**0.5 * noise.flatten(1)
    average = class_probabilities(network, weights[0], inputs)
    expected = mean_nll(average, where.data.test_labels)
    assert rows[-1]["noise"] == 2
    assert rows[-1]["nll"] == pytest.approx(expected, rel=1e-3)


def test_chains_beside_have_their_q_r():
    weights, where = noisy_copies(6, noise=0), setting(study_samples=6)
    moved = torch.stack([any_permutation(NETWORK, k).apply(each) for k, each in enumerate(weights)])
    posteriors = {"chain": Points(moved, NETWORK, is_chain=True), "set": Points(moved, NETWORK)}
    found = networks_beside(where, posteriors)
    assert list(found) == ["chain", "chain q_r", "set"]
    # Copies of one network have a q_r without deviation.
    for draw in found["chain q_r"].weights:
        torch.testing.assert_close(draw, moved[0], atol=1e-5, rtol=0)
