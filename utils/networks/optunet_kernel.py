"""OptuNet in C (optunet.c): gradients of stacks on batches, passes over a data set, and logits."""

import ctypes
import math
from collections.abc import Sequence

from utils.networks import native
from utils.networks.mlp_gradients import softmax_errors

import torch
from torch import Tensor

LANES = 16  # images that optunet.c computes side by side
ALIGNMENT = 64  # bytes


class OptuNetKernel:
    """Forward and backward passes of stacks of networks, in buffers that are used again."""

    def __init__(self, library: ctypes.CDLL, num_classes: int):
        self._library, self._classes = library, num_classes
        self._traces, self._errors = torch.empty(0), None

    def forward(self, weights: Tensor, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the logits [K, n, classes] of networks [K, d], in a buffer of their own.

        Images are [K, n, …], or [N, …] for all networks, of which rows [n] may be chosen.
        """
        shared = images.dim() == 4
        self._weights, self._images = weights.contiguous(), images.contiguous()
        self._rows, self._stride = rows, 0 if shared else self._images[0].numel()
        self.count = len(rows) if rows is not None else images.shape[0 if shared else 1]
        blocks = len(weights) * math.ceil(self.count / LANES)
        bytes_needed = blocks * self._library.trace_bytes() + ALIGNMENT
        if self._traces.nbytes < bytes_needed:
            self._traces = torch.empty(bytes_needed, dtype=torch.uint8)
        logits = torch.empty(len(weights), self.count, self._classes)
        self._library.forward(*self._arguments(), _address(logits), self._aligned())
        return logits

    def backward(self, errors: Tensor, gradient: Tensor) -> None:
        """Add the gradient whose derivatives by the logits of the last pass are `errors`."""
        if not gradient.is_contiguous():
            raise ValueError("The gradient must be a whole stack of vectors.")
        errors = errors.contiguous()
        arguments = *self._arguments(), _address(errors), self._aligned()
        self._library.backward(*arguments, _address(gradient))

    def _arguments(self) -> tuple:
        return (
            ctypes.c_long(len(self._weights)), ctypes.c_long(self.count),
            _address(self._weights), _address(self._images), ctypes.c_long(self._stride),
            _address(self._rows),
        )  # fmt: skip

    def _aligned(self) -> ctypes.c_void_p:
        start = self._traces.data_ptr()
        return ctypes.c_void_p(start + -start % ALIGNMENT)


class OptuNetGradient:
    """The gradient of the cross-entropy at weights [K, d], written into another stack [K, d]."""

    def __init__(self, kernel: OptuNetKernel, weights: Tensor, gradient: Tensor):
        self._kernel, self._weights, self._gradient = kernel, weights, gradient

    def __call__(self, inputs: Tensor, labels: Tensor, *, scale: float, keep: float) -> Tensor:
        """Return the NLL [K, rows]; gradient ← keep · gradient + scale · ∂ΣNLL/∂weights."""
        logits = self._kernel.forward(self._weights, inputs)
        nll, errors = softmax_errors(logits, labels)
        self._gradient.mul_(keep) if keep else self._gradient.zero_()
        self._kernel.backward(errors.mul_(scale), self._gradient)
        return nll


class OptuNetPasses:
    """`autograd.DataPasses` for OptuNet. Every process computes on one thread."""

    chunk_rows = 512  # what the backward pass needs of these stays in the processor's cache
    flops = 0.0

    def __init__(self, kernel: OptuNetKernel, images: Tensor):
        self._kernel, self._images = kernel, images

    def begin(self, weights: Tensor, gradient: Tensor) -> None:
        self._weights, self._gradient = weights[None], gradient.zero_()[None]

    def forward(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, slice):
            return self._kernel.forward(self._weights, self._images[rows])[0]
        return self._kernel.forward(self._weights, self._images, rows)[0]

    def backward(self, errors: Tensor, active: Tensor | None = None) -> None:
        if active is not None:
            full = errors.new_zeros(self._kernel.count, errors.shape[1])
            errors = full.index_add_(0, active, errors)
        self._kernel.backward(errors[None], self._gradient)

    def finish(self) -> None:
        """The gradient is complete after each backward pass."""


def optunet_kernel(
    tensors: Sequence[Tensor], input_shape: tuple[int, ...], num_classes: int
) -> OptuNetKernel | None:
    """Return a kernel if these tensors are float32 on a CPU, and there is a compiler."""
    if any(each.dtype != torch.float32 or each.device.type != "cpu" for each in tensors):
        return None
    _, height, width = input_shape
    library = native.library("optunet", HEIGHT=height, WIDTH=width, CLASSES=num_classes)
    if library is None:
        return None
    library.trace_bytes.restype = ctypes.c_long
    return OptuNetKernel(library, num_classes)


def _address(tensor: Tensor | None) -> ctypes.c_void_p | None:
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())
