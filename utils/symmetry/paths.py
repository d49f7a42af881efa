"""Losses along the straight line between two networks, and the barrier in between.

W_λ = (1 − λ) W_0 + λ W_1. What the loss at W_λ has over the straight line between the losses of
the two ends is the barrier there; two networks in one basin have none. The barrier between two
networks is the largest over λ for MNIST_net_matching.py, and that at λ = ½ for
MNIST_number_of_transpositions.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from utils.networks.mlp import ACTIVATIONS, Network, layer_outputs
from utils.networks.predictions import CHUNK_ROWS

import torch
from torch import Tensor


@dataclass(frozen=True)
class Line:
    """The networks W_λ; they can be scored and matched like any other `matching.Stack`.

    The first layer's values before the activation are linear in the weights, so those of every
    W_λ lie on the line between those of the ends: two products make them for all λ. Lines from
    W_0 to several W_1 come one after the other, and share W_0's.
    """

    network: Network
    first: Tensor  # W_0 [d]
    second: Tensor  # W_1 [d], or several [K, d]
    fractions: Sequence[float]  # the λ

    @cached_property
    def weights(self) -> Tensor:
        """[λ, d], or [K λ, d]"""
        ends = torch.atleast_2d(self.second)
        lines = [torch.lerp(self.first, end, at) for end in ends for at in self.fractions]
        return torch.stack(lines)

    def outputs(self, rows: Tensor) -> Iterator[list[Tensor]]:
        """Hidden activations and logits of each W_λ on some images."""
        activation = ACTIVATIONS[self.network.activation]
        # A flat vector without its first layer is that of the network without its first layer.
        upper = Network(self.network.sizes[1:], self.network.activation)
        start, line = self._first_layer(self.first, rows), iter(self.weights)
        for second in torch.atleast_2d(self.second):
            end = self._first_layer(second, rows)
            for at in self.fractions:
                hidden = activation(torch.lerp(start, end, at))
                yield [hidden, *layer_outputs(upper, next(line)[-upper.num_weights :], hidden)]

    def _first_layer(self, weights: Tensor, rows: Tensor) -> Tensor:
        weight, bias = self.network.layers(weights)[0]
        return torch.addmm(bias, rows, weight.T)


class Scores(NamedTuple):
    """Of K networks, in float64."""

    loss: Tensor  # [K]: mean cross-entropy [nats]
    error: Tensor  # [K]: share of points classified wrongly


def score(networks, images: Tensor, labels: Tensor) -> Scores:
    """Loss and error of each network of a `Line` or `Stack` on all images."""
    loss = torch.zeros(len(networks.weights), dtype=torch.float64, device=images.device)
    wrong = torch.zeros_like(loss)
    for rows, answers in zip(images.split(CHUNK_ROWS), labels.split(CHUNK_ROWS), strict=True):
        for k, (*_, logits) in enumerate(networks.outputs(rows)):
            nll = torch.nn.functional.cross_entropy(logits, answers, reduction="none")
            loss[k] += nll.double().sum()
            wrong[k] += (logits.argmax(-1) != answers).sum()
    return Scores(loss / len(images), wrong / len(images))


def barrier(values: Tensor, fractions: Sequence[float]) -> Tensor:
    """What `values` [..., λ], with λ from 0 to 1, have over the line between their two ends."""
    at = torch.as_tensor(fractions, dtype=values.dtype, device=values.device)
    return values - torch.lerp(values[..., :1], values[..., -1:], at)


def tensor_names(network: Network) -> list[str]:
    """W1, b1, W2, b2, …, then "total": the entries of `tensor_distances`."""
    numbers = range(1, len(network.sizes))
    return [f"{kind}{number}" for number in numbers for kind in "Wb"] + ["total"]


def tensor_distances(network: Network, first: Tensor, second: Tensor) -> Tensor:
    """Euclidean distance of two networks, for every weight matrix and bias, then in total."""
    difference = (first - second).double()
    tensors = [part for layer in network.layers(difference) for part in layer]
    return torch.stack([tensor.norm() for tensor in (*tensors, difference)])
