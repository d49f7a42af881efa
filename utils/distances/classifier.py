"""Two-sample test by a classifier (Lopez-Paz & Oquab 2017), on what symmetries leave unchanged.

A linear classifier learns to tell the networks of two sets apart; 0.5 is chance. Networks are
described by numbers that neither order nor scale of units changes. Whole blocks are held out, such
as the modes of a posterior, and permuted for the null.
"""

from utils.distances.mmd import MIN_BLOCKS, Distance, beside_null, permuted
from utils.distances.units import describe_units, without_scales
from utils.networks.network import Network

import numpy as np
import torch
from torch import Tensor

FOLDS = 5
SHRINKAGE = 0.5  # of the covariance towards that of independent features
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
EIGENVALUES = 3


def invariants(network: Network, weights: Tensor) -> np.ndarray:
    """Return numbers [K, features] that no symmetry changes.

    These are moments of every slot, and of every group of units the quantiles of their norms and
    the largest eigenvalues of their Gram matrix, as shares. Scales are in normal form before.
    """
    weights, columns = without_scales(network, weights), []
    for slot in network.slots:
        values = slot.of(weights).flatten(1)
        mean, deviation = values.mean(1), values.std(1, correction=0).clamp(min=1e-12)
        standard = (values - mean[:, None]) / deviation[:, None]
        columns += [mean, deviation.log(), standard.pow(3).mean(1), standard.pow(4).mean(1)]
    for name in network.groups:
        if not network.slots_of(name):
            continue
        units = describe_units(network, weights, name)
        norms = units.norm(dim=-1).clamp(min=1e-12).log()
        columns += norms.quantile(torch.tensor(QUANTILES, dtype=norms.dtype), 1).unbind()
        squares = torch.linalg.svdvals(units).square()
        squares = squares[:, :EIGENVALUES] / squares.sum(1, keepdim=True).clamp(min=1e-300)
        columns += squares.unbind(1)
    return torch.stack(columns, 1).numpy()


def classify(
    first: np.ndarray, second: np.ndarray, blocks: np.ndarray, draws: int,
    random: np.random.Generator,
) -> Distance:  # fmt: skip
    """Return the accuracy of telling two sets of features [n, p] apart, with its null.

    `blocks` numbers the blocks of both sets' rows, one set after the other.
    """
    features = np.concatenate([first, second])
    is_first = np.arange(len(features)) < len(first)
    counts = [len(np.unique(blocks[side])) for side in (is_first, ~is_first)]
    if min(counts) < 2:
        return Distance(float("nan"))
    value = held_out_accuracy(features, is_first, blocks)
    if not draws or min(counts) < MIN_BLOCKS:
        return Distance(value)
    masks = permuted(blocks, counts[0], draws, random)
    null = np.array([held_out_accuracy(features, mask, blocks) for mask in masks])
    return beside_null(value, null)


def held_out_accuracy(features: np.ndarray, is_first: np.ndarray, blocks: np.ndarray) -> float:
    """Return the mean of both sides' shares of rows that are told right, each when held out."""
    folds = np.empty(len(features), dtype=int)
    for side in (is_first, ~is_first):
        numbers = np.unique(blocks[side], return_inverse=True)[1]
        folds[side] = numbers % min(FOLDS, numbers.max() + 1)
    right = np.empty(len(features), dtype=bool)
    for fold in np.unique(folds):
        out = folds == fold
        right[out] = _predict(features[~out], is_first[~out], features[out]) == is_first[out]
    return float((right[is_first].mean() + right[~is_first].mean()) / 2)


def _predict(features: np.ndarray, is_first: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return whether new rows are of the first set, by a shrunken linear discriminant."""
    centre, scale = features.mean(0), features.std(0)
    scale = np.where(scale > 0, scale, 1)
    features, new = (features - centre) / scale, (new - centre) / scale
    means = [features[side].mean(0) for side in (is_first, ~is_first)]
    within = features - np.where(is_first[:, None], *means)
    covariance = within.T @ within / len(features)
    covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.eye(len(centre))
    direction = np.linalg.solve(covariance, means[0] - means[1])
    return (new - (means[0] + means[1]) / 2) @ direction > 0
