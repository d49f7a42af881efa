"""The multilayer perceptron as functions of one flat weight vector.

Layout: for each layer its weight (out × in, row-major), then its bias. Functions take a vector
[d] or a stack of vectors [K, d] and put the K in front of their result. Rows of hidden layers,
ends of chains, samples of posteriors: everything elsewhere in the project is such a vector.
"""

import dataclasses
import json
import math
import operator
from dataclasses import dataclass
from pathlib import Path

from utils.runs.errors import UserError
from utils.runs.files import save_json

import torch
from torch import Tensor

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}
NETWORK_EXAMPLE = '{"sizes": [784, 512, 10], "activation": "relu"}'  # a network.json


@dataclass(frozen=True)
class Network:
    """An architecture: layer sizes from input to output, and the hidden activation."""

    sizes: tuple[int, ...] = (784, 512, 10)
    activation: str = "relu"

    def __post_init__(self):
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise UserError(f"A network needs two or more layer sizes of at least 1: {self.sizes}.")
        if self.activation not in ACTIVATIONS:
            there = ", ".join(ACTIVATIONS)
            raise UserError(f"Unknown activation {self.activation!r}; there are: {there}.")

    def __str__(self) -> str:
        return f"{'-'.join(map(str, self.sizes))} ({self.activation})"

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(out, in) of every layer."""
        return list(zip(self.sizes[1:], self.sizes[:-1], strict=True))

    @property
    def num_weights(self) -> int:
        return sum(outputs * inputs + outputs for outputs, inputs in self.shapes)

    def layers(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Views (weight, bias) of every layer: [out, in], [out], or with K in front."""
        if weights.shape[-1] != self.num_weights:
            raise UserError(
                f"These weights have {weights.shape[-1]} entries, but the network "
                f"{'-'.join(map(str, self.sizes))} has {self.num_weights}."
            )
        views, start = [], 0
        for outputs, inputs in self.shapes:
            middle, end = start + outputs * inputs, start + outputs * inputs + outputs
            weight = weights[..., start:middle].unflatten(-1, (outputs, inputs))
            views.append((weight, weights[..., middle:end]))
            start = end
        return views

    def save(self, path: Path) -> None:
        save_json(path, dataclasses.asdict(self))

    @classmethod
    def load(cls, path: Path) -> "Network":
        """From a network.json, which a user may have written."""
        try:
            content = json.loads(Path(path).read_text())
            sizes = tuple(operator.index(size) for size in content["sizes"])
            return cls(sizes, str(content["activation"]))
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{path} does not describe a network; it should look like this: {NETWORK_EXAMPLE}"
            ) from None


def network_for(config, data) -> Network:
    """The network that a script's config describes, on this data set."""
    return Network((data.num_pixels, *config.hidden_sizes, data.num_classes), config.activation)


def initial_weights(network: Network, generator: torch.Generator) -> Tensor:
    """Weights and biases uniform in ±1/sqrt(fan_in), PyTorch's default for linear layers."""
    weights = torch.empty(network.num_weights)
    for (weight, bias), (_, fan_in) in zip(network.layers(weights), network.shapes, strict=True):
        bound = 1 / math.sqrt(fan_in)
        weight.uniform_(-bound, bound, generator=generator)
        bias.uniform_(-bound, bound, generator=generator)
    return weights


def layer_outputs(network: Network, weights: Tensor, inputs: Tensor) -> list[Tensor]:
    """Hidden activations of every layer, then the logits.

    `inputs` is [N, in], shared by a stack of weights, or [K, N, in], one batch for each of them;
    each output is [N, out], or [K, N, out] for a stack.
    """
    activation = ACTIVATIONS[network.activation]
    layers = network.layers(weights)
    outputs = []
    values = inputs
    for number, (weight, bias) in enumerate(layers, start=1):
        values = _affine(weight, bias, values)
        if number < len(layers):
            values = activation(values)
        outputs.append(values)
    return outputs


def logits(network: Network, weights: Tensor, inputs: Tensor) -> Tensor:
    """The network's linear output: [N, classes], or [K, N, classes] for a stack."""
    return layer_outputs(network, weights, inputs)[-1]


def hidden_activations(network: Network, weights: Tensor, inputs: Tensor) -> list[Tensor]:
    """Activations of every hidden layer."""
    return layer_outputs(network, weights, inputs)[:-1]


def _affine(weight: Tensor, bias: Tensor, values: Tensor) -> Tensor:
    if weight.dim() == 2 and values.dim() == 2:
        return torch.addmm(bias, values, weight.T)
    return values @ weight.mT + bias.unsqueeze(-2)
