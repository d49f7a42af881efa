"""The closed-form gradient beside autograd."""

from utils.networks.autograd import AutogradGradient
from utils.networks.mlp import MLP
from utils.networks.mlp_gradients import MLPGradient, first_rows
from utils.runs.seeding import generator

import pytest
import torch
import torch.nn.functional as F


def problem(sizes, activation, stack=3, rows=11):
    network = MLP(sizes, activation)
    weights = torch.stack([network.initial_weights(generator(0, k)) for k in range(stack)])
    inputs = torch.randn(stack, rows, sizes[0], generator=generator(1))
    labels = torch.randint(0, sizes[-1], (stack, rows), generator=generator(2))
    return network, weights, inputs, labels


def autograd_gradient(network, weights, inputs, labels):
    weights = weights.double().requires_grad_()
    outputs = network.outputs(weights, inputs.double())
    loss = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="sum")
    return torch.autograd.grad(loss, weights)[0]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("sizes", [(6, 4), (6, 5, 4), (6, 5, 7, 4)])
def test_gradient_equals_autograd(sizes, activation):
    network, weights, inputs, labels = problem(sizes, activation)
    gradient = torch.full_like(weights, float("nan"))  # keep=0 must not look at what was there
    nll = MLPGradient(network, weights, gradient, 20)(inputs, labels, scale=0.5, keep=0)
    expected = autograd_gradient(network, weights, inputs, labels)
    torch.testing.assert_close(gradient.double(), 0.5 * expected, atol=1e-6, rtol=1e-5)
    outputs = network.outputs(weights, inputs)
    each = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none")
    torch.testing.assert_close(nll.flatten(), each)


def test_gradient_is_added_to_what_is_kept():
    network, weights, inputs, labels = problem((6, 5, 4), "relu")
    before = torch.randn(weights.shape, generator=generator(3))
    gradient = before.clone()
    MLPGradient(network, weights, gradient, 11)(inputs, labels, scale=1, keep=0.9)
    expected = 0.9 * before.double() + autograd_gradient(network, weights, inputs, labels)
    torch.testing.assert_close(gradient.double(), expected, atol=1e-5, rtol=1e-5)


def test_first_rows_have_no_gaps():
    buffer = torch.arange(24.0).reshape(2, 4, 3)
    rows = first_rows(buffer, 3)
    assert rows.shape == (2, 3, 3)
    assert rows.is_contiguous()
    assert rows.data_ptr() == buffer.data_ptr()


def test_inputs_and_weights_are_left_alone():
    network, weights, inputs, labels = problem((6, 5, 4), "relu")
    copies = weights.clone(), inputs.clone(), labels.clone()
    gradient = torch.zeros_like(weights)
    MLPGradient(network, weights, gradient, 11)(inputs, labels, scale=1, keep=0)
    for after, before in zip((weights, inputs, labels), copies, strict=True):
        assert torch.equal(after, before)


@pytest.mark.parametrize("sizes", [(6, 4), (6, 5, 7, 4)])
def test_a_networks_own_gradient_takes_batches_of_any_size_up_to_its_rows(sizes):
    network, weights, inputs, labels = problem(sizes, "tanh")
    before = torch.randn(weights.shape, generator=generator(3))
    gradient = before.clone()
    add_gradient = network.gradient(weights, gradient, rows=11)
    expected = before.double()
    for rows in (11, 4):
        add_gradient(inputs[:, :rows], labels[:, :rows], scale=0.5, keep=0.9)
        added = autograd_gradient(network, weights, inputs[:, :rows], labels[:, :rows])
        expected = 0.9 * expected + 0.5 * added
    torch.testing.assert_close(gradient.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("keep", [0.0, 0.9])
def test_autograd_finds_the_same_gradient(keep):
    network, weights, inputs, labels = problem((6, 5, 4), "tanh")
    start = torch.randn(weights.shape, generator=generator(5), dtype=weights.dtype)
    ours, other = start.clone(), start.clone()
    rows = labels.shape[1]
    nll = network.gradient(weights, ours, rows)(inputs, labels, scale=0.5, keep=keep)
    nlls = AutogradGradient(network, weights, other)(inputs, labels, scale=0.5, keep=keep)
    torch.testing.assert_close(nll, nlls)
    torch.testing.assert_close(ours, other)
