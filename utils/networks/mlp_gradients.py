"""The gradient of the cross-entropy in closed form, for a stack of networks at once.

With h_0 = x, h_l = φ(h_{l−1} W_lᵀ + b_l), logits z = h_{L−1} W_Lᵀ + b_L and one-hot labels y:

    δ_L = softmax(z) − y        δ_{l−1} = (δ_l W_l) ∘ φ'(h_{l−1})
    ∂/∂W_l = δ_lᵀ h_{l−1}       ∂/∂b_l = Σ_n δ_l(n)

No graph is recorded, every product lands in a buffer that is used again, and the gradient can be
added to what is already there, such as a momentum, within the matrix product itself. A layer whose
bias is None has it in its weight, as the column that meets an input of ones.
"""

from utils.runs.errors import UserError

import torch
from torch import Tensor

CLOSED_FORM = ("relu", "tanh")  # activations whose derivative is written down here
Layers = list[tuple[Tensor, Tensor | None]]  # weight [stack, out, in] and bias [stack, out]


class Backprop:
    """Forward and backward pass with buffers for [stack, rows] points at most."""

    def __init__(
        self,
        network,
        stack: int,
        rows: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        if network.activation not in CLOSED_FORM:
            raise UserError(
                f"A network with {network.activation} cannot be trained: gradients are written "
                "down for relu and tanh."
            )
        self.activation = network.activation
        kind = {"device": device, "dtype": dtype}
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
        self,
        layers: Layers,
        inputs: Tensor,
        hidden: list[Tensor],
        errors: Tensor,
        gradient: Layers,
        keep: float,
    ) -> None:
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

    def cross_entropy(
        self,
        layers: Layers,
        inputs: Tensor,
        labels: Tensor,
        gradient: Layers,
        *,
        scale: float,
        keep: float,
    ) -> Tensor:
        """NLL [stack, rows] of each point; gradient ← keep · gradient + scale · ∂ΣNLL/∂weights."""
        *hidden, outputs = self.forward(layers, inputs)
        nll, errors = softmax_errors(outputs, labels)
        self.backward(layers, inputs, hidden, errors.mul_(scale), gradient, keep)
        return nll

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
        self._backprop = Backprop(network, len(weights), rows, weights.device, weights.dtype)
        self._layers, self._slots = network.layers(weights), network.layers(gradient)

    def __call__(self, inputs: Tensor, labels: Tensor, *, scale: float, keep: float) -> Tensor:
        """Return the NLL [K, rows]; gradient ← keep · gradient + scale · ∂ΣNLL/∂weights."""
        return self._backprop.cross_entropy(
            self._layers, inputs, labels, self._slots, scale=scale, keep=keep
        )


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
