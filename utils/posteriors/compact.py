"""One Gaussian per weight, from posterior samples: q_d of samples as they are, q_r of rebased ones.

Everything is fitted in one pass over a stream, in memory that does not grow with it (but for the
`rank` coordinates of a sample by which the low-rank fit knows it again). `Moments` of contiguous
blocks of the stream are kept, because merged they are those of the whole, and resampled they tell
how uncertain a fit is (block bootstrap). `LowRank` also keeps how weights vary together, as far as
its rank allows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from utils.networks.mlp import Network
from utils.posteriors.gaussian import GaussianPosterior
from utils.runs.errors import UserError
from utils.runs.files import save_arrays
from utils.symmetry.permutation import Permutation, layer_transpositions, permute_weights

import numpy as np
import torch
from torch import Tensor

COLUMNS_AT_A_TIME = 32768  # of a Gram matrix's factors, that are in float64 at once
ROUNDING = 1e-10  # share of the largest variance below which a direction is float32's rounding


# ---- independent weights


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of a set of weight vectors, in float64."""

    count: int
    mean: Tensor  # [d]
    squares: Tensor  # [d]: Σ (w − mean)²

    def add(self, weights: Tensor) -> "Moments":
        """With one more weight vector (Welford 1962)."""
        count = self.count + 1
        before = weights.double() - self.mean
        mean = self.mean + before / count
        return Moments(count, mean, self.squares.addcmul(before, weights - mean))

    def merge(self, other: "Moments") -> "Moments":
        """Of both sets together (Chan, Golub & LeVeque 1983)."""
        count = self.count + other.count
        shift = other.mean - self.mean
        mean = self.mean + shift * (other.count / count)
        between = shift.square() * (self.count * other.count / count)
        return Moments(count, mean, self.squares + other.squares + between)

    def variance(self) -> Tensor:
        """Unbiased if the samples are independent: divided by their number less one."""
        if self.count < 2:
            raise UserError(f"A deviation needs two samples or more, and here is {self.count}.")
        return self.squares / (self.count - 1)

    def gaussian(self) -> GaussianPosterior:
        return GaussianPosterior(self.mean.float(), self.variance().sqrt().float())


def no_moments(like: Tensor) -> Moments:
    """Of no samples yet, for weight vectors like this one."""
    zeros = torch.zeros_like(like, dtype=torch.float64)
    return Moments(0, zeros, zeros)


def merge_all(blocks: list[Moments]) -> Moments:
    merged = blocks[0]
    for block in blocks[1:]:
        merged = merged.merge(block)
    return merged


def fit_blocks(stream: Iterable[Tensor], num_samples: int, num_blocks: int = 1) -> list[Moments]:
    """Moments of contiguous blocks of a stream of so many weight vectors."""
    blocks: list[Moments] = []
    for position, weights in enumerate(stream):
        enter_block(blocks, block_of(position, num_samples, num_blocks), weights)
    return blocks


def enter_block(blocks: list[Moments], block: int, weights: Tensor) -> None:
    """Add a weight vector to a block, which may be the next that is not there yet."""
    if block == len(blocks):
        blocks.append(no_moments(weights))
    blocks[block] = blocks[block].add(weights)


def block_of(position: int, num_samples: int, num_blocks: int) -> int:
    """Which of `num_blocks` contiguous blocks, equal to one sample, a sample belongs to."""
    return position * min(num_blocks, num_samples) // num_samples


# ---- weights that vary together


