"""Masses: the curvature beside autograd, planted covariances, and chains that stay exact.

Statistical tests have fixed seeds and bounds at 4.5 standard errors: another seed would fail them
once in 100,000 times per number.
"""

import math

from tests.methods.hmc.targets import PRECISION, Gaussian, Quartic, normal
from tests.networks.conv_networks import drawn_images, drawn_weights
from utils.evaluation.diagnostics import ess_bulk
from utils.methods.hmc import chains as chains_module
from utils.methods.hmc import potential
from utils.methods.hmc.adaptation import HMCSettings
from utils.methods.hmc.chains import advance, start_chains, transition
from utils.methods.hmc.leapfrog import leapfrog
from utils.methods.hmc.mass import (
    MassAdaptation,
    MassMatrix,
    check_size,
)
from utils.methods.hmc.potential import Potential
from utils.networks.mlp import MLP
from utils.posteriors.prior import Prior
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch
import torch.nn.functional as F

A = torch.tensor(PRECISION, dtype=torch.float64)
DENSE = MassMatrix(torch.tensor([[0.9, 0.3, 0.0], [0.0, 1.1, -0.4], [0.5, 0.0, 1.3]]).double())
DIAGONAL = MassMatrix(torch.tensor([0.7, 1.0, 1.6]).double())


def covariance_of(mass: MassMatrix) -> torch.Tensor:
    factor = mass.factor.diag() if mass.factor.dim() == 1 else mass.factor
    return factor @ factor.mT


# ---- trajectories


@pytest.mark.parametrize("mass", [DIAGONAL, DENSE], ids=["diagonal", "dense"])
def test_a_trajectory_is_that_of_the_whitened_target(mass):
    factor = mass.factor.diag() if mass.factor.dim() == 1 else mass.factor
    start, momentum = normal(3), normal(3, seed=1)
    ours = leapfrog(Gaussian(A), factor @ start, momentum, 0.2, 9, mass=mass)
    whitened = leapfrog(Gaussian(factor.mT @ A @ factor), start, momentum, 0.2, 9)
    torch.testing.assert_close(ours.weights, factor @ whitened.weights)
    torch.testing.assert_close(ours.momentum, whitened.momentum)
    assert ours.delta_energy == pytest.approx(whitened.delta_energy, abs=1e-12)


def test_trajectories_with_mass_are_reversible():
    target, start, momentum = Quartic(PRECISION), normal(3), normal(3, seed=1)
    there = leapfrog(target, start, momentum, 0.05, 40, mass=DENSE)
    back = leapfrog(target, there.weights, -there.momentum, 0.05, 40, mass=DENSE)
    assert (there.weights - start).norm() > 0.5
    torch.testing.assert_close(back.weights, start, rtol=0, atol=1e-12)
    assert back.delta_energy == pytest.approx(-there.delta_energy, abs=1e-12)


def joint_chain(count: int) -> np.ndarray:
    """Draw labels given weights and weights given labels in turn (Geweke 2004)."""
    network, images = MLP((2, 2)), normal(5, 2, seed=2)
    factor = torch.eye(6).double() + 0.4 * normal(6, 6, seed=3).tril()
    random, weights, states = torch.Generator().manual_seed(4), normal(6, seed=5), []
    for iteration in range(count):
        chances = network.outputs(weights, images).softmax(-1)
        labels = torch.multinomial(chances, 1, generator=random).squeeze(1)
        target = Potential(network, images, labels, "dense")
        weights, _ = transition(target, weights, 0.9, 2, 0, iteration, mass=MassMatrix(factor))
        states.append(weights)
    return torch.stack(states).numpy()


def largest_score(states: np.ndarray) -> float:
    """Return the largest deviation of means and squares from N(0, 1), in standard errors."""
    moments = [*(states.T), *((states.T**2 - 1) / math.sqrt(2))]
    return max(abs(values.mean()) * math.sqrt(ess_bulk(values[None])) for values in moments)


def test_the_move_leaves_the_joint_distribution_as_it_is(monkeypatch):
    """Weights keep their prior N(0, 1). Without rejections they do not."""
    assert largest_score(joint_chain(1500)) < 4.5
    monkeypatch.setattr(chains_module, "math", NeverReject)
    assert largest_score(joint_chain(500)) > 10


class NeverReject:
    exp = staticmethod(lambda change: 1.1)


# ---- what masses are made from


