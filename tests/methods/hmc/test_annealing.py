"""Weights of annealed chains: a ratio of normalising constants, and chains to leave out."""

import math

from utils.methods.hmc.adaptation import NEGLIGIBLE, HMCSettings, log_weights, negligible_chains

import numpy as np
import pytest


def test_weights_estimate_the_evidence():
    """For θ ~ N(0, 1) and NLL ½ a θ², the evidence of temperature T is (1 + a/T)^−½."""
    a, chains, random = 30.0, 4000, np.random.default_rng(0)
    settings = HMCSettings(0.1, 200, 1, anneal_from=50.0)
    records = []
    for iteration in range(200):
        heat = settings.heat_at(iteration)
        states = random.standard_normal(chains) / math.sqrt(1 + a / heat)  # exact transitions
        records += [
            {"iteration": iteration + 1, "chain": k, "nll": a * states[k] ** 2 / 2}
            for k in range(chains)
        ]
    weights = np.exp(log_weights(records, settings, chains))
    ratio = math.sqrt((1 + a / 50) / (1 + a))
    assert abs(weights.mean() - ratio) < 4 * weights.std() / math.sqrt(chains)
    assert weights.mean() == pytest.approx(ratio, rel=0.03)


def test_without_annealing_all_chains_count():
    settings = HMCSettings(0.1, 10, 1)
    records = [{"iteration": 3, "chain": 0, "nll": 1e9}]
    weights = log_weights(records, settings, 2)
    assert weights.tolist() == [0, 0]
    assert negligible_chains(weights) == []


def test_chains_far_below_the_best_are_negligible():
    best = -500.0
    weights = np.array([best - NEGLIGIBLE - 0.1, best, best - NEGLIGIBLE + 0.1])
    assert negligible_chains(weights) == [0]
