"""Bias of chains beside exact ones, with planted differences."""

from tests.evaluation.test_diagnostics import ar1
from utils.evaluation.diagnostics import bias

import numpy as np
import pytest


def draws(shift, seed):
    """Four chains of quantities with a correlation of 0.5, the mean `shift` and the deviation 2."""
    return np.stack([2 * (ar1(0.5, 4, 1000, seed + k) + s) for k, s in enumerate(shift)], -1)


def test_a_planted_shift_is_found_with_its_error():
    """ESS is a third of 4,000 on both sides; |z| of the others is below 4 in all but 1 in 5,000."""
    found = bias(draws([0, 0, 0.25], seed=10), draws([0, 0, 0], seed=0))
    assert found.error == pytest.approx(2 * np.full(3, (2 * 3 / 4000) ** 0.5), rel=0.2)
    assert np.all(np.abs(found.z[:2]) < 4)
    assert found.difference[2] == pytest.approx(0.5, abs=4 * found.error[2])
    assert found.std == pytest.approx(np.full(3, 2), rel=0.1)
    assert found.shift == pytest.approx(0.25 / 3**0.5, rel=0.35)


def test_chains_that_disagree_are_less_sure():
    apart = draws([0], seed=10) + np.array([-2, -2, 2, 2])[:, None, None]
    assert bias(apart, draws([0], seed=0)).error[0] > 0.5


def test_constants_have_no_bias():
    found = bias(np.ones((2, 50, 1)), np.ones((2, 50, 1)))
    assert np.isnan(found.error[0])
    assert found.difference[0] == 0
