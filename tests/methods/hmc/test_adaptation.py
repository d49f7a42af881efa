"""Step sizes and lengths of trajectories."""

import math

from utils.methods.hmc.adaptation import HMCSettings, StepSizeAdaptation

import numpy as np
import pytest


def test_dual_averaging_by_hand():
    """Two updates of Hoffman & Gelman's equations (6), with μ = log ε₀."""
    adaptation = StepSizeAdaptation.start(0.1).update(1.0, 0.8).update(0.5, 0.8)
    first_error = -0.2 / 11
    first_step = math.log(0.1) - 1 / 0.05 * first_error
    error = first_error * (1 - 1 / 12) + 0.3 / 12
    step = math.log(0.1) - math.sqrt(2) / 0.05 * error
    average = 2**-0.75 * step + (1 - 2**-0.75) * first_step
    assert adaptation.error == pytest.approx(error)
    assert adaptation.log_step == pytest.approx(step)
    assert adaptation.log_average == pytest.approx(average)


@pytest.mark.parametrize(("acceptance", "farthest"), [(0.0, 0.001), (1.0, 10.0)])
def test_the_step_size_stays_within_a_factor_of_100(acceptance, farthest):
    adaptation = StepSizeAdaptation.start(0.1)
    for _ in range(1000):
        adaptation = adaptation.update(acceptance, 0.8)
    assert math.exp(adaptation.log_step) == pytest.approx(farthest)
    assert 0.001 < math.exp(adaptation.log_average) < 10.0


def test_lengths_vary_by_the_jitter_and_grow_in_burnin():
    settings = HMCSettings(0.01, 10, trajectory_length=1.0, jitter=0.2, grow_trajectories=True)
    adaptation = StepSizeAdaptation.start(0.01)
    drawn = [settings.draw_steps(adaptation, 10 + i, 0, i) for i in range(500)]
    assert min(drawn) in range(80, 83)
    assert max(drawn) in range(118, 121)
    assert np.mean(drawn) == pytest.approx(100, abs=4.5 * 11.5 / math.sqrt(500))
    assert [settings.expected_steps(adaptation, i) for i in (0, 4, 9)] == [10, 50, 100]
    assert HMCSettings(0.001, 0, num_steps=500).draw_steps(adaptation, 0, 0) == 500


def test_an_annealed_likelihood_cools_down_in_half_of_burn_in():
    settings = HMCSettings(0.1, 8, anneal_from=81.0)
    assert [settings.heat_at(i) for i in range(6)] == pytest.approx([81, 27, 9, 3, 1, 1])
    assert [HMCSettings(0.1, 8).heat_at(i) for i in (0, 5)] == [1, 1]
