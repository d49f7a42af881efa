"""The rule for marks, and standard errors whose values are known."""

from papers.compact.verdicts import (
    clear_mark,
    error_of_chain_mean,
    error_of_mean,
    leave_one_out_error,
    mark_above,
    mark_below,
)
from utils.report.paper import FAILS, HOLDS, PARTLY, UNDECIDED

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("value", "error", "mark"),
    [
        (0.35, 0.02, HOLDS),
        (0.35, 0.03, UNDECIDED),
        (0.20, 0.02, PARTLY),
        (0.05, 0.02, FAILS),
        (0.05, 0.04, UNDECIDED),
        (0.20, 0.0, PARTLY),
        (0.35, None, UNDECIDED),
        (0.35, float("nan"), UNDECIDED),
    ],
)
def test_a_mark_needs_two_errors_between_value_and_threshold(value, error, mark):
    assert clear_mark(lambda v: mark_above(v, 0.3, 0.1), (value, error)) == mark
    assert clear_mark(lambda v: mark_below(v, -0.3, -0.1), (-value, error)) == mark


def test_a_threshold_that_decides_nothing_may_be_near():
    def lower(*values):
        return mark_above(min(values), 0.3, 0.1)

    assert clear_mark(lower, (0.30, 0.02), (0.01, 0.02)) == FAILS
    assert clear_mark(lower, (0.30, 0.02), (0.90, 0.02)) == UNDECIDED


def test_two_values_may_decide_only_together():
    assert clear_mark(lambda a, b: mark_above(a + b, 1, 0), (0.6, 0.12), (0.6, 0.0)) == UNDECIDED
    assert clear_mark(lambda a, b: mark_above(a + b, 1, 0), (0.6, 0.08), (0.6, 0.0)) == HOLDS
    assert clear_mark(lambda a, b: mark_above(a + b, 1, 0), (0.6, 0.08), (0.6, 0.08)) == UNDECIDED


def test_the_error_of_a_mean_is_that_of_its_jackknife():
    values = np.random.default_rng(0).normal(size=40)
    expected = values.std(ddof=1) / 40**0.5
    assert error_of_mean(values) == pytest.approx(expected)
    assert leave_one_out_error(np.mean, values) == pytest.approx(expected)
    assert np.isnan(error_of_mean(values[:1]))
    assert np.isnan(leave_one_out_error(np.mean, values[:2]))


def test_the_error_of_a_chains_mean_counts_what_neighbours_share():
    """Each number is there ten times, so 100 numbers are worth ten."""
    values = np.random.default_rng(1).normal(size=10)
    assert error_of_chain_mean(values.repeat(10)) == pytest.approx(error_of_mean(values))
    assert error_of_mean(values.repeat(10)) < 0.5 * error_of_mean(values)
