"""OptuNet, the network of 392 weights whose posterior 8,192 published networks sample.

    conv 1→2, 4×4 · ReLU · max-pool 3 · conv 2→10, 5×5, in 2 groups · ReLU · mean · linear 10→10

Laurent, Aldea and Franchi (2024) found it with Optuna; the convolutions have no bias. The names of
its tensors in the published files are a guess.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from utils.networks.conv_network import linear
from utils.networks.layers import (
    dense_convolution,
    largest,
    record_layer,
    record_pooled,
    shifted_kernels,
)
from utils.networks.native.kernels import CompiledNetwork
from utils.networks.network import NONE, Group, Slot, lay_out

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCKS, CHANNELS = 2, 5  # of the second convolution: its groups, and the outputs of each
KERNELS, POOL = (4, 5), 3


@dataclass(frozen=True)
class OptuNet(CompiledNetwork):
    """A block "g" is a channel "c1" of the first convolution and the channels "c2" that read it."""

    name = "optunet"
    members_together = 8
    smallest_image = KERNELS[0] - 1 + POOL * KERNELS[1]
    groups: ClassVar = {
        "g": Group(BLOCKS, NONE),
        "c1": Group(1, within="g"),
        "c2": Group(5, within="g"),
    }

    def problem_with(self, channels: int, height: int, width: int) -> str | None:
        colour = "it takes grey images, of one channel"
        return colour if channels != 1 else super().problem_with(channels, height, width)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        small, large = KERNELS
        first = Slot(
            "conv1.weight", (BLOCKS, 1, 1, small, small),
            ("g", "c1", None, None, None), (0, 1, 0, 0, 0), bound=1 / small,
            original=(BLOCKS, 1, small, small),
        )  # fmt: skip
        second = Slot(
            "conv2.weight", (BLOCKS, CHANNELS, 1, large, large),
            ("g", "c2", "c1", None, None), (0, 1, -1, 0, 0), bound=1 / large,
            original=(BLOCKS * CHANNELS, 1, large, large),
        )  # fmt: skip
        head = linear("fc", self.num_classes, (BLOCKS, CHANNELS), None, ("g", "c2"))
        return lay_out(first, second, *head)

    def forward(self, tensors, images, statistics=None):
        stack = {name: tensor[None] for name, tensor in tensors.items()}
        hidden, logits = self.forward_stack(stack, images[None])
        return {name: values[0] for name, values in hidden.items()}, logits[0]

    def forward_stack(self, tensors, images, statistics=None):
        """Compute the first convolutions one by one, and all else for all networks at once."""
        first, second, weight, bias = tensors.values()
        kernels = shifted_kernels(first.flatten(1, 2), POOL)
        pairs = zip(images, kernels, strict=True)
        values = torch.stack([F.conv2d(image, kernel, stride=POOL) for image, kernel in pairs])
        stack, rows, _, height, width = values.shape
        values = values.flatten(0, 1)
        windows = values.unflatten(1, (POOL * POOL, BLOCKS))
        maps = largest(windows).unflatten(0, (stack, rows)).relu()
        matrix = dense_convolution(second.flatten(0, 1).squeeze(2), height, width)
        flat = maps.flatten(3).transpose(1, 2).flatten(0, 1)  # [K · blocks, N, positions]
        products = torch.bmm(flat, matrix)
        sums = products.relu().view(stack, BLOCKS, rows, CHANNELS, -1)
        means = sums.mean(-1).permute(0, 2, 1, 3).flatten(2)
        hidden = {"c1": maps.unsqueeze(3), "c2": sums.transpose(1, 2)}
        logits = torch.baddbmm(bias.unsqueeze(1), means, weight.flatten(2).mT)
        if stack == 1:
            record_pooled(images[0], first[0].flatten(0, 1), values, POOL)
            record_layer(
                second, products, lambda: _patches(maps[0]),
                lambda g: g.unflatten(2, (CHANNELS, -1)).transpose(0, 1),
            )  # fmt: skip
            record_layer(
                weight, logits, lambda: means[0, :, None, :, None],
                lambda g: g[0, :, None, :, None],
            )  # fmt: skip
        return hidden, logits


def _patches(maps: Tensor) -> Tensor:
    """Return what the second convolution reads at every position, [N, blocks, 25, positions]."""
    patches = F.unfold(maps.flatten(0, 1).unsqueeze(1), KERNELS[1])
    return patches.unflatten(0, maps.shape[:2])
