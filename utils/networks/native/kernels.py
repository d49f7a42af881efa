"""Networks computed in C (NAME.c): gradients of stacks on batches, passes over a data set, logits.

Images are computed side by side, one in each lane of a vector (lanes.h). The networks of a stack
are computed one after the other, so each has the same numbers in every stack.
"""

import ctypes
import math
from dataclasses import dataclass

from utils.networks.autograd import AutogradPasses
from utils.networks.conv_network import ConvNetwork
from utils.networks.mlp_gradients import softmax_errors
from utils.networks.native import compilation
from utils.networks.native.compilation import LANES, Buffer, address

import torch
from torch import Tensor


class Kernel:
    """Forward and backward passes of stacks of networks, in buffers that are used again."""

    def __init__(self, library: ctypes.CDLL, input_shape: tuple[int, ...], num_classes: int):
        self._library, self._shape, self._classes = library, tuple(input_shape), num_classes
        self._space, self._traces = Buffer(), Buffer()
        self._space.hold(library.space_bytes())

    def forward(
        self, weights: Tensor, images: Tensor, rows: Tensor | None = None, *, keep: bool = True
    ) -> Tensor:
        """Return the logits [K, n, classes] of networks [K, d], in a buffer of their own.

        Images are [K, n, …], or [N, …] for all networks, of which rows [n] may be chosen. `keep`
        what a backward pass needs.
        """
        shared = images.dim() == 4
        if images.shape[-3:] != self._shape or not (shared or len(images) == len(weights)):
            raise ValueError(f"Images of {list(self._shape)} are needed, not {list(images.shape)}.")
        self._weights, self._images = weights.contiguous(), images.contiguous()
        self._rows, self._stride = rows, 0 if shared else self._images[0].numel()
        self.count = len(rows) if rows is not None else images.shape[0 if shared else 1]
        blocks = len(weights) * math.ceil(self.count / LANES)
        self._traces.hold(self._library.trace_bytes() * (blocks if keep else 1))
        logits = torch.empty(len(weights), self.count, self._classes)
        self._library.forward(*self._arguments(), ctypes.c_int(keep), address(logits))
        return logits

    def backward(self, errors: Tensor, gradient: Tensor) -> None:
        """Add the gradient whose derivatives by the logits of the last pass are `errors`."""
        if not gradient.is_contiguous():
            raise ValueError("The gradient must be a whole stack of vectors.")
        errors = errors.contiguous()
        self._library.backward(*self._arguments(), address(errors), address(gradient))

    def _arguments(self) -> tuple:
        return (
            ctypes.c_long(len(self._weights)), ctypes.c_long(self.count),
            address(self._weights), address(self._images), ctypes.c_long(self._stride),
            address(self._rows), self._space.address, self._traces.address,
        )  # fmt: skip


class KernelGradient:
    """The gradient of the cross-entropy at weights [K, d], written into another stack [K, d]."""

    def __init__(self, kernel: Kernel, weights: Tensor, gradient: Tensor):
        self._kernel, self._weights, self._gradient = kernel, weights, gradient

    def __call__(self, inputs: Tensor, labels: Tensor, *, scale: float, keep: float) -> Tensor:
        """Return the NLL [K, rows]; gradient ← keep · gradient + scale · ∂ΣNLL/∂weights."""
        logits = self._kernel.forward(self._weights, inputs)
        nll, errors = softmax_errors(logits, labels)
        self._gradient.mul_(keep) if keep else self._gradient.zero_()
        self._kernel.backward(errors.mul_(scale), self._gradient)
        return nll


class KernelPasses:
    """`AutogradPasses` by a kernel. Every process computes on one thread."""

    chunk_rows = 512  # what the backward pass needs of these stays in the processor's cache
    flops = 0.0

    def __init__(self, kernel: Kernel, images: Tensor):
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


@dataclass(frozen=True)
class CompiledNetwork(ConvNetwork):
    """A network that is computed in C where it can be, and elsewhere by PyTorch.

    The C code, NAME.c, takes float32 on a CPU. It makes no graph for autograd.
    """

    @property
    def constants(self) -> dict[str, int]:
        """Return the sizes that the C code is compiled with."""
        channels, height, width = self.input_shape
        classes = self.num_classes
        return {"CHANNELS": channels, "HEIGHT": height, "WIDTH": width, "CLASSES": classes}

    def outputs(self, weights: Tensor, images: Tensor) -> Tensor:
        kernel = None
        if not (torch.is_grad_enabled() and (weights.requires_grad or images.requires_grad)):
            kernel = self._kernel_for(weights, images)
        if kernel is None:
            return super().outputs(weights, images)
        self.check(weights)
        stack = weights[None] if weights.dim() == 1 else weights
        logits = kernel.forward(stack, images, keep=False)
        return logits[0] if weights.dim() == 1 else logits

    def gradient(self, weights: Tensor, gradient: Tensor, rows: int):
        kernel = self._kernel_for(weights)
        if kernel is None:
            return super().gradient(weights, gradient, rows)
        return KernelGradient(kernel, weights, gradient)

    def data_passes(self, images: Tensor) -> AutogradPasses | KernelPasses:
        kernel = self._kernel_for(images)
        return super().data_passes(images) if kernel is None else KernelPasses(kernel, images)

    def _kernel_for(self, *tensors: Tensor) -> Kernel | None:
        """Return a kernel if these tensors are float32 on a CPU, and there is a compiler."""
        if any(each.dtype != torch.float32 or each.device.type != "cpu" for each in tensors):
            return None
        library = compilation.library(self.name, **self.constants)
        if library is None:
            return None
        library.trace_bytes.restype = library.space_bytes.restype = ctypes.c_long
        return Kernel(library, self.input_shape, self.num_classes)
