"""The integrator: reversible, volume-preserving, of second order."""

import math

from tests.methods.hmc.targets import PRECISION, Gaussian, Quartic, normal
from utils.methods.hmc.leapfrog import kinetic_energy, leapfrog

import pytest
import torch


def test_leapfrog_is_reversible():
    target, start, momentum = Quartic(PRECISION), normal(3), normal(3, seed=1)
    there = leapfrog(target, start, momentum, 0.05, 40)
    back = leapfrog(target, there.weights, -there.momentum, 0.05, 40)
    assert (there.weights - start).norm() > 0.5
    torch.testing.assert_close(back.weights, start, rtol=0, atol=1e-12)
    torch.testing.assert_close(back.momentum, -momentum, rtol=0, atol=1e-12)
    assert back.delta_energy == pytest.approx(-there.delta_energy, abs=1e-12)


def test_energy_error_falls_with_the_square_of_the_step_size():
    target, start, momentum = Quartic(PRECISION), normal(3), normal(3, seed=1)
    errors = [abs(leapfrog(target, start, momentum, 1.0 / n, n).delta_energy) for n in (20, 40, 80)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.05)


def test_kinetic_energy_is_summed_in_float64():
    momentum = normal(100_000).float()
    exact = 0.5 * (momentum.numpy().astype(float) ** 2).sum()
    assert kinetic_energy(momentum) == pytest.approx(exact, abs=1e-6)  # in float32 off by 1e-3


def test_leapfrog_preserves_volume():
    """The determinant of its Jacobian, by central differences, is 1."""
    target, width = Quartic(PRECISION), 1e-5

    def flow(phase):
        end = leapfrog(target, phase[:3], phase[3:], 0.2, 7)
        return torch.cat([end.weights, end.momentum])

    point, axes = normal(6), width * torch.eye(6, dtype=torch.float64)
    jacobian = torch.stack([flow(point + e) - flow(point - e) for e in axes], 1) / (2 * width)
    assert torch.linalg.det(jacobian).item() == pytest.approx(1, abs=1e-7)
    assert (jacobian - torch.eye(6)).abs().max() > 0.5


def test_leapfrog_of_a_harmonic_oscillator_goes_round_in_two_pi():
    """U = ½ θ² with ε n = 2π returns to its start, up to the phase error ε²/24 per unit time."""
    start, momentum = normal(4), normal(4, seed=1)
    round_trip = leapfrog(Gaussian(torch.eye(4)), start, momentum, 2 * math.pi / 500, 500)
    quarter = leapfrog(Gaussian(torch.eye(4)), start, momentum, math.pi / 1000, 500)
    torch.testing.assert_close(round_trip.weights, start, rtol=0, atol=2e-4)
    torch.testing.assert_close(quarter.weights, momentum, rtol=0, atol=2e-4)


def test_arguments_are_left_alone():
    start, momentum = normal(3), normal(3, seed=1)
    leapfrog(Gaussian(PRECISION), start, momentum, 0.1, 5)
    assert torch.equal(start, normal(3))
    assert torch.equal(momentum, normal(3, seed=1))


def test_what_diverges_on_the_way_does_so_on_the_way_back():
    """Of a stiff spring, barely stable, ½p² rises far above H at one end only, or at both.

    Were the start alone looked at, some trajectories could be accepted that have no way back.
    """
    spring = Gaussian(300 * torch.eye(1))
    step_size, differ, finite = math.sqrt(3.97 / 300), 0, 0
    for seed in range(200):
        start, momentum = 8 * normal(1, seed=seed), 40 * normal(1, seed=seed + 1000)
        kinetic = []
        there = leapfrog(spring, start, momentum, step_size, 6)
        end, arrived = start.clone(), momentum.clone()
        for _ in range(6):
            arrived -= 0.5 * step_size * 300 * end
            kinetic.append(0.5 * arrived.item() ** 2)
            end += step_size * arrived
            arrived -= 0.5 * step_size * 300 * end
        back = leapfrog(spring, end, -arrived, step_size, 6)
        above = [max(kinetic) - spring.energy(x).potential - 0.5 * p.item() ** 2 >= 1000
                 for x, p in ((start, momentum), (end, arrived))]  # fmt: skip
        differ += above[0] != above[1]
        finite += not any(above)
        for path in (there, back):
            assert (path.delta_energy == math.inf) == any(above)
    assert differ > 10
    assert finite > 10


def test_a_trajectory_cut_short_is_no_state_of_the_chain():
    path = leapfrog(Gaussian(PRECISION), normal(3), normal(3, seed=1), 50.0, 1000)
    assert path.delta_energy == math.inf
    assert path.end == path.start
