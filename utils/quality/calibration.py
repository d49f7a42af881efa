"""Calibration: is a prediction right as often as it claims to be?

Probabilities are [N, classes], labels [N]; all is computed in float64. Confidence is the largest
probability, and a hit is a point whose most probable class is its label. The expected calibration
error with bins of equal width is `calibration_error` in utils.evaluation.metrics.

Paper B's "ACE" is never defined there. Its values fit the calibration error after temperature
scaling (`scale_temperature`), not that with bins of equal mass, nor the class-wise one.
"""

from typing import NamedTuple

from utils.evaluation.metrics import CALIBRATION_BINS

import torch
from scipy.optimize import brentq
from torch import Tensor

SMALLEST_LOG = -745.0  # of a float64 above 0
TEMPERATURES = (1e-3, 1e3)  # perfectly separated data would be scaled without end
NULL_DRAWS = 100


class Bins(NamedTuple):
    """Sizes, mean confidence and share of hits of the bins that are not empty."""

    sizes: Tensor
    confidence: Tensor
    accuracy: Tensor


def fill_bins(values: Tensor, hits: Tensor, bins: Tensor) -> Bins:
    """Return the bins of points with these confidences, hits (0 or 1) and numbers of bins."""
    sizes = torch.bincount(bins).double()
    sums = [torch.bincount(bins, each.double())[sizes > 0] for each in (values, hits)]
    sizes = sizes[sizes > 0]
    return Bins(sizes, *(each / sizes for each in sums))


def equal_width(values: Tensor) -> Tensor:
    """Return the number of each point's bin: [0, 1] is cut into equal parts."""
    return (values * CALIBRATION_BINS).long().clamp(max=CALIBRATION_BINS - 1)


def equal_mass(values: Tensor) -> Tensor:
    """Return the number of each point's bin: points by rank, equal ones together."""
    below = torch.searchsorted(values.sort().values, values.contiguous())
    return below * CALIBRATION_BINS // len(values)


def reliability(probabilities: Tensor, labels: Tensor, place=equal_width) -> Bins:
    """Return the bins of a reliability diagram."""
    confidence, chosen = probabilities.double().max(-1)
    return fill_bins(confidence, chosen == labels, place(confidence))


def adaptive_calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Return the expected calibration error over bins of equal mass."""
    return mean_gap(reliability(probabilities, labels, equal_mass))


def mean_gap(bins: Bins) -> float:
    """Return Σ_b n_b |accuracy − confidence| / N."""
    gaps = (bins.accuracy - bins.confidence).abs()
    return (bins.sizes @ gaps / bins.sizes.sum()).item()


def debiased_square_error(probabilities: Tensor, labels: Tensor) -> float:
    """Return the squared calibration error over bins of equal mass, without its bias.

    The share of hits in a bin of n points has the variance a (1 − a) / (n − 1), which is taken off
    each squared gap (Kumar et al. 2019, section 5). Of calibrated predictions the mean is 0, so
    values may be negative. Bins of a single point do not count.
    """
    bins = reliability(probabilities, labels, equal_mass)
    sizes, confidence, accuracy = (each[bins.sizes > 1] for each in bins)
    squares = (accuracy - confidence).square() - accuracy * (1 - accuracy) / (sizes - 1)
    return (sizes @ squares / sizes.sum()).item()


def classwise_calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Return the mean over classes of the error of that class's probability (equal mass).

    This is the adaptive calibration error of Nixon et al. (2019).
    """
    errors = [
        mean_gap(fill_bins(values, labels == number, equal_mass(values)))
        for number, values in enumerate(probabilities.double().unbind(-1))
    ]
    return sum(errors) / len(errors)


def calibrated_errors(
    probabilities: Tensor, random: torch.Generator, draws: int = NULL_DRAWS
) -> Tensor:
    """Return calibration errors [draws] of the same predictions if they were calibrated.

    Hits are drawn with the predicted confidence, so only the number of points makes an error.
    """
    confidence = probabilities.double().max(-1).values
    bins = equal_width(confidence)
    errors = []
    for _ in range(draws):
        uniform = torch.rand(confidence.shape, generator=random, dtype=torch.float64)
        errors.append(mean_gap(fill_bins(confidence, uniform < confidence, bins)))
    return torch.tensor(errors, dtype=torch.float64)


# ---- temperature scaling


def scaled(probabilities: Tensor, temperature: float) -> Tensor:
    """Return probabilities proportional to p^(1 / temperature)."""
    return (log_of(probabilities) / temperature).softmax(-1)


def log_of(probabilities: Tensor) -> Tensor:
    return probabilities.double().log().clamp(min=SMALLEST_LOG)


def fit_temperature(probabilities: Tensor, labels: Tensor) -> float:
    """Return the temperature with the smallest NLL.

    The NLL is convex in 1 / T, so its minimum is where the derivative is 0, or at an end.
    """
    logits = log_of(probabilities)
    chosen = logits.gather(-1, labels[:, None]).mean()
    low, high = (1 / temperature for temperature in reversed(TEMPERATURES))

    def slope(log_inverse: float) -> float:
        weights = (logits * torch.tensor(log_inverse).double().exp()).softmax(-1)
        return ((weights * logits).sum(-1).mean() - chosen).item()

    low, high = torch.tensor([low, high], dtype=torch.float64).log().tolist()
    if slope(low) >= 0:
        return TEMPERATURES[1]
    if slope(high) <= 0:
        return TEMPERATURES[0]
    return torch.tensor(-brentq(slope, low, high, xtol=1e-9)).double().exp().item()


def scale_temperature(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the probabilities [N, classes] scaled by temperatures from points held out.

    Points with even numbers are scaled by the temperature of the odd ones, and the reverse, so none
    is scaled by a temperature that has seen its label. Averages are scaled after they are taken.
    """
    result = torch.empty_like(probabilities, dtype=torch.float64)
    for first in (0, 1):
        temperature = fit_temperature(probabilities[1 - first :: 2], labels[1 - first :: 2])
        result[first::2] = scaled(probabilities[first::2], temperature)
    return result
