"""What gradients need to know of a network, and gradients of any network by autograd.

Full-batch gradients pass over a fixed data set, some rows at a time (`AutogradPasses`). Training
needs the gradients of stacks of networks on batches.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

MOMENTUM = 0.1  # how far a training step moves running statistics towards those of its batch


class AutogradPasses:
    """Data passes for any network that has `outputs(weights, images)`, made once per data set.

    `MLPPasses` and `KernelPasses` have the same methods. A gradient takes one `begin`, a `forward`
    and a `backward` for each chunk of rows, and one `finish`. Logits are valid until the next
    `forward`: others compute in buffers that they use again.

    A backward pass over active rows makes their forward pass a second time. That pays because
    Potential chooses rows only where at most 70 % are active, and usually few are.
    """

    chunk_rows = 1000  # the most rows of one forward pass
    flops = math.inf  # floating-point operations of the largest matrix product; infinity if unknown

    def __init__(self, network, images: Tensor):
        self._outputs, self._images = network.outputs, images

    def begin(self, weights: Tensor, gradient: Tensor) -> None:
        """Bind the weights [d], and set the gradient [d] to zero."""
        self._weights = weights.detach().requires_grad_()  # shares its memory with `weights`
        self._gradient = gradient.zero_()

    def forward(self, rows: slice | Tensor) -> Tensor:
        """Return the logits [n, classes] of the images at these rows."""
        self._inputs = self._images[rows]
        with torch.enable_grad():
            self._logits = self._outputs(self._weights, self._inputs)
        return self._logits.detach()

    def backward(self, errors: Tensor, active: Tensor | None = None) -> None:
        """Add the gradient whose derivatives by the logits of the last forward pass are `errors`.

        With `active`, an index into that pass's rows, errors [len(active), classes] are given
        for these rows only and all others are zero.
        """
        logits = self._logits
        if active is not None:
            with torch.enable_grad():
                logits = self._outputs(self._weights, self._inputs[active])
        (gradient,) = torch.autograd.grad(logits, self._weights, errors)
        self._gradient.add_(gradient)

    def finish(self) -> None:
        """Complete the gradient."""
        self._inputs = self._logits = None  # and with them the graph


class AutogradGradient:
    """The gradient of the cross-entropy at weights [K, d], written into another stack [K, d].

    It is called like `mlp_gradients.MLPGradient`. Networks with batch normalisation are computed
    with the statistics of the batch, and their running statistics, which are among the weights, are
    updated. The gradient there is 0.
    """

    def __init__(self, network, weights: Tensor, gradient: Tensor):
        self._network, self._weights, self._gradient = network, weights, gradient

    def __call__(self, inputs: Tensor, labels: Tensor, *, scale: float, keep: float) -> Tensor:
        """Return the NLL [K, rows]; gradient ← keep · gradient + scale · ∂ΣNLL/∂weights."""
        together = self._network.members_together
        parts = [slice(start, start + together) for start in range(0, len(inputs), together)]
        return torch.cat([self._add(part, inputs, labels, scale, keep) for part in parts])

    def _add(
        self, members: slice, inputs: Tensor, labels: Tensor, scale: float, keep: float
    ) -> Tensor:
        weights, gradient = self._weights[members], self._gradient[members]
        with torch.enable_grad():
            # .data counts versions by itself: other threads change other members in place.
            leaf = weights.data.requires_grad_()
            logits, statistics = self._network.batch_outputs(leaf, inputs[members])
            nll = F.cross_entropy(logits.mT, labels[members], reduction="none")
            (slope,) = torch.autograd.grad(nll.sum(), leaf)
        if keep:
            gradient.mul_(keep).add_(slope, alpha=scale)
        else:  # it may hold anything
            torch.mul(slope, scale, out=gradient)
        self._network.update_buffers(weights, statistics, MOMENTUM)
        return nll.detach()
