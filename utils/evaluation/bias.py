"""Bias of chains that are not exact, beside chains that are: differences of means, with errors."""

from typing import NamedTuple

from utils.evaluation.diagnostics import ess_mean

import numpy as np


class Bias(NamedTuple):
    """Of each quantity [F]."""

    difference: np.ndarray  # of its mean, from the exact chains'
    error: np.ndarray  # standard error of the difference, from the effective samples of both
    std: np.ndarray  # of the quantity, in the exact chains

    @property
    def z(self) -> np.ndarray:
        return self.difference / self.error

    @property
    def shift(self) -> float:
        """The root mean square over quantities of difference / std, without what errors add."""
        excess = (self.difference**2 - self.error**2) / self.std**2
        return float(np.sqrt(max(np.nanmean(excess), 0.0)))


def bias(samples: np.ndarray, exact: np.ndarray) -> Bias:
    """Compare draws [chains, draws, F] with exact ones. Constant quantities are NaN."""
    difference = samples.mean((0, 1)) - exact.mean((0, 1))
    errors = np.hypot(mean_errors(samples), mean_errors(exact))
    std = exact.std((0, 1))
    errors[errors == 0] = std[std == 0] = np.nan
    return Bias(difference, errors, std)


def mean_errors(draws: np.ndarray) -> np.ndarray:
    """Return the standard errors [F] of the means of draws [chains, draws, F].

    They rest on the effective sample size, to which differences between chains contribute.
    """
    sizes = np.array([ess_mean(draws[:, :, k]) for k in range(draws.shape[2])])
    return draws.std((0, 1)) / np.sqrt(sizes)
