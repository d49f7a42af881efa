"""Scores of predictive distributions: probabilities [N, classes], labels [N]. All in float64."""

from torch import Tensor


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """Share of points whose most probable class is their label."""
    return (probabilities.argmax(-1) == labels).double().mean().item()


def mean_nll(probabilities: Tensor, labels: Tensor) -> float:
    """Mean of −log p(label), in nats; infinite where a label was given no probability at all."""
    chosen = probabilities.double().gather(-1, labels.unsqueeze(-1))
    return -chosen.log().mean().item()
