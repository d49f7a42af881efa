"""The numbers that the paper prints, and the uncertainty of ours."""

from pathlib import Path

import numpy as np
import yaml

SIGNIFICANT = 0.01  # p value from which a claim is judged by it


def published(name: str) -> dict:
    """Return numbers that the paper prints, or that were read off its figures."""
    return yaml.safe_load(Path(__file__).with_name("values.yaml").read_text())[name]


def median_error(values: np.ndarray) -> float:
    """Return the standard error of the median: half of its 68 % interval of order statistics.

    The number of values below the true median is n / 2 ± √n / 2, whatever their distribution.
    """
    ordered, count = np.sort(values), len(values)
    ends = (count - 1) / 2 + np.array([-1, 1]) * np.sqrt(count) / 2
    low, high = np.interp(ends, np.arange(count), ordered)
    return float(high - low) / 2
