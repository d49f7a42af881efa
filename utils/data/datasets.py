"""Data sets as tensors in memory, and as inputs of a network.

Loaded images are uint8 and keep their shape [N, C, H, W]. A network takes float32 inputs in [0, 1],
flattened for an MLP, and normalised if asked for. A name such as CIFAR10_0-5 or CIFAR10_0-1_8-9
stands for some of a data set's classes, renumbered from 0 in ascending order.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from utils.data.sources import SOURCES, read_part, source_of
from utils.settings.errors import UserError

import numpy as np
import torch
from torch import Tensor

RIDGE = 0.01  # added to the variance of pixels in [0, 1]


class Normalisation(NamedTuple):
    """Mean and standard deviation of each channel, for pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class CovarianceRoot(NamedTuple):
    """Σ^½ [pixels, pixels], by which flat images are multiplied."""

    matrix: Tensor


@dataclass(frozen=True)
class Dataset:
    """Training and test images with their class numbers, and validation images if asked for."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int = 10
    valid_images: Tensor | None = None
    valid_labels: Tensor | None = None

    @property
    def image_shape(self) -> tuple[int, ...]:
        return tuple(self.train_images.shape[1:])

    @property
    def num_pixels(self) -> int:
        """Return the number of values per image, over all channels."""
        return math.prod(self.image_shape)

    def to(self, device: torch.device) -> "Dataset":
        return replace(self, **{
            name: value.to(device) for name, value in vars(self).items() if torch.is_tensor(value)
        })  # fmt: skip

    def normalisation(self, kind: str) -> Normalisation | CovarianceRoot | None:
        """Return the published moments, or None for the kind "none".

        "empcov N" is the root of the covariance of the first N training images.
        """
        if kind == "none":
            return None
        if kind.startswith("empcov"):
            return covariance_root(self.train_images, int(kind.split()[1]))
        source = source_of(split_name(self.name)[0])
        return Normalisation(source.mean, source.std)

    def part(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the images and labels of "train" or "test"."""
        return getattr(self, f"{name}_images"), getattr(self, f"{name}_labels")

    def inputs(
        self,
        input_shape: Sequence[int],
        normalisation: Normalisation | CovarianceRoot | None = None,
    ) -> "Dataset":
        """Return the data set as a network with this input shape takes it."""
        flat = len(input_shape) == 1 and input_shape[0] == self.num_pixels
        if not flat and tuple(input_shape) != self.image_shape:
            wanted, own = ("×".join(map(str, shape)) for shape in (input_shape, self.image_shape))
            raise UserError(
                f"The network takes inputs of shape {wanted}, but images of {self.name} are {own}."
            )
        inputs = {
            name: network_inputs(images, input_shape, normalisation)
            for name, images in vars(self).items()
            if name.endswith("_images") and images is not None
        }
        return replace(self, **inputs)


def network_inputs(
    images: Tensor,
    input_shape: Sequence[int],
    normalisation: Normalisation | CovarianceRoot | None = None,
) -> Tensor:
    """Turn uint8 images, or float images in [0, 1], [..., C, H, W] into inputs
    [..., *input_shape] in float32."""
    scale = 1 if images.is_floating_point() else 255
    if isinstance(normalisation, Normalisation):
        mean, std = (
            (scale * torch.tensor(moment, device=images.device)).view(-1, 1, 1)
            for moment in normalisation
        )
        inputs = torch.sub(images, mean).float().div_(std)
    else:
        inputs = images.to(torch.float32, copy=True)
        if scale > 1:
            inputs.div_(scale)
    inputs = inputs.reshape(*images.shape[:-3], *input_shape)
    if isinstance(normalisation, CovarianceRoot):
        return inputs @ normalisation.matrix.to(inputs.device)
    return inputs


