"""Passes of an MLP over a fixed data set, in closed form and without allocations."""

from utils.networks.mlp_gradients import Backprop

import torch
import torch.nn.functional as F
from torch import Tensor

# The activations of so many rows stay in the processor's cache.
CHUNK_ROWS = 4000
# Input columns are kept in multiples of this, so that rows start at cache lines.
COLUMN_MULTIPLE = 16


class MLPPasses:
    """`autograd.DataPasses` by `Backprop`, with a first layer fitted to the images."""

    chunk_rows = CHUNK_ROWS

    def __init__(self, network, images: Tensor):
        self._network, images = network, images.flatten(1)
        self._first = FirstLayer(images, network.sizes[1])
        self._images = self._first.inputs
        rows, kind = min(CHUNK_ROWS, len(images)), {"device": images.device, "dtype": images.dtype}
        products = [self._first.weight.numel(), *(n * m for n, m in network.shapes[1:])]
        self.flops = 2 * rows * max(products)
        self._backprop = Backprop(network, 1, rows, **kind)
        self._gathered, self._active = torch.empty(2, rows, self._images.shape[1], **kind)
        self._active_hidden = [torch.empty(rows, n, **kind) for n in network.sizes[1:-1]]
        self._bound = None, None

    def begin(self, weights: Tensor, gradient: Tensor) -> None:
        if weights is not self._bound[0] or gradient is not self._bound[1]:
            self._bind(weights, gradient)
        gradient.zero_()
        self._first.load(*self._first_weights)

    def _bind(self, weights: Tensor, gradient: Tensor) -> None:
        """Make views of every layer, once for all steps that use the same tensors."""
        self._bound = weights, gradient
        self._first_weights, *layers = self._network.layers(weights)
        self._first_gradient, *gradients = self._network.layers(gradient)
        self._layers = [(self._first.weight, None), *stacks_of_one(layers)]
        self._gradients = [(self._first.gradient, None), *stacks_of_one(gradients)]

    def forward(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, slice):
            self._inputs = self._images[rows]
        else:
            self._inputs = self._gathered[: len(rows)]
            torch.index_select(self._images, 0, rows, out=self._inputs)
        *self._hidden, logits = self._backprop.forward(self._layers, self._inputs[None])
        return logits[0]

    def backward(self, errors: Tensor, active: Tensor | None = None) -> None:
        inputs, hidden = self._inputs, self._hidden
        if active is not None:
            count = len(active)
            inputs = torch.index_select(inputs, 0, active, out=self._active[:count])
            hidden = [
                torch.index_select(values[0], 0, active, out=buffer[:count])[None]
                for values, buffer in zip(hidden, self._active_hidden, strict=True)
            ]
        self._backprop.backward(
            self._layers, inputs[None], hidden, errors[None], self._gradients, keep=1
        )

    def finish(self) -> None:
        self._first.store_gradient(*self._first_gradient)


class FirstLayer:
    """The products of layer 1, made smaller: only live pixels, and the bias within the product.

    The likelihood has no gradient by the weights of a pixel that is zero in all images, so leaving
    these pixels out is exact; 67 of MNIST's 784 are such. After the live pixels the inputs have a
    column of ones, whose weights are the bias, and zeros up to a multiple of COLUMN_MULTIPLE. There
    is at least one column of zeros: its gradient, zero, is that of all dead pixels.
    """

    def __init__(self, images: Tensor, num_outputs: int):
        live = images.any(dim=0).nonzero().squeeze(1)
        self._ones = len(live)
        width = -(-(self._ones + 2) // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
        self._pixels = F.pad(live, (0, width - self._ones))  # weights that meet zeros fill up
        self._columns = torch.full((images.shape[1],), width - 1, device=images.device)
        self._columns[live] = torch.arange(self._ones, device=images.device)
        self.inputs = images[:, self._pixels]  # [N, width]
        self.inputs[:, self._ones :] = 0
        self.inputs[:, self._ones] = 1
        self.weight, self.gradient = self.inputs.new_empty(2, 1, num_outputs, width)

    def load(self, weight: Tensor, bias: Tensor) -> None:
        """Set the buffer `weight` to the layer's [out, in] and bias [out]; `gradient` to zero."""
        torch.index_select(weight, 1, self._pixels, out=self.weight[0])
        self.weight[0, :, self._ones] = bias
        self.gradient.zero_()

    def store_gradient(self, weight: Tensor, bias: Tensor) -> None:
        """Copy the buffer `gradient` into those of the layer's weight [out, in] and bias [out]."""
        torch.index_select(self.gradient[0], 1, self._columns, out=weight)
        bias.copy_(self.gradient[0, :, self._ones])


def stacks_of_one(layers: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(weight[None], bias[None]) for weight, bias in layers]
