"""Detect images from elsewhere (out of distribution) by a score that is lower for them.

Scores are vectors in float64, of the positive and of the negative class. Either may be the images
from elsewhere: functions say nothing about which. Equal scores are accepted together.
"""

from typing import NamedTuple

import torch
from torch import Tensor

RECALL = 0.95


def confidence_score(probabilities: Tensor) -> Tensor:
    """Return the log-odds [N] of the most probable class.

    It orders points as the largest probability does, but tells apart those that round to 1.
    """
    probabilities = probabilities.double()
    largest, chosen = probabilities.max(-1)
    others = probabilities.scatter(-1, chosen.unsqueeze(-1), 0).sum(-1)
    return largest.log() - others.log()


class Curve(NamedTuple):
    """Shares of positive and negative points accepted at each threshold, the strictest first."""

    recall: Tensor
    fallout: Tensor


def accepted(positive: Tensor, negative: Tensor) -> Curve:
    """Return the shares whose score is at least each of the distinct scores."""
    scores, order = torch.cat([positive, negative]).double().sort(descending=True)
    is_positive = (order < len(positive)).double()
    last = torch.ones_like(scores, dtype=torch.bool)
    last[:-1] = scores[1:] != scores[:-1]
    recall, fallout = (each.cumsum(0)[last] for each in (is_positive, 1 - is_positive))
    return Curve(recall / len(positive), fallout / len(negative))


def auroc(positive: Tensor, negative: Tensor) -> float:
    """Return the probability that a positive point has the higher score; ties count half."""
    curve = accepted(positive, negative)
    start = torch.zeros(1, dtype=torch.float64)
    return torch.trapezoid(*(torch.cat([start, each.cpu()]) for each in curve)).item()


def average_precision(positive: Tensor, negative: Tensor, base_rate: float | None = None) -> float:
    """Return Σ (recall_k − recall_{k−1}) precision_k, the area under precision and recall.

    `base_rate` is the share of positive points to compute precision for, by default theirs.
    """
    if base_rate is None:
        base_rate = len(positive) / (len(positive) + len(negative))
    recall, fallout = accepted(positive, negative)
    hits = base_rate * recall
    precision = hits / (hits + (1 - base_rate) * fallout)
    return (recall.diff(prepend=recall.new_zeros(1)) @ precision).item()


def false_positive_rate(positive: Tensor, negative: Tensor, recall: float = RECALL) -> float:
    """Return the share of negative points accepted where this share of the positive ones is."""
    curve = accepted(positive, negative)
    enough = curve.recall >= recall - 1e-12  # rounding of a quotient
    return curve.fallout[enough][0].item()
