"""Columns of the table: averages of parts, and Gaussians' predictions."""

from utils.evaluation.columns import PartAverages, draw_column, make_table
from utils.networks.mlp import MLP
from utils.networks.predictions import mean_probabilities
from utils.posteriors.gaussian import Gaussian

import pytest
import torch

NETWORK = MLP((6, 8, 3))


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distributions(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=random(seed), dtype=torch.float64).softmax(-1)


def test_parts_average_to_the_whole_however_unequal():
    predictions = distributions(11, 5, 3)
    parts = PartAverages(11, 4)
    for prediction in predictions:
        parts.add(prediction)
    column = parts.column()
    assert column.sizes.tolist() == [3, 3, 3, 2]
    torch.testing.assert_close(column.average(), predictions.mean(0))
    torch.testing.assert_close(column.parts[0], predictions[:3].mean(0))
    first, second = column.halves()
    torch.testing.assert_close(first, predictions[:6].mean(0))
    torch.testing.assert_close(second, predictions[6:].mean(0))
    chosen = torch.tensor([3, 3, 0, 3])  # a part counts as often as it is chosen
    rows = torch.cat([predictions[:3], *[predictions[9:]] * 3])
    torch.testing.assert_close(column.average(chosen), rows.mean(0))


def test_a_gaussian_predicts_as_its_draws_do():
    posterior = Gaussian(*torch.rand(2, NETWORK.num_weights, generator=random()))
    inputs = torch.rand(40, 6, generator=random(1))
    column = draw_column(NETWORK, posterior, inputs, 9, 4, random(2))
    expected = mean_probabilities(NETWORK, posterior.draw(9, random(2)), inputs)
    torch.testing.assert_close(column.average(), expected, atol=1e-6, rtol=1e-5)
    at_mean = NETWORK.outputs(posterior.mean, inputs).double().softmax(-1)
    torch.testing.assert_close(column.mean_network, at_mean)


def test_what_is_hardly_possible_keeps_a_finite_nll():
    sure = Gaussian(torch.zeros(NETWORK.num_weights), torch.zeros(NETWORK.num_weights))
    sure.mean[-3:] = torch.tensor([0.0, 300, 0])  # e⁻³⁰⁰ is 0 in fp32
    column = draw_column(NETWORK, sure, torch.rand(4, 6), 2, 1, random())
    table = make_table({"hmc_sample": column}, torch.zeros(4, dtype=torch.long))
    assert table["hmc_sample"]["nll"] == pytest.approx(300)
