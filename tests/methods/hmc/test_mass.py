"""Masses: the curvature beside autograd, planted covariances, and chains that stay exact.

Statistical tests have fixed seeds and bounds at 4.5 standard errors: another seed would fail them
once in 100,000 times per number.
"""

import math

from tests.methods.hmc.targets import PRECISION, Gaussian, Quartic, normal
from tests.networks.conv_networks import drawn_images, drawn_weights, small
from utils.evaluation.diagnostics import ess_bulk
from utils.methods.hmc import chains as chains_module
from utils.methods.hmc.adaptation import HMCSettings
from utils.methods.hmc.chains import advance, start_chains, transition
from utils.methods.hmc.leapfrog import leapfrog
from utils.methods.hmc.mass import (
    MassAdaptation,
    MassMatrix,
    check_size,
    dense_factor,
    diagonal_factor,
    first_step_size,
    gauss_newton,
    starting_factor,
)
from utils.methods.hmc.potential import Potential
from utils.networks.mlp import MLP
from utils.runs.errors import UserError

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


@pytest.mark.parametrize("network", [MLP((4, 3)), small("optunet")], ids=["linear", "optunet"])
def test_gauss_newton_is_the_sum_of_jacobians(network):
    """For a network that is linear in its weights it is the Hessian of the cross-entropy."""
    weights, images = drawn_weights(network), drawn_images(network, 60)
    labels = torch.zeros(60, dtype=torch.int64)
    dense = gauss_newton(network, images, weights, dense=True)
    jacobian = torch.autograd.functional.jacobian(lambda w: network.outputs(w, images), weights)
    chances = network.outputs(weights, images).softmax(-1)
    inner = chances.diag_embed() - chances.unsqueeze(2) * chances.unsqueeze(1)
    expected = torch.einsum("nci,nck,nkj->ij", jacobian, inner, jacobian)
    torch.testing.assert_close(dense, expected, rtol=1e-8, atol=1e-9)
    diagonal = gauss_newton(network, images, weights, dense=False)
    torch.testing.assert_close(diagonal, expected.diagonal(), rtol=1e-8, atol=1e-9)
    if isinstance(network, MLP):
        hessian = torch.autograd.functional.hessian(
            lambda w: F.cross_entropy(network.outputs(w, images), labels, reduction="sum"), weights
        )
        torch.testing.assert_close(dense, hessian, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", ["dense", "diagonal"])
def test_the_first_mass_is_the_posteriors_precision(kind):
    network = MLP((4, 3))
    weights, images = drawn_weights(network), drawn_images(network, 60)
    factor = starting_factor(kind, network, images, weights, precision=2.0, temperature=0.5)
    precision = gauss_newton(network, images, weights, dense=True) / 0.5
    precision.diagonal().add_(2.0)
    if kind == "dense":
        torch.testing.assert_close(factor @ factor.mT, precision.inverse())
    else:
        torch.testing.assert_close(factor, precision.diagonal().rsqrt())


def test_dense_masses_are_for_small_networks():
    check_size("diagonal", MLP((784, 10)))
    with pytest.raises(UserError, match="give --mass diagonal"):
        check_size("dense", MLP((784, 10)))


@pytest.mark.parametrize("before", [DIAGONAL, DENSE], ids=["diagonal", "dense"])
def test_a_window_ends_with_the_covariance_of_its_states(before):
    """With 20,000 draws to 5 %; of one component too many, the moments would be off by more."""
    draws = normal(20_000, 3) @ torch.linalg.cholesky(A.inverse()).mT + 1.0
    adaptation = MassAdaptation.start(before.factor)
    for draw in draws[:50]:
        adaptation = adaptation.add(draw)
    first = draws[:50].T.cov()
    found = adaptation.squares / 49
    torch.testing.assert_close(found, first if found.dim() == 2 else first.diagonal())
    every = draws.T.cov()
    if before is DENSE:
        factor = dense_factor(before.factor, every, 20_000)
        torch.testing.assert_close(factor @ factor.mT, A.inverse(), rtol=0.05, atol=0.03)
    else:
        factor = diagonal_factor(before.factor, every.diagonal(), 20_000)
        torch.testing.assert_close(factor**2, A.inverse().diagonal(), rtol=0.05, atol=0)


def test_few_states_change_the_scale_of_a_dense_mass_only():
    """20 draws whose covariance is 4 times that of the mass, in 60 dimensions."""
    size = 60
    factor = torch.eye(size).double() + 0.1 * normal(size, size)
    draws = normal(20, size, seed=1) @ factor.mT * 2
    learnt = dense_factor(factor, draws.T.cov(), 20)
    relative = torch.linalg.solve(factor, learnt)
    spectrum = torch.linalg.eigvalsh(relative @ relative.mT)
    assert 3 < spectrum.min() < spectrum.max() < 5


# ---- chains


def test_masses_are_learnt_in_burn_in_and_fixed_afterwards():
    settings = HMCSettings(0.1, 150, trajectory_length=1.6, jitter=0.3, adapt_step_size=True)
    stiff = Gaussian(torch.tensor([[400.0, 0.0, 0.0], [0.0, 1.0, 0.6], [0.0, 0.6, 0.46]]))
    starts = normal(2, 3, seed=6) * torch.tensor([0.05, 1.0, 1.0])
    chains = start_chains(starts, settings, [torch.eye(3).double()] * 2)
    states, masses, steps = [], [], []
    for _ in range(450):
        chains, results = advance(stiff, chains, settings, seed=0)
        states.append(chains.weights)
        masses.append(chains.mass(0).factor)
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


@pytest.mark.parametrize("start", [1e-4, 0.3, 50.0])
def test_the_first_step_size_is_near_the_limit_of_stability(start):
    """Of U = ½ θ², at whose steps above 2 energies explode."""
    target, place, momentum = Gaussian(torch.eye(3)), normal(3), normal(3, seed=1)
    size = first_step_size(
        lambda each: leapfrog(target, place, momentum, each, 1).delta_energy, start
    )
    assert 0.3 < size < 2.5
