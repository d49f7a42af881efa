"""Scores on hand-made distributions."""

import math

from utils.evaluation.metrics import (
    accuracy,
    accuracy_difference,
    agreement,
    brier,
    calibration_error,
    mean_nll,
    total_variation,
)

import pytest
import torch

PROBABILITIES = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.25, 0.5, 0.25]])


def test_accuracy_is_the_share_of_labels_hit():
    assert accuracy(PROBABILITIES, torch.tensor([0, 2, 1])) == 1
    assert accuracy(PROBABILITIES, torch.tensor([0, 0, 0])) == pytest.approx(1 / 3)


def test_nll_is_the_mean_of_minus_log_p():
    expected = -(math.log(0.5) + math.log(0.2) + math.log(0.25)) / 3
    assert mean_nll(PROBABILITIES, torch.tensor([0, 1, 2])) == pytest.approx(expected, rel=1e-6)


def test_nll_of_certainty_is_zero_and_of_the_impossible_infinite():
    certain = torch.eye(3)
    assert mean_nll(certain, torch.arange(3)) == 0
    assert mean_nll(certain, torch.tensor([1, 1, 2])) == math.inf


def random_distributions(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed)).mul(3).softmax(-1)


def test_agreement_is_the_share_of_equal_argmax():
    others = torch.tensor([[0.4, 0.35, 0.25], [0.6, 0.2, 0.2], [0.0, 1.0, 0.0]])
    assert agreement(PROBABILITIES, others) == pytest.approx(2 / 3)
    assert agreement(others, PROBABILITIES) == pytest.approx(2 / 3)
    assert agreement(PROBABILITIES, PROBABILITIES) == 1


def test_total_variation_of_hand_made_distributions():
    others = torch.tensor([[0.4, 0.4, 0.2], [0.7, 0.2, 0.1], [0.25, 0.5, 0.25]])
    assert total_variation(PROBABILITIES, others) == pytest.approx((0.1 + 0.6 + 0) / 3)
    assert total_variation(torch.eye(3), torch.eye(3).flip(1)) == pytest.approx(2 / 3)


def test_total_variation_is_a_bounded_symmetric_distance():
    p, q, r = (random_distributions(50, seed) for seed in range(3))
    assert total_variation(p, p) == 0
    assert total_variation(p, q) == total_variation(q, p)
    assert 0 < total_variation(p, q) < 1
    assert total_variation(p, r) <= total_variation(p, q) + total_variation(q, r)
    disjoint = torch.eye(2)
    assert total_variation(disjoint, disjoint.flip(0)) == 1


def test_brier_of_certainty_and_of_ignorance():
    labels = torch.arange(3)
    assert brier(torch.eye(3), labels) == 0
    assert brier(torch.eye(3), labels.roll(1)) == 2
    assert brier(torch.full((3, 3), 1 / 3), labels) == pytest.approx((2 / 3) ** 2 + 2 / 9)
    expected = (0.5**2 + 0.3**2 + 0.2**2 + 0.1**2 + 0.2**2 + 0.3**2) / 2
    assert brier(PROBABILITIES[:2], torch.tensor([0, 2])) == pytest.approx(expected)


def test_calibration_error_of_certainty():
    labels = torch.arange(3)
    assert calibration_error(torch.eye(3), labels) == 0
    assert calibration_error(torch.eye(3), labels.roll(1)) == 1


def test_calibration_error_counts_bins_by_their_points():
    # three points that are 0.9 sure, of which one is right, and one that is 0.6 sure and right
    p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    expected = 3 / 4 * abs(1 / 3 - 0.9) + 1 / 4 * abs(1 - 0.6)
    assert calibration_error(p, torch.tensor([0, 1, 1, 0])) == pytest.approx(expected)


def test_calibration_error_of_calibrated_predictions_is_sampling_error():
    p = random_distributions(200_000, 5).double()
    labels = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(6)).squeeze(1)
    # a bin of n points is off by at most about √(n / 4); 15 bins of 200,000 points: 0.004
    assert calibration_error(p, labels) < 0.006
    sharper = p.square() / p.square().sum(-1, keepdim=True)
    assert calibration_error(sharper, labels) > 0.05


def test_brier_of_calibrated_predictions_is_one_minus_their_squares():
    p = random_distributions(200_000, 5).double()
    labels = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(6)).squeeze(1)
    # E Σ (p − [y])² = Σ p² − 2 Σ p² + 1; a point's Brier score spreads by about 0.4
    expected = 1 - p.square().sum(-1).mean().item()
    assert brier(p, labels) == pytest.approx(expected, abs=4 * 0.4 / 200_000**0.5)


def test_the_paired_error_of_accuracies_is_that_of_resampled_points():
    """Of 4,000 points both predictions get 60 % right; 300 and 200 are right in one alone."""
    hits = torch.zeros(2, 4000, dtype=torch.long)
    hits[:, :2400] = 1
    hits[0, 2400:2700], hits[1, 2700:2900] = 1, 1
    predictions = torch.nn.functional.one_hot(1 - hits, 2).double()  # class 0 is right
    labels = torch.zeros(4000, dtype=torch.long)
    found = accuracy_difference(*predictions, labels)
    assert found["difference"] == pytest.approx(100 / 4000)
    chosen = torch.randint(4000, (2000, 4000), generator=torch.Generator().manual_seed(0))
    gains = (hits[0] - hits[1]).double()[chosen].mean(1)
    assert found["error"] == pytest.approx(gains.std().item(), rel=0.05)
    assert accuracy_difference(predictions[0], predictions[0], labels)["error"] == 0
