"""Predictive distributions."""

from utils.networks.mlp import MLP
from utils.networks.predictions import class_probabilities, mean_probabilities
from utils.runs.seeding import generator

import torch

NETWORK = MLP((6, 5, 3))


def samples(count=4):
    return torch.stack([3 * NETWORK.initial_weights(generator(0, k)) for k in range(count)])


def test_chunks_do_not_show(monkeypatch):
    inputs = torch.rand(23, 6, generator=generator(1))
    expected = NETWORK.outputs(samples()[0], inputs).double().softmax(-1)
    monkeypatch.setattr(MLP, "chunk_rows", 5)
    torch.testing.assert_close(class_probabilities(NETWORK, samples()[0], inputs), expected)


def test_the_average_is_over_probabilities_and_takes_any_iterable():
    inputs = torch.rand(23, 6, generator=generator(1))
    expected = NETWORK.outputs(samples().double(), inputs.double()).softmax(-1).mean(0)
    averaged = mean_probabilities(NETWORK, iter(samples()), inputs)
    assert averaged.dtype == torch.float64
    torch.testing.assert_close(averaged, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(averaged.sum(-1), torch.ones(23).double(), atol=1e-6, rtol=0)


def test_hopeless_classes_keep_a_probability():
    network = MLP((1, 2))
    weights = torch.tensor([0.0, 0.0, 0.0, 200.0])  # logits 0 and 200
    probabilities = class_probabilities(network, weights, torch.zeros(1, 1))
    torch.testing.assert_close(-probabilities.log()[0, 0].item(), 200.0)
