"""Scores on hand-made distributions."""

import math

import pytest
import torch

from utils.metrics import accuracy, mean_nll

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
