"""Passes of OptuNet over a fixed data set, with the gradient written down and without allocations.

Images are kept as the windows that a unit of the pooled map sees, one per column, so that the first
convolution with its pooling is one matrix product and a maximum.
"""

import math

from utils.networks.layers import SMALLEST, dense_convolution, shifted_kernels

import torch
from torch import Tensor

CHUNK_ROWS = 250  # the windows of so many images stay in the processor's cache


class OptuNetPasses:
    """`autograd.DataPasses` for OptuNet.

    Where several places of a pooling window have the same value, they get equal shares of its
    gradient: autograd gives it to the first. Such places see equal pixels, so that their gradients
    are equal, too.
    """

    chunk_rows = CHUNK_ROWS

    def __init__(self, network, images: Tensor, pool: int):
        self._network, self._images, self._pool = network, images, pool
        first, second, *_ = network.slots
        self._blocks, self._channels = second.shape[:2]
        self._kernel, self._sides = first.shape[-1], pooled_sides(images, first.shape[-1], pool)
        self._windows = [self._windows_of(chunk) for chunk in images.split(CHUNK_ROWS)]
        rows, self._positions = min(CHUNK_ROWS, len(images)), math.prod(self._sides)
        sides = [side - second.shape[-1] + 1 for side in self._sides]
        self._sums = math.prod(sides)  # positions over which the second convolution is averaged
        size = self._blocks * self._positions * rows
        self._values, self._hits = images.new_empty(2, pool**2 * size)
        self._maps, self._map_errors = images.new_empty(2, size)
        products = rows * self._blocks * self._channels * self._sums
        self._products, self._product_errors = images.new_empty(2, products)
        self._ones = images.new_ones(1)
        self.flops = 2 * pool**2 * size * (self._kernel + pool - 1) ** 2

    def begin(self, weights: Tensor, gradient: Tensor) -> None:
        leaves = [part.detach().requires_grad_() for part in self._parts(weights)[:2]]
        with torch.enable_grad():
            kernels = shifted_kernels(leaves[0].flatten(0, 1), self._pool).flatten(1)
            matrix = dense_convolution(leaves[1].squeeze(2), *self._sides)
        self._leaves, self._arranged = leaves, (kernels, matrix)
        self._kernels, self._matrix = kernels.detach(), matrix.detach()
        self._arranged_gradients = torch.zeros_like(kernels), torch.zeros_like(matrix)
        _, _, self._weight, self._bias = self._parts(weights)
        self._gradients = self._parts(gradient.zero_())

    def forward(self, rows: slice | Tensor) -> Tensor:
        self._inputs = self._chunk(rows)
        columns = self._inputs.shape[1]
        count = columns // self._positions
        values = shaped(self._values, self._pool**2, self._blocks, columns)
        torch.mm(self._kernels, self._inputs, out=values.flatten(0, 1))
        maps = torch.amax(values, 0, out=shaped(self._maps, self._blocks, columns)).relu_()
        products = shaped(self._products, self._blocks, count, self._channels * self._sums)
        torch.bmm(maps.view(self._blocks, count, -1), self._matrix, out=products).relu_()
        means = products.view(self._blocks, count, self._channels, self._sums).mean(-1)
        self._means = means.transpose(0, 1).flatten(1)
        return torch.addmm(self._bias, self._means, self._weight.flatten(1).mT)

    def backward(self, errors: Tensor, active: Tensor | None = None) -> None:
        count = len(self._means)
        if active is not None:
            errors = errors.new_zeros(count, errors.shape[1]).index_add_(0, active, errors)
        first, second = self._arranged_gradients
        self._gradients[2].flatten(1).addmm_(errors.mT, self._means)
        self._gradients[3].add_(errors.sum(0))
        slopes = (errors @ self._weight.flatten(1)).div_(self._sums)
        slopes = slopes.view(count, self._blocks, self._channels, 1).transpose(0, 1)
        shape = self._blocks, count, self._channels, self._sums
        through = where_positive(slopes, shaped(self._products, *shape), self._product_errors)
        through = through.flatten(2)
        maps = shaped(self._maps, self._blocks, count, self._positions)
        second.baddbmm_(maps.mT, through)
        slopes = torch.bmm(through, self._matrix.mT, out=shaped(self._map_errors, *maps.shape))
        slopes = where_positive(slopes, maps, self._map_errors).flatten(1)
        first.addmm_(self._back_through_pooling(slopes).flatten(0, 1), self._inputs.mT)

    def finish(self) -> None:
        found = torch.autograd.grad(self._arranged, self._leaves, self._arranged_gradients)
        for gradient, part in zip(self._gradients, found, strict=False):
            gradient.copy_(part)
        self._arranged = None

    def _back_through_pooling(self, slopes: Tensor) -> Tensor:
        """Return the gradient [places, blocks, columns] at what the maximum is taken of."""
        shape = self._pool**2, self._blocks, slopes.shape[1]
        behind = shaped(self._values, *shape).sub_(shaped(self._maps, *shape[1:]))
        hits = where_positive(self._ones.expand(shape), behind, self._hits, -SMALLEST)
        return hits.mul_(slopes.div_(hits.sum(0).clamp_(min=1)))

    def _chunk(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, slice) and not rows.start % CHUNK_ROWS:
            windows = self._windows[rows.start // CHUNK_ROWS]
            if windows.shape[1] == (rows.stop - rows.start) * self._positions:
                return windows
        return self._windows_of(self._images[rows])

    def _windows_of(self, images: Tensor) -> Tensor:
        """Return the pixels of every window [pixels, images · positions]."""
        side = self._kernel + self._pool - 1
        windows = images.squeeze(1).unfold(1, side, self._pool).unfold(2, side, self._pool)
        return windows.permute(3, 4, 0, 1, 2).reshape(side * side, -1)

    def _parts(self, weights: Tensor) -> list[Tensor]:
        return [slot.of(weights) for slot in self._network.slots]


def pooled_sides(images: Tensor, kernel: int, pool: int) -> tuple[int, int]:
    height, width = images.shape[-2:]
    return (height - kernel + 1) // pool, (width - kernel + 1) // pool


def shaped(buffer: Tensor, *shape: int) -> Tensor:
    """Return the beginning of a buffer in this shape."""
    return buffer[: math.prod(shape)].view(shape)


def where_positive(slopes: Tensor, values: Tensor, buffer: Tensor, threshold=0.0) -> Tensor:
    """Return the slopes where values are above the threshold, and 0 elsewhere, in the buffer."""
    out = shaped(buffer, *values.shape)
    return torch.ops.aten.threshold_backward.grad_input(slopes, values, threshold, grad_input=out)
