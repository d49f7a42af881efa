"""The multilayer perceptron.

Layout of its weights: for each layer its weight (out × in, row by row), then its bias.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from utils.networks.autograd import AutogradGradient, AutogradPasses
from utils.networks.layers import linear_map
from utils.networks.mlp_gradients import CLOSED_FORM, MLPGradient, MLPPasses
from utils.networks.native.small_mlp import SmallMLPGradient, small_mlp_gradient
from utils.networks.network import NONE, RELU, TANH, Group, Network, Slot, lay_out
from utils.settings.errors import UserError

import torch
from torch import Tensor

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "silu": torch.nn.functional.silu}
KINDS = {"relu": RELU, "tanh": TANH, "silu": NONE}


@dataclass(frozen=True)
class MLP(Network):
    """An architecture: layer sizes from input to output, and the hidden activation.

    With `empcov` inputs are images times the root of the covariance of so many training images, so
    that the prior N(0, 1) is that covariance for what a hidden unit reads of an image.
    """

    sizes: tuple[int, ...] = (784, 512, 10)
    activation: str = "relu"
    empcov: int = 0

    name = "mlp"

    def __post_init__(self):
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise UserError(f"A network needs two or more layer sizes of at least 1: {self.sizes}.")
        if self.activation not in ACTIVATIONS:
            raise UserError(
                f"Unknown activation {self.activation!r}; choose one of {', '.join(ACTIVATIONS)}."
            )

    def __str__(self) -> str:
        prior = ", EmpCov" if self.empcov else ""
        return f"{'-'.join(map(str, self.sizes))} ({self.activation}{prior})"

    def describe(self) -> dict:
        inputs = {"empcov": self.empcov} if self.empcov else {}
        return {"sizes": self.sizes, "activation": self.activation} | inputs

    @property
    def normalisation(self) -> str:
        return f"empcov {self.empcov}" if self.empcov else "none"

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(out, in) of every layer."""
        return list(zip(self.sizes[1:], self.sizes[:-1], strict=True))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.sizes[:1]

    @property
    def num_classes(self) -> int:
        return self.sizes[-1]

    @cached_property
    def groups(self) -> dict[str, Group]:
        kind = KINDS[self.activation]
        return {f"h{n}": Group(size, kind) for n, size in enumerate(self.sizes[1:-1], start=1)}

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        labels = [None, *self.groups, None]
        slots = []
        for number, (below, above) in enumerate(itertools.pairwise(labels), start=1):
            outputs, inputs = self.shapes[number - 1]
            powers, bound = (int(above is not None), -int(below is not None)), 1 / math.sqrt(inputs)
            slots += [
                Slot(f"W{number}", (outputs, inputs), (above, below), powers, bound=bound),
                Slot(f"b{number}", (outputs,), (above,), powers[:1], "bias", bound),
            ]
        return lay_out(*slots)

    @property
    def pixel_slot(self) -> Slot:
        return self.slots[0]

    def layers(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return views (weight, bias) of every layer: [out, in], [out], or with K in front."""
        self.check(weights)
        views = [slot.of(weights) for slot in self.slots]
        return list(zip(views[::2], views[1::2], strict=True))

    def trace(self, weights: Tensor, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        weight, bias = (slot.of(weights) for slot in self.slots[:2])
        self.check(weights)
        return self._above_first_layer(weights, _affine(weight, bias, images))

    def trace_line(
        self, first: Tensor, second: Tensor, fractions, images: Tensor
    ) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Yield the traces along a line; two products make the first layer's values for all λ.

        These values are linear in the weights before the activation.
        """
        start, end = (
            _affine(*(slot.of(weights) for slot in self.slots[:2]), images)
            for weights in (first, second)
        )
        for at in fractions:
            yield self._above_first_layer(torch.lerp(first, second, at), torch.lerp(start, end, at))

    def gradient(
        self, weights: Tensor, gradient: Tensor, rows: int
    ) -> MLPGradient | AutogradGradient:
        """Return the cross-entropy gradient, bound to these stacks [K, d].

        It is in closed form for relu and tanh.
        """
        if self.activation in CLOSED_FORM:
            return MLPGradient(self, weights, gradient, rows)
        return AutogradGradient(self, weights, gradient)

    def data_passes(self, images: Tensor) -> AutogradPasses | MLPPasses:
        closed_form = self.activation in CLOSED_FORM
        return MLPPasses(self, images) if closed_form else super().data_passes(images)

    def whole_gradient(self, images: Tensor, labels: Tensor) -> SmallMLPGradient | None:
        return small_mlp_gradient(self, images, labels)

    def _above_first_layer(
        self, weights: Tensor, values: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return activations and logits from the first layer's values before the activation."""
        activation, hidden = ACTIVATIONS[self.activation], {}
        for name, (weight, bias) in zip(self.groups, self.layers(weights)[1:], strict=True):
            hidden[name] = activation(values)
            values = _affine(weight, bias, hidden[name])
        return hidden, values


def _affine(weight: Tensor, bias: Tensor, values: Tensor) -> Tensor:
    if weight.dim() == 2 and values.dim() == 2:
        return linear_map(values, weight, bias)
    return values @ weight.mT + bias.unsqueeze(-2)
