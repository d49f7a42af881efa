"""Orders of units: tests of uniformity on labels whose answer is known, and Kendall's τ."""

from tests.networks.toy_networks import NETWORKS
from utils.networks.mlp import MLP
from utils.symmetry.unit_order import (
    chi_square,
    effective_draws,
    largest_units,
    order_correlation,
    uniformity,
)

import numpy as np
import pytest
import torch
from scipy.stats import chi2

SIZE = 8


def correlated(chains: int, draws: int, keep: float, seed: int = 0) -> np.ndarray:
    """Chains that keep their label with this probability, and else draw a new one."""
    random = np.random.default_rng(seed)
    labels = random.integers(SIZE, size=(chains, draws))
    for step in range(1, draws):
        kept = random.random(chains) < keep
        labels[kept, step] = labels[kept, step - 1]
    return labels


def test_exactly_equal_counts():
    test = uniformity(np.arange(10 * SIZE)[:, None] % SIZE, SIZE)
    assert test["chi_square"] == 0
    assert test["p"] == 1
    assert test["counts"] == [10] * SIZE


def test_always_the_same_unit():
    """χ² = n (h − 1)"""
    labels = np.full((100, 1), 3)
    test = uniformity(labels, SIZE)
    assert test["chi_square"] == pytest.approx(100 * (SIZE - 1))
    assert test["p"] < 1e-3
    stuck = uniformity(labels.T, SIZE)
    assert stuck["effective_draws"] == pytest.approx(1)
    assert stuck["corrected_chi_square"] == pytest.approx(SIZE - 1)
    assert stuck["p"] == 1
    assert stuck["p_uncorrected"] < 1e-3


def test_the_published_poster():
    """Ensemble and HMC of Laurent et al. (2024), 753 networks each."""
    ensemble = [45, 49, 46, 43, 45, 54, 47, 56, 38, 47, 50, 44, 41, 44, 51, 53]
    hmc = [33, 144, 0, 0, 64, 30, 6, 34, 8, 44, 213, 112, 40, 7, 0, 18]
    assert chi_square(np.array(ensemble)) == pytest.approx(7.54, abs=0.005)
    assert chi_square(np.array(hmc)) == pytest.approx(1157, abs=0.5)
    test = uniformity(np.repeat(np.arange(16), ensemble)[:, None], 16)
    assert test["p"] == pytest.approx(0.94, abs=0.01)


def test_p_is_that_of_the_chi_square_distribution():
    random = np.random.default_rng(1)
    for number in range(3):
        shares = np.full(SIZE, 1 / SIZE) + 0.02 * number * np.resize([1, -1], SIZE)
        labels = random.choice(SIZE, p=shares, size=(800, 1))
        test = uniformity(labels, SIZE)
        expected = chi2.sf(test["chi_square"], SIZE - 1)
        assert test["p"] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.9])
def test_effective_draws_of_labels_that_stay(keep):
    """ρ_t = keep^t, so τ = (1 + keep) / (1 − keep)."""
    labels = correlated(20, 1000, keep)
    expected = labels.size * (1 - keep) / (1 + keep)
    assert effective_draws(labels, SIZE) == pytest.approx(expected, rel=0.15)


def test_correlated_chains_pass_as_often_as_they_should():
    p_values = [uniformity(correlated(2, 300, 0.8, seed), SIZE) for seed in range(200)]
    rejected = np.mean([test["p"] < 0.1 for test in p_values])
    naive = np.mean([test["p_uncorrected"] < 0.1 for test in p_values])
    assert 0.04 < rejected < 0.18
    assert naive > 0.6


@pytest.mark.parametrize("keep", [0.0, 0.8])
def test_chains_that_prefer_a_unit_fail(keep):
    """They are worth many draws, however much they prefer it."""
    for seed in range(10):
        labels = correlated(2, 400, keep, seed)
        other = correlated(2, 400, keep, seed + 100)
        labels[other < SIZE // 2] = 3
        test = uniformity(labels, SIZE)
        assert test["p"] < 0.01
        assert test["effective_draws"] > 20


def test_independent_networks_are_worth_their_number():
    assert effective_draws(correlated(50, 1, 0.0), SIZE) == 50


def test_the_unit_with_the_largest_weight():
    network = MLP((6, 5, 3))
    weights = network.initial_weights(torch.Generator().manual_seed(0)).repeat(2, 3, 1)
    w1 = network.slots[0].of(weights)
    w1[0, :, 4, 2], w1[1, :, 1, 0] = -9, 9
    assert largest_units(network, weights, "h1").tolist() == [[4] * 3, [1] * 3]
    network.slots[2].of(weights)[..., 0, 2] = 9
    assert (largest_units(network, weights, "h1", "last_layer") == 2).all()


def test_units_of_blocks_are_numbered_over_all_of_them():
    network = NETWORKS["grouped"]
    weights = network.initial_weights(torch.Generator().manual_seed(0))
    network.slots[2].of(weights)[1, 2, 0] = 9
    assert largest_units(network, weights, "d").item() == 5


def test_correlations_of_orders():
    keys = torch.tensor([0.3, 0.1, 0.2, 0.9])
    assert order_correlation(keys, 2 * keys + 1) == pytest.approx(1)
    assert order_correlation(keys, -keys) == pytest.approx(-1)
    assert order_correlation(keys, torch.tensor([0.3, 0.2, 0.1, 0.9])) == pytest.approx(2 / 3)
