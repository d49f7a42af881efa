"""The gradient of the cross-entropy of MLPs in closed form, for a stack of networks at once.

With h_0 = x, h_l = φ(h_{l−1} W_lᵀ + b_l), logits z = h_{L−1} W_Lᵀ + b_L and one-hot labels y:

    δ_L = softmax(z) − y        δ_{l−1} = (δ_l W_l) ∘ φ'(h_{l−1})
    ∂/∂W_l = δ_lᵀ h_{l−1}       ∂/∂b_l = Σ_n δ_l(n)

No graph is recorded, every product lands in a buffer that is used again, and the gradient can be
added to what is already there, such as a momentum, within the matrix product itself. A layer whose
bias is None has it in its weight, as the column that meets an input of ones.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

CLOSED_FORM = ("relu", "tanh")  # activations whose derivative is written down here
# The activations of so many rows stay in the processor's cache.
CHUNK_ROWS = 4000
# Input columns are kept in multiples of this, so that rows start at cache lines.
COLUMN_MULTIPLE = 16
Layers = list[tuple[Tensor, Tensor | None]]  # weight [stack, out, in] and bias [stack, out]


class Backprop:
    """Forward and backward pass with buffers for [stack, rows] points at most."""

    def __init__(self, network, stack: int, rows: int, **kind):
        """Make the buffers; `kind` is their device and dtype."""
        self.activation = network.activation
        self._values = [torch.empty(stack, rows, width, **kind) for width in network.sizes[1:]]
        self._deltas = [torch.empty_like(values) for values in self._values[:-1]]
        self._ones = torch.ones(1, 1, 1, **kind)

    def forward(self, layers: Layers, inputs: Tensor) -> list[Tensor]:
        """Hidden activations, then logits, each [stack, rows, width], in the buffers."""
        rows, outputs = inputs.shape[1], []
        for number, ((weight, bias), buffer) in enumerate(zip(layers, self._values, strict=True)):
            values = first_rows(buffer, rows)
            if bias is None:
                torch.bmm(inputs, weight.mT, out=values)
            else:
                torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT, out=values)
            if number < len(layers) - 1:
                values.relu_() if self.activation == "relu" else values.tanh_()
            outputs.append(values)
            inputs = values
        return outputs

    def backward(
        self, layers: Layers, inputs: Tensor, hidden: list[Tensor], errors: Tensor,
        gradient: Layers, keep: float,
    ) -> None:  # fmt: skip
        """gradient ← keep · gradient + the gradient whose output errors δ_L are `errors`."""
        rows = inputs.shape[1]
        ones = self._ones.expand(len(inputs), 1, rows)
        delta = errors
        for number in reversed(range(len(layers))):
            below = hidden[number - 1] if number else inputs
            weight_gradient, bias_gradient = gradient[number]
            weight_gradient.baddbmm_(delta.mT, below, beta=keep)
            if bias_gradient is not None:
                bias_gradient.unsqueeze(1).baddbmm_(ones, delta, beta=keep)
            if number:
                below_delta = first_rows(self._deltas[number - 1], rows)
                torch.bmm(delta, layers[number][0], out=below_delta)
                delta = self._through_activation(below_delta, below)

    def _through_activation(self, delta: Tensor, activations: Tensor) -> Tensor:
        """delta ∘ φ'(h), in place, with φ' written in terms of h = φ(·)."""
        if self.activation == "relu":
            return torch.ops.aten.threshold_backward(delta, activations, 0, grad_input=delta)
        return torch.ops.aten.tanh_backward(delta, activations, grad_input=delta)


class MLPGradient:
    """The gradient of the cross-entropy at weights [K, d], written into another stack [K, d].

    Both are bound once, so that training in place makes no views in its loop.
    """

    def __init__(self, network, weights: Tensor, gradient: Tensor, rows: int):
        kind = {"device": weights.device, "dtype": weights.dtype}
        self._backprop = Backprop(network, len(weights), rows, **kind)
        self._layers, self._gradient = network.layers(weights), network.layers(gradient)

    def __call__(self, inputs: Tensor, labels: Tensor, *, scale: float, keep: float) -> Tensor:
        """Return the NLL [K, rows]; gradient ← keep · gradient + scale · ∂ΣNLL/∂weights."""
        *hidden, outputs = self._backprop.forward(self._layers, inputs)
        nll, errors = softmax_errors(outputs, labels)
        errors.mul_(scale)
        self._backprop.backward(self._layers, inputs, hidden, errors, self._gradient, keep)
        return nll


def first_rows(buffer: Tensor, rows: int) -> Tensor:
    """The beginning of a buffer [stack, most rows, width] as [stack, rows, width], without gaps.

    Matrix products first copy a transposed operand that has gaps, as `buffer[:, :rows]` has.
    """
    stack, _, width = buffer.shape
    return buffer.view(-1)[: stack * rows * width].view(stack, rows, width)


def softmax_errors(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """NLL [stack, rows] of logits [stack, rows, classes], and its gradient softmax(z) − y."""
    log_probabilities = outputs.log_softmax(-1)
    labels = labels.unsqueeze(-1)
    nll = -log_probabilities.gather(-1, labels).squeeze(-1)
    errors = log_probabilities.exp_()
    errors.scatter_add_(-1, labels, errors.new_full((1, 1, 1), -1).expand(labels.shape))
    return nll, errors


# ---- passes over a fixed data set


class MLPPasses:
    """`AutogradPasses` by `Backprop`, with a first layer fitted to the images."""

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


def live_inputs(images: Tensor, multiple: int) -> tuple[Tensor, Tensor]:
    """Return the pixels that are not zero in all images [N, pixels], and inputs [N, width].

    Inputs are these pixels, a column of ones, and columns of zeros, at least one, up to a multiple.
    """
    live = images.any(dim=0).nonzero().squeeze(1)
    inputs = images.new_zeros(len(images), -(-(len(live) + 2) // multiple) * multiple)
    inputs[:, : len(live)], inputs[:, len(live)] = images[:, live], 1
    return live, inputs


class FirstLayer:
    """The products of layer 1, made smaller: only live pixels, and the bias within the product.

    The likelihood has no gradient by the weights of a pixel that is zero in all images, so leaving
    these pixels out is exact; 67 of MNIST's 784 are such. After the live pixels the inputs have a
    column of ones, whose weights are the bias, and zeros up to a multiple of COLUMN_MULTIPLE. There
    is at least one column of zeros: its gradient, zero, is that of all dead pixels.
    """

    def __init__(self, images: Tensor, num_outputs: int):
        live, self.inputs = live_inputs(images, COLUMN_MULTIPLE)
        self._ones, width = len(live), self.inputs.shape[1]
        self._pixels = F.pad(live, (0, width - self._ones))  # weights that meet zeros fill up
        self._columns = torch.full((images.shape[1],), width - 1, device=images.device)
        self._columns[live] = torch.arange(self._ones, device=images.device)
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
