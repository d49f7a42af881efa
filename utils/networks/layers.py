"""Layers of convolutional networks that PyTorch lacks, or has in a slow form only.

Images and feature maps are [N, channels, height, width]. All layers are differentiable. Linear ones
can be recorded: what they read and write is all that Kronecker factors and Jacobians need.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# The smallest positive number of float32, so no difference of two unequal ones is smaller.
SMALLEST_FLOAT32 = 2.0**-149
FRN_EPS = 1e-6
BATCH_NORM_EPS = 1e-5


class LinearLayer(NamedTuple):
    """A layer in one forward pass: outputs = weight · inputs at every position, in each group."""

    weight: Tensor  # a view of the network's weights
    outputs: Tensor  # in the graph
    inputs: Callable[[], Tensor]  # returns [N, groups, inputs, positions]
    arranged: Callable[[Tensor], Tensor]  # makes outputs [N, groups, outputs, positions]


_recorded: ContextVar[list[LinearLayer] | None] = ContextVar("recorded", default=None)


@contextmanager
def recorded_layers() -> Iterator[list[LinearLayer]]:
    """Collect the linear layers of all forward passes in this block, which is in this thread."""
    layers = []
    token = _recorded.set(layers)
    try:
        yield layers
    finally:
        _recorded.reset(token)


def record_layer(
    weight: Tensor, outputs: Tensor, inputs: Callable[[], Tensor],
    arranged: Callable[[Tensor], Tensor],
) -> None:  # fmt: skip
    layers = _recorded.get()
    if layers is not None:
        layers.append(LinearLayer(weight, outputs, inputs, arranged))


def linear_map(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return F.linear(values, weight, bias) for values [N, inputs]."""
    outputs = F.linear(values, weight, bias)
    record_layer(weight, outputs, lambda: values[:, None, :, None], lambda g: g[:, None, :, None])
    return outputs


