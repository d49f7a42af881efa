"""Standard errors that are known beforehand, or that many repeated experiments tell."""

from functools import partial
from types import SimpleNamespace

from utils.evaluation.evaluate import TableErrors
from utils.evaluation.metrics import (
    METRICS,
    Metric,
    add_errors,
    deviations,
    resample,
    resample_chains,
    scores,
)
from utils.evaluation.predictions import (
    DIRECT,
    LOW_RANK,
    OWN,
    SAMPLE,
    Column,
    PartPredictions,
    predict_draws,
    predict_samples,
)
from utils.evaluation.views import Fit, fit_low_rank, fit_moments
from utils.networks.mlp import MLP
from utils.networks.predictions import class_probabilities
from utils.posteriors.low_rank import LowRankFit
from utils.posteriors.moments import fit_blocks

import numpy as np
import pytest
import torch

NETWORK = MLP((6, 8, 3))
INPUTS = torch.randn(200, 6, generator=torch.Generator().manual_seed(1))
CENTRE = 1.5 * torch.randn(NETWORK.num_weights, generator=torch.Generator().manual_seed(2))
LABELS = class_probabilities(NETWORK, CENTRE, INPUTS).argmax(-1)


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def certain(classes: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(classes, 3).double()


def predictions_of(predictions: torch.Tensor, mean_network=None) -> PartPredictions:
    return PartPredictions(predictions, torch.ones(len(predictions)), mean_network)


HMC, HMC_DIRECT, HMC_LOW_RANK = (Column("hmc", view) for view in (SAMPLE, DIRECT, LOW_RANK))
ENSEMBLE, ENSEMBLE_DIRECT = (Column("ensemble", view) for view in (SAMPLE, DIRECT))
VI = Column("vi", OWN)


def errors_of(predictions, fits=None, chains=None, **numbers) -> TableErrors:
    numbers = {"num_bootstraps": 200, "num_refits": 25, "refit_draws": 20, "seed": 0} | numbers
    numbers["further_refits"] = numbers["num_refits"]
    data = SimpleNamespace(test_images=INPUTS, test_labels=LABELS)
    setting = SimpleNamespace(network=NETWORK, data=data, config=SimpleNamespace(**numbers))
    return TableErrors(setting, predictions, fits or {}, chains or {"hmc": 1}, HMC)


def table_of(predictions) -> dict[Column, dict[str, float]]:
    return {
        column: scores(each.compared(predictions[HMC], LABELS))
        for column, each in predictions.items()
    }


# ---- resampling


@pytest.mark.parametrize("count", [2, 5, 9, 10, 40])
def test_the_error_of_a_mean_is_the_deviation_over_the_root_of_the_number(count):
    values = torch.randn(count, generator=random(), dtype=torch.float64)
    ways = [resample(count, 4000, seed=0)]
    found = deviations(lambda chosen: {"mean": values[chosen].mean().item()}, ways)["mean"]
    known = values.std().item() / count**0.5
    if count < 10:  # the jackknife is exact
        assert found == pytest.approx(known, rel=1e-9)
    else:  # a bootstrap divides by n, and 4,000 replicates are good to 1 %
        assert found == pytest.approx(known * (1 - 1 / count) ** 0.5, rel=0.05)


def test_one_part_tells_no_error():
    found = deviations(lambda chosen: {"mean": float(len(chosen))}, [resample(1, 10, seed=0)])
    assert np.isnan(found["mean"])


def test_chains_count_by_what_differs_between_them():
    """Blocks of 4 chains, each at a place of its own: the error is that of 4 numbers, not of 20."""
    places = torch.randn(4, generator=random(3), dtype=torch.float64).repeat_interleave(5)
    found = deviations(
        lambda chosen: {"mean": places[chosen].mean().item()}, resample_chains(20, 4, 200, seed=0)
    )
    assert found["mean"] == pytest.approx(places[::5].std().item() / 2, rel=1e-9)


def test_chains_that_have_mixed_count_by_their_blocks():
    values = torch.randn(20, generator=random(3), dtype=torch.float64)
    values -= values.reshape(4, 5).mean(1).repeat_interleave(5)  # all chains in the same place
    found = deviations(
        lambda chosen: {"mean": values[chosen].mean().item()}, resample_chains(20, 4, 500, seed=0)
    )
    assert found["mean"] == pytest.approx(values.std().item() / 20**0.5, rel=0.15)


# ---- errors that are known


def test_the_error_of_an_accuracy_is_binomial():
    guesses = torch.where(torch.rand(200, generator=random(1)) < 0.7, LABELS, (LABELS + 1) % 3)
    predictions = {HMC: predictions_of(certain(guesses)[None])}
    p = table_of(predictions)[HMC]["sample_accuracy"]
    errors = errors_of(predictions, num_bootstraps=400).of_points(HMC)
    # a standard deviation of 400 values is good to 1 / √800 = 3.5 %
    assert errors["sample_accuracy"] == pytest.approx((p * (1 - p) / 200) ** 0.5, rel=0.15)
    assert errors["agreement"] == errors["total_variation"] == 0  # by definition


def test_the_mean_network_is_scored_on_the_same_resampled_points():
    guesses = torch.where(torch.rand(200, generator=random(1)) < 0.7, LABELS, (LABELS + 1) % 3)
    predictions = {HMC: predictions_of(certain(guesses)[None], mean_network=certain(LABELS))}
    errors = errors_of(predictions).of_points(HMC)
    assert errors["mean_accuracy"] == 0  # always right, whatever the points
    assert errors["sample_accuracy"] > 0


def test_errors_grow_when_draws_differ():
    wrong = certain((LABELS + 1) % 3)
    mixed = torch.stack([certain(LABELS) if k < 6 else wrong for k in range(10)])
    alike = certain(LABELS).expand(10, -1, -1)
    at_mean = certain(LABELS)
    drawn = {HMC_DIRECT: predictions_of(alike, at_mean), VI: predictions_of(mixed, at_mean)}
    errors = errors_of({HMC: predictions_of(certain(LABELS)[None])} | drawn)
    assert errors.of_draws(HMC_DIRECT)["total_variation"] == pytest.approx(0)
    # TV is the share of the ten chosen parts that are wrong: binomial, p = 0.4
    found = errors.of_draws(VI)
    assert found["total_variation"] == pytest.approx((0.24 / 10) ** 0.5, rel=0.2)
    assert found["mean_accuracy"] == 0


def test_independent_errors_add_in_squares():
    assert add_errors({"nll": 3.0}, {"nll": 4.0}) == {"nll": 5.0}
    assert add_errors({"nll": 2.0}, {"nll": 1.0}, {"nll": 2.0}) == {"nll": 3.0}


# ---- Gaussians once more


def predict(samples: torch.Tensor, num_parts: int) -> PartPredictions:
    return predict_samples(NETWORK, samples, len(samples), INPUTS, num_parts)


def fitted(samples: torch.Tensor, method: str, num_blocks: int, num_draws: int = 40) -> tuple:
    """Return predictions of a posterior's samples and of their Gaussian, and its fit."""
    fit = fit_moments(fit_blocks(samples, len(samples), num_blocks))
    direct = Column(method, DIRECT)
    predictions = {
        Column(method, SAMPLE): predict(samples, num_blocks),
        direct: predict_draws(NETWORK, fit.posterior, INPUTS, num_draws, 20, random(9)),
    }
    return predictions, {direct: fit}


def test_blocks_that_are_alike_have_no_error_and_others_do():
    samples = torch.randn(4, NETWORK.num_weights, generator=random())
    for repeated, known in ((samples.repeat(5, 1), True), (torch.cat([samples, -samples]), False)):
        columns, fits = fitted(repeated, "hmc", len(repeated) // 4)
        found = errors_of(columns, fits=fits).of_samples(HMC_DIRECT, "hmc")
        assert (max(found.values()) < 1e-6) == known


@pytest.mark.parametrize("rank", [30, 3])
def test_one_mean_network_has_one_error_whichever_covariance_is_fitted_around_it(rank):
    samples = 2 * torch.randn(22, NETWORK.num_weights, generator=random())
    low_rank = LowRankFit(rank, chunk=4)
    for weights in samples:
        low_rank.add(weights)
    columns, fits = fitted(samples, "hmc", 11)
    columns[HMC_LOW_RANK] = columns[HMC_DIRECT]
    fits[HMC_LOW_RANK] = fit_low_rank(low_rank.gaussian(), fit_blocks(samples, 22, 11))
    errors = errors_of(columns, fits=fits, num_refits=4)
    mean_field, joint = (errors.of_samples(name, "hmc") for name in fits)
    assert joint["mean_accuracy"] == mean_field["mean_accuracy"] > 0.01
    assert joint["total_variation"] > 1e-3


def test_the_fit_to_two_samples_has_no_error_that_could_be_told():
    columns, fits = fitted(torch.randn(2, NETWORK.num_weights, generator=random()), "hmc", 20)
    table = errors_of(columns, fits=fits).table()
    assert np.isnan(table[HMC_DIRECT]["agreement"])
    assert np.isfinite(table[HMC]["nll"])


def test_without_refits_the_errors_of_fitted_gaussians_are_unknown():
    columns, fits = fitted(torch.randn(12, NETWORK.num_weights, generator=random()), "hmc", 12)
    table = errors_of(columns, fits=fits, num_refits=0).table()
    assert np.isnan(list(table[HMC_DIRECT].values())).all()
    assert np.isfinite(list(table[HMC].values())).all()


def test_a_new_metric_has_an_error(monkeypatch):
    def entropy(prediction):
        return -(prediction.average * prediction.average.log()).sum(-1).mean().item()

    monkeypatch.setitem(METRICS, "entropy", Metric("entropy", "entropy", entropy))
    columns, fits = fitted(torch.randn(12, NETWORK.num_weights, generator=random()), "hmc", 12)
    for row in errors_of(columns, fits=fits).table().values():
        assert 0 < row["entropy"] < 1


def test_every_column_rests_on_hmcs_samples_and_on_its_own():
    samples = CENTRE + torch.randn(35, NETWORK.num_weights, generator=random(4))
    columns, fits = fitted(samples[:30], "hmc", 10)
    more_columns, more_fits = fitted(samples[30:], "ensemble", 10)
    columns |= more_columns | {VI: columns[HMC_DIRECT]}
    fits |= more_fits | {VI: Fit(fits[HMC_DIRECT].posterior)}
    errors = errors_of(columns, fits=fits, chains={"hmc": 1, "ensemble": 1})
    found = errors.table()
    assert found[HMC]["agreement"] == found[HMC]["total_variation"] == 0
    assert {name: list(row) for name, row in found.items()} == {
        name: list(row) for name, row in table_of(columns).items()
    }
    for name in (ENSEMBLE, ENSEMBLE_DIRECT, VI):
        truth = errors.of_samples(name, "hmc")
        assert truth["total_variation"] > 0  # the truth moves,
        assert truth["sample_accuracy"] == 0  # and they stay where they are
        assert found[name]["total_variation"] > truth["total_variation"]
    own = errors.of_samples(ENSEMBLE_DIRECT, "ensemble")
    assert found[ENSEMBLE_DIRECT]["nll"] >= own["nll"] > 0


# ---- beside repeated experiments


def ratios(experiment, count: int, rows: tuple[str, ...]) -> dict[str, float]:
    """Standard error (its root mean square) over the deviation between experiments, by score."""
    scored, errors = zip(*(experiment(seed) for seed in range(count)), strict=True)
    return {
        row: float(
            np.sqrt(np.mean([e[row] ** 2 for e in errors]))
            / np.std([s[row] for s in scored], ddof=1)
        )
        for row in rows
    }


def fixed_truth() -> PartPredictions:
    return predict(CENTRE + torch.randn(200, NETWORK.num_weights, generator=random(77)), 1)


def test_errors_of_hmcs_gaussian_are_those_of_repeated_experiments():
    """The truth is of the same samples; held still while these change, TV's error is 1.8 times."""

    def experiment(seed: int):
        samples = CENTRE + 0.7 * torch.randn(100, NETWORK.num_weights, generator=random(seed))
        columns, fits = fitted(samples, "hmc", 20, num_draws=100)
        errors = errors_of(columns, fits=fits)
        table = table_of(columns)[HMC_DIRECT]
        return table, errors.of_samples(HMC_DIRECT, "hmc")

    # a deviation between 40 experiments is good to 11 %, and the noise of draws is common to all
    found = ratios(experiment, 40, ("total_variation", "agreement", "nll"))
    assert all(0.65 < ratio < 1.5 for ratio in found.values()), found


def test_errors_of_an_ensemble_of_five_are_those_of_repeated_experiments():
    truth = fixed_truth()

    def experiment(seed: int):
        members = CENTRE + 0.7 * torch.randn(5, NETWORK.num_weights, generator=random(seed))
        columns, fits = fitted(members, "ensemble", 20)
        columns[HMC] = truth
        errors = errors_of(columns, fits=fits, chains={"ensemble": 1})
        table = table_of(columns)[ENSEMBLE_DIRECT]
        return table, errors.of_samples(ENSEMBLE_DIRECT, "ensemble")

    found = ratios(experiment, 40, ("total_variation", "nll", "sample_accuracy"))
    assert all(0.6 < ratio < 1.8 for ratio in found.values()), found


def test_errors_of_chains_that_have_not_mixed_are_those_of_repeated_experiments():
    """Four chains, each around a mode of its own: their blocks tell half of it."""

    def experiment(seed: int):
        normal = partial(torch.randn, generator=random(seed))
        modes = CENTRE + 0.9 * normal(4, 1, NETWORK.num_weights)
        samples = (modes + 0.3 * normal(4, 25, NETWORK.num_weights)).flatten(0, 1)
        columns = {HMC: predict(samples, 20)}
        errors = errors_of(columns, chains={"hmc": 4}, num_bootstraps=25)
        return table_of(columns)[HMC], errors.of_samples(HMC, "hmc")

    found = ratios(experiment, 40, ("sample_accuracy", "nll", "brier"))
    assert all(0.75 < ratio < 1.6 for ratio in found.values()), found
