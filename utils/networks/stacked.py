"""The gradient of the cross-entropy by autograd, for stacks of any network."""

from utils.networks.network import Network

import torch
import torch.nn.functional as F
from torch import Tensor

MOMENTUM = 0.1  # how far a training step moves running statistics towards those of its batch


class AutogradGradient:
    """The gradient of the cross-entropy at weights [K, d], written into another stack [K, d].

    It is called like `mlp_gradients.MLPGradient`. Networks with batch normalisation are computed
    with the statistics of the batch, and their running statistics, which are among the weights, are
    updated. The gradient there is 0.
    """

    def __init__(self, network: Network, weights: Tensor, gradient: Tensor):
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
