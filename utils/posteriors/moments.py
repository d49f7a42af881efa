"""Mean and variance of every weight, from a stream of weight vectors.

A stream is gone through once, in memory that does not grow with it. `Moments` of contiguous blocks
are kept: merged they are those of the whole, and resampled they show how uncertain a fit is (block
bootstrap).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian
from utils.settings.errors import UserError

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of a set of weight vectors, in float64."""

    count: int
    mean: Tensor  # [d]
    squares: Tensor  # [d]: Σ (w − mean)²

    def add(self, weights: Tensor) -> "Moments":
        """Return the moments with one more weight vector (Welford 1962)."""
        count = self.count + 1
        before = weights.double() - self.mean
        mean = self.mean + before / count
        return Moments(count, mean, self.squares.addcmul(before, weights - mean))

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of both sets together (Chan, Golub & LeVeque 1983)."""
        count = self.count + other.count
        shift = other.mean - self.mean
        mean = self.mean + shift * (other.count / count)
        between = shift.square() * (self.count * other.count / count)
        return Moments(count, mean, self.squares + other.squares + between)

    def variance(self) -> Tensor:
        """Return squares / (count − 1), unbiased if the samples are independent."""
        if self.count < 2:
            raise UserError(f"A deviation needs at least two samples; there is {self.count}.")
        return self.squares / (self.count - 1)

    def in_units_of(self, std: float | Tensor) -> "Moments":
        """Return the moments of w/s."""
        return Moments(self.count, self.mean / std, self.squares / (std * std))

    def gaussian(self, network: Network | None = None) -> Gaussian:
        return Gaussian(self.mean.float(), self.variance().sqrt().float(), network)


def no_moments(like: Tensor) -> Moments:
    """Return the moments of no samples, for weight vectors like this one."""
    zeros = torch.zeros_like(like, dtype=torch.float64)
    return Moments(0, zeros, zeros)


def merge_all(blocks: list[Moments]) -> Moments:
    merged = blocks[0]
    for block in blocks[1:]:
        merged = merged.merge(block)
    return merged


def fit_blocks(stream: Iterable[Tensor], num_samples: int, num_blocks: int = 1) -> list[Moments]:
    """Return the moments of contiguous blocks of a stream of `num_samples` weight vectors."""
    blocks: list[Moments] = []
    for position, weights in enumerate(stream):
        enter_block(blocks, block_of(position, num_samples, num_blocks), weights)
    return blocks


def enter_block(blocks: list[Moments], block: int, weights: Tensor) -> None:
    """Add a weight vector to the last block, or begin the next one with it."""
    if block == len(blocks):
        blocks.append(no_moments(weights))
    blocks[block] = blocks[block].add(weights)


def block_of(position: int, num_samples: int, num_blocks: int) -> int:
    """Return which of `num_blocks` contiguous blocks of nearly equal size a sample belongs to."""
    return position * min(num_blocks, num_samples) // num_samples
