"""Networks as flat vectors, beside torch.nn's."""

import math

from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import pytest
import torch

ACTIVATIONS = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "silu": torch.nn.SiLU}


def torch_network(network: MLP, weights: torch.Tensor) -> torch.nn.Sequential:
    """The same network built from torch.nn, in float64."""
    modules, start = [], 0
    for outputs, inputs in network.shapes:
        linear = torch.nn.Linear(inputs, outputs, dtype=torch.float64)
        for parameter in (linear.weight, linear.bias):
            count = parameter.numel()
            parameter.data = weights[start : start + count].double().reshape(parameter.shape)
            start += count
        modules += [linear, ACTIVATIONS[network.activation]()]
    return torch.nn.Sequential(*modules[:-1])


def example(sizes=(5, 4, 3), activation="relu", count=6):
    network = MLP(sizes, activation)
    weights = torch.stack([network.initial_weights(generator(1, k)) for k in range(count)])
    inputs = torch.rand(7, sizes[0], generator=generator(2))
    return network, weights, inputs


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", [(5, 3), (5, 4, 3), (5, 4, 6, 2, 3)])
def test_logits_equal_those_of_torch_modules(sizes, activation):
    network, weights, inputs = example(sizes, activation)
    for vector in weights:
        expected = torch_network(network, vector)(inputs.double())
        torch.testing.assert_close(network.outputs(vector.double(), inputs.double()), expected)


def test_a_stack_of_vectors_gives_what_each_gives_alone():
    network, weights, inputs = example((5, 4, 6, 3))
    for shared in (inputs, inputs.expand(6, 7, 5)):
        hidden, logits = network.trace(weights, shared)
        for k, vector in enumerate(weights):
            alone, expected = network.trace(vector, inputs)
            torch.testing.assert_close(logits[k], expected)
            for name, values in hidden.items():
                torch.testing.assert_close(values[k], alone[name])


def test_activations_are_those_of_the_hidden_layers():
    network, weights, inputs = example((5, 4, 6, 3))
    hidden = network.activations(weights[0], inputs)
    assert {name: h.shape for name, h in hidden.items()} == {"h1": (7, 4), "h2": (7, 6)}
    model = torch_network(network, weights[0])
    for name, depth in (("h1", 2), ("h2", 4)):
        torch.testing.assert_close(hidden[name].double(), model[:depth](inputs.double()))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_line_has_the_traces_of_its_networks(activation):
    network, weights, inputs = example((5, 4, 6, 3), activation)
    fractions = (0.0, 0.3, 1.0)
    line = list(network.trace_line(weights[0], weights[1], fractions, inputs))
    plain = list(Network.trace_line(network, weights[0], weights[1], fractions, inputs))
    assert len(line) == len(plain) == 3
    for (hidden, logits), (expected_hidden, expected) in zip(line, plain, strict=True):
        torch.testing.assert_close(logits, expected)
        torch.testing.assert_close(hidden, expected_hidden)


def test_layout_is_weight_row_by_row_then_bias():
    network = MLP((2, 3, 1))
    (first, first_bias), (second, second_bias) = network.layers(torch.arange(13.0))
    assert first.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert first_bias.tolist() == [6, 7, 8]
    assert second.tolist() == [[9, 10, 11]]
    assert second_bias.tolist() == [12]


def test_layers_are_views():
    network, weights, _ = example()
    network.layers(weights)[0][1].fill_(3)
    assert (weights[:, 20:24] == 3).all()


def test_the_papers_network_has_407050_weights():
    assert MLP((784, 512, 10)).num_weights == 407050


def test_initialisation_is_uniform_within_one_over_root_fan_in():
    network = MLP((100, 400, 10))
    weights = network.initial_weights(generator(0))
    for (weight, bias), fan_in in zip(network.layers(weights), (100, 400), strict=True):
        bound = 1 / math.sqrt(fan_in)
        for part in (weight, bias):
            assert part.abs().max() <= bound
        # a uniform variable's variance; 5 standard errors of it: false alarm below 1e-6
        tolerance = 5 * bound**2 * math.sqrt(4 / 45 / weight.numel())
        assert abs(weight.var().item() - bound**2 / 3) < tolerance


def test_a_vector_of_another_network_is_refused():
    with pytest.raises(UserError, match=r"have 12 entries, but the network 2-3-1 \(relu\) has 13"):
        MLP((2, 3, 1)).layers(torch.zeros(12))
    with pytest.raises(UserError, match="have 12 entries"):
        MLP((2, 3, 1)).outputs(torch.zeros(4, 12), torch.zeros(1, 2))


@pytest.mark.parametrize("arguments", [((4,),), ((4, 0, 2),), ((4, 2), "sigmoid")])
def test_impossible_networks_are_refused(arguments):
    with pytest.raises(UserError):
        MLP(*arguments)
