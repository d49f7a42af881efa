"""The images that predictions are compared on: test images, and images from elsewhere."""

from typing import NamedTuple

from utils.data.datasets import Dataset, network_inputs
from utils.data.out_of_distribution import load_other_images, load_usual_images
from utils.networks.network import Network
from utils.networks.registry import inputs_for
from utils.runs.errors import UserError

import numpy as np
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
    count = min(length, most or length)
    return torch.from_numpy(np.linspace(0, length - 1, count).round().astype(np.int64))
