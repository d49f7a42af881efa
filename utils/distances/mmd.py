"""The maximum mean discrepancy (MMD) of two samples, from the kernel matrix of both together.

MMD² is estimated without bias (Gretton et al. 2012): its mean is 0 if both come from the same
distribution, so values may be negative. Samples of one mode of a posterior resemble each other, so
pairs of them do not count; else ten modes would look unlike a thousand networks even if they were
among them. Blocks are what is exchangeable if there is no difference: the modes of a posterior,
pieces of a chain, or independent networks. Permuting blocks gives the null.

The Gaussian kernel of features [n, p] is the sum over c in FACTORS of exp(−‖x − y‖² / (2 c h²)).
Its h² is the median squared distance within one half of a reference, so it is the same for all that
is compared with it.
"""

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
FEATURES_AT_ONCE = 1 << 16  # in float64
MIN_BLOCKS = 5  # on each side: they have 126 splits that differ, so that p can be about 0.01
LEVEL = 0.95
FEW = 3  # as many splits as draws, at most, are all taken


def inner_products(first: Tensor, second: Tensor, centre: Tensor | None = None) -> Tensor:
    """Return ⟨x − centre, y − centre⟩ [m, n] in float64, some columns at a time."""
    total = torch.zeros(len(first), len(second), dtype=torch.float64, device=first.device)
    for start in range(0, first.shape[1], FEATURES_AT_ONCE):
        place = slice(start, start + FEATURES_AT_ONCE)
        shift = 0 if centre is None else centre[place].double()
        total += (first[:, place].double() - shift) @ (second[:, place].double() - shift).T
    return total


def squared_distances(features: Tensor) -> Tensor:
    """Return ‖x − y‖² [n, n] of all pairs of rows, with zeros on the diagonal."""
    gram = inner_products(features, features, features.mean(0))
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clamp(min=0)
    return distances.fill_diagonal_(0)


def gaussian_kernel(features: Tensor, width: float) -> Tensor:
    """Return the sum of Gaussian kernels around the squared width h²."""
    squares = squared_distances(features)
    return sum((squares / (-2 * factor * width)).exp() for factor in FACTORS)


def linear_kernel(features: Tensor) -> Tensor:
    """Return the kernel ⟨x, y⟩ of features that stand for a kernel themselves."""
    return inner_products(features, features)


def fit_width(reference: Tensor) -> float:
    """Return the median squared distance between different rows."""
    squares = squared_distances(reference)
    first, second = torch.triu_indices(*squares.shape, offset=1)
    width = squares[first, second].median().item()
    return width if width > 0 else 1.0


# ---- its estimate


def mmd_squares(
    kernel: Tensor, first: Tensor, modes: np.ndarray, weights: np.ndarray | float = 1.0
) -> Tensor:
    """Return MMD² [P] between the rows that each mask in `first` [P, N] chooses and all others.

    It is the mean kernel of rows of different modes on the same side, for both, less twice that of
    rows on two sides. `modes` [N] numbers the modes of all rows; means have the rows' `weights`.
    """
    modes = torch.from_numpy(modes)
    different = (modes[:, None] != modes).double()
    first, weights = torch.atleast_2d(first).double(), torch.as_tensor(weights).double()
    first, second = weights * first, weights * (1 - first)
    sums = first @ kernel
    across = (sums * second).sum(1) / (first.sum(1) * second.sum(1))
    apart = kernel * different
    within, beyond = (
        ((side @ apart) * side).sum(1) / ((side @ different) * side).sum(1)
        for side in (first, second)
    )
    return within + beyond - 2 * across


