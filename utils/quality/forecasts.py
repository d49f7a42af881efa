"""What samples of a posterior predict, in parts that can be resampled."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from utils.evaluation.linearised import probit_predictions
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.posterior import Posterior
from utils.quality.calibration import scale_temperature
from utils.quality.detection import confidence_score
from utils.quality.diversity import entropy
from utils.quality.images import ImageSets

import torch
from torch import Tensor

MOST_PARTS = 20  # that predictions are kept of


class Outlook(NamedTuple):
    """Predictions on some images, averaged over parts of equal size."""

    parts: Tensor  # [parts, N, classes]
    entropies: Tensor  # [parts, N]: averages over members
    votes: Tensor  # [N, classes]: how many members choose each class
    members: int

    def chosen(self, parts: Tensor) -> "Outlook":
        """Return some parts, each as often as it is given. Votes are not known by part."""
        return self._replace(parts=self.parts[parts], entropies=self.entropies[parts])


@dataclass(frozen=True)
class Forecast:
    """Predictions on test images and on images out of the distribution."""

    inside: Outlook
    outside: Outlook
    labels: Tensor  # [N]

    @cached_property
    def average(self) -> Tensor:
        return self.inside.parts.mean(0)

    @cached_property
    def scaled(self) -> Tensor:
        """The average after temperature scaling on held-out points."""
        return scale_temperature(self.average, self.labels)

    @cached_property
    def scores_inside(self) -> Tensor:
        return confidence_score(self.average)

    @cached_property
    def scores_outside(self) -> Tensor:
        return confidence_score(self.outside.parts.mean(0))

    def chosen(self, parts: Tensor) -> "Forecast":
        return Forecast(self.inside.chosen(parts), self.outside.chosen(parts), self.labels)


class Parts(NamedTuple):
    """How members are cut into contiguous parts; a remainder is left out."""

    count: int
    size: int  # members of each


def parts_of(members: int, modes: int) -> Parts:
    """Return the parts to keep: whole modes, or samples of a single one, MOST_PARTS at most.

    They are of equal size, as large as leaves out the fewest members. A part never has some of the
    samples of a mode only, since parts are resampled as if they were independent.
    """
    units = modes if modes > 1 else members
    most = min(units, MOST_PARTS)
    fewest = most - most // 4
    count = max(range(fewest, most + 1), key=lambda count: (count * (units // count), count))
    return Parts(count, (units // count) * (members // units))


def forecast(
    network: Network, samples: Iterable[Tensor], parts: Parts, images: ImageSets
) -> Forecast:
    """Predict with the members, part by part."""
    gather = {side: _Gathered(parts) for side in ("inside", "outside")}
    for number, weights in zip(range(parts.count * parts.size), samples, strict=False):
        for side, gathered in gather.items():
            inputs = getattr(images, side)
            gathered.add(
                number // parts.size,
                class_probabilities(network, weights.to(inputs.device), inputs),
            )
    outlooks = {side: gathered.outlook() for side, gathered in gather.items()}
    return Forecast(**outlooks, labels=images.labels)


def linearised_forecast(modes: Sequence[Posterior], images: ImageSets) -> Forecast:
    """Predict with each Gaussian's network linearised at its mean, by the probit formula.

    Every mode is a part with one prediction. It has no members whose entropies are known, so there
    is no mutual information.
    """
    outlooks = {}
    for side in ("inside", "outside"):
        inputs = getattr(images, side)
        parts = torch.stack([probit_predictions(mode, inputs) for mode in modes])
        unknown = torch.full(parts.shape[:2], float("nan"), device=parts.device)
        outlooks[side] = Outlook(parts, unknown, torch.zeros_like(parts[0]), 1)
    return Forecast(**outlooks, labels=images.labels)


class _Gathered:
    """Sums over the members of each part."""

    def __init__(self, parts: Parts):
        (self._count, self._size), self._sums = parts, None

    def add(self, part: int, probabilities: Tensor) -> None:
        if self._sums is None:
            shape = (self._count, *probabilities.shape)
            self._sums = probabilities.new_zeros(shape), probabilities.new_zeros(shape[:2])
            self._votes = torch.zeros_like(probabilities)
        self._sums[0][part] += probabilities
        self._sums[1][part] += entropy(probabilities)
        self._votes += torch.nn.functional.one_hot(
            probabilities.argmax(-1), probabilities.shape[-1]
        )

    def outlook(self) -> Outlook:
        parts, entropies = (each / self._size for each in self._sums)
        return Outlook(parts, entropies, self._votes, self._count * self._size)
