"""Columns of the table; predictions of samples in parts, and of distributions."""

from utils.evaluation.metrics import scores
from utils.evaluation.predictions import (
    LOW_RANK,
    OWN,
    REBASED,
    SAMPLE,
    VIEWS,
    Column,
    PartAverages,
    columns_of,
    predict_draws,
)
from utils.networks.mlp import MLP
from utils.networks.predictions import mean_probabilities
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.posterior import Mixture

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
    found = parts.predictions()
    assert found.sizes.tolist() == [3, 3, 3, 2]
    torch.testing.assert_close(found.average(), predictions.mean(0))
    torch.testing.assert_close(found.parts[0], predictions[:3].mean(0))
    first, second = found.halves()
    torch.testing.assert_close(first, predictions[:6].mean(0))
    torch.testing.assert_close(second, predictions[6:].mean(0))
    chosen = torch.tensor([3, 3, 0, 3])  # a part counts as often as it is chosen
    rows = torch.cat([predictions[:3], *[predictions[9:]] * 3])
    torch.testing.assert_close(found.average(chosen), rows.mean(0))


def test_a_gaussian_predicts_as_its_draws_do():
    posterior = Gaussian(*torch.rand(2, NETWORK.num_weights, generator=random()))
    inputs = torch.rand(40, 6, generator=random(1))
    found = predict_draws(NETWORK, posterior, inputs, 9, 4, random(2))
    expected = mean_probabilities(NETWORK, posterior.draw(9, random(2)), inputs)
    torch.testing.assert_close(found.average(), expected, atol=1e-6, rtol=1e-5)
    at_mean = NETWORK.outputs(posterior.mean, inputs).double().softmax(-1)
    torch.testing.assert_close(found.mean_network, at_mean)


def test_what_is_hardly_possible_keeps_a_finite_nll():
    sure = Gaussian(torch.zeros(NETWORK.num_weights), torch.zeros(NETWORK.num_weights))
    sure.mean[-3:] = torch.tensor([0.0, 300, 0])  # e⁻³⁰⁰ is 0 in fp32
    found = predict_draws(NETWORK, sure, torch.rand(4, 6), 2, 1, random())
    assert scores(found.compared(found, torch.zeros(4, dtype=torch.long)))["nll"] == (
        pytest.approx(300)
    )


def test_a_mixture_has_no_mean_network():
    parts = [Gaussian(*torch.rand(2, NETWORK.num_weights, generator=random(k))) for k in range(2)]
    inputs = torch.rand(40, 6, generator=random(1))
    found = predict_draws(NETWORK, Mixture(parts), inputs, 9, 4, random(2))
    assert found.mean_network is None
    assert "mean_accuracy" not in scores(found.compared(found, torch.zeros(40, dtype=torch.long)))


# ---- columns

NAMES = {"hmc": "HMC", "vi": "VI"}


def test_columns_have_a_key_for_files_and_a_title_for_tables():
    columns = [Column("hmc", SAMPLE), Column("hmc", LOW_RANK), Column("vi", OWN)]
    assert [column.key for column in columns] == ["hmc_sample", "hmc_low_rank", "vi"]
    assert [column.title(NAMES) for column in columns] == ["HMC", "HMC q_r, low rank", "VI q"]


def test_columns_are_found_by_key_whatever_the_names():
    """One name may begin as another does."""
    columns = columns_of(["swag", "swag_multi"])
    assert columns["swag_multi_rebased"] == Column("swag_multi", REBASED)
    assert columns["swag"] == Column("swag", OWN)
    assert len(columns) == 2 * len(VIEWS)