@dataclass(frozen=True)
class LowRankGaussian:
    """N(mean, Σ) with Σ = factorᵀ factor: it varies along at most as many directions as rows."""

    mean: Tensor  # [d]
    factor: Tensor  # [rank, d]
    coordinates: Tensor | None = None  # [K, rank]: its samples are mean + coordinates @ factor

    def variance(self) -> float:
        """Summed over weights: the trace of Σ."""
        return sum(row.double().square().sum().item() for row in self.factor)

    def draw(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """`count` weight vectors, one after the other."""
        for _ in range(count):
            noise = torch.randn(len(self.factor), generator=generator).to(self.mean.device)
            yield self.mean + noise @ self.factor

    def permuted(self, network: Network, permutation: Permutation) -> "LowRankGaussian":
        """The same as a whole, with the hidden units in their new places."""
        moved = [permute_weights(network, rows, permutation) for rows in (self.mean, self.factor)]
        return LowRankGaussian(*moved, self.coordinates)

    def save(self, path: Path) -> None:
        """mean [d], factor [rank, d]"""
        save_arrays(path, mean=self.mean, factor=self.factor)

    def resampled(self, counts: Tensor) -> "LowRankGaussian":
        """Fitted to the same samples once more, each as often as `counts` [K] says.

        Samples are known by their coordinates, so the fit is one of rank × rank numbers: with
        deviations D = QR there, Σ is factorᵀ RᵀR factor.
        """
        total = counts.sum()
        mean = counts.double() @ self.coordinates / total
        rows = counts.double().sqrt()[:, None] * (self.coordinates - mean)
        triangle = torch.linalg.qr(rows / (total - 1) ** 0.5).R
        moved, factor = (part.to(self.factor) @ self.factor for part in (mean, triangle))
        return LowRankGaussian(self.mean + moved, factor)


class LowRankFit:
    """Mean and leading directions of a stream of weight vectors, chunk by chunk.

    The scatter Σ_k (w_k − μ)(w_k − μ)ᵀ is kept as FᵀF. A chunk X with mean m adds
    (X − m)ᵀ(X − m) and, for the mean that moves, (m − μ)(m − μ)ᵀ n c / (n + c): rows that are put
    under F. Of all these rows the leading principal directions are kept (Ross et al. 2008,
    "Incremental learning for robust visual tracking"). That is exact up to fp32 while the rank is
    not exceeded, so for any number of samples up to rank + 1.
    """

    def __init__(self, rank: int, chunk: int = 64):
        self._rank, self._chunk = rank, chunk
        self._waiting: list[Tensor] = []
        self._count, self._mean, self._factor, self._coordinates = 0, None, None, None

    def add(self, weights: Tensor) -> None:
        self._waiting.append(weights)
        if len(self._waiting) == self._chunk:
            self._take_in()

    def gaussian(self) -> LowRankGaussian:
        if self._waiting:
            self._take_in()
        if self._count < 2:
            raise UserError(f"A covariance needs two samples or more, and here is {self._count}.")
        scale = (self._count - 1) ** 0.5
        return LowRankGaussian(self._mean.float(), self._factor / scale, self._coordinates * scale)

    def _take_in(self) -> None:
        rows = torch.stack(self._waiting)
        self._waiting, added = [], len(rows)
        mean = rows.mean(0, dtype=torch.float64)
        rows -= mean.float()
        coordinates = torch.eye(added, dtype=torch.float64, device=rows.device)
        if self._count:
            rows, coordinates, mean = self._joined(rows, coordinates, mean)
        self._factor = None  # makes room for the new one: both may be large
        leading = _leading_directions(rows, self._rank)
        self._count, self._mean = self._count + added, mean
        self._factor, self._coordinates = leading.T.to(rows) @ rows, coordinates @ leading

    def _joined(self, rows: Tensor, coordinates: Tensor, mean: Tensor) -> tuple:
        """What is known with a chunk under it: rows, all samples by them, and their mean.

        The last row is the shift of the mean, as long as the scatter needs it; samples of both
        parts lie away from the new mean along it.
        """
        before, added = self._count, len(rows)
        total, shift = before + added, mean - self._mean
        moved = (shift * (before * added / total) ** 0.5).float()
        along = coordinates.new_empty(total, 1)
        along[:before] = -((added / (before * total)) ** 0.5)
        along[before:] = (before / (added * total)) ** 0.5
        parts = torch.block_diag(self._coordinates, coordinates)
        rows = torch.cat([self._factor, rows, moved[None]])
        return rows, torch.cat([parts, along], 1), self._mean + shift * (added / total)


def _leading_directions(rows: Tensor, rank: int) -> Tensor:
    """At most `rank` orthonormal columns V that keep most of rowsᵀ rows in (Vᵀ rows)ᵀ Vᵀ rows."""
    parts = rows.split(COLUMNS_AT_A_TIME, dim=1)
    gram = sum(part.double() @ part.double().T for part in parts)
    values, vectors = torch.linalg.eigh(gram)
    some = values > ROUNDING * values[-1]  # K samples vary along K − 1 directions
    return vectors[:, some].flip(1)[:, :rank]


# ---- files


@dataclass(frozen=True)
class Compact:
    """A Gaussian over rebased weights, and the rebasin that it was fitted to."""

    posterior: GaussianPosterior
    permutations: list[Permutation]  # of every sample
    reference: Tensor  # [d]

    def save(self, path: Path) -> None:
        """mean, std, reference [d]; permutations [K, all hidden units]; transpositions [K, layers].

        The permutations of several hidden layers stand one after the other in a row.
        """
        save_arrays(
            path,
            mean=self.posterior.mean,
            std=self.posterior.std,
            permutations=torch.stack([torch.cat(p) for p in self.permutations]),
            transpositions=np.array([layer_transpositions(p) for p in self.permutations]),
            reference=self.reference,
        )


def load_low_rank(path: Path) -> LowRankGaussian:
    with np.load(path) as archive:
        return LowRankGaussian(*(torch.from_numpy(archive[name]) for name in ("mean", "factor")))


def load_compact(path: Path, hidden_sizes: tuple[int, ...]) -> Compact:
    with np.load(path) as archive:
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}
    permutations = [list(row.split(hidden_sizes)) for row in arrays["permutations"]]
    posterior = GaussianPosterior(arrays["mean"], arrays["std"])
    return Compact(posterior, permutations, arrays["reference"])
