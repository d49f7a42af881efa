"""Networks as flat vectors, beside torch.nn's."""

import math

from utils.networks.mlp import MLP, hidden_activations, layer_outputs
from utils.networks.network import Network
from utils.networks.registry import load_network
from utils.runs.errors import UserError
from utils.runs.seeding import generator

import pytest
import torch


def torch_network(network: Network, weights: torch.Tensor) -> torch.nn.Sequential:
    """The same network built from torch.nn, in float64."""
    modules, start = [], 0
    for outputs, inputs in network.shapes:
        linear = torch.nn.Linear(inputs, outputs, dtype=torch.float64)
        for parameter in (linear.weight, linear.bias):
            count = parameter.numel()
            parameter.data = weights[start : start + count].double().reshape(parameter.shape)
            start += count
        modules += [linear, torch.nn.ReLU() if network.activation == "relu" else torch.nn.Tanh()]
    return torch.nn.Sequential(*modules[:-1])


def example(sizes=(5, 4, 3), activation="relu", count=6):
    network = MLP(sizes, activation)
    weights = torch.stack([network.initial_weights(generator(1, k)) for k in range(count)])
    inputs = torch.rand(7, sizes[0], generator=generator(2))
    return network, weights, inputs


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("sizes", [(5, 3), (5, 4, 3), (5, 4, 6, 2, 3)])
def test_logits_equal_those_of_torch_modules(sizes, activation):
    network, weights, inputs = example(sizes, activation)
    for vector in weights:
        expected = torch_network(network, vector)(inputs.double())
        torch.testing.assert_close(network.outputs(vector.double(), inputs.double()), expected)


def test_a_stack_of_vectors_gives_what_each_gives_alone():
    network, weights, inputs = example((5, 4, 6, 3))
    stacked = layer_outputs(network, weights, inputs)
    batches = layer_outputs(network, weights, inputs.expand(6, 7, 5))
    for k, vector in enumerate(weights):
        for together, batch, alone in zip(
            stacked, batches, layer_outputs(network, vector, inputs), strict=True
        ):
            torch.testing.assert_close(together[k], alone)
            torch.testing.assert_close(batch[k], alone)


def test_hidden_activations_are_all_but_the_logits():
    network, weights, inputs = example((5, 4, 6, 3))
    hidden = hidden_activations(network, weights[0], inputs)
    assert [h.shape for h in hidden] == [(7, 4), (7, 6)]
    assert min(h.min() for h in hidden) >= 0


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
    with pytest.raises(UserError, match="have 12 entries, but the network 2-3-1 has 13"):
        MLP((2, 3, 1)).layers(torch.zeros(12))


@pytest.mark.parametrize("arguments", [((4,),), ((4, 0, 2),), ((4, 2), "sigmoid")])
def test_impossible_networks_are_refused(arguments):
    with pytest.raises(UserError):
        MLP(*arguments)


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"sizes": [4, 3, 2]}', '{"sizes": 4, "activation": "relu"}',
        '{"sizes": [4, "3", 2], "activation": "relu"}',
        '{"sizes": [4, 2.5], "activation": "relu"}',
    ],
)  # fmt: skip
def test_a_network_json_that_describes_none_is_refused_with_an_example(tmp_path, content):
    path = tmp_path / "network.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r'network.json does not .*"sizes": \[784, 512, 10\]'):
        load_network(path)
    path.write_text('{"sizes": [4, 3, 2], "activation": "tanh"}')
    assert load_network(path) == MLP((4, 3, 2), "tanh")
