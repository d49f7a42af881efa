"""Small networks with convolutions: a grouped one, and a residual one with batch normalisation."""

import math
from functools import cached_property

from utils.networks.mlp import MLP
from utils.networks.network import NONE, Group, Network, Slot, lay_out

import torch
import torch.nn.functional as F
from torch import Tensor


class ToyConvNet(Network):
    """A network of one weight vector; a stack of vectors is computed one after the other."""

    input_shape = (2, 5, 5)
    num_classes = 3

    def trace(self, weights: Tensor, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        self.check(weights)
        if weights.dim() == 1:
            return self.forward({slot.name: slot.of(weights) for slot in self.slots}, images)
        shared = images.dim() == 1 + len(self.input_shape)
        pairs = zip(weights, [images] * len(weights) if shared else images, strict=True)
        traces = [self.trace(*pair) for pair in pairs]
        names = traces[0][0]
        hidden = {name: torch.stack([trace[0][name] for trace in traces]) for name in names}
        return hidden, torch.stack([trace[1] for trace in traces])

    def forward(self, tensors: dict[str, Tensor], images: Tensor):
        raise NotImplementedError


class GroupedConvNet(ToyConvNet):
    """Two convolutions, of which the second has groups; then a mean over positions.

    The blocks of the second convolution are units of "g": they move with the channels "c" that they
    read and the channels "d" that they write.
    """

    name = "toy_grouped"

    def __init__(self, blocks: int = 2, width: int = 3):
        self.blocks, self.width = blocks, width
        self.groups = {
            "g": Group(blocks, NONE),
            "c": Group(width, within="g"),
            "d": Group(width, within="g"),
        }

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        g, n = self.blocks, self.width
        rest = (None, None, None)
        return lay_out(
            Slot("W1", (g, n, 2, 3, 3), ("g", "c", *rest), (0, 1, 0, 0, 0), bound=0.5),
            Slot("b1", (g, n), ("g", "c"), (0, 1), "bias", bound=0.5),
            Slot("W2", (g, n, n, 2, 2), ("g", "d", "c", None, None), (0, 1, -1, 0, 0), bound=0.5),
            Slot("b2", (g, n), ("g", "d"), (0, 1), "bias", bound=0.5),
            Slot("W3", (3, g, n), (None, "g", "d"), (0, 0, -1), bound=1.0),
            Slot("b3", (3,), (None,), (0,), "bias", bound=1.0),
        )

    def forward(self, tensors, images):
        w1, b1, w2, b2, w3, b3 = (tensors[slot.name] for slot in self.slots)
        shape = (self.blocks, self.width)
        c = F.conv2d(images, w1.flatten(0, 1), b1.flatten()).relu().unflatten(1, shape)
        d = F.conv2d(c.flatten(1, 2), w2.flatten(0, 1), b2.flatten(), groups=self.blocks)
        hidden = {"c": c, "d": d.relu().unflatten(1, shape)}
        return hidden, torch.einsum("kgd,ngd->nk", w3, hidden["d"].mean((-1, -2))) + b3


class ResidualConvNet(ToyConvNet):
    """A residual block over a stream "s", whose normalised channels are read by the channels "h".

    The normalisation has running means and variances, and no ε, so it undoes every scale of the
    stream.
    """

    name = "toy_residual"
    groups = {"s": Group(4), "h": Group(5)}  # noqa: RUF012

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        rest = (None, None, None)
        return lay_out(
            Slot("stem", (4, 2, 3, 3), ("s", *rest), (1, 0, 0, 0), bound=0.5),
            Slot("stem bias", (4,), ("s",), (1,), "bias", bound=0.5),
            Slot("mean", (4,), ("s",), (1,), "buffer", bound=0.5),
            Slot("variance", (4,), ("s",), (2,), "buffer", bound=0.5, center=1.0),
            Slot("gamma", (4,), ("s",), (0,), bound=0.5, center=1.0),
            Slot("beta", (4,), ("s",), (0,), "bias", bound=0.5),
            Slot("in", (5, 4, 3, 3), ("h", "s", None, None), (1, 0, 0, 0), bound=0.5),
            Slot("in bias", (5,), ("h",), (1,), "bias", bound=0.5),
            Slot("out", (4, 5, 1, 1), ("s", "h", None, None), (1, -1, 0, 0), bound=0.5),
            Slot("head", (3, 4), (None, "s"), (0, -1), bound=1.0),
            Slot("head bias", (3,), (None,), (0,), "bias", bound=1.0),
        )

    def forward(self, tensors, images):
        stem = F.conv2d(images, tensors["stem"], tensors["stem bias"], padding=1)
        parts = (tensors[name] for name in ("mean", "variance", "gamma", "beta"))
        normal = F.batch_norm(stem, *parts, eps=0.0)
        h = F.conv2d(normal, tensors["in"], tensors["in bias"], padding=1).relu()
        s = stem + F.conv2d(h, tensors["out"])
        logits = s.mean((-1, -2)) @ tensors["head"].T + tensors["head bias"]
        return {"s": s, "h": h}, logits


class WrongTable(MLP):
    """An MLP whose table forgets that the outgoing weights belong to units."""

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(
            slot._replace(axes=(slot.axes[0], None)) if len(slot.axes) == 2 else slot
            for slot in super().slots
        )


NETWORKS = {
    "no hidden units": MLP((6, 3)),
    "relu": MLP((6, 8, 3)),
    "deep relu": MLP((6, 8, 7, 9, 3)),
    "tanh": MLP((6, 8, 7, 3), "tanh"),
    "silu": MLP((6, 8, 7, 3), "silu"),
    "grouped": GroupedConvNet(),
    "residual": ResidualConvNet(),
}


def inputs_for(network: Network, count: int = 50, seed: int = 99) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(count, *network.input_shape, generator=random)


def num_hidden_units(network: Network) -> int:
    return sum(math.prod(network.units(name)) for name in network.groups)
