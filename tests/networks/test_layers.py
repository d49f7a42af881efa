"""Layers against PyTorch's, or against their formulas, with their gradients."""

from utils.networks.layers import (
    batch_norm,
    batch_norm_of_batch,
    dense_convolution,
    filter_response_norm,
    largest,
    max_pool,
    pooled_convolution,
)
from utils.runs.seeding import generator

import pytest
import torch
import torch.nn.functional as F


def drawn(*shape, seed=0):
    values = torch.randn(*shape, generator=generator(seed, *shape), dtype=torch.float64)
    return values.requires_grad_()


def assert_same(ours, expected, *inputs):
    """Compare values, and gradients of a random weighted sum."""
    torch.testing.assert_close(ours, expected)
    weights = drawn(*expected.shape, seed=1).detach()
    gradients = (torch.autograd.grad((each * weights).sum(), inputs) for each in (ours, expected))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_pooled_convolution(size):
    images, weight = drawn(4, 2, 11, 13).detach(), drawn(3, 2, 4, 4)
    expected = F.max_pool2d(F.conv2d(images, weight), size)
    assert_same(pooled_convolution(images, weight, size), expected, weight)


@pytest.mark.parametrize("shape", [(2, 3, 6, 9), (2, 3, 7, 11), (2, 1, 3, 3)])
def test_max_pool(shape):
    values = drawn(*shape)
    assert_same(max_pool(values, 3), F.max_pool2d(values, 3), values)


def test_of_equal_values_the_first_gets_the_gradient():
    """Images have large areas of one colour, so equal values are common."""
    values = torch.tensor([[2.0, 5, 5, 1]]).requires_grad_()
    (gradient,) = torch.autograd.grad(largest(values).sum() * 3, values)
    assert gradient.tolist() == [[0, 3, 0, 0]]
    tiny = torch.tensor([[1e-45, 0]]).requires_grad_()
    assert torch.autograd.grad(largest(tiny).sum(), tiny)[0].tolist() == [[1, 0]]


def test_dense_convolution():
    images, weight = drawn(2, 7, 1, 6, 5), drawn(2, 3, 4, 2)
    matrix = dense_convolution(weight, 6, 5)
    ours = (images.flatten(2) @ matrix).view(2, 7, 3, 3, 4)
    expected = [F.conv2d(x, w.unsqueeze(1)) for x, w in zip(images, weight, strict=True)]
    assert_same(ours, torch.stack(expected), images, weight)


def test_filter_response_norm_on_one_map():
    """Of (1, 2, 2, 5) the mean square is 8.5."""
    values = torch.tensor([[1.0, 2], [2, 5]], dtype=torch.float64).view(1, 1, 2, 2)
    tau, beta, gamma = (torch.tensor([x], dtype=torch.float64) for x in (0.2, -0.5, 2.0))
    normal = filter_response_norm(values, tau, beta, gamma).flatten().tolist()
    root = (8.5 + 1e-6) ** 0.5
    assert normal == pytest.approx([max(2 * x / root - 0.5, 0.2) for x in (1, 2, 2, 5)])


def test_filter_response_norm_gradients():
    values, tau, beta, gamma = drawn(4, 3, 5, 6), drawn(3), drawn(3), drawn(3, seed=2)
    nu2 = (values**2).mean((2, 3), keepdim=True)
    shifted = gamma.view(3, 1, 1) * values / (nu2 + 1e-6).sqrt() + beta.view(3, 1, 1)
    expected = torch.maximum(shifted, tau.view(3, 1, 1))
    assert_same(filter_response_norm(values, tau, beta, gamma), expected, values, tau, beta, gamma)


def test_batch_norm_with_both_statistics():
    values, weight, bias = drawn(6, 3, 4, 4), drawn(3), drawn(3, seed=2)
    flat = values.transpose(0, 1).flatten(1)
    mean, variance = flat.mean(1), flat.var(1)

    def formula(variance):
        scale = (weight / (variance + 1e-5).sqrt()).view(3, 1, 1)
        return scale * (values - mean.view(3, 1, 1)) + bias.view(3, 1, 1)

    normal, *statistics = batch_norm_of_batch(values, weight, bias)
    assert_same(normal, formula(flat.var(1, unbiased=False)), values, weight, bias)
    torch.testing.assert_close(statistics, [mean.detach(), variance.detach()])
    running = batch_norm(values, weight, bias, mean.detach(), variance.detach())
    torch.testing.assert_close(running, formula(variance))
