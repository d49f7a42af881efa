"""Scores of predictive distributions: probabilities [N, classes], labels [N]. All in float64."""

import torch
from torch import Tensor

CALIBRATION_BINS = 15


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """Share of points whose most probable class is their label."""
    return (probabilities.argmax(-1) == labels).double().mean().item()


def mean_nll(probabilities: Tensor, labels: Tensor) -> float:
    """Mean of −log p(label), in nats; infinite where a label was given no probability at all."""
    chosen = probabilities.double().gather(-1, labels.unsqueeze(-1))
    return -chosen.log().mean().item()


def agreement(probabilities: Tensor, others: Tensor) -> float:
    """Share of points where two predictive distributions have the same most probable class."""
    return (probabilities.argmax(-1) == others.argmax(-1)).double().mean().item()


def total_variation(probabilities: Tensor, others: Tensor) -> float:
    """Mean over points of ½ Σ_y |p(y) − p'(y)|, between 0 (equal) and 1 (nothing in common)."""
    return 0.5 * (probabilities.double() - others.double()).abs().sum(-1).mean().item()


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """Mean over points of Σ_y (p(y) − [y = label])², between 0 and 2."""
    hits = torch.nn.functional.one_hot(labels, probabilities.shape[-1])
    return (probabilities.double() - hits).square().sum(-1).mean().item()


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Expected calibration error: mean |accuracy − confidence| over bins of like confidence.

    Confidence is the largest probability; its range 0 to 1 is cut into CALIBRATION_BINS equal
    bins, each of which counts by its number of points (Guo et al. 2017, equation 3).
    """
    confidence, chosen = probabilities.double().max(-1)
    surplus = (chosen == labels).double() - confidence
    bins = (confidence * CALIBRATION_BINS).long().clamp(max=CALIBRATION_BINS - 1)
    return (torch.bincount(bins, surplus).abs().sum() / len(labels)).item()
