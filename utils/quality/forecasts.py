"""What samples of a posterior predict, in parts that can be resampled.

Predictions are on test images, and on images from elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from utils.data.datasets import Dataset, network_inputs
from utils.data.out_of_distribution import load_other_images, load_usual_images
from utils.evaluation.alignment import spaced_positions
from utils.evaluation.linearised import probit_predictions
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.networks.registry import inputs_for
from utils.posteriors.posterior import Posterior
from utils.quality.calibration import scale_temperature
from utils.quality.detection import confidence_score
from utils.quality.diversity import entropy
from utils.settings.errors import UserError

import torch
from torch import Tensor


class ImageSets(NamedTuple):
    """Inputs of a network, inside and outside of the distribution that it was trained on."""

    inside: Tensor  # [N, *input_shape]
    labels: Tensor  # [N]
    outside: Tensor  # [M, *input_shape]
    outside_name: str

    def to(self, device: torch.device) -> "ImageSets":
        return self._replace(**{
            name: each.to(device) for name, each in self._asdict().items() if torch.is_tensor(each)
        })  # fmt: skip


def load_test_images(
    network: Network, data: Dataset, other: str | None, data_dir: str, most: int | None = None
) -> ImageSets:
    """Return at most so many images of both kinds, evenly spaced, as the network takes them.

    `data` has its uint8 images. `other` names the data set from elsewhere; None: the usual one.
    """
    if network.num_classes != data.num_classes:
        raise UserError(
            f"The network {network} has {network.num_classes} classes, but {data.name} "
            f"{data.num_classes}: give the --dataset that it was trained on."
        )
    if other == data.name:
        raise UserError(f"--ood {other} is the data set itself: give another one.")
    arguments = (data.image_shape, data_dir)
    elsewhere = (
        load_other_images(other, *arguments) if other else load_usual_images(data.name, *arguments)
    )
    inputs = inputs_for(network, data)
    places = evenly_spaced(len(inputs.test_labels), most)
    images = elsewhere.images[evenly_spaced(len(elsewhere.images), most)]
    normalisation = data.normalisation(network.normalisation)
    outside = network_inputs(images, network.input_shape, normalisation)
    return ImageSets(
        inputs.test_images[places], inputs.test_labels[places], outside, elsewhere.name
    )


def evenly_spaced(length: int, most: int | None) -> Tensor:
    """Return at most `most` different positions below `length`, evenly spaced, with both ends."""
    return torch.tensor(spaced_positions(length, most or length), dtype=torch.long)


# ---- predictions

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
    sums: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for number, weights in zip(range(parts.count * parts.size), samples, strict=False):
        for side in ("inside", "outside"):
            inputs = getattr(images, side)
            probabilities = class_probabilities(network, weights.to(inputs.device), inputs)
            if side not in sums:
                averages = probabilities.new_zeros(parts.count, *probabilities.shape)
                entropies = probabilities.new_zeros(averages.shape[:2])
                sums[side] = averages, entropies, torch.zeros_like(probabilities)
            averages, entropies, votes = sums[side]
            averages[number // parts.size] += probabilities
            entropies[number // parts.size] += entropy(probabilities)
            votes += torch.nn.functional.one_hot(probabilities.argmax(-1), probabilities.shape[-1])
    members = parts.count * parts.size
    outlooks = {
        side: Outlook(averages / parts.size, entropies / parts.size, votes, members)
        for side, (averages, entropies, votes) in sums.items()
    }
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
