"""A posterior of independent weights, as VI fits it, and as samples are summed up by one."""

from dataclasses import dataclass

from utils.networks.mlp import Network
from utils.symmetry.matching import Matcher, Matching, rebase
from utils.symmetry.permutation import Permutation, permute_weights

import torch
from torch import Tensor


@dataclass(frozen=True)
class GaussianPosterior:
    """A Gaussian with independent weights."""

    mean: Tensor  # [d]
    std: Tensor  # [d]

    def draw(self, count: int, generator: torch.Generator):
        """`count` weight vectors, one after the other."""
        for _ in range(count):
            noise = torch.randn(self.mean.shape, generator=generator).to(self.mean.device)
            yield torch.addcmul(self.mean, self.std, noise)

    def permuted(self, network: Network, permutation: Permutation) -> "GaussianPosterior":
        """The same as a whole, with the hidden units in their new places."""
        moved = (permute_weights(network, part, permutation) for part in (self.mean, self.std))
        return GaussianPosterior(*moved)


def rebase_gaussian(
    network: Network, posterior: GaussianPosterior, matcher: Matcher
) -> tuple[GaussianPosterior, Matching]:
    """A Gaussian over weights, moved as a whole by the permutation that aligns its mean."""
    _, matching = rebase(network, posterior.mean, matcher)
    return posterior.permuted(network, matching.permutation), matching
