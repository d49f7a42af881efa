"""Weights of annealed chains: ratios of normalising constants, and which chains they leave out.

Tests of estimates have fixed seeds, and allow 4.5 standard errors: another seed would fail one of
them once in 100,000 times.
"""

import copy
import math

from tests.methods.hmc.targets import Gaussian
from utils.methods.hmc.adaptation import HMCSettings
from utils.methods.hmc.annealing import compare_annealed, log_weights
from utils.methods.hmc.chains import advance, start_chains
from utils.methods.hmc.potential import Energy, Potential
from utils.networks.mlp import MLP
from utils.posteriors.prior import Prior

import numpy as np
import pytest
import torch

TEMPERATURES = (1.0, 3.0)


def assert_estimates(log_estimates: np.ndarray, expected: float) -> None:
    """Assert that exp(log_estimates) has this mean, which has an error of less than 5 %."""
    estimates = np.exp(log_estimates)
    error = estimates.std(ddof=1) / math.sqrt(len(estimates))
    assert error < 0.05 * expected
    assert abs(estimates.mean() - expected) < 4.5 * error


# ---- weights


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_weights_estimate_a_ratio_of_evidences(temperature):
    """For θ ~ N(0, T) and NLL ½ a θ² the evidence at temperature h T is (1 + a/h)^−½."""
    a, chains, random = 30.0, 1000, np.random.default_rng(0)
    settings = HMCSettings(0.1, 200, 1, anneal_from=50.0)
    records = []
    for iteration in range(200):
        heat = settings.heat_at(iteration)  # of exact transitions
        states = random.standard_normal(chains) * math.sqrt(temperature / (1 + a / heat))
        records += [
            {"iteration": iteration + 1, "chain": k, "nll": a * states[k] ** 2 / 2}
            for k in range(chains)
        ]
    weights = log_weights(records, settings, chains, temperature)
    assert_estimates(weights, math.sqrt((1 + a / 50) / (1 + a)))


class Conjugate(Gaussian):
    """U/T of the prior N(0, T) and the NLL ½ (θ − y)ᵀ A (θ − y), at a heated likelihood."""

    def __init__(self, precision, y, temperature):
        super().__init__(precision, torch.tensor(y, dtype=torch.float64))
        self.prior_temperature = self.temperature = temperature

    def heated(self, factor):
        target = copy.copy(self)
        target.temperature = self.temperature * factor
        return target

    def energy(self, weights):
        nll, _, gradient = super().energy(weights)
        prior = 0.5 * (weights @ weights).item() / self.prior_temperature
        gradient = gradient / self.temperature + weights / self.prior_temperature
        return Energy(nll / self.temperature + prior, nll, gradient)

    def log_evidence(self) -> float:
        """Return log ∫ N(θ; 0, T) exp(−NLL/T) dθ = −½ log |1 + A| − ½ yᵀ (1 + A⁻¹)⁻¹ y / T."""
        one = torch.eye(len(self.mean), dtype=torch.float64)
        misfit = self.mean @ torch.linalg.solve(one + self.precision.inverse(), self.mean)
        return -0.5 * (torch.logdet(one + self.precision) + misfit / self.temperature).item()


def annealed(target, starts, settings, temperature):
    """Return the log weights of chains from draws of the prior, with the first factor."""
    chains, records = start_chains(starts, settings), []
    for t in range(1, settings.hot_transitions + 1):
        chains, transitions = advance(target, chains, settings, 0)
        records += [
            {"iteration": t, "chain": k, "nll": made.nll} for k, made in enumerate(transitions)
        ]
    nll = np.array([target.energy(start).nll for start in starts])
    first = -nll / (temperature * settings.anneal_from)
    return first + log_weights(records, settings, len(starts), temperature)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_annealed_transitions_from_the_prior_estimate_the_evidence(temperature):
    """However far chains are from equilibrium (Neal 2001): these make six short transitions."""
    target = Conjugate([[4.0, 1.2], [1.2, 2.0]], [1.5, -1.0], temperature)
    deviation, random = math.sqrt(temperature), torch.Generator().manual_seed(1)
    starts = torch.randn(700, 2, generator=random, dtype=torch.float64) * deviation
    settings = HMCSettings(0.6 * deviation, 12, 2, anneal_from=8.0)
    weights = annealed(target, starts, settings, temperature)
    assert_estimates(weights, math.exp(target.log_evidence()))


