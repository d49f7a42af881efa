"""What evaluation sees of a posterior approximation, whatever it is: weights that can be drawn.

    Samples        weight vectors on disk: a chain, an ensemble, thousands of networks
    Points         weight vectors in memory
    Gaussian       independent weights
    LowRank        weights that vary together, as far as the rank allows
    BlockGaussian  weights that vary together within blocks, such as layers
    DropoutMasks   one network, with random hidden units dropped
    Mixture        equal shares of several of these: modes, chains, shards

`utils.posteriors.files.open_posterior` reads any of them from a run directory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from utils.networks.network import Network
from utils.symmetry.transformation import Transformation

import torch
from torch import Tensor


class Posterior(Protocol):
    network: Network
    mean: Tensor | None  # [d], where the approximation has one

    def draw(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield `count` weight vectors [d], one after the other."""
        ...

    def moved(self, transformation: Transformation) -> "Posterior":
        """Return the posterior of weights transformed by an element of the symmetry group."""
        ...

    def save(self, directory: Path) -> None:
        """Write its arrays, with network.json and posterior.json."""
        ...
