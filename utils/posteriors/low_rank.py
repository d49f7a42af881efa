"""A Gaussian in which weights vary together, as far as its rank allows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from utils.networks.network import Network
from utils.posteriors.samples import save_kind
from utils.runs.files import save_arrays
from utils.settings.errors import UserError
from utils.symmetry.transformation import Transformation

import torch
from torch import Tensor

COLUMNS_AT_A_TIME = 32768  # of a Gram matrix's factors that are in float64 at once
ROUNDING = 1e-10  # share of the largest variance below which a direction is float32's rounding


@dataclass(frozen=True)
class LowRank:
    """N(mean, Σ) with Σ = factorᵀ factor + diag(diagonal²)."""

    mean: Tensor  # [d]
    factor: Tensor  # [rank, d]
    coordinates: Tensor | None = None  # [K, rank]: its samples are mean + coordinates @ factor
    network: Network | None = None
    diagonal: Tensor | None = None  # [d]: deviations of independent noise, 0 without it

    @property
    def std(self) -> Tensor:
        """The deviation of every weight [d]."""
        none = torch.zeros_like(self.mean, dtype=torch.float64)
        return sum((row.double().square() for row in self._rows()), none).sqrt().float()

    def variance(self) -> float:
        """Return the trace of Σ, the variance summed over weights."""
        return sum(row.double().square().sum().item() for row in self._rows())

    def _rows(self) -> list[Tensor]:
        return [*self.factor] if self.diagonal is None else [*self.factor, self.diagonal]

    def draw(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield `count` weight vectors, one after the other."""
        for _ in range(count):
            noise = torch.randn(len(self.factor), generator=generator).to(self.mean.device)
            weights = self.mean + noise @ self.factor
            if self.diagonal is not None:
                noise = torch.randn(len(self.mean), generator=generator).to(self.mean.device)
                weights.addcmul_(self.diagonal, noise)
            yield weights

    def moved(self, transformation: Transformation) -> "LowRank":
        mean, factor = (transformation.apply(rows) for rows in (self.mean, self.factor))
        diagonal = None if self.diagonal is None else transformation.apply_to_std(self.diagonal)
        return replace(self, mean=mean, factor=factor, diagonal=diagonal)

    def save(self, directory: Path) -> None:
        """Write low_rank.npz: mean [d], factor [rank, d], diagonal [d] if there is one."""
        self.write(directory / "low_rank.npz")
        save_kind(directory, "LowRank", self.network)

    def write(self, path: Path) -> None:
        arrays = {"mean": self.mean, "factor": self.factor, "diagonal": self.diagonal}
        save_arrays(path, **{name: each for name, each in arrays.items() if each is not None})

    def resampled(self, counts: Tensor) -> "LowRank":
        """Fitted to the same samples once more, each as often as `counts` [K] says.

        Samples are known by their coordinates, so the fit is one of rank × rank numbers: with
        deviations D = QR there, Σ is factorᵀ RᵀR factor.
        """
        total = counts.sum()
        mean = counts.double() @ self.coordinates / total
        rows = counts.double().sqrt()[:, None] * (self.coordinates - mean)
        triangle = torch.linalg.qr(rows / (total - 1) ** 0.5).R
        moved, factor = (part.to(self.factor) @ self.factor for part in (mean, triangle))
        return LowRank(self.mean + moved, factor, network=self.network)


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

    def gaussian(self) -> LowRank:
        if self._waiting:
            self._take_in()
        if self._count < 2:
            raise UserError(f"A covariance needs at least two samples; there is {self._count}.")
        scale = (self._count - 1) ** 0.5
        return LowRank(self._mean.float(), self._factor / scale, self._coordinates * scale)

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
        """Return what is known with a chunk under it: rows, all samples by them, and their mean.

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
    """Return at most `rank` orthonormal columns V with (Vᵀ rows)ᵀ Vᵀ rows nearest to rowsᵀ rows."""
    parts = rows.split(COLUMNS_AT_A_TIME, dim=1)
    gram = sum(part.double() @ part.double().T for part in parts)
    values, vectors = torch.linalg.eigh(gram)
    some = values > ROUNDING * values[-1]  # K samples vary along K − 1 directions
    return vectors[:, some].flip(1)[:, :rank]
