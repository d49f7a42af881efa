"""A control without symmetries: every chain holds the same weights at the same values.

Hidden units then differ by the weights that are fixed, so that no permutation or scaling of units
leaves the posterior of the others unchanged. Units have their right names from the start: rebasin
has nothing to find, and what it changes is an error of the matching.
"""

from utils.methods.hmc.mass import IDENTITY, MassMatrix
from utils.networks.network import Network
from utils.posteriors.prior import Prior
from utils.runs.seeding import generator

import torch
from torch import Tensor


class FixedWeights:
    """A share of all weights, at random, held at a draw from the prior."""

    def __init__(self, network: Network, share: float, prior: Prior, seed: int):
        chosen = torch.rand(network.num_weights, generator=generator(seed, "fixed_weights"))
        self.mask = chosen < share  # [d]
        self.values = prior.draw(network, generator(seed, "fixed_values"))

    def apply(self, weights: Tensor) -> Tensor:
        """Return weights [C, d] with the fixed ones at their values."""
        return torch.where(self.mask.to(weights.device), self.values.to(weights), weights)

    def mass(self, device: torch.device) -> MassMatrix:
        """Return an infinite mass for them, which is L = 0: no force moves them."""
        return MassMatrix((~self.mask).float().to(device)) if self.mask.any() else IDENTITY
