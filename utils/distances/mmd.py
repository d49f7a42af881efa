"""The maximum mean discrepancy (MMD) of two samples, from the kernel matrix of both together.

MMD² is estimated without bias (Gretton et al. 2012): its mean is 0 if both come from the same
distribution, so values may be negative. What is exchangeable then are blocks: the modes of a
posterior, pieces of a chain, or single independent networks. Permuting blocks gives the null.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

MIN_BLOCKS = 4  # on each side: with fewer there are hardly any permutations
LEVEL = 0.95


def mmd_squares(kernel: Tensor, first: Tensor) -> Tensor:
    """Return MMD² [P] between the rows that each mask in `first` [P, N] chooses and all others.

    It is the mean kernel of different rows on the same side, for both, less twice that of rows on
    two sides.
    """
    kernel = kernel.clone().fill_diagonal_(0)
    first = torch.atleast_2d(first).double()
    second = 1 - first
    sizes, others = first.sum(1), second.sum(1)
    sums = first @ kernel
    within = (sums * first).sum(1) / (sizes * (sizes - 1))
    beyond = ((second @ kernel) * second).sum(1) / (others * (others - 1))
    across = (sums * second).sum(1) / (sizes * others)
    return within + beyond - 2 * across


class Distance(NamedTuple):
    """MMD², the null's interval at LEVEL, and the p value of no difference."""

    value: float
    low: float = float("nan")
    high: float = float("nan")
    p: float = float("nan")


def distance(
    kernel: Tensor, num_first: int, blocks: np.ndarray, draws: int, random: np.random.Generator
) -> Distance:
    """Return MMD² between the first rows and the rest, with its null.

    `blocks` [N] numbers the blocks of rows; none has rows of both sides. Without enough of them, or
    with no draws, there is no null.
    """
    first = np.arange(len(kernel)) < num_first
    value = mmd_squares(kernel, torch.from_numpy(first)).item()
    counts = [len(np.unique(blocks[side])) for side in (first, ~first)]
    if not draws or min(counts) < MIN_BLOCKS:
        return Distance(value)
    masks = permuted(blocks, counts[0], draws, random)
    null = mmd_squares(kernel, torch.from_numpy(masks)).numpy()
    low, high = np.quantile(null, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    beyond = (null >= value - 1e-12).sum().item()  # few blocks are often chosen as they are
    return Distance(value, low.item(), high.item(), (1 + beyond) / (1 + draws))


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
    found = 0
    chosen = permuted(blocks, len(np.unique(blocks)) // 2, draws, random)
    for mask in chosen:
        rows = np.concatenate([np.flatnonzero(mask), size + np.flatnonzero(~mask)])
        part = kernel[rows][:, rows]
        value = mmd_squares(part, torch.arange(size) < int(mask.sum())).item()
        found += value > critical
    return found / draws


def jackknife_error(kernel: Tensor, num_first: int, blocks: np.ndarray) -> float:
    """Return the standard error of MMD² that is due to the blocks of the second side.

    Each of them is left out in turn; `blocks` numbers those of the second side's rows only.
    """
    numbers = np.unique(blocks)
    if len(numbers) < 3:
        return float("nan")
    first = torch.arange(num_first)
    values = []
    for number in numbers:
        kept = num_first + torch.from_numpy(np.flatnonzero(blocks != number))
        rows = torch.cat([first, kept])
        part = kernel[rows][:, rows]
        values.append(mmd_squares(part, torch.arange(len(rows)) < num_first).item())
    return float(np.sqrt((len(numbers) - 1) * np.var(values)))
