"""A posterior of independent weights, as VI fits it, and as samples are summarised by one.

The evidence lower bound (ELBO) is log p(D) ≥ E_q log p(D | w) − KL(q ‖ p), with equality if q is
the posterior. Numbers of different approximations of one posterior can be compared; the highest is
nearest to it, in KL(q ‖ posterior).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from utils.networks.network import Network
from utils.posteriors.prior import Prior
from utils.posteriors.samples import save_kind
from utils.rebasin.assignment import Matcher, Matching
from utils.rebasin.rebase import rebase
from utils.runs.files import save_arrays
from utils.symmetry.transformation import Transformation

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gaussian:
    """N(mean, diag std²)."""

    mean: Tensor  # [d]
    std: Tensor  # [d]
    network: Network | None = None

    def draw(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield `count` weight vectors, one after the other."""
        for _ in range(count):
            noise = torch.randn(self.mean.shape, generator=generator).to(self.mean.device)
            yield torch.addcmul(self.mean, self.std, noise)

    def moved(self, transformation: Transformation) -> "Gaussian":
        mean, std = transformation.apply(self.mean), transformation.apply_to_std(self.std)
        return Gaussian(mean, std, transformation.network)

    def output_covariance(self, jacobians: Tensor) -> Tensor:
        """Return J diag(std²) Jᵀ [N, C, C] for Jacobians J [N, C, d]."""
        parts = jacobians * self.std
        return parts @ parts.mT

    def to(self, device: torch.device) -> "Gaussian":
        return Gaussian(self.mean.to(device), self.std.to(device), self.network)

    def save(self, directory: Path) -> None:
        """Write posterior.npz: mean, std [d]."""
        save_arrays(directory / "posterior.npz", mean=self.mean, std=self.std)
        save_kind(directory, "Gaussian", self.network)


def rebase_gaussian(
    network: Network, posterior: Gaussian, matcher: Matcher
) -> tuple[Gaussian, Matching]:
    """Move a Gaussian as a whole by the transformation that aligns its mean."""
    _, matching = rebase(network, posterior.mean, matcher)
    return posterior.moved(matching.transformation), matching


# ---- the evidence lower bound


def log_likelihood(network: Network, weights: Tensor, images: Tensor, labels: Tensor) -> float:
    """Return Σ_n log p(y_n | x_n, w), in float64."""
    total = 0.0
    pairs = zip(images.split(network.chunk_rows), labels.split(network.chunk_rows), strict=True)
    for rows, answers in pairs:
        logits = network.outputs(weights, rows).double()
        total -= torch.nn.functional.cross_entropy(logits, answers, reduction="sum").item()
    return total


def elbo_estimates(
    posterior: Gaussian, prior: Prior, likelihood: Callable[[Tensor], float], num_draws: int,
    random: torch.Generator,
) -> Tensor | None:  # fmt: skip
    """Return an estimate of the ELBO for each draw; `likelihood` is Σ_n log p(y_n | x_n, w).

    None if a weight with a prior has no deviation: then KL(q ‖ p) is infinite.
    """
    divergence = prior.kl(posterior.mean, posterior.std.log())
    if not torch.tensor(divergence).isfinite():
        return None
    expected = [likelihood(weights) for weights in posterior.draw(num_draws, random)]
    return torch.tensor(expected, dtype=torch.float64) - divergence
