"""The permutation of one group of units: count transpositions, draw at random.

`perm[i]` is the index of the unit that moves to position i. The number of transpositions of a
permutation, NoT = n − number of cycles (fixed points included), is the smallest number of swaps
that make it.
"""

import functools
import math
from collections.abc import Sequence

from utils.settings.errors import UserError

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor


def check_permutation(perm: Tensor, shape: Sequence[int], name: str = "units") -> None:
    """Refuse what does not permute units of this shape; each of its rows is a permutation."""
    indices = isinstance(perm, Tensor) and perm.dtype in (torch.int64, torch.int32)
    fits = indices and tuple(perm.shape) == tuple(shape)
    if not (fits and (perm.sort(-1).values == torch.arange(shape[-1], device=perm.device)).all()):
        units = " × ".join(map(str, shape))
        raise UserError(
            f"{name}: not a permutation of {units} units, which is a tensor of torch.int64 with "
            f"every number from 0 to {shape[-1] - 1} once: {perm}."
        )


def num_transpositions(perm: Tensor) -> int:
    """Return NoT: how many swaps of two units make this permutation."""
    check_permutation(perm, perm.shape)
    units, size = np.arange(len(perm)), (len(perm), len(perm))
    steps = coo_array((np.ones(len(perm)), (units, perm.cpu().numpy())), size)
    num_cycles, _ = connected_components(steps, directed=False)
    return len(perm) - num_cycles


def expected_transpositions(*sizes: int) -> float:
    """Return the mean NoT of a uniformly random permutation, n − H_n: it has H_n cycles.

    Given sizes (m, n), it moves m blocks of n units, and the units within them. Each of the H_m
    cycles of blocks has H_n cycles of units, so the mean is m n − H_m H_n.
    """
    harmonic = (sum(1 / k for k in range(1, size + 1)) for size in sizes)
    return math.prod(sizes) - math.prod(harmonic)


def transpositions_deviation(size: int) -> float:
    """Return that NoT's deviation √Σ (1/k − 1/k²), as unit k opens a cycle with chance 1/k."""
    return sum((k - 1) / k**2 for k in range(1, size + 1)) ** 0.5


def random_permutation(size: int, transpositions: int, generator: torch.Generator) -> Tensor:
    """Draw a permutation uniformly from all those with NoT exactly `transpositions`.

    Units enter one by one: each opens a new cycle or is inserted behind an earlier unit, and every
    permutation arises in exactly one way. Which units open a cycle is drawn backwards from the
    last, with the probability that leads to the wanted number of cycles (a ratio of Stirling
    numbers). The units that the others follow are then drawn uniformly.
    """
    if not 0 <= transpositions < size:
        raise UserError(
            f"NoT {transpositions} is impossible for {size} units: it lies in 0..{size - 1}."
        )
    log_counts = _log_stirling(size)
    uniform = torch.rand(2, size, generator=generator, dtype=torch.float64).tolist()
    opens, open_cycles = [False] * size, size - transpositions
    for unit in reversed(range(size)):
        log_share = log_counts[unit, open_cycles - 1] - log_counts[unit + 1, open_cycles]
        opens[unit] = uniform[0][unit] < np.exp(log_share)
        open_cycles -= opens[unit]
    perm = list(range(size))
    for unit in range(size):
        if not opens[unit]:
            before = int(uniform[1][unit] * unit)
            perm[unit], perm[before] = perm[before], unit
    return torch.tensor(perm)


@functools.lru_cache(maxsize=2)
def _log_stirling(size: int) -> np.ndarray:
    """Return log c(n, k) for n, k ≤ size: how many permutations of n units have k cycles.

    c(n, k) = c(n − 1, k − 1) + (n − 1) c(n − 1, k)
    """
    table = np.full((size + 1, size + 1), -np.inf)
    table[0, 0] = 0
    for n in range(1, size + 1):
        behind_another = table[n - 1, 1:] + np.log(n - 1) if n > 1 else table[n - 1, 1:] - np.inf
        table[n, 1:] = np.logaddexp(table[n - 1, :-1], behind_another)
    return table
