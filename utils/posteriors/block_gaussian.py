"""A Gaussian whose covariance has blocks, each known by its eigenvectors: dense or Kronecker.

The Laplace approximation leaves it: see `utils.methods.laplace`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from utils.networks.network import Network
from utils.posteriors.samples import save_kind
from utils.runs.files import save_arrays
from utils.symmetry.transformation import Transformation

import torch
from torch import Tensor


class WeightBlock(NamedTuple):
    """Weights that vary together, as a matrix [m, n] with W − mean = left (std ∘ ε) rightᵀ.

    ε is standard normal, so the covariance is (left ⊗ right) diag(std²) (left ⊗ right)ᵀ. A block
    with any other covariance has m = 1.
    """

    places: Tensor  # [m, n]: of each of these weights within the flat vector
    left: Tensor  # [m, m], orthogonal
    right: Tensor  # [n, n], orthogonal
    std: Tensor  # [m, n]


@dataclass(frozen=True)
class BlockGaussian:
    """N(mean, S Σ S) with the blocks of Σ and S = diag(scales); other weights do not vary."""

    mean: Tensor  # [d]
    blocks: Sequence[WeightBlock]
    network: Network
    scales: Tensor | None = None  # [d]: 1 without it

    def draw(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield `count` weight vectors, one after the other."""
        for _ in range(count):
            deviations = torch.zeros_like(self.mean)
            for places, left, right, std in self.blocks:
                noise = torch.randn(std.shape, generator=generator).to(std.device)
                deviations[places] = left @ (std * noise) @ right.T
            yield self.mean + (deviations if self.scales is None else self.scales * deviations)

    def moved(self, transformation: Transformation) -> "BlockGaussian":
        """Move a Gaussian. Blocks keep their weights, which have other places and scales then."""
        device = self.mean.device
        scales = transformation.apply(torch.ones_like(self.mean, dtype=torch.float64))
        numbers = torch.arange(len(self.mean), dtype=torch.float64, device=device)
        sources = replace(transformation, log_scales={}, signs={}).apply(numbers).long()
        if self.scales is not None:
            scales = scales * self.scales[sources]
        target = torch.empty_like(sources)
        target[sources] = torch.arange(len(sources), device=device)
        return BlockGaussian(
            transformation.apply(self.mean),
            [block._replace(places=target[block.places]) for block in self.blocks],
            transformation.network, scales.to(self.mean),
        )  # fmt: skip

    def output_covariance(self, jacobians: Tensor) -> Tensor:
        """Return J S Σ S Jᵀ [N, C, C] for Jacobians J [N, C, d]."""
        if self.scales is not None:
            jacobians = jacobians * self.scales
        total = 0
        for places, left, right, std in self.blocks:
            parts = left.T @ jacobians[..., places] @ right * std
            parts = parts.flatten(2)
            total = total + parts @ parts.mT
        return total

    def to(self, device: torch.device) -> "BlockGaussian":
        scales = None if self.scales is None else self.scales.to(device)
        blocks = [WeightBlock(*(each.to(device) for each in block)) for block in self.blocks]
        return replace(self, mean=self.mean.to(device), blocks=blocks, scales=scales)

    def save(self, directory: Path) -> None:
        """Write blocks.npz: mean [d], scales [d] if any, and the tensors of every block."""
        arrays = {"mean": self.mean}
        if self.scales is not None:
            arrays["scales"] = self.scales
        for number, block in enumerate(self.blocks):
            arrays |= {f"{name}_{number}": each for name, each in block._asdict().items()}
        save_arrays(directory / "blocks.npz", **arrays)
        save_kind(directory, "BlockGaussian", self.network)