def convolve(images: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """Return F.conv2d(images, weight)."""
    outputs = F.conv2d(images, weight, stride=stride, padding=padding)

    def inputs() -> Tensor:
        return F.unfold(images, weight.shape[-2:], stride=stride, padding=padding)[:, None]

    record_layer(weight, outputs, inputs, lambda g: g.flatten(2)[:, None])
    return outputs


def pooled_convolution(images: Tensor, weight: Tensor, size: int) -> Tensor:
    """Return max_pool2d(conv2d(images, weight), size), for the first layer of a network.

    One convolution with stride `size` has the places in a window as channels, so the maximum is one
    over channels. On small images this takes a third of the time. The images need no gradient.
    """
    values = F.conv2d(images, shifted_kernels(weight, size), stride=size)
    record_pooled(images, weight, values, size)
    return largest(values.unflatten(1, (size * size, -1)))


def record_pooled(images: Tensor, weight: Tensor, values: Tensor, size: int) -> None:
    """Record a convolution whose outputs have the places of each window as channels."""
    height, width = values.shape[-2:]

    def inputs() -> Tensor:
        patches = F.unfold(images, weight.shape[-2:])
        columns = images.shape[-1] - weight.shape[-1] + 1
        patches = patches.unflatten(2, (-1, columns))[..., : height * size, : width * size]
        windows = patches.unflatten(3, (width, size)).unflatten(2, (height, size))
        return windows.permute(0, 1, 3, 5, 2, 4).flatten(2)[:, None]  # place, then window

    def arranged(gradient: Tensor) -> Tensor:
        by_place = gradient.unflatten(1, (size * size, -1)).transpose(1, 2)
        return by_place.flatten(2)[:, None]

    record_layer(weight, values, inputs, arranged)


def shifted_kernels(weight: Tensor, size: int) -> Tensor:
    """Return kernels [..., size² · O, C, h', w'] for each place in a window of max-pooling.

    The weight is [..., O, C, h, w].
    """
    room, places = size - 1, range(size)
    shifted = [F.pad(weight, (x, room - x, y, room - y)) for y in places for x in places]
    return torch.cat(shifted, -4)


def max_pool(values: Tensor, size: int) -> Tensor:
    """Return max_pool2d(values, size), whose own implementation is several times slower."""
    rows, columns = (side // size for side in values.shape[-2:])
    windows = values[..., : rows * size, : columns * size].unflatten(-1, (columns, size))
    windows = windows.unflatten(-3, (rows, size)).permute(0, 3, 5, 1, 2, 4)
    return largest(windows.flatten(1, 2))


class _Largest(torch.autograd.Function):
    """The maximum over axis 1. Its gradient goes to the first of several equal values.

    Faster than Tensor.amax (which shares gradients between equal values) and Tensor.max.
    """

    @staticmethod
    def forward(ctx, values: Tensor) -> Tensor:
        result = values.amax(1)
        ctx.save_for_backward(values, result)
        return result

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        values, result = ctx.saved_tensors
        shares, left = torch.empty_like(values), gradient
        for index in range(values.shape[1]):
            behind = values[:, index] - result  # 0 at the maximum, elsewhere negative
            share = torch.ops.aten.threshold_backward(left, behind, -SMALLEST_FLOAT32)
            shares[:, index] = share
            left = left - share
        return shares


largest = _Largest.apply


class _DenseConvolution(torch.autograd.Function):
    """A convolution of one channel as matrices [B, height · width, O · h' · w'].

    The weight is [B, O, h, w]. A flattened image times the matrix is the flattened result, and on
    small images such products are faster than convolutions.
    """

    @staticmethod
    def forward(ctx, weight: Tensor, height: int, width: int) -> Tensor:
        blocks, outputs, h, w = weight.shape
        ctx.shape = (height, width, outputs, height - h + 1, width - w + 1)
        ctx.kernel = (h, w)
        matrix = weight.new_zeros(blocks, *ctx.shape)
        _kernel_view(matrix, ctx.kernel).copy_(weight[..., None, None])
        return matrix.flatten(3).flatten(1, 2)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        shares = _kernel_view(gradient.contiguous().view(len(gradient), *ctx.shape), ctx.kernel)
        return sum(share for row in shares.unbind(-1) for share in row.unbind(-1)), None, None


dense_convolution = _DenseConvolution.apply


def _kernel_view(matrix: Tensor, kernel: tuple[int, int]) -> Tensor:
    """Return the view [B, O, i, j, y, x] of matrix [B, y + i, x + j, O, y, x]."""
    blocks, _, _, outputs, rows, columns = matrix.shape
    by_block, by_height, by_width, by_output, by_row, by_column = matrix.stride()
    return matrix.as_strided(
        (blocks, outputs, *kernel, rows, columns),
        (by_block, by_output, by_height, by_width, by_height + by_row, by_width + by_column),
    )


def filter_response_norm(values: Tensor, tau: Tensor, beta: Tensor, gamma: Tensor) -> Tensor:
    """Return max(γ x / √(ν² + ε) + β, τ), with ν² the mean of x² over positions.

    Filter response normalisation with a thresholded linear unit (Singh and Krishnan 2020). All
    parameters are [channels].
    """
    tau, beta, gamma = (parameter[:, None, None] for parameter in (tau, beta, gamma))
    scale = gamma * (values.square().mean((-1, -2), keepdim=True) + FRN_EPS).rsqrt()
    # max(a, τ) = τ + relu(a − τ), whose gradient is faster
    return tau + torch.addcmul(beta - tau, values, scale).relu()


def batch_norm(
    values: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    """Return γ (x − mean) / √(variance + ε) + β with these running statistics, as constants."""
    mean, variance = mean.detach(), variance.detach()
    return F.batch_norm(values, mean, variance, weight, bias, eps=BATCH_NORM_EPS)


def batch_norm_of_batch(
    values: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same with the batch's own statistics, and these: mean, unbiased variance."""
    mean, variance = torch.zeros_like(weight), torch.zeros_like(weight)
    normal = F.batch_norm(
        values, mean.detach(), variance.detach(), weight, bias, True, 1.0, BATCH_NORM_EPS
    )
    return normal, mean.detach(), variance.detach()
