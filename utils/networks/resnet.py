"""Residual networks of basic blocks (He et al. 2016), for small images.

    stem 3×3 · φ · stages of blocks x ← φ(x + norm conv φ norm conv x) · mean · linear

A stage after the first halves the maps and doubles the channels, which its first block also
projects. Every convolution has a normalisation behind it and no bias. The channels of a stage are
one group, shared by everything that is added up there.

With filter response normalisation, which has no running statistics, φ is SiLU, as in Izmailov et
al. (2021). Tensors are named as in TorchUncertainty. ResNet-18 has batch normalisation, whose
running statistics are slots like weights. In training, batches are normalised by their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from utils.networks.conv_network import ConvNetwork, Statistics, Tensors, convolution, linear
from utils.networks.layers import (
    batch_norm,
    batch_norm_of_batch,
    convolve,
    filter_response_norm,
    linear_map,
)
from utils.networks.network import NONE, RELU, Group, Slot, lay_out

import torch.nn.functional as F
from torch import Tensor


class Block(NamedTuple):
    """Two convolutions, from the channels of group `below` through `inner` to those of `above`."""

    name: str
    below: str
    inner: str
    above: str
    inputs: int
    channels: int
    stride: int

    @property
    def projects(self) -> bool:
        return self.below != self.above


@dataclass(frozen=True)
class ResNet(ConvNetwork):
    """A subclass says how many blocks each stage has, and how they are normalised."""

    width: int = 16  # channels of the first stage

    stages: ClassVar[tuple[int, ...]]  # blocks in each
    kind: ClassVar[str]  # of the activation
    activation: ClassVar[Callable[[Tensor], Tensor]]
    chunk_rows = 100

    def norm_slots(self, name: str, group: str, channels: int) -> list[Slot]:
        raise NotImplementedError

    def normalize(
        self, values: Tensor, name: str, tensors: Tensors, statistics: Statistics | None
    ) -> Tensor:
        raise NotImplementedError

    @cached_property
    def blocks(self) -> list[Block]:
        blocks, below, inputs = [], "stage1", self.width
        for stage, count in enumerate(self.stages, start=1):
            above, channels = f"stage{stage}", self.width * 2 ** (stage - 1)
            for number in range(count):
                name = f"layer{stage}.{number}"
                stride = 1 if below == above else 2
                blocks.append(Block(name, below, name, above, inputs, channels, stride))
                below, inputs = above, channels
        return blocks

    @cached_property
    def groups(self) -> dict[str, Group]:
        groups = {"stage1": Group(self.width, self.kind)}
        for block in self.blocks:
            groups[block.inner] = Group(block.channels, self.kind)
            groups[block.above] = Group(block.channels, self.kind)
        return groups

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        slots = self._normalized("conv1", "bn1", "stage1", None, self.width, self.input_shape[0])
        for name, below, inner, above, inputs, channels, _ in self.blocks:
            first, second = ((f"{name}.conv{k}", f"{name}.bn{k}") for k in (1, 2))
            slots += self._normalized(*first, inner, below, channels, inputs)
            slots += self._normalized(*second, above, inner, channels, channels)
            if below != above:
                shortcut = (f"{name}.shortcut.0", f"{name}.shortcut.1")
                slots += self._normalized(*shortcut, above, below, channels, inputs, kernel=1)
        head = linear("linear", self.num_classes, (channels,), None, (above,))
        return lay_out(*slots, *head)

    def _normalized(
        self, conv: str, norm: str, above: str, below: str | None, outputs: int, inputs: int,
        kernel: int = 3,
    ) -> list[Slot]:  # fmt: skip
        shape = (outputs, inputs, kernel, kernel)
        weight = convolution(conv, shape, above, below, scaled=False)
        return weight + self.norm_slots(norm, above, outputs)

    def forward(self, tensors, images, statistics=None):
        def layer(values, conv, norm, stride=1):
            weight = tensors[f"{conv}.weight"]
            values = convolve(values, weight, stride, weight.shape[-1] // 2)
            return self.normalize(values, norm, tensors, statistics)

        activate = type(self).activation
        values = activate(layer(images, "conv1", "bn1"))
        hidden = {"stage1": values}
        for block in self.blocks:
            name = block.name
            inner = activate(layer(values, f"{name}.conv1", f"{name}.bn1", block.stride))
            change = layer(inner, f"{name}.conv2", f"{name}.bn2")
            if block.projects:
                values = layer(values, f"{name}.shortcut.0", f"{name}.shortcut.1", block.stride)
            values = activate(values + change)
            hidden[block.inner], hidden[block.above] = inner, values
        means = values.mean((-1, -2))
        return hidden, linear_map(means, tensors["linear.weight"], tensors["linear.bias"])


class FRNResNet(ResNet):
    """Its SiLU units can only be permuted."""

    kind = NONE
    activation = staticmethod(F.silu)

    def norm_slots(self, name: str, group: str, channels: int) -> list[Slot]:
        slot = Slot(f"{name}.tau", (channels,), (group,), (1,), "bias")
        slot = slot._replace(original=(1, channels, 1, 1))
        beta, gamma = slot._replace(name=f"{name}.beta"), slot._replace(name=f"{name}.gamma")
        return [slot, beta, gamma._replace(role="weight", center=1.0)]

    def normalize(self, values, name, tensors, statistics):
        parameters = (tensors[f"{name}.{each}"] for each in ("tau", "beta", "gamma"))
        return filter_response_norm(values, *parameters)


@dataclass(frozen=True)
class ResNet20FRN(FRNResNet):
    name = "resnet20_frn"
    stages = (3, 3, 3)


@dataclass(frozen=True)
class ResNet8FRN(FRNResNet):
    width: int = 8

    name = "resnet8_frn"
    stages = (1, 1, 1)


@dataclass(frozen=True)
class ResNet18(ResNet):
    """Its ReLU units can be scaled behind the normalisations, which undo all scales before them."""

    width: int = 64

    name = "resnet18"
    stages = (2, 2, 2, 2)
    kind = RELU
    activation = staticmethod(F.relu)

    def norm_slots(self, name: str, group: str, channels: int) -> list[Slot]:
        weight = Slot(f"{name}.weight", (channels,), (group,), (1,), center=1.0)
        bias = weight._replace(name=f"{name}.bias", role="bias", center=0.0)
        mean = bias._replace(name=f"{name}.running_mean", role="buffer", powers=(0,))
        variance = mean._replace(name=f"{name}.running_var", center=1.0)
        return [weight, bias, mean, variance]

    def normalize(self, values, name, tensors, statistics):
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        buffers = (f"{name}.running_mean", f"{name}.running_var")
        if statistics is None:
            return batch_norm(values, weight, bias, *(tensors[buffer] for buffer in buffers))
        normal, *of_batch = batch_norm_of_batch(values, weight, bias)
        statistics.update(zip(buffers, of_batch, strict=True))
        return normal