@pytest.mark.parametrize("kind", ["dense", "diagonal"])
def test_of_a_linear_network_the_mass_is_the_hessian(kind):
    """Of U/T at temperature ½. A second state has the share 3/4 in the average of two."""
    network = MLP((4, 3))
    states, images = [drawn_weights(network, seed) for seed in (0, 1)], drawn_images(network, 60)
    labels = torch.zeros(60, dtype=torch.int64)
    target = Potential(network, images, labels, prior=Prior(0.6).tempered(0.5), temperature=0.5)
    adaptation, random = MassAdaptation.start(kind, states[0]), torch.Generator()
    for state in states:
        adaptation = adaptation.learn(target, state, random)

    def nll(weights):
        return F.cross_entropy(network.outputs(weights, images), labels, reduction="sum")

    first, second = (torch.autograd.functional.hessian(nll, state) for state in states)
    hessian = (0.25 * first + 0.75 * second + torch.eye(15) / 0.6**2) / 0.5
    found = covariance_of(adaptation.mass)
    expected = hessian.inverse() if kind == "dense" else (1 / hessian.diagonal()).diag()
    torch.testing.assert_close(found, expected)


def test_the_curvature_of_a_few_images_stands_for_all(monkeypatch):
    network, random = MLP((4, 3)), torch.Generator().manual_seed(0)
    weights, images = drawn_weights(network), drawn_images(network, 60)
    target = Potential(network, images, torch.zeros(60, dtype=torch.int64))
    whole = target.curvature(weights, True, random)
    monkeypatch.setattr(potential, "CURVATURE_IMAGES", 6)
    parts = [target.curvature(weights, True, random) for _ in range(400)]
    error = torch.stack(parts).std(0) / 20
    assert ((torch.stack(parts).mean(0) - whole) / error).abs().max() < 4.5


def test_dense_masses_are_for_small_networks():
    check_size("diagonal", MLP((784, 10)))
    with pytest.raises(UserError, match="give --mass diagonal"):
        check_size("dense", MLP((784, 10)))


# ---- chains


class Curved(Gaussian):
    """A Gaussian whose curvature is known but for noise."""

    def curvature(self, weights, dense, generator):
        noise = 0.1 * torch.randn(3, generator=generator, dtype=torch.float64)
        return self.precision + noise.square().diag()

    def precision_of(self, curvature):
        return curvature


def test_masses_are_learnt_in_burn_in_and_fixed_afterwards():
    settings = HMCSettings(0.1, 150, trajectory_length=1.6, jitter=0.3, adapt_step_size=True)
    stiff = Curved(torch.tensor([[400.0, 0.0, 0.0], [0.0, 1.0, 0.6], [0.0, 0.6, 0.46]]))
    starts = normal(2, 3, seed=6) * torch.tensor([0.05, 1.0, 1.0])
    chains = start_chains(starts, settings, "dense")
    states, masses, steps = [], [], []
    for _ in range(450):
        chains, results = advance(stiff, chains, settings, seed=0)
        states.append(chains.weights)
        masses.append(chains.masses[0].mass.factor)
        steps.append(results[0].num_steps)
    assert torch.equal(masses[150], masses[-1])
    assert not torch.equal(masses[0], masses[149])
    assert np.mean(steps[150:]) < 8  # with unit mass at the limit of stability 16
    states = torch.stack(states[150:], 1).numpy()
    variances = stiff.precision.inverse().diagonal()
    for k in range(3):
        values = states[:, :, k] / math.sqrt(variances[k])
        assert abs(values.mean()) < 4.5 / math.sqrt(ess_bulk(values))
        assert abs((values**2).mean() - 1) < 4.5 * math.sqrt(2 / ess_bulk(values**2))


def test_while_hot_the_mass_follows_the_last_states():
    """The newest of 200 curvatures has the share 3 / 33; afterwards shares fall as they grow in
    number."""
    target, random = Curved(A), torch.Generator()
    target.curvature = lambda weights, dense, generator: weights[0] * torch.eye(3).double()
    adaptation, zero, one = MassAdaptation.start("dense", normal(3)), normal(3) * 0, normal(3)
    one[0] = 1.0
    target.precision_of = lambda curvature: curvature + torch.eye(3)
    for _ in range(200):
        adaptation = adaptation.learn(target, zero, random, hot=True)
    newest = adaptation.learn(target, one, random, hot=True)
    assert newest.curvature[0, 0].item() == pytest.approx(3 / 33)
    for _ in range(100):
        adaptation = adaptation.learn(target, zero, random)
    assert adaptation.learn(target, one, random).curvature[0, 0].item() == pytest.approx(3 / 134)