def number_modes(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the numbers of the modes on two sides, those of the second after the first's.

    Samples of a side's only mode count as if each were a mode.
    """
    first, second = (
        np.arange(len(each)) if len(np.unique(each)) == 1 else each for each in (first, second)
    )
    return np.concatenate([first, second + first.max() + 1])


class Distance(NamedTuple):
    """MMD², the null's quantiles at 1 − LEVEL and LEVEL, and the p value of no difference.

    Only large values count as different, so that p < 1 − LEVEL for values above `high`.
    """

    value: float
    low: float = float("nan")
    high: float = float("nan")
    p: float = float("nan")


def distance(
    kernel: Tensor, num_first: int, modes: np.ndarray, blocks: np.ndarray, draws: int,
    random: np.random.Generator,
) -> Distance:  # fmt: skip
    """Return MMD² between the first rows and the rest, with its null.

    `blocks` [N] numbers the blocks of rows; none has rows of both sides. All blocks count alike,
    whatever their size. Without enough of them, or with no draws, there is no null.
    """
    first = np.arange(len(kernel)) < num_first
    _, numbers, sizes = np.unique(blocks, return_inverse=True, return_counts=True)
    weights = sizes.max() / sizes[numbers]
    value = mmd_squares(kernel, torch.from_numpy(first), modes, weights).item()
    counts = [len(np.unique(blocks[side])) for side in (first, ~first)]
    if not draws or min(counts) < MIN_BLOCKS:
        return Distance(value)
    masks = splits(blocks, counts[0], draws, random)
    null = mmd_squares(kernel, torch.from_numpy(masks), modes, weights).numpy()
    return beside_null(value, null, rounding=1e-12)


def beside_null(value: float, null: np.ndarray, rounding: float = 0.0) -> Distance:
    """Return a distance with what draws without a difference give."""
    low, high = np.quantile(null, [1 - LEVEL, LEVEL])
    as_large = (null >= value - rounding).sum().item()
    return Distance(value, low.item(), high.item(), (1 + as_large) / (1 + len(null)))


def splits(
    blocks: np.ndarray, num_chosen: int, draws: int, random: np.random.Generator
) -> np.ndarray:
    """Return masks [P, N] of so many blocks: all there are if these are few, else draws at random.

    Of few splits, drawing would repeat the one that is tested more or less often by chance.
    """
    numbers = np.unique(blocks, return_inverse=True)[1]
    count = numbers.max() + 1
    if math.comb(count, num_chosen) > FEW * draws:
        return permuted(blocks, num_chosen, draws, random)
    masks = np.zeros((math.comb(count, num_chosen), count), dtype=bool)
    for mask, chosen in zip(masks, combinations(range(count), num_chosen), strict=True):
        mask[list(chosen)] = True
    return masks[:, numbers]


def permuted(
    blocks: np.ndarray, num_chosen: int, draws: int, random: np.random.Generator
) -> np.ndarray:
    """Return masks [draws, N] of so many blocks, chosen at random."""
    numbers = np.unique(blocks, return_inverse=True)[1]
    order = random.random((draws, numbers.max() + 1)).argsort(1)
    return (order < num_chosen)[:, numbers]


def power(
    kernel: Tensor, blocks: np.ndarray, critical: float, draws: int, random: np.random.Generator
) -> float:
    """Return how often a planted change is found: MMD² above the null's upper end.

    The kernel is of 2 N rows: a reference, and the same reference with the change. Each draw takes
    half of the blocks as they are, and the other half with the change. Without a null it is NaN.
    """
    if np.isnan(critical):
        return critical
    size = len(blocks)
    detected = 0
    chosen = permuted(blocks, len(np.unique(blocks)) // 2, draws, random)
    for mask in chosen:
        rows = np.concatenate([np.flatnonzero(mask), size + np.flatnonzero(~mask)])
        part, modes = kernel[rows][:, rows], blocks[rows % size]
        value = mmd_squares(part, torch.arange(size) < int(mask.sum()), modes).item()
        detected += value > critical
    return detected / draws


def jackknife_error(kernel: Tensor, num_first: int, modes: np.ndarray) -> float:
    """Return the standard error of MMD² that is due to the modes of the second side.

    Each of them is left out in turn.
    """
    numbers = np.unique(modes[num_first:])
    if len(numbers) < 3:
        return float("nan")
    values = []
    for number in numbers:
        rows = np.flatnonzero(modes != number)
        part, first = kernel[rows][:, rows], torch.arange(len(rows)) < num_first
        values.append(mmd_squares(part, first, modes[rows]).item())
    return float(np.sqrt((len(numbers) - 1) * np.var(values)))
