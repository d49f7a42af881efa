"""Which trajectories are followed back, and what becomes of those that do not return."""

import math

from tests.methods.hmc.targets import PRECISION, Gaussian, Quartic, normal
from utils.evaluation.diagnostics import energy_balance, ess_bulk
from utils.methods.hmc import chains as chains_module
from utils.methods.hmc import leapfrog as leapfrog_module
from utils.methods.hmc.chains import transition
from utils.methods.hmc.leapfrog import WayBack, kinetic_energy, leapfrog, way_back
from utils.methods.hmc.mass import IDENTITY

import numpy as np
import pytest
import torch


class Drifting(Gaussian):
    """Its force is stronger the more often it was called: it depends on the path."""

    def trajectory(self, weights):
        self.calls = 0
        return self.energy(weights), self

    def __call__(self, weights):
        self.calls += 1
        return self.energy(weights).gradient * (1 + 0.1 * self.calls)


def chain(target, count, every, seed=0):
    state, records, states = normal(3), [], []
    for iteration in range(count):
        state, record = transition(target, state, 0.3, 6, seed, iteration, reversal_every=every)
        states.append(state)
        records.append(record)
    return torch.stack(states), records


def test_reversible_trajectories_return_and_the_chain_stays_the_same():
    checked, records = chain(Quartic(PRECISION), 200, 4)
    plain, others = chain(Quartic(PRECISION), 200, 0)
    assert torch.equal(checked, plain)
    followed = [record for record in records if record.followed_back]
    assert 25 < len(followed) < 75
    assert all(record.reversal_miss < 1e-12 and record.returned for record in followed)
    assert max(abs(record.reversal_gap) for record in followed) < 1e-12
    assert not any(record.followed_back for record in others)


def test_all_trajectories_may_be_followed():
    _, records = chain(Gaussian(PRECISION), 50, 1)
    assert all(record.followed_back for record in records)


def test_a_trajectory_that_does_not_return_is_rejected():
    states, records = chain(Drifting(PRECISION), 60, 3)
    missed = [i for i, record in enumerate(records) if record.followed_back]
    assert len(missed) > 8
    for i in missed:
        assert not records[i].returned
        assert not records[i].accepted
        assert i == 0 or torch.equal(states[i], states[i - 1])
    assert any(record.accepted for record in records)  # those that were not followed


def test_the_way_back_by_hand():
    target, start, momentum = Drifting(PRECISION), normal(3), normal(3, seed=1)
    there = leapfrog(target, start, momentum, 0.3, 6)
    back = leapfrog(target, there.weights, -there.momentum, 0.3, 6)
    found = way_back(target, start, there, 0.3, 6, lambda: None, IDENTITY)
    expected = (back.weights - start).norm() / (there.weights - start).norm()
    assert found.miss == pytest.approx(expected.item())
    assert found.gap == pytest.approx(there.delta_energy + back.delta_energy)


@pytest.mark.parametrize(
    ("miss", "gap", "returned"),
    [(0.009, -0.9, True), (0.02, 0.0, False), (0.0, 1.5, False), (0.0, -1.5, False),
     (0.0, math.inf, False), (math.nan, 0.0, False)],
)  # fmt: skip
def test_what_counts_as_a_return(miss, gap, returned):
    assert WayBack(miss, gap).returned == returned


def euler(target, weights, momentum, size, count, on_step=None, mass=IDENTITY):
    """One step of symplectic Euler, which preserves volume and is not reversible."""
    path, first = leapfrog(target, weights, momentum, size, 1), momentum
    momentum = momentum - size * path.start.gradient
    weights = weights + size * momentum
    end = target.energy(weights)
    change = end.potential + kinetic_energy(momentum)
    change -= path.start.potential + kinetic_energy(first)
    return path._replace(weights=weights, momentum=momentum, end=end, delta_energy=change)


def test_energies_do_not_show_what_the_way_back_shows(monkeypatch):
    """From exact draws of N(0, 1) the mean of exp(−ΔH) is 1 within its error, and yet the chain's
    variance is far from 1."""
    monkeypatch.setattr(chains_module, "leapfrog", euler)
    monkeypatch.setattr(leapfrog_module, "leapfrog", euler)
    target, state = Gaussian(torch.eye(1)), normal(1)
    states, changes = [], []
    for iteration, exact in enumerate(normal(4000, 1, seed=2)):
        changes.append(transition(target, exact, 0.9, 1, 0, iteration)[1].delta_energy)
        state, _ = transition(target, state, 0.9, 1, 1, iteration)
        states.append(state.item())
    balance, error = energy_balance(changes)
    assert abs(balance - 1) < 4 * error
    squares = np.square(states)
    assert abs(squares.mean() - 1) > 6 * squares.std() / math.sqrt(ess_bulk(squares[None]))
    assert not transition(target, state, 0.9, 1, 0, 0, reversal_every=1)[1].returned