def test_the_potential_of_a_network_is_annealed_from_its_prior():
    """As in test_chains.py: the likelihood depends on the difference δ of two biases alone."""
    temperature, network = 0.4, MLP((2, 2))
    images, labels = torch.zeros(9, 2, dtype=torch.float64), torch.tensor([1] * 7 + [0] * 2)
    prior = Prior().tempered(temperature)
    target = Potential(network, images, labels, prior=prior, temperature=temperature)
    random = torch.Generator().manual_seed(2)
    starts = torch.randn(300, 6, generator=random, dtype=torch.float64) * prior.std
    weights = annealed(target, starts, HMCSettings(0.4, 12, 2, anneal_from=8.0), temperature)
    delta = np.linspace(-12, 12, 20001)
    likelihood = -7 * np.log1p(np.exp(-delta)) - 2 * np.log1p(np.exp(delta))
    density = np.exp(-(delta**2) / (4 * temperature))
    evidence = (density * np.exp(likelihood / temperature)).sum() / density.sum()
    assert_estimates(weights, evidence)


# ---- chains that are left out

FOURTH_ELSEWHERE = (0.0, 0.0, 0.0, 3.0)  # means of potentials


def potentials(means=FOURTH_ELSEWHERE, draws=200):
    return np.random.default_rng(3).standard_normal((len(means), draws)) + np.array(means)[:, None]


def test_a_chain_elsewhere_with_little_mass_is_left_out():
    weights = np.array([-580.0, -575.0, -577.0, -617.0])
    found = compare_annealed(weights, potentials())
    assert found.left_out == [3]
    assert found.log_weights == weights.tolist()
    assert found.log_weight_spread == pytest.approx(np.std([-580, -575, -577], ddof=1))
    assert found.log_weight_gap == pytest.approx(617 - 577 - 1 / 3)
    assert found.potential_rhats[3] > 1.2
    assert max(found.potential_rhats[:3]) < 1.05


def test_a_chain_that_agrees_stays_however_small_its_weight():
    """Annealed quickly, chains of one region have had weights 36 nats apart."""
    found = compare_annealed(np.array([-363.0, -366.0, -368.0, -404.0]), potentials((0, 0, 0, 0)))
    assert found.left_out == []
    assert found.log_weight_gap is None
    assert found.log_weight_spread > 15
    weights = np.zeros(40)
    weights[7] = -1000.0
    assert compare_annealed(weights, potentials(np.zeros(40))).left_out == []


@pytest.mark.parametrize(("beyond", "left_out"), [(-0.1, []), (0.1, [3])])
def test_weights_are_judged_by_the_spread_of_those_that_agree(beyond, left_out):
    quantile = 6.9646  # 99 % of Student's t with 2 degrees of freedom
    limit = -quantile * 2 * math.sqrt(4 / 3) - math.log(100)  # for −2, 0, 2
    weights = np.array([-2.0, 0.0, 2.0, limit - beyond])
    assert compare_annealed(weights, potentials()).left_out == left_out


@pytest.mark.parametrize(("below", "left_out"), [(4.5, []), (4.7, [3])])
def test_a_region_with_a_hundredth_of_the_mass_is_not_left_out(below, left_out):
    weights = np.array([-100.0, -100.0, -100.0, -100.0 - below])  # without any spread
    assert compare_annealed(weights, potentials()).left_out == left_out


def test_nothing_is_left_out_if_the_spread_is_unknown():
    alone = compare_annealed(np.array([-900.0, -100.0]), potentials((0, 3)))
    assert alone.left_out == []
    assert alone.log_weight_spread is None
    assert compare_annealed(np.array([-100.0]), potentials((0,))).left_out == []


def test_chains_of_few_draws_are_not_compared():
    weights = np.array([-100.0, -101.0, -102.0, -900.0])
    assert compare_annealed(weights, potentials(draws=4)).left_out == []
