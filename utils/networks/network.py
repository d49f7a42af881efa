"""A network as data: a forward function of one flat weight vector, and a table of its slots.

Weights are a vector [d] or a stack of vectors [K, d]; functions put the K in front of their result.
Samples of posteriors, members of ensembles and states of chains are all such vectors. A slot is one
tensor within the vector. Its labelled axes say which hidden units it belongs to, and from these
labels follow all symmetries of the network: see `utils.symmetry.transformation`.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from utils.networks.autograd import AutogradPasses
from utils.runs.files import save_json
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import torch
from torch import Tensor

RELU, TANH, NONE = "relu", "tanh", "none"


class Group(NamedTuple):
    """Hidden units that may change places with each other.

    The kind is the symmetry of their activation φ. RELU: φ(λz) = λφ(z) for λ > 0. TANH: φ(−z) =
    −φ(z). NONE: units can be permuted only.

    With `within` there is one such set of units for every unit of that group, and each set moves
    along with its unit. The channels of a grouped convolution lie within its groups.
    """

    size: int
    kind: str = RELU
    within: str | None = None


class Slot(NamedTuple):
    """One tensor within the flat vector."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]  # the group of units along each axis, nested ones after theirs
    powers: tuple[int, ...]  # of a unit's scale: 1 incoming, −1 outgoing, 2 running variance
    role: str = "weight"  # "weight", "bias", or "buffer": transformed too, but outside the prior
    bound: float = 0.0  # initial values are uniform in center ± bound
    center: float = 0.0
    start: int = 0  # of the tensor within the flat vector, set by `lay_out`
    original: tuple[int, ...] | None = None  # its shape in a state_dict, if that is another one

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def of(self, weights: Tensor) -> Tensor:
        """Return a view of this tensor, [*shape] or [K, *shape]."""
        return weights[..., self.start : self.start + self.size].unflatten(-1, self.shape)


class Network:
    """What every architecture has. A subclass also has `slots`, `groups` and `activations`.

    Images are [N, *input_shape], shared by a stack of weights, or [K, N, *input_shape].
    """

    name: str
    slots: tuple[Slot, ...]
    groups: dict[str, Group]  # from the input on
    input_shape: tuple[int, ...]
    num_classes: int
    pixel_slot: Slot | None = None  # whose last axis is the input's pixels, if there is one
    normalisation = "none"  # of its inputs: a kind that `Dataset.normalisation` knows
    chunk_rows = 2000  # images that pass through at a time: their activations stay in the cache
    members_together = 1  # of a stack, in a backward pass

    def describe(self) -> dict:
        """Return what network.json holds."""
        raise TypeError(f"{type(self).__name__} does not say how it is stored")

    def outputs(self, weights: Tensor, images: Tensor) -> Tensor:
        """Return the logits [N, classes] or [K, N, classes]."""
        return self.trace(weights, images)[1]

    def activations(self, weights: Tensor, images: Tensor) -> dict[str, Tensor]:
        """Return the activations of every group, each [N, units] or [N, units, positions…].

        Nested groups have one axis for each level of units. A group that others are nested in may
        be left out.
        """
        return self.trace(weights, images)[0]

    def trace(self, weights: Tensor, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return activations and logits of one forward pass."""
        raise TypeError(f"{type(self).__name__} has no forward function")

    def trace_line(
        self, first: Tensor, second: Tensor, fractions, images: Tensor
    ) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Yield the traces of (1 − λ) first + λ second for every λ in `fractions`."""
        return (self.trace(torch.lerp(first, second, at), images) for at in fractions)

    def data_passes(self, images: Tensor) -> AutogradPasses:
        """Return passes over these images for full-batch gradients of one network."""
        return AutogradPasses(self, images)

    def whole_gradient(
        self, images: Tensor, labels: Tensor
    ) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Return a function of weights and gradient [d] that replaces passes over all images.

        It sets the gradient to that of the NLL, and returns the NLL of each image. None if there is
        nothing faster than passes.
        """
        return None

    def batch_outputs(self, weights: Tensor, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the logits of a stack [K, d] in training, and statistics of the batch.

        With batch normalisation they are not those of `outputs`: batches are normalised by their
        own means and variances [K, channels], which are returned by the names of buffer slots.
        """
        return self.outputs(weights, images), {}

    def update_buffers(self, weights: Tensor, statistics: dict[str, Tensor], share: float) -> None:
        """Move buffers in weights [K, d] by a share of the way towards these statistics."""
        for slot in self.slots:
            if slot.role == "buffer":
                slot.of(weights).lerp_(statistics[slot.name], share)

    def zero_buffers(self, gradient: Tensor) -> None:
        """Set the entries of buffers to 0, which no optimiser or prior may move."""
        for slot in self.slots:
            if slot.role == "buffer":
                slot.of(gradient).zero_()

    @cached_property
    def has_buffers(self) -> bool:
        return any(slot.role == "buffer" for slot in self.slots)

    @cached_property
    def num_weights(self) -> int:
        return sum(slot.size for slot in self.slots)

    def check(self, weights: Tensor) -> None:
        """Refuse weights of another length."""
        if weights.shape[-1] != self.num_weights:
            raise UserError(
                f"These weights have {weights.shape[-1]} entries, but the network {self} has "
                f"{self.num_weights}."
            )

    def units(self, group: str) -> tuple[int, ...]:
        """Return the shape of numbers that belong to the group's units: [size], or with parents."""
        size, _, parent = self.groups[group]
        return (*self.units(parent), size) if parent else (size,)

    @cached_property
    def set_sizes(self) -> list[int]:
        """Return the size of every set of units that are permuted among themselves."""
        return [
            group.size
            for name, group in self.groups.items()
            for _ in range(math.prod(self.units(name)[:-1]))
        ]

    def slots_of(self, group: str) -> list[Slot]:
        return [slot for slot in self.slots if group in slot.axes]

    def initial_weights(self, generator: torch.Generator) -> Tensor:
        """Draw PyTorch's default initialisation: uniform in ±1/√fan_in for weights and biases."""
        weights = torch.empty(self.num_weights)
        for slot in self.slots:
            values = slot.of(weights)
            if slot.bound:
                low, high = slot.center - slot.bound, slot.center + slot.bound
                values.uniform_(low, high, generator=generator)
            else:
                values.fill_(slot.center)
        return weights

    def save(self, path: Path) -> None:
        save_json(path, self.describe())


def lay_out(*slots: Slot) -> tuple[Slot, ...]:
    """Return the slots with their places in a flat vector that has one after the other."""
    placed, start = [], 0
    for slot in slots:
        placed.append(slot._replace(start=start))
        start += slot.size
    return tuple(placed)


def initial_stack(
    network: Network, seed: int, streams: Iterable[Hashable], device: torch.device
) -> Tensor:
    """Draw where networks start [K, d]; each has a random stream of its own."""
    random = [generator(seed, "initial_weights", stream) for stream in streams]
    return torch.stack([network.initial_weights(each) for each in random]).to(device)
