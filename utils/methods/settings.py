"""Settings that several methods share: the prior, how many modes, augmentation."""

import math
from dataclasses import dataclass

from utils.data.batches import Batches
from utils.data.datasets import Dataset
from utils.networks.network import Network
from utils.posteriors.prior import Prior
from utils.runs.config import NetworkConfig, option
from utils.runs.errors import UserError


@dataclass(frozen=True, kw_only=True)
class PriorConfig(NetworkConfig):
    prior_std: float = option(
        1.0, "standard deviation of the prior N(0, prior_std²) on every weight", above=0
    )
    weight_decay: float | None = option(
        None, "weight decay instead of prior_std, which is then (images · weight_decay)^−½",
        minimum=0,
    )  # fmt: skip

    def prior(self, num_points: int) -> Prior:
        if self.weight_decay is None:
            return Prior(self.prior_std)
        return Prior((num_points * self.weight_decay) ** -0.5 if self.weight_decay else math.inf)

    def refuse_flat_prior(self) -> None:
        if self.weight_decay == 0:
            raise UserError(
                "With --weight_decay 0 the prior is flat, and the posterior no distribution: give "
                "a weight decay above 0, or --prior_std."
            )


@dataclass(frozen=True, kw_only=True)
class ModesConfig(NetworkConfig):
    num_modes: int = option(
        1, "independent modes, each from a start of its own, with equal shares", minimum=1
    )
    jobs: int = option(
        1, "processes of one thread each, among which groups of modes are shared", minimum=1,
        changeable=True,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig(NetworkConfig):
    padding: int = option(0, "zero padding that random crops are taken from", unit="pixels",
                          minimum=0)  # fmt: skip
    flips: bool = option(False, "mirror images at random")

    def batches(self, images: Dataset, network: Network) -> Batches | None:
        """Return augmented batches of uint8 images, or None where nothing is augmented."""
        if not (self.padding or self.flips):
            return None
        return Batches(
            images.train_images, images.train_labels, network.input_shape,
            images.normalisation(network.normalisation), padding=self.padding, flips=self.flips,
        )  # fmt: skip
