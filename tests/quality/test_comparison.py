"""Means over modes, and diagrams of several modes together."""

from utils.quality.comparison import averaged_distance, error_of, mean_of, pooled

import numpy as np
import pytest


def test_errors_of_rows_with_one_mode_are_between_modes():
    found = averaged_distance([{"value": value} for value in (1.0, 2.0, 4.0)])
    assert found["value"] == pytest.approx(7 / 3)
    assert found["error"] == pytest.approx(np.std([1, 2, 4], ddof=1) / 3**0.5)
    assert np.isnan([error_of([1.0]), mean_of([1.0, None])]).all()


def test_diagrams_are_pooled_bin_by_bin():
    diagrams = [
        {"sizes": [1, 3], "confidence": [0.1, 0.9], "accuracy": [0.0, 1.0]},
        {"sizes": [1], "confidence": [0.92], "accuracy": [0.0]},
    ]
    joined = pooled(diagrams)
    assert joined["sizes"] == [1, 4]
    assert joined["accuracy"] == [0, 0.75]
    assert joined["confidence"] == pytest.approx([0.1, 0.905])
