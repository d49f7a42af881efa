"""The first layer as it is fitted to the images."""

from utils.networks.mlp import MLP
from utils.networks.mlp_gradients import FirstLayer

import pytest
import torch


@pytest.mark.parametrize("num_dead", [0, 2, 13, 30])  # 13: 47 are live, and ones fill the 48
def test_the_first_layer_is_that_of_all_pixels(num_dead):
    random = torch.Generator().manual_seed(0)
    images = torch.rand(10, 60, generator=random, dtype=torch.float64)
    images[:, 20 : 20 + num_dead] = 0
    weight, bias = torch.randn(7, 61, generator=random, dtype=torch.float64).split([60, 1], dim=1)
    weight, bias = weight.contiguous(), bias.squeeze(1)
    first = FirstLayer(images, 7)
    assert first.inputs.shape[1] % 16 == 0
    assert first.inputs.shape[1] < 60 - num_dead + 2 + 16
    first.load(weight, bias)
    outputs = first.inputs @ first.weight[0].T
    torch.testing.assert_close(outputs, images @ weight.T + bias)
    errors = torch.randn(10, 7, generator=random, dtype=torch.float64)
    first.gradient[0].addmm_(errors.T, first.inputs)
    first.store_gradient(weight, bias)
    torch.testing.assert_close(weight, errors.T @ images)
    torch.testing.assert_close(bias, errors.sum(0))


def test_the_largest_product_is_known():
    """Of 50 pixels, a column of ones, and zeros up to 64 columns, or of hidden layers."""
    images = torch.ones(20, 50)
    assert MLP((50, 8, 3)).data_passes(images).flops == 2 * 20 * 64 * 8
    assert MLP((50, 8, 900, 3)).data_passes(images).flops == 2 * 20 * 8 * 900
