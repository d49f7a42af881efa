"""Calibration errors beside torchmetrics and scikit-learn, by hand, and on planted temperatures."""

from utils.evaluation.metrics import calibration_error
from utils.quality.calibration import (
    adaptive_calibration_error,
    calibrated_errors,
    classwise_calibration_error,
    debiased_square_error,
    equal_mass,
    fit_temperature,
    reliability,
    scale_temperature,
    scaled,
)

import pytest
import torch

K = torch.arange(600, dtype=torch.float64)
LOGITS = torch.stack(
    [2.5 * torch.sin(0.7 * K + 1.3 * c) + 1.5 * torch.cos(0.11 * K * c) for c in range(4)], -1
)
NOISE = torch.stack([torch.sin(3.1 * K * (c + 1)) for c in range(4)], -1)
LABELS = (LOGITS + 1.8 * NOISE).argmax(-1)
PROBABILITIES = (2 * LOGITS).softmax(-1)


def test_errors_are_those_of_torchmetrics_and_scikit_learn():
    """Frozen: torchmetrics 1.9.0, in float32; calibration_curve of scikit-learn 1.9.1."""
    assert calibration_error(PROBABILITIES, LABELS) == pytest.approx(0.13499309, abs=1e-6)
    bins = reliability(PROBABILITIES, LABELS)
    root_mean_square = (bins.sizes @ (bins.accuracy - bins.confidence) ** 2 / 600).sqrt()
    assert root_mean_square.item() == pytest.approx(0.15775812, abs=1e-6)
    adaptive = adaptive_calibration_error(PROBABILITIES, LABELS)
    assert adaptive == pytest.approx(0.1368961953626951, abs=1e-12)


def test_temperature_is_that_of_a_general_optimiser():
    """Frozen: scipy's bounded search over ln T."""
    assert fit_temperature(PROBABILITIES, LABELS) == pytest.approx(1.993309235, rel=1e-6)


def test_a_planted_temperature_is_recovered():
    """Labels drawn from p, and p sharpened by the power 3; the standard error of T is 0.03."""
    random = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(40_000, 5, generator=random, dtype=torch.float64)
    labels = logits.softmax(-1).multinomial(1, generator=random).squeeze(1)
    sharpened = (3 * logits).softmax(-1)
    assert fit_temperature(sharpened, labels) == pytest.approx(3, abs=0.09)
    again = scale_temperature(sharpened, labels)
    assert calibration_error(sharpened, labels) > 0.1
    assert calibration_error(again, labels) < 0.01
    assert (again.argmax(-1) == sharpened.argmax(-1)).all()


def test_a_temperature_is_not_fitted_to_the_points_it_scales():
    labels = LABELS.clone()
    labels[::2] = 0  # of points with even numbers: only odd ones are scaled otherwise
    before, after = (scale_temperature(PROBABILITIES, each) for each in (LABELS, labels))
    assert before[::2].equal(after[::2])
    assert not before[1::2].equal(after[1::2])


def test_perfect_separation_and_certain_predictions_have_a_temperature():
    certain = torch.eye(3, dtype=torch.float64).repeat(4, 1)
    labels = torch.arange(3).repeat(4)
    assert fit_temperature(certain.lerp(torch.full((3,), 1 / 3.0).double(), 0.1), labels) == 1e-3
    wrong = fit_temperature(certain, (labels + 1) % 3)
    assert wrong == 1e3
    assert scaled(certain, 2.0).isfinite().all()


def test_equal_points_share_a_bin():
    values = torch.tensor([0.5, 0.9, 0.9, 0.9, 1.0, 1.0], dtype=torch.float64)
    assert equal_mass(values).tolist() == [0, 2, 2, 2, 10, 10]  # of 15 bins
    assert equal_mass(values.flip(0)).tolist() == [10, 10, 2, 2, 2, 0]


def test_errors_by_hand():
    """A single class is certain and right; always 0.75 and right half the time is off by 0.25."""
    one_class = torch.ones(7, 1)
    zeros = torch.zeros(7, dtype=torch.long)
    for error in (adaptive_calibration_error, debiased_square_error, classwise_calibration_error):
        assert error(one_class, zeros) == 0
    constant = torch.tensor([[0.75, 0.25]]).repeat(8, 1)
    labels = torch.arange(8) % 2
    assert adaptive_calibration_error(constant, labels) == 0.25
    assert classwise_calibration_error(constant, labels) == 0.25
    assert debiased_square_error(constant, labels) == pytest.approx(0.25**2 - 0.25 / 7)


def test_calibrated_predictions_have_no_debiased_error():
    """The mean of 200 data sets is within 4 standard errors of 0; with its bias it is far off."""
    random = torch.Generator().manual_seed(1)
    debiased, plain = [], []
    for _ in range(200):
        probabilities = torch.randn(200, 3, generator=random, dtype=torch.float64).softmax(-1)
        labels = probabilities.multinomial(1, generator=random).squeeze(1)
        debiased.append(debiased_square_error(probabilities, labels))
        plain.append(calibration_error(probabilities, labels))
    debiased = torch.tensor(debiased)
    assert abs(debiased.mean()) < 4 * debiased.std() / 200**0.5
    expected = calibrated_errors(probabilities, random, 500)
    assert torch.tensor(plain).mean().item() == pytest.approx(expected.mean().item(), rel=0.1)
