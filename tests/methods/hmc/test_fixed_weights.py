"""Chains with fixed weights: their posterior is the conditional one, and units keep their names.

Statistical tests have fixed seeds and bounds at 4.5 standard errors: another seed would fail them
once in 100,000 times per number.
"""

import math

from tests.methods.hmc.targets import PRECISION, Gaussian, normal
from utils.evaluation.diagnostics import ess_bulk
from utils.methods.hmc.adaptation import HMCSettings
from utils.methods.hmc.chains import advance, start_chains
from utils.methods.hmc.fixed_weights import FixedWeights
from utils.methods.hmc.mass import IDENTITY, MassMatrix
from utils.networks.mlp import MLP
from utils.posteriors.moments import fit_blocks
from utils.posteriors.prior import Prior
from utils.rebasin.matching import make_matcher
from utils.rebasin.rebase import rebase_all

import pytest
import torch

NETWORK = MLP((20, 12, 4))


def test_a_chain_samples_the_conditional_of_the_free_weights():
    precision = torch.tensor(PRECISION, dtype=torch.float64)
    starts = normal(2, 3)
    starts[:, 0] = 1.3
    mass = MassMatrix(torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64))
    settings = HMCSettings(0.4, 0, trajectory_length=1.6, jitter=0.3)
    chains, states = start_chains(starts, settings), []
    for _ in range(600):
        chains, _ = advance(Gaussian(precision), chains, settings, seed=0, mass=mass)
        states.append(chains.weights)
    states = torch.stack(states, 1)
    assert (states[:, :, 0] == 1.3).all()
    free = precision[1:, 1:]
    mean = -torch.linalg.solve(free, precision[1:, 0] * 1.3)
    deviations = free.inverse().diagonal().sqrt()
    for k in range(2):
        values = ((states[:, :, 1 + k] - mean[k]) / deviations[k]).numpy()
        assert abs(values.mean()) < 4.5 / math.sqrt(ess_bulk(values))
        assert abs((values**2).mean() - 1) < 4.5 * math.sqrt(2 / ess_bulk(values**2))


def networks(share: float, noise: float = 1.0) -> torch.Tensor:
    """Draws from the prior, with the fixed weights at their values."""
    fixed = FixedWeights(NETWORK, share, Prior(), seed=0)
    return fixed.apply(
        noise * torch.stack([normal(NETWORK.num_weights, seed=k).float() for k in range(9)])
    )


def q_d_and_q_r(weights: torch.Tensor) -> list:
    images = normal(300, 20, seed=50).float()
    matcher = make_matcher("activation", NETWORK, weights[0], images)
    moved = [rebased.weights for rebased in rebase_all(NETWORK, weights, matcher)]
    return [fit_blocks(rows, 9)[0].gaussian(NETWORK) for rows in (list(weights), moved)]


def test_where_units_have_names_rebasin_changes_nothing():
    q_d, q_r = q_d_and_q_r(networks(share=0.9))
    assert torch.equal(q_d.mean, q_r.mean)
    assert torch.equal(q_d.std, q_r.std)


def test_without_fixed_weights_it_does():
    q_d, q_r = q_d_and_q_r(networks(share=0.0))
    assert (q_r.std.square().mean() / q_d.std.square().mean()).item() < 0.95


def test_the_share_is_kept_and_none_is_the_identity():
    fixed = FixedWeights(NETWORK, 0.3, Prior(), seed=0)
    assert fixed.mask.float().mean().item() == pytest.approx(0.3, abs=0.1)
    weights = fixed.apply(torch.zeros(2, NETWORK.num_weights))
    assert torch.equal(weights[0] != 0, fixed.mask)
    assert torch.equal(weights[0], weights[1])
    assert FixedWeights(NETWORK, 0.0, Prior(), seed=0).mass(torch.device("cpu")) is IDENTITY
