"""A start for chains that already looks like a sample of the posterior.

Weights of the posterior have the size of their prior N(0, s²), far above that of trained weights.
An anchored MAP minimises NLL + ½ ‖θ − θ₀‖²/s² with θ₀ drawn from the prior (Pearce et al. 2020,
"Uncertainty in neural networks: approximately Bayesian ensembling"). It fits the data with weights
that are almost where the prior put them. At temperature T anchors are draws from N(0, T s²).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from utils.data.datasets import Dataset
from utils.methods.hmc.potential import STANDARD_NORMAL
from utils.methods.training import TrainingSettings, start_training, train
from utils.networks.network import Network
from utils.posteriors.prior import Prior

from torch import Tensor

LEARNING_RATES = (0.01, 0.003, 0.001)  # of Adam, one after the other
BATCH_SIZE = 250


def anchored_maps(
    network: Network, data: Dataset, anchors: Tensor, seed: int, epochs: int,
    prior: Prior = STANDARD_NORMAL, numbers: Sequence[int] | None = None,
    on_epoch: Callable[[int, int, float], None] = lambda member, epoch, loss: None,
) -> Tensor:  # fmt: skip
    """Return the MAP near each anchor [K, d].

    Train for `epochs` at each of the learning rates. The `numbers` name the random orders of data,
    by default from 0 on.
    """
    settings = TrainingSettings(
        "Adam", LEARNING_RATES[0], BATCH_SIZE, prior_precision=prior.precision
    )
    state = start_training(anchors, settings)._replace(anchors=anchors)
    for rate in LEARNING_RATES:
        state, _ = train(
            network, state, data.train_images, data.train_labels,
            replace(settings, learning_rate=rate), seed=seed, num_epochs=epochs,
            streams=numbers, on_epoch=on_epoch,
        )  # fmt: skip
    return state.weights
