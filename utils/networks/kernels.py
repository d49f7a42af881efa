"""Networks computed in C (NAME.c): gradients of stacks on batches, passes over a data set, logits.

Images are computed side by side, one in each lane of a vector (lanes.h). The networks of a stack
are computed one after the other, so each has the same numbers in every stack.

The code is compiled where it runs and kept in build/. It serves networks so small that PyTorch
spends its time between operations. Where there is no C compiler PyTorch computes the same, up to
rounding.
"""

import atexit
import ctypes
import hashlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from utils.networks.autograd import DataPasses
from utils.networks.conv_network import ConvNetwork
from utils.networks.mlp_gradients import softmax_errors
from utils.runs.compute import c_compiler, c_compiler_version, processor

import torch
from torch import Tensor

LANES = 16  # as in lanes.h
ALIGNMENT = 64  # bytes
BUILD = Path(__file__).parents[2] / "build"
# The processor's own instructions, under the names that compilers have for them.
FOR_THIS_MACHINE = (["-march=native"], ["-mcpu=native"], [])
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC", "-Wno-psabi"]


@cache
def library(name: str, **constants: int) -> ctypes.CDLL | None:
    """Return the library compiled from NAME.c with these constants, or None, and say why."""
    source = Path(__file__).with_name(f"{name}.c")
    try:
        defined = [f"-D{key}={value}" for key, value in constants.items()]
        return ctypes.CDLL(str(_built(source, defined)))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        print(
            f"{name} is not computed in C but by PyTorch, four times slower or more, because "
            f"{source.name} cannot be compiled: {lines[0] if lines else error}",
            file=sys.stderr,
        )
        return None


def _built(source: Path, defined: list[str]) -> Path:
    """Return the compiled file, which other processes may be making at the same time.

    Its name has the digests of what it is made of and of what it is. To load a damaged file would
    kill the process.
    """
    version = c_compiler_version() or ""
    headers = [path.read_text() for path in sorted(source.parent.glob("*.h"))]
    made_of = "\n".join([source.read_text(), *headers, version, processor(), *FLAGS, *defined])
    name = f"{source.stem}-{_digest(made_of.encode())}"
    folder = BUILD if _writable(BUILD) else _temporary_folder()
    for path in folder.glob(f"{name}-*.so"):
        if path.name == f"{name}-{_digest(path.read_bytes())}.so":
            return path
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / f"{name}.so"
        for instructions in FOR_THIS_MACHINE:
            command = [*c_compiler(), *FLAGS, *instructions, *defined, str(source), "-o", str(made)]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode == 0:
                break
        result.check_returncode()
        path = folder / f"{name}-{_digest(made.read_bytes())}.so"
        made.replace(path)
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


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
        self._library.forward(*self._arguments(), ctypes.c_int(keep), _address(logits))
        return logits

    def backward(self, errors: Tensor, gradient: Tensor) -> None:
        """Add the gradient whose derivatives by the logits of the last pass are `errors`."""
        if not gradient.is_contiguous():
            raise ValueError("The gradient must be a whole stack of vectors.")
        errors = errors.contiguous()
        self._library.backward(*self._arguments(), _address(errors), _address(gradient))

    def _arguments(self) -> tuple:
        return (
            ctypes.c_long(len(self._weights)), ctypes.c_long(self.count),
            _address(self._weights), _address(self._images), ctypes.c_long(self._stride),
            _address(self._rows), self._space.address, self._traces.address,
        )  # fmt: skip


class Buffer:
    """Memory that starts at a cache line, and grows when more is needed."""

    def __init__(self):
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def hold(self, size: int) -> None:
        if len(self._bytes) < size + ALIGNMENT:
            self._bytes = torch.empty(size + ALIGNMENT, dtype=torch.uint8)

    @property
    def address(self) -> ctypes.c_void_p:
        start = self._bytes.data_ptr()
        return ctypes.c_void_p(start + -start % ALIGNMENT)


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
    """`autograd.DataPasses` by a kernel. Every process computes on one thread."""

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

    def data_passes(self, images: Tensor) -> DataPasses:
        kernel = self._kernel_for(images)
        return super().data_passes(images) if kernel is None else KernelPasses(kernel, images)

    def _kernel_for(self, *tensors: Tensor) -> Kernel | None:
        """Return a kernel if these tensors are float32 on a CPU, and there is a compiler."""
        if any(each.dtype != torch.float32 or each.device.type != "cpu" for each in tensors):
            return None
        compiled = library(self.name, **self.constants)
        if compiled is None:
            return None
        compiled.trace_bytes.restype = compiled.space_bytes.restype = ctypes.c_long
        return Kernel(compiled, self.input_shape, self.num_classes)


def _address(tensor: Tensor | None) -> ctypes.c_void_p | None:
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())
