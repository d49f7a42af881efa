"""Permutations of hidden units: apply, compose, count transpositions, draw at random.

A network's permutation is a list with an index tensor for every hidden layer. `perm[i]` is the
index, in the network being moved, of the unit that goes to place i, so that for two layers

    W1 → W1[perm]      b1 → b1[perm]      W2 → W2[:, perm]

which leaves the network's function as it is. The number of transpositions of a permutation,
NoT = n − number of cycles (fixed points included), is the least number of swaps that make it.
"""

import functools
from collections.abc import Sequence
from numbers import Integral

from utils.networks.mlp import Network
from utils.runs.errors import UserError

import numpy as np
import torch
from torch import Tensor

Permutation = list[Tensor]


def hidden_sizes(network: Network) -> tuple[int, ...]:
    return network.sizes[1:-1]


def identity(network: Network) -> Permutation:
    return [torch.arange(size) for size in hidden_sizes(network)]


def check_permutation(permutation: Permutation, sizes: Sequence[int]) -> None:
    """Raise a `UserError` that says what keeps this from permuting layers of these sizes."""
    if len(_sizes(permutation)) != len(sizes):
        raise UserError(
            f"This permutation is for {len(permutation)} hidden layers instead of {len(sizes)}: "
            "it needs one index tensor for each."
        )
    for layer, (perm, size) in enumerate(zip(permutation, sizes, strict=True), start=1):
        problem = _problem(perm, size)
        if problem:
            raise UserError(f"Hidden layer {layer}: not a permutation of {size} units: {problem}.")


def _sizes(permutation: Permutation) -> list[int]:
    """How many units of each hidden layer it permutes."""
    try:
        return [len(permutation[layer]) for layer in range(len(permutation))]
    except TypeError:
        raise UserError(
            "A permutation is a list of 1-D tensors of whole numbers, one for each hidden layer."
        ) from None


def _problem(perm: Tensor, size: int) -> str | None:
    if not isinstance(perm, Tensor):
        return f"it is a {type(perm).__name__}, not a tensor"
    if perm.dtype not in (torch.int64, torch.int32):  # others cannot index, or are taken as masks
        return f"its entries are {perm.dtype}, not torch.int64"
    if perm.dim() != 1 or len(perm) != size:
        return f"its shape is {tuple(perm.shape)}"
    if size and not 0 <= perm.min() <= perm.max() < size:
        return f"its entries go from {perm.min()} to {perm.max()}"
    counts = torch.bincount(perm, minlength=size)
    if (counts != 1).any():
        repeated, missing = counts.argmax(), counts.argmin()
        return f"unit {repeated} is there {counts.max()} times and unit {missing} not at all"
    return None


def permute_weights(network: Network, weights: Tensor, permutation: Permutation) -> Tensor:
    """The weights [d], or each of a stack [K, d], with the hidden units in their new places."""
    check_permutation(permutation, hidden_sizes(network))
    moved = torch.empty_like(weights)
    below = None  # of the layer's inputs
    above = [*(perm.to(weights.device) for perm in permutation), None]  # of its outputs
    pairs = zip(network.layers(weights), network.layers(moved), above, strict=True)
    for (weight, bias), (moved_weight, moved_bias), perm in pairs:
        if below is not None:
            weight = weight.index_select(-1, below)
        if perm is not None:
            weight, bias = weight.index_select(-2, perm), bias.index_select(-1, perm)
        moved_weight.copy_(weight)
        moved_bias.copy_(bias)
        below = perm
    return moved


def compose(first: Permutation, second: Permutation) -> Permutation:
    """The permutation that does what `first` and then `second` do."""
    check_permutation(first, _sizes(second))
    check_permutation(second, _sizes(first))
    return [a[b] for a, b in zip(first, second, strict=True)]


def invert(permutation: Permutation) -> Permutation:
    """The permutation that undoes this one."""
    check_permutation(permutation, _sizes(permutation))
    return [torch.argsort(perm) for perm in permutation]


def cycles(perm: Tensor) -> list[list[int]]:
    """The cycles of one layer's permutation, fixed points included, by their smallest unit."""
    check_permutation([perm], _sizes([perm]))
    following = perm.tolist()
    seen = [False] * len(following)
    found = []
    for start in range(len(following)):
        cycle, unit = [], start
        while not seen[unit]:
            seen[unit] = True
            cycle.append(unit)
            unit = following[unit]
        if cycle:
            found.append(cycle)
    return found


def layer_transpositions(permutation: Permutation) -> list[int]:
    """NoT of every hidden layer."""
    sizes = _sizes(permutation)
    return [size - len(cycles(perm)) for size, perm in zip(sizes, permutation, strict=True)]


def num_transpositions(permutation: Permutation) -> int:
    """NoT in total over the hidden layers."""
    return sum(layer_transpositions(permutation))


def expected_transpositions(size: int) -> float:
    """Mean NoT of a uniformly random permutation: n − H_n, as it has H_n cycles on average."""
    return size - sum(1 / k for k in range(1, size + 1))


def transpositions_deviation(size: int) -> float:
    """Standard deviation of that NoT: √Σ (1/k − 1/k²), as unit k opens a cycle with chance 1/k."""
    return sum((k - 1) / k**2 for k in range(1, size + 1)) ** 0.5


def random_permutation(size: int, transpositions: int, generator: torch.Generator) -> Tensor:
    """One layer's permutation drawn uniformly from all those with NoT exactly `transpositions`.

    Units enter one by one: each opens a cycle of its own or is put behind one of the units that
    are there, and every permutation arises in exactly one way. Which units open a cycle is drawn
    backwards from the last, with the probability that leads to the wanted number of cycles
    (a ratio of Stirling numbers); behind whom the others are put is then uniform.
    """
    if not (isinstance(size, Integral) and isinstance(transpositions, Integral)):
        raise UserError(f"NoT {transpositions} of {size} units: both have to be whole numbers.")
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
    """log c(n, k) for n, k ≤ size: how many permutations of n units have k cycles.

    c(n, k) = c(n − 1, k − 1) + (n − 1) c(n − 1, k)
    """
    table = np.full((size + 1, size + 1), -np.inf)
    table[0, 0] = 0
    for n in range(1, size + 1):
        behind_another = table[n - 1, 1:] + np.log(n - 1) if n > 1 else table[n - 1, 1:] - np.inf
        table[n, 1:] = np.logaddexp(table[n - 1, :-1], behind_another)
    return table
