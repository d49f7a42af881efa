"""Images that a trained network should not be sure about: test images of another data set.

Any data set can be chosen by name, also some classes of the network's own: CIFAR10_0-5 to train
on and CIFAR10_6-9 to be unsure about. MNIST-noise-3 are corrupted images, in one of five strengths.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from utils.data.corruptions import corrupt
from utils.data.datasets import load_part, split_name
from utils.data.sources import source_of
from utils.runs.errors import UserError

import torch
import torch.nn.functional as F
from torch import Tensor


class OtherImages(NamedTuple):
    """Test images of the data set `name`, in the shape of the network's own."""

    name: str
    images: Tensor


def usual_names(name: str) -> tuple[str, ...]:
    """Return data sets to test a network trained on `name` with, the preferred one first.

    Next to some classes of a data set, these are its other classes.
    """
    base, classes = split_name(name)
    source = source_of(base)
    rest = [k for k in range(source.num_classes) if k not in classes] if classes else []
    return ("_".join([base, *map(str, rest)]),) if rest else source.others


def load_other_images(
    name: str, image_shape: tuple[int, int, int], data_dir: str | Path
) -> OtherImages:
    """Load a data set's test images, corrupted or not, in another image shape [C, H, W], uint8."""
    corrupted = re.fullmatch(r"(.+)-([a-z]+)-(\d+)", name)
    images, *_ = load_part(corrupted[1] if corrupted else name, "test", data_dir)
    if corrupted:
        images = corrupt(images, corrupted[2], int(corrupted[3]), seed=0)
    return OtherImages(name, as_shape(images, image_shape))


def load_usual_images(
    name: str, image_shape: tuple[int, int, int], data_dir: str | Path
) -> OtherImages:
    """Load the preferred one of the usual data sets that is available."""
    reasons = []
    for other in usual_names(name):
        try:
            return load_other_images(other, image_shape, data_dir)
        except UserError as error:
            print(f"{other} is not available as out-of-distribution data.", file=sys.stderr)
            reasons.append(str(error))
    listed = "\n".join(reasons) or "None is known."
    raise UserError(f"No out-of-distribution data set for {name} is available.\n{listed}")


def as_shape(images: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Convert uint8 images to another number of channels (grey or RGB) and resize them."""
    channels, *size = image_shape
    if images.shape[1] == 3 and channels == 1:
        weights = torch.tensor([0.299, 0.587, 0.114])  # ITU-R 601 luma
        images = torch.einsum("nchw,c->nhw", images.float(), weights)[:, None]
    images = images.expand(-1, channels, -1, -1)
    if list(images.shape[2:]) != size:
        images = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
    return images.round().clamp(0, 255).to(torch.uint8) if images.is_floating_point() else images
