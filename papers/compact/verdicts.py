"""When a claim gets a mark and when there is no verdict: one rule for all that have errors."""

import itertools
from collections.abc import Callable

from utils.report.paper import FAILS, HOLDS, PARTLY, UNDECIDED

import numpy as np

NUM_ERRORS = 2
RULE = (
    f"A mark is given only if it stays the same whenever the numbers that decide it are up to "
    f"{NUM_ERRORS} standard errors larger or smaller. If it does not, or if such an error is "
    "missing, there is no verdict. Where a claim rests on a number without a standard error, its "
    "criterion says so."
)


def clear_mark(mark_of: Callable[..., str], *measured: tuple[float, float | None]) -> str:
    """Return the mark of values with their errors, or UNDECIDED, by RULE.

    `mark_of` takes the values and is monotone in each, so the ends of all intervals suffice.
    """
    if any(error is None or not np.isfinite(error) for value, error in measured):
        return UNDECIDED
    ends = [(v - NUM_ERRORS * error, v + NUM_ERRORS * error) for v, error in measured]
    marks = {mark_of(*corner) for corner in itertools.product(*ends)}
    return marks.pop() if len(marks) == 1 else UNDECIDED


def mark_above(value: float, holds: float, partly: float) -> str:
    """Return the mark of a value that should be large."""
    return HOLDS if value >= holds else PARTLY if value >= partly else FAILS


def mark_below(value: float, holds: float, partly: float) -> str:
    """Return the mark of a value that should be small."""
    return mark_above(-value, -holds, -partly)


# ---- standard errors of what runs leave


def error_of_mean(values: np.ndarray) -> float:
    """Return the standard error of the mean of independent values; NaN of a single one."""
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def error_of_chain_mean(values: np.ndarray, num_blocks: int = 10) -> float:
    """Return the standard error of a chain's mean, from the means of contiguous blocks."""
    blocks = np.array_split(np.asarray(values, float), min(num_blocks, len(values)))
    return error_of_mean(np.array([block.mean() for block in blocks]))


def leave_one_out_error(score: Callable[..., float], *columns: np.ndarray) -> float:
    """Return the standard error of a score of rows, by leaving out each in turn (Tukey 1958)."""
    count = len(columns[0])
    if count < 3:
        return float("nan")
    kept = [np.delete(np.arange(count), left_out) for left_out in range(count)]
    scores = [score(*(np.asarray(column)[rows] for column in columns)) for rows in kept]
    return float((count - 1) / count**0.5 * np.std(scores, ddof=1))
