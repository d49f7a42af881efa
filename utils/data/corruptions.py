"""Corruptions of test images in five strengths, the same for the same seed.

Noise and contrast have the amounts of CIFAR-10-C (Hendrycks and Dietterich, 2019), and blur those
of its extra corruption gaussian_blur. Rotations are by 15 to 75 degrees.
"""

import math

from utils.runs.errors import UserError
from utils.runs.seeding import generator

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


def corrupt(images: Tensor, corruption: str, strength: int, seed: int) -> Tensor:
    """Return corrupted uint8 images [N, C, H, W].

    All strengths use the same random numbers, so that only the amount differs.
    """
    if corruption not in CORRUPTIONS:
        raise UserError(f"Unknown corruption {corruption!r}; there are: {', '.join(CORRUPTIONS)}.")
    function, amounts = CORRUPTIONS[corruption]
    if strength not in range(1, len(amounts) + 1):
        raise UserError(f"The strength of {corruption} is 1 to {len(amounts)}, not {strength}.")
    chunks = []
    for number, chunk in enumerate(images.cpu().split(CHUNK)):
        random = generator(seed, "corruption", corruption, number)
        corrupted = function(chunk / 255, amounts[strength - 1], random)
        chunks.append((255 * corrupted.clamp(0, 1)).round().to(torch.uint8))
    return torch.cat(chunks).to(images.device)