def covariance_root(images: Tensor, count: int) -> CovarianceRoot:
    """Return Σ^½ for the covariance Σ of the pixels of the first images, plus RIDGE of each.

    The prior N(0, Σ) on what a hidden unit reads is N(0, 1) for a network whose inputs are Σ^½ x
    (Izmailov et al. 2021, "Dangers of Bayesian model averaging under covariate shift").
    """
    if count > len(images):
        raise UserError(
            f"This network reads images by the covariance of the first {count} training images, "
            f"but only {len(images)} were loaded: give --num_train {count}, or more."
        )
    pixels = network_inputs(images[:count], [math.prod(images.shape[1:])]).double()
    covariance = pixels.T.cov() if count > 1 else pixels.new_zeros((pixels.shape[1],) * 2)
    values, vectors = torch.linalg.eigh(covariance)
    roots = (values.clamp(min=0) + RIDGE).sqrt()
    return CovarianceRoot(((vectors * roots) @ vectors.T).float())


def load_dataset(
    name: str, data_dir: str | Path, num_train: int | None = None, num_valid: int = 0
) -> Dataset:
    """Load a data set, fetched if need be; with `num_train` only its first training images.

    The last `num_valid` training images are for validation, whatever num_train is.
    """
    train_images, train_labels, num_classes = load_part(name, "train", data_dir)
    if num_classes < 2:
        raise UserError(f"{name} has a single class, so there is nothing to learn: give two.")
    if max(num_train or 1, 1) + num_valid > len(train_labels):
        valid = f" and num_valid {num_valid}" if num_valid else ""
        raise UserError(
            f"num_train is {num_train}{valid}, but {name} has {len(train_labels)} training images."
        )
    valid = {}
    if num_valid:
        valid["valid_images"] = train_images[-num_valid:].clone()
        valid["valid_labels"] = train_labels[-num_valid:].clone()
        num_train = num_train or len(train_labels) - num_valid
    if num_train is not None:
        train_images = train_images[:num_train].clone()  # so that the others can be freed
        train_labels = train_labels[:num_train].clone()
    test_images, test_labels, _ = load_part(name, "test", data_dir)
    return Dataset(name, train_images, train_labels, test_images, test_labels, num_classes, **valid)


def load_pixels(name: str, data_dir: str | Path, num_train: int | None = None) -> Dataset:
    """Load a data set for an MLP: images are rows of pixels in [0, 1]."""
    data = load_dataset(name, data_dir, num_train)
    return data.inputs([data.num_pixels])


def load_part(name: str, part: str, data_dir: str | Path) -> tuple[Tensor, Tensor, int]:
    """Load the "train" or "test" images [N, C, H, W] and labels [N], and the number of classes."""
    base, classes = split_name(name)
    images, labels = read_part(base, part, data_dir)
    labels = labels.astype(np.int64)
    if classes is None:
        chosen, num_classes = slice(None), source_of(base).num_classes
    else:
        chosen, num_classes = np.isin(labels, classes), len(classes)
        labels = np.searchsorted(classes, labels)
    # Arrays that lie in a file's content cannot be written to: these are copied.
    images, labels = (np.require(a[chosen], requirements=["C", "W"]) for a in (images, labels))
    return torch.from_numpy(images), torch.from_numpy(labels), num_classes


def split_name(name: str) -> tuple[str, list[int] | None]:
    """Split CIFAR10_0-1_8-9 into CIFAR10 and its classes 0, 1, 8 and 9; None means all."""
    match = re.fullmatch(r"(.+?)((?:_\d+(?:-\d+)?)+)", name)
    if name in SOURCES or not match:
        source_of(name)
        return name, None
    base, num_classes = match[1], source_of(match[1]).num_classes
    ranges = [[int(end) for end in ends.split("-")] for ends in match[2].strip("_").split("_")]
    if any(ends[0] > ends[-1] or ends[-1] >= num_classes for ends in ranges):
        raise UserError(
            f"{name} does not name classes of {base}: they are 0 to {num_classes - 1}, given as in "
            f"{base}_0-{num_classes // 2}."
        )
    return base, sorted({k for ends in ranges for k in range(ends[0], ends[-1] + 1)})
