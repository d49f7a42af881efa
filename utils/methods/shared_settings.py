"""Settings that several methods share: the prior and temperature, how many modes, augmentation."""

from dataclasses import dataclass

from utils.data.batches import Batches
from utils.data.datasets import Dataset
from utils.networks.network import Network
from utils.networks.registry import NetworkConfig
from utils.settings.config import option
from utils.settings.errors import UserError
from utils.settings.values import NUMBERS


@dataclass(frozen=True, kw_only=True)
class PriorConfig(NetworkConfig):
    """The further settings of methods: which posterior they approximate.

    It is p(w | data) ∝ exp(−U/T) with U = Σ cross-entropy + ½ Σ w²/σ².
    """

    prior: str = option(
        "independent",
        "prior of an mlp's first layer: N(0, σ²) of every weight, or N(0, σ² Σ) of each unit, with "
        "Σ the covariance of the training images plus 0.01",
        choices=("independent", "empcov"),
    )
    prior_std: NUMBERS = option(
        1.0, "σ of the prior N(0, σ²) on weights and biases, or one for each layer: 1,0.5", above=0
    )
    weight_decay: float | None = option(
        None,
        "weight decay of the mean cross-entropy, instead of prior_std, which is then "
        "(images · weight_decay)^−½",
        minimum=0,
    )
    temperature: float = option(
        1.0, "T of the posterior exp(−U/T); modes do not depend on it", minimum=1e-12, below=1e12
    )
    num_valid: int = option(
        0, "hold out the last so many training images; the summary has the scores on them, to "
        "choose settings by", minimum=0,
    )  # fmt: skip

    def __post_init__(self):
        if self.weight_decay is not None and self.prior_std != 1.0:
            raise UserError(
                f"A posterior has one prior, but prior_std is {self.prior_std} and weight_decay "
                f"{self.weight_decay}: leave one of them out, or give --weight_decay none."
            )

    def refuse_flat_prior(self) -> None:
        if self.weight_decay == 0:
            raise UserError(
                "With --weight_decay 0 the prior is flat, and the posterior no distribution: give "
                "a weight decay above 0, or --prior_std."
            )


@dataclass(frozen=True, kw_only=True)
class ModesConfig(NetworkConfig):
    num_modes: int = option(
        1, "independent modes, each from a start of its own, with equal shares; --resume adds more",
        minimum=1, may_grow=True,
    )  # fmt: skip
    jobs: int = option(
        1, "processes of one thread each, among which groups of modes are shared", minimum=1,
        changeable=True,
    )  # fmt: skip
    share: bool = option(
        False,
        "make those groups of modes that no other process of this run makes; whoever ends last "
        "finishes the run (see docs/scaling_out.md)",
        changeable=True,
    )


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig(NetworkConfig):
    padding: int = option(0, "zero padding that random crops are taken from [pixels]", minimum=0)
    flips: bool = option(False, "mirror images at random")

    def batches(self, images: Dataset, network: Network) -> Batches | None:
        """Return augmented batches of uint8 images, or None where nothing is augmented."""
        if not (self.padding or self.flips):
            return None
        return Batches(
            images.train_images, images.train_labels, network.input_shape,
            images.normalisation(network.normalisation), padding=self.padding, flips=self.flips,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(NetworkConfig):
    """The further settings of scripts that train networks."""

    optimizer: str = option("SGD", "optimiser of every network", choices=("SGD", "Adam"))
    learning_rate: float = option(1e-3, "step size of the optimiser", above=0)
    momentum: float = option(0.9, "momentum of SGD; Adam has its own", minimum=0, below=1)
    batch_size: int = option(64, "images per step", minimum=1)
    num_epochs: int = option(50, "passes over the training images", minimum=1)


@dataclass(frozen=True, kw_only=True)
class PermutationConfig(TrainingConfig):
    """The further settings of scripts that permute hidden units, of which there must be some."""

    def __post_init__(self):
        if self.network == "mlp" and not self.hidden_sizes:
            raise UserError(
                "hidden_sizes must have at least one hidden layer: without hidden units there is "
                "nothing to permute."
            )
