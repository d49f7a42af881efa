"""Monte Carlo dropout (Gal and Ghahramani 2016).

Training minimises the average cross-entropy of networks with units dropped at random, plus weight
decay. The posterior, `utils.posteriors.dropout`, draws such networks, and says what is dropped.

Masks multiply weights, so all images of one forward pass have the same. A batch is cut into
`masks_per_batch` parts with a mask each, which are computed as a stack. A mask for every image, as
layers of dropout draw them, would have the same average gradient with less noise, but takes as many
stacked networks as there are images.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from utils.methods.method import Problem
from utils.methods.training import RecipeConfig, TrainedMethod, TrainingState, epoch_record
from utils.networks.network import Network
from utils.posteriors.dropout import (
    DropoutMasks,
    Rates,
    draw_factors,
    droppable_groups,
    multiply_outgoing,
)
from utils.report.figures import GOLD, Look
from utils.runs.seeding import generator
from utils.settings.config import option
from utils.settings.errors import UserError

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DropoutConfig(RecipeConfig):
    optimizer: str = option("Adam", "optimiser of every network", choices=("SGD", "Adam"))
    dropout_rate: float = option(
        0.1, "probability with which a unit is dropped", minimum=0, below=1
    )
    dropout_units: str = option(
        "all", "units that are dropped: all hidden ones, or those that the last layer reads",
        choices=("all", "last"),
    )  # fmt: skip
    masks_per_batch: int = option(4, "masks that share the images of a batch", minimum=1)
    num_draws: int = option(100, "masks that the predictions average over", minimum=1)


class Dropout(TrainedMethod):
    name, kind, title = "dropout", "dropout", "MC dropout"
    look = Look(GOLD, "--", "P")
    Config = DropoutConfig

    def init(self, problem: Problem, config, modes: Sequence[int]) -> TrainingState:
        if not droppable_groups(problem.network):
            raise UserError(
                f"Dropout leaves out hidden units, and {problem.network} has none: give an mlp "
                "--hidden_sizes."
            )
        return super().init(problem, config, modes)

    def step(self, problem: Problem, state: TrainingState, config) -> tuple:
        (stream,) = self.streams(state)
        masks = generator(config.seed, "dropout_masks", stream, state.epoch)
        network, rates = problem.network, rates_of(problem.network, config)
        if rates:
            network = Dropped(network, rates, config.masks_per_batch, masks)
        state, losses = self.train_epoch(problem, state, config, network)
        return state, [epoch_record(problem, state, losses, state.weights[0], config)]

    def posterior(self, problem: Problem, state: TrainingState, config) -> DropoutMasks:
        network = problem.network
        return DropoutMasks(state.weights[0], rates_of(network, config), network)


def rates_of(network: Network, config) -> Rates:
    """Return the rates of the units that are dropped at all."""
    if not config.dropout_rate:
        return {}
    names = droppable_groups(network, config.dropout_units == "last")
    return dict.fromkeys(names, config.dropout_rate)


class Dropped:
    """A network as training sees it, with fresh masks for every batch."""

    def __init__(self, network: Network, rates: Rates, num_masks: int, random: torch.Generator):
        self.network, self.rates, self.num_masks, self.random = network, rates, num_masks, random

    def __getattr__(self, name: str):
        return getattr(self.network, name)

    def gradient(self, weights: Tensor, gradient: Tensor, rows: int) -> "DroppedGradient":
        return DroppedGradient(self, weights, gradient, rows)


class DroppedGradient:
    """The gradient of the cross-entropy at weights [1, d] with units dropped.

    It is called like `utils.networks.mlp_gradients.MLPGradient`.
    """

    def __init__(self, dropped: Dropped, weights: Tensor, gradient: Tensor, rows: int):
        self._dropped, self._network = dropped, dropped.network
        self._weights, self._gradient, self._rows = weights, gradient, rows
        self._masked = weights.new_empty(dropped.num_masks, weights.shape[1])
        self._slopes = torch.empty_like(self._masked)
        self._gradients = {}  # by how many masks share a batch

    def __call__(self, inputs: Tensor, labels: Tensor, *, scale: float, keep: float) -> Tensor:
        """Return the NLL [1, rows]; gradient ← keep · gradient + scale · ∂ΣNLL/∂weights."""
        count = math.gcd(labels.shape[1], len(self._masked))  # a last batch may be a small one
        masked, slopes = self._masked[:count], self._slopes[:count]
        factors = draw_factors(self._network, self._dropped.rates, self._dropped.random, (count,))
        masked.copy_(self._weights.expand_as(masked))
        multiply_outgoing(self._network, masked, factors)
        if count not in self._gradients:
            rows = self._rows // math.gcd(self._rows, count)
            self._gradients[count] = self._network.gradient(masked, slopes, rows)
        parts = inputs[0].unflatten(0, (count, -1)), labels[0].unflatten(0, (count, -1))
        nll = self._gradients[count](*parts, scale=scale, keep=0)
        multiply_outgoing(self._network, slopes, factors)
        if keep:
            self._gradient.mul_(keep).add_(slopes.sum(0))
        else:  # it may hold anything
            torch.sum(slopes, 0, keepdim=True, out=self._gradient)
        for slot in self._network.slots:
            if slot.role == "buffer":  # running statistics, averaged over masks
                slot.of(self._weights).copy_(slot.of(masked).mean(0))
        return nll.flatten()[None]
