"""Kernel matrices of features [n, p].

The Gaussian kernel is the sum over c in FACTORS of exp(−‖x − y‖² / (2 c h²)). Its h² is the median
squared distance within one half of a reference, so it is the same for all that is compared with it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
COLUMNS = 1 << 16  # of the features that are in float64 at once


def inner_products(first: Tensor, second: Tensor, centre: Tensor | None = None) -> Tensor:
    """Return ⟨x − centre, y − centre⟩ [m, n] in float64, some columns at a time."""
    total = torch.zeros(len(first), len(second), dtype=torch.float64, device=first.device)
    for start in range(0, first.shape[1], COLUMNS):
        place = slice(start, start + COLUMNS)
        shift = 0 if centre is None else centre[place].double()
        total += (first[:, place].double() - shift) @ (second[:, place].double() - shift).T
    return total


def squared_distances(features: Tensor) -> Tensor:
    """Return ‖x − y‖² [n, n] of all pairs of rows, with zeros on the diagonal."""
    gram = inner_products(features, features, features.mean(0))
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clamp(min=0)
    return distances.fill_diagonal_(0)


class Gaussian5(NamedTuple):
    """The sum of Gaussian kernels around the squared width h²."""

    width: float

    def __call__(self, features: Tensor) -> Tensor:
        squares = squared_distances(features)
        return sum((squares / (-2 * factor * self.width)).exp() for factor in FACTORS)


def linear_kernel(features: Tensor) -> Tensor:
    """Return the kernel ⟨x, y⟩ of features that stand for a kernel themselves."""
    return inner_products(features, features)


def fit_width(reference: Tensor) -> float:
    """Return the median squared distance between different rows."""
    squares = squared_distances(reference)
    first, second = torch.triu_indices(*squares.shape, offset=1)
    width = squares[first, second].median().item()
    return width if width > 0 else 1.0
