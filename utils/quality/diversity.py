"""How differently networks predict: mutual information and disagreement.

The mutual information of M members with predictions p_m is H(mean of p_m) − mean of H(p_m), in nats
and averaged over images. Of two members it is the Jensen-Shannon divergence, from 0 to ln 2.
"""

from collections.abc import Callable

import torch
from torch import Tensor

SMALLEST_PREDICTION = 1e-30  # a float32 whose logarithm is finite
BLOCK = 16  # networks whose sums with another one are in the cache at once


def entropy(probabilities: Tensor) -> Tensor:
    """Return −Σ_c p_c ln p_c over the last axis, in float64."""
    return torch.special.entr(probabilities.double()).sum(-1)


def mutual_information(parts: Tensor, entropies: Tensor) -> float:
    """Return the mutual information of all members.

    They come in parts of equal size: averages of predictions [parts, N, classes], and averages of
    the members' entropies [parts, N].
    """
    return (entropy(parts.mean(0)).mean() - entropies.mean()).item()


def infinite_mutual_information(parts: Tensor, entropies: Tensor) -> float:
    """Return the mutual information of infinitely many members, estimated by the jackknife.

    That of M members is too low by a share of about 1 / M. Without one of P parts it is P MI −
    (P − 1) MI' that lacks this share, averaged over the parts left out.
    """
    count, whole = len(parts), mutual_information(parts, entropies)
    if count == 1:
        return float("nan")
    left_out = (parts.sum(0) - parts) / (count - 1)  # [parts, N, classes]
    without = entropy(left_out).mean(1) - (entropies.sum(0) - entropies).mean(1) / (count - 1)
    return count * whole - (count - 1) * without.mean().item()


def disagreement(votes: Tensor, members: int) -> float:
    """Return how often two members choose different classes, from votes [N, classes]."""
    if members < 2:
        return float("nan")
    equal = (votes.double() * (votes.double() - 1)).sum(-1) / (members * (members - 1))
    return 1 - equal.mean().item()


# ---- all pairs of networks


def pairwise_mutual_information(
    predictions: Tensor, progress: Callable[[], None] = lambda: None
) -> Tensor:
    """Return the mutual information [n, n] of all pairs of networks, from predictions [n, N, C].

    With t = p + q it is ½ (mean of H(p) + H(q) … − Σ t ln t) + ln 2. Logarithms are taken in
    float32, so values are exact to about 1e-6.
    """
    images = predictions.shape[1]
    rows = predictions.float().flatten(1).clamp(min=SMALLEST_PREDICTION)
    own = torch.stack([entropy(each).mean() for each in predictions])
    sums = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    totals, logs = torch.empty(2, BLOCK, rows.shape[1]).unbind()
    for first in range(len(rows)):
        for start in range(first + 1, len(rows), BLOCK):
            others = rows[start : start + BLOCK]
            total = torch.add(others, rows[first], out=totals[: len(others)])
            terms = torch.log(total, out=logs[: len(others)]).mul_(total)
            sums[first, start : start + BLOCK] = terms.sum(1, dtype=torch.float64)
        progress()
    mixed = torch.log(torch.tensor(2.0)) - sums / (2 * images)
    result = (mixed - (own[:, None] + own) / 2).triu(1)
    return result + result.T


def pairwise_disagreement(predictions: Tensor) -> Tensor:
    """Return how often the networks of each pair choose different classes, [n, n]."""
    chosen = predictions.argmax(-1)
    hits = torch.nn.functional.one_hot(chosen, predictions.shape[-1]).float().flatten(1)
    return 1 - (hits @ hits.T).double() / predictions.shape[1]


def pairs_of(matrix: Tensor) -> Tensor:
    """Return the entries of a symmetric matrix [n, n] for all pairs, [n (n − 1) / 2]."""
    first, second = torch.triu_indices(*matrix.shape, offset=1)
    return matrix[first, second]
