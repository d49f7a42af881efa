"""What makes a fitted Gaussian predict better: a scale of its deviations, and REPAIR of its units.

With independent noise on all weights, units lose what they have in common. N(μ, τ²σ²) with τ < 1
keeps more of the mean: τ = 0 is the network at μ, τ = 1 the Gaussian as it is fitted. The τ whose
predictions are nearest to those of the samples, in KL divergence, is chosen on training images.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.posterior import Posterior
from utils.posteriors.prior import by_layer, num_layers
from utils.runs.seeding import generator
from utils.symmetry.repair import UnitMoments, repaired

import torch
from torch import Tensor

SCALES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)
SWEEPS = 2  # over the layers, where each has its own τ


@dataclass(frozen=True)
class Repaired:
    """A Gaussian whose networks get units with the moments of others."""

    posterior: Gaussian
    network: Network
    images: Tensor
    target: UnitMoments

    @property
    def mean(self) -> Tensor:
        return self._repair(self.posterior.mean)

    def draw(self, count: int, random: torch.Generator) -> Iterator[Tensor]:
        return (self._repair(weights) for weights in self.posterior.draw(count, random))

    def _repair(self, weights: Tensor) -> Tensor:
        return repaired(self.network, weights, self.images, self.target)


@dataclass(frozen=True)
class Refinement:
    """What is done to a Gaussian: τ for all weights or for each layer, and then REPAIR or not."""

    network: Network
    taus: tuple[float, ...] = (1.0,)
    images: Tensor | None = None
    target: UnitMoments | None = None

    def __call__(self, gaussian: Gaussian) -> Posterior:
        taus = self.taus[0] if len(self.taus) == 1 else list(self.taus)
        scale = by_layer(self.network, taus).to(gaussian.std)
        scaled = replace(gaussian, std=gaussian.std * scale.nan_to_num(posinf=1.0))
        if self.target is None:
            return scaled
        return Repaired(scaled, self.network, self.images, self.target)


@dataclass(frozen=True)
class TauSearch:
    """Compares scales by KL(samples' predictions ‖ predictions of draws) on training images.

    All scales are compared with the same noise.
    """

    images: Tensor
    truth: Tensor  # [N, classes]: what the samples predict
    num_draws: int
    seed: int

    def divergence(self, refinement: Refinement, gaussian: Gaussian) -> float:
        count = self.num_draws if any(refinement.taus) else 1
        drawn = refinement(gaussian).draw(count, generator(self.seed, "scale_draws"))
        network = refinement.network
        average = sum(class_probabilities(network, w, self.images) for w in drawn) / count
        each = torch.special.xlogy(self.truth, self.truth) - torch.special.xlogy(
            self.truth, average
        )
        return each.sum(-1).mean().item()

    def best(self, refinement: Refinement, gaussian: Gaussian, by_layers: bool) -> Refinement:
        """Return the refinement with the best of SCALES, for all weights or layer by layer."""
        found = self._best_of([replace(refinement, taus=(tau,)) for tau in SCALES], gaussian)
        if not by_layers:
            return found
        taus = found.taus * num_layers(refinement.network)
        for layer in list(range(len(taus))) * SWEEPS:
            trials = [(*taus[:layer], tau, *taus[layer + 1 :]) for tau in SCALES]
            found = self._best_of([replace(refinement, taus=each) for each in trials], gaussian)
            taus = found.taus
        return found

    def _best_of(self, refinements: list[Refinement], gaussian: Gaussian) -> Refinement:
        return min(refinements, key=lambda each: self.divergence(each, gaussian))
