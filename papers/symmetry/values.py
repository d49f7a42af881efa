"""The numbers that the paper prints, the uncertainty of ours, and which cells of a grid count."""

from pathlib import Path

import numpy as np
import yaml


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


# ---- cells of symmetry_balance.py's grid


def converged(cells: list[dict]) -> list[dict]:
    """Return the cells that did not diverge."""
    return [cell for cell in cells if not cell.get("diverged")]


def pairs(cells: list[dict]) -> list[tuple[dict, dict]]:
    """Return SGD's cells as usual and with projection; neither of a pair diverged."""
    usual, projected = (
        [c for c in cells if c["optimizer"] == "SGD" and c["projected"] == is_projected]
        for is_projected in (False, True)
    )
    return [pair for pair in zip(usual, projected, strict=True) if len(converged(pair)) == 2]


def remark(cells: list[dict]) -> str:
    """Say how many cells diverged; nothing if none did."""
    count = len(cells) - len(converged(cells))
    return f" Training diverged in {count} of {len(cells)} cells, which are left out." * (count > 0)


def training_of(cell: dict) -> tuple:
    """Return what a cell has in common with the same training by another weight decay."""
    return cell["network"], cell["optimizer"], cell["learning_rate"], cell["momentum"]
