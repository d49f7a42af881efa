"""What convolutional networks share: a forward function of named tensors, and rows of the table."""

import dataclasses
import math
from dataclasses import dataclass

from utils.networks.autograd import AutogradGradient
from utils.networks.network import Network, Slot
from utils.settings.errors import UserError

import torch
from torch import Tensor

Tensors = dict[str, Tensor]  # by the slots' names
Statistics = dict[str, Tensor]  # of a batch, by the names of the running statistics


@dataclass(frozen=True)
class ConvNetwork(Network):
    """A network of images [channels, height, width].

    A subclass has `slots`, which are named like the tensors of PyTorch modules, `groups` and
    `forward`.
    """

    input_shape: tuple[int, int, int] = (1, 28, 28)
    num_classes: int = 10
    normalise: bool = False  # inputs by the data set's published mean and deviation

    name = "convolutional"
    chunk_rows = 500
    smallest_image = 1  # its height and width

    @property
    def normalisation(self) -> str:
        return "published" if self.normalise else "none"

    def __post_init__(self):
        shape = tuple(self.input_shape)
        is_image = len(shape) == 3 and min(shape) > 0
        problem = self.problem_with(*shape) if is_image else "it takes [channels, height, width]"
        if problem:
            raise UserError(f"{self.name} cannot take inputs of shape {list(shape)}: {problem}.")
        if self.num_classes < 1 or getattr(self, "width", 1) < 1:
            raise UserError(f"{self.name} needs at least one class, and a width of at least 1.")

    def problem_with(self, channels: int, height: int, width: int) -> str | None:
        """Say why images of this shape cannot be taken."""
        least = self.smallest_image
        too_small = f"images must have at least {least} × {least} pixels"
        return too_small if min(height, width) < least else None

    def __str__(self) -> str:
        width = f" of width {self.width}" if hasattr(self, "width") else ""
        return f"{self.name}{width} for {list(self.input_shape)}"

    def describe(self) -> dict:
        return {"network": self.name, **dataclasses.asdict(self)}

    def forward(
        self, tensors: Tensors, images: Tensor, statistics: Statistics | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return activations and logits of one network.

        Batch normalisation uses running statistics, or the batch's own if there is a dictionary to
        put these in.
        """
        raise TypeError(f"{type(self).__name__} has no forward function")

    def forward_stack(
        self, tensors: Tensors, images: Tensor, statistics: Statistics | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the same of a stack of networks, from tensors [K, …] and images [K, N, …]."""
        hidden, logits, batch = [], [], []
        for k in range(len(images)):
            batch.append(None if statistics is None else {})
            member = {name: tensor[k] for name, tensor in tensors.items()}
            trace = self.forward(member, images[k], batch[k])
            hidden.append(trace[0])
            logits.append(trace[1])
        if statistics is not None:
            statistics.update(_stack_by_name(batch))
        return _stack_by_name(hidden), _stack(logits)

    def trace(self, weights: Tensor, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        self.check(weights)
        if weights.dim() == 1:
            return self.forward(self.tensors(weights), images)
        return self.forward_stack(self.tensors(weights), self._for_each(weights, images))

    def batch_outputs(self, weights: Tensor, images: Tensor) -> tuple[Tensor, Statistics]:
        statistics = {}
        images = self._for_each(weights, images)
        _, logits = self.forward_stack(self.tensors(weights), images, statistics)
        return logits, statistics

    def gradient(self, weights: Tensor, gradient: Tensor, rows: int) -> AutogradGradient:
        """Return the cross-entropy gradient by autograd, bound to these stacks [K, d]."""
        return AutogradGradient(self, weights, gradient)

    def tensors(self, weights: Tensor) -> Tensors:
        """Return views of all slots. Gradients of all of them are joined in one step."""
        parts = weights.split([slot.size for slot in self.slots], -1)
        return {
            slot.name: part.view(*weights.shape[:-1], *slot.shape)
            for slot, part in zip(self.slots, parts, strict=True)
        }

    def _for_each(self, weights: Tensor, images: Tensor) -> Tensor:
        shared = images.dim() == 1 + len(self.input_shape)
        return images.expand(len(weights), *images.shape) if shared else images


def _stack(tensors: list[Tensor]) -> Tensor:
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)


def _stack_by_name(each: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: _stack([values[name] for values in each]) for name in each[0]}


# ---- rows of the table


def convolution(
    name: str, shape: tuple[int, ...], above: str, below: str | None, *, scaled: bool = True,
    bias: bool = False,
) -> list[Slot]:  # fmt: skip
    """Return the slots of a convolution [out, in, height, width] between two groups of channels.

    A normalisation behind it undoes the scales of its outputs: then it is not `scaled`.
    """
    axes, powers = (above, below, None, None), (int(scaled), -int(below is not None), 0, 0)
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    slots = [Slot(f"{name}.weight", shape, axes, powers, bound=bound)]
    if bias:
        slots.append(Slot(f"{name}.bias", shape[:1], (above,), powers[:1], "bias", bound))
    return slots


def linear(
    name: str, outputs: int, inputs: tuple[int, ...], above: str | None, below: tuple
) -> list[Slot]:
    """Return the slots of a linear layer; its inputs have several axes where maps are flattened."""
    axes = (above, *below)
    powers = (int(above is not None), *(-int(group is not None) for group in below))
    size = math.prod(inputs)
    bound = 1 / math.sqrt(size)
    weight = Slot(f"{name}.weight", (outputs, *inputs), axes, powers, bound=bound)
    return [
        weight._replace(original=(outputs, size)),
        Slot(f"{name}.bias", (outputs,), (above,), powers[:1], "bias", bound),
    ]
