"""Passes over a data set for any network that has `outputs(weights, images)`."""

import math

import torch
from torch import Tensor

CHUNK_ROWS = 1000


class AutogradPasses:
    """Data passes (see `data_passes`) by autograd.

    A backward pass over active rows makes their forward pass a second time. That pays because
    Potential chooses rows only where at most 70 % are active, and usually few are.
    """

    flops = math.inf

    def __init__(self, network, images: Tensor, chunk_rows: int = CHUNK_ROWS):
        self._outputs, self._images, self.chunk_rows = network.outputs, images, chunk_rows

    def begin(self, weights: Tensor, gradient: Tensor) -> None:
        self._weights = weights.detach().requires_grad_()  # shares its memory with `weights`
        self._gradient = gradient.zero_()

    def forward(self, rows: slice | Tensor) -> Tensor:
        self._inputs = self._images[rows]
        with torch.enable_grad():
            self._logits = self._outputs(self._weights, self._inputs)
        return self._logits.detach()

    def backward(self, errors: Tensor, active: Tensor | None = None) -> None:
        logits = self._logits
        if active is not None:
            with torch.enable_grad():
                logits = self._outputs(self._weights, self._inputs[active])
        (gradient,) = torch.autograd.grad(logits, self._weights, errors)
        self._gradient.add_(gradient)

    def finish(self) -> None:
        self._inputs = self._logits = None  # and with them the graph
