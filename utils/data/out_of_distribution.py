"""Images that a trained network should not be sure about: test images of another data set.

Any data set can be chosen by name, also some classes of the network's own: CIFAR10_0-5 to train
on and CIFAR10_6-9 to be unsure about. MNIST-noise-3 are corrupted images, in one of five strengths,
the same for the same seed. Noise and contrast have the amounts of CIFAR-10-C (Hendrycks and
Dietterich, 2019), and blur those of its extra corruption gaussian_blur. Rotations are by 15 to 75
degrees.
"""

import math
import re
import sys
from pathlib import Path
from typing import NamedTuple

from utils.data.datasets import load_part, split_name
from utils.data.sources import source_of
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import torch
import torch.nn.functional as F
from scipy.ndimage import gaussian_filter
from torch import Tensor

CHUNK = 1000  # images at a time, to save memory


def add_noise(images: Tensor, std: float, random: torch.Generator) -> Tensor:
    """Add Gaussian noise to every pixel."""
    return images + std * torch.randn(images.shape, generator=random)


def blur(images: Tensor, radius: float, random: torch.Generator) -> Tensor:
    """Convolve with a Gaussian of this standard deviation, in pixels."""
    return torch.from_numpy(gaussian_filter(images.numpy(), (0, 0, radius, radius)))


def reduce_contrast(images: Tensor, factor: float, random: torch.Generator) -> Tensor:
    """Shrink the deviation of pixels from the mean of their channel in the image."""
    mean = images.mean((2, 3), keepdim=True)
    return mean + factor * (images - mean)


def rotate(images: Tensor, degrees: float, random: torch.Generator) -> Tensor:
    """Rotate each image to the left or to the right at random; corners become black."""
    signs = 1 - 2.0 * torch.randint(2, (len(images),), generator=random)
    angles = signs * math.radians(degrees)
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros(len(images))
    matrices = torch.stack([cos, -sin, zero, sin, cos, zero], 1).view(-1, 2, 3)
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


CORRUPTIONS = {  # name: function and its amount at strengths 1 to 5
    "noise": (add_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "blur": (blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "contrast": (reduce_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "rotation": (rotate, (15, 30, 45, 60, 75)),
}


def corrupt(images: Tensor, corruption: str, strength: int) -> Tensor:
    """Return corrupted uint8 images [N, C, H, W].

    All strengths use the same random numbers, whatever a run's seed, so that only the amount
    differs.
    """
    if corruption not in CORRUPTIONS:
        raise UserError(f"Unknown corruption {corruption!r}; there are: {', '.join(CORRUPTIONS)}.")
    function, amounts = CORRUPTIONS[corruption]
    if strength not in range(1, len(amounts) + 1):
        raise UserError(f"The strength of {corruption} is 1 to {len(amounts)}, not {strength}.")
    chunks = []
    for number, chunk in enumerate(images.cpu().split(CHUNK)):
        random = generator(0, "corruption", corruption, number)
        corrupted = function(chunk / 255, amounts[strength - 1], random)
        chunks.append((255 * corrupted.clamp(0, 1)).round().to(torch.uint8))
    return torch.cat(chunks).to(images.device)


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
        images = corrupt(images, corrupted[2], int(corrupted[3]))
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
