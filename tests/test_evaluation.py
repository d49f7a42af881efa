"""Columns of the table, and standard errors that are known beforehand."""

from functools import partial

from utils.compact import LowRankFit, fit_blocks
from utils.evaluation import (
    Column,
    PartAverages,
    add_errors,
    bootstrap,
    draw_column,
    make_table,
    refit_errors,
    refit_low_rank,
    refit_moments,
)
from utils.mlp import Network, logits
from utils.predict import mean_probabilities
from utils.vi import GaussianPosterior

import pytest
import torch

NETWORK = Network((6, 8, 3))


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distributions(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=random(seed), dtype=torch.float64).softmax(-1)


def certain(classes: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(classes, 3).double()


def column_of(predictions: torch.Tensor, sizes=None) -> Column:
    return Column(predictions, torch.ones(len(predictions)) if sizes is None else sizes)


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
    posterior = GaussianPosterior(*torch.rand(2, NETWORK.num_weights, generator=random()))
    inputs = torch.rand(40, 6, generator=random(1))
    column = draw_column(NETWORK, posterior, inputs, 9, 4, random(2))
    expected = mean_probabilities(NETWORK, posterior.draw(9, random(2)), inputs)
    torch.testing.assert_close(column.average(), expected, atol=1e-6, rtol=1e-5)
    at_mean = logits(NETWORK, posterior.mean, inputs).double().softmax(-1)
    torch.testing.assert_close(column.mean_network, at_mean)


def test_what_is_hardly_possible_keeps_a_finite_nll():
    sure = GaussianPosterior(torch.zeros(NETWORK.num_weights), torch.zeros(NETWORK.num_weights))
    sure.mean[-3:] = torch.tensor([0.0, 300, 0])  # e⁻³⁰⁰ is 0 in fp32
    column = draw_column(NETWORK, sure, torch.rand(4, 6), 2, 1, random())
    table = make_table({"hmc_sample": column}, torch.zeros(4, dtype=torch.long))
    assert table["hmc_sample"]["nll"] == pytest.approx(300)


def test_the_error_of_an_accuracy_is_binomial():
    labels = torch.randint(3, (400,), generator=random())
    guesses = torch.where(torch.rand(400, generator=random(1)) < 0.7, labels, (labels + 1) % 3)
    column = column_of(certain(guesses)[None])
    p = make_table({"hmc_sample": column}, labels)["hmc_sample"]["sample_accuracy"]
    errors = bootstrap({"hmc_sample": column}, labels, 400, seed=0)["hmc_sample"]
    # a standard deviation of 400 values is good to 1 / √800 = 3.5 %
    assert errors["sample_accuracy"] == pytest.approx((p * (1 - p) / 400) ** 0.5, rel=0.15)
    assert errors["agreement"] == errors["total_variation"] == 0  # by definition


def test_the_mean_network_is_scored_on_the_same_resampled_points():
    labels = torch.randint(3, (200,), generator=random())
    guesses = torch.where(torch.rand(200, generator=random(1)) < 0.7, labels, (labels + 1) % 3)
    column = Column(certain(guesses)[None], torch.ones(1), mean_network=certain(labels))
    errors = bootstrap({"hmc_sample": column}, labels, 10, seed=0)["hmc_sample"]
    assert errors["mean_accuracy"] == 0  # always right, whatever the points
    assert errors["sample_accuracy"] > 0


def test_errors_grow_when_parts_differ():
    labels = torch.randint(3, (300,), generator=random())
    alike = certain(labels).expand(10, -1, -1)
    others = certain((labels + 1) % 3)
    mixed = torch.stack([certain(labels) if k < 6 else others for k in range(10)])
    truth = column_of(certain(labels)[None])
    columns = {"hmc_sample": truth, "hmc_direct": column_of(alike), "vi": column_of(mixed)}
    errors = bootstrap(columns, labels, 200, seed=0)
    assert errors["hmc_direct"]["total_variation"] == pytest.approx(0, abs=1e-12)
    # TV is the share of the ten chosen parts that are wrong: binomial, p = 0.4
    assert errors["vi"]["total_variation"] == pytest.approx((0.24 / 10) ** 0.5, rel=0.2)


def errors_of_refits(refit, inputs: torch.Tensor) -> dict[str, float]:
    labels = torch.randint(3, (50,), generator=random())
    return refit_errors(
        NETWORK, refit, 5, inputs, labels, distributions(50, 3), num_refits=4, num_draws=3, seed=0
    )


def test_refits_of_blocks_that_are_alike_have_no_error_and_of_others_do():
    inputs = torch.rand(50, 6, generator=random(1))
    samples = torch.randn(4, NETWORK.num_weights, generator=random())
    same = fit_blocks(samples.repeat(5, 1), 20, 5)
    errors = errors_of_refits(partial(refit_moments, same), inputs)
    assert max(errors.values()) == pytest.approx(0, abs=1e-6)
    different = torch.randn(20, NETWORK.num_weights, generator=random())
    errors = errors_of_refits(partial(refit_moments, fit_blocks(different, 20, 5)), inputs)
    assert errors["total_variation"] > 1e-3


@pytest.mark.parametrize("rank", [30, 3])
def test_one_mean_network_has_one_error_whichever_covariance_is_fitted_around_it(rank):
    inputs = torch.rand(50, 6, generator=random(1))
    samples = 2 * torch.randn(22, NETWORK.num_weights, generator=random())
    low_rank = LowRankFit(rank, chunk=4)
    for weights in samples:
        low_rank.add(weights)
    blocks = fit_blocks(samples, 22, 5)
    fits = (partial(refit_moments, blocks), partial(refit_low_rank, low_rank.gaussian(), blocks))
    mean_field, joint = (errors_of_refits(fit, inputs) for fit in fits)
    assert joint["mean_accuracy"] == mean_field["mean_accuracy"] > 0.01
    assert joint["total_variation"] > 1e-3


def test_independent_errors_add_in_squares():
    assert add_errors({"nll": 3.0}, {"nll": 4.0}) == {"nll": 5.0}
