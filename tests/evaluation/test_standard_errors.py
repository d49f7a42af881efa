"""Standard errors that are known beforehand, or that many repeated experiments tell."""

from functools import partial

from utils.evaluation.columns import Column, PartAverages, draw_column, make_table
from utils.evaluation.standard_errors import (
    Fit,
    TableErrors,
    add_errors,
    deviations,
    refit_low_rank,
    refit_moments,
    resample,
    resample_chains,
)
from utils.networks.mlp import MLP
from utils.networks.predictions import class_probabilities
from utils.posteriors.low_rank import LowRankFit
from utils.posteriors.moments import fit_blocks, merge_all

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


def column_of(predictions: torch.Tensor, mean_network=None) -> Column:
    return Column(predictions, torch.ones(len(predictions)), mean_network)


def errors_of(columns: dict[str, Column], labels=LABELS, fits=None, chains=None, **numbers):
    numbers = {"num_bootstraps": 200, "num_refits": 25, "refit_draws": 20, "seed": 0} | numbers
    chains = chains or {"hmc": 1}
    return TableErrors(columns, labels, fits or {}, chains, NETWORK, INPUTS, **numbers)


# ---- parts once more


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
    column = column_of(certain(guesses)[None])
    p = make_table({"hmc_sample": column}, LABELS)["hmc_sample"]["sample_accuracy"]
    errors = errors_of({"hmc_sample": column}, num_bootstraps=400).of_points(column)
    # a standard deviation of 400 values is good to 1 / √800 = 3.5 %
    assert errors["sample_accuracy"] == pytest.approx((p * (1 - p) / 200) ** 0.5, rel=0.15)
    assert errors["agreement"] == errors["total_variation"] == 0  # by definition


def test_the_mean_network_is_scored_on_the_same_resampled_points():
    guesses = torch.where(torch.rand(200, generator=random(1)) < 0.7, LABELS, (LABELS + 1) % 3)
    column = column_of(certain(guesses)[None], mean_network=certain(LABELS))
    errors = errors_of({"hmc_sample": column}).of_points(column)
    assert errors["mean_accuracy"] == 0  # always right, whatever the points
    assert errors["sample_accuracy"] > 0


def test_errors_grow_when_draws_differ():
    wrong = certain((LABELS + 1) % 3)
    mixed = torch.stack([certain(LABELS) if k < 6 else wrong for k in range(10)])
    alike = certain(LABELS).expand(10, -1, -1)
    errors = errors_of({"hmc_sample": column_of(certain(LABELS)[None])})
    at_mean = certain(LABELS)
    assert errors.of_draws(column_of(alike, at_mean))["total_variation"] == pytest.approx(0)
    # TV is the share of the ten chosen parts that are wrong: binomial, p = 0.4
    found = errors.of_draws(column_of(mixed, at_mean))
    assert found["total_variation"] == pytest.approx((0.24 / 10) ** 0.5, rel=0.2)
    assert found["mean_accuracy"] == 0


def test_independent_errors_add_in_squares():
    assert add_errors({"nll": 3.0}, {"nll": 4.0}) == {"nll": 5.0}
    assert add_errors({"nll": 2.0}, {"nll": 1.0}, {"nll": 2.0}) == {"nll": 3.0}


# ---- Gaussians once more


def predictions(samples: torch.Tensor, num_parts: int) -> Column:
    parts = PartAverages(len(samples), num_parts)
    for weights in samples:
        parts.add(class_probabilities(NETWORK, weights, INPUTS))
    return parts.column()


def fitted(samples: torch.Tensor, method: str, num_blocks: int, num_draws: int = 40) -> tuple:
    """A method's two columns, its Gaussian's fit, and that Gaussian's blocks."""
    blocks = fit_blocks(samples, len(samples), num_blocks)
    posterior = merge_all(blocks).gaussian()
    columns = {
        f"{method}_sample": predictions(samples, num_blocks),
        f"{method}_direct": draw_column(NETWORK, posterior, INPUTS, num_draws, 20, random(9)),
    }
    return columns, {f"{method}_direct": Fit(method, partial(refit_moments, blocks))}


def test_blocks_that_are_alike_have_no_error_and_others_do():
    samples = torch.randn(4, NETWORK.num_weights, generator=random())
    for repeated, known in ((samples.repeat(5, 1), True), (torch.cat([samples, -samples]), False)):
        columns, fits = fitted(repeated, "hmc", len(repeated) // 4)
        found = errors_of(columns, fits=fits).of_samples("hmc_direct", "hmc")
        assert (max(found.values()) < 1e-6) == known


@pytest.mark.parametrize("rank", [30, 3])
def test_one_mean_network_has_one_error_whichever_covariance_is_fitted_around_it(rank):
    samples = 2 * torch.randn(22, NETWORK.num_weights, generator=random())
    low_rank = LowRankFit(rank, chunk=4)
    for weights in samples:
        low_rank.add(weights)
    columns, fits = fitted(samples, "hmc", 11)
    columns["hmc_low_rank"] = columns["hmc_direct"]
    blocks = fit_blocks(samples, 22, 11)
    fits["hmc_low_rank"] = Fit("hmc", partial(refit_low_rank, low_rank.gaussian(), blocks))
    errors = errors_of(columns, fits=fits, num_refits=4)
    mean_field, joint = (errors.of_samples(name, "hmc") for name in fits)
    assert joint["mean_accuracy"] == mean_field["mean_accuracy"] > 0.01
    assert joint["total_variation"] > 1e-3


def test_the_fit_to_two_samples_has_no_error_that_could_be_told():
    columns, fits = fitted(torch.randn(2, NETWORK.num_weights, generator=random()), "hmc", 20)
    table = errors_of(columns, fits=fits).table()
    assert np.isnan(table["hmc_direct"]["agreement"])
    assert np.isfinite(table["hmc_sample"]["nll"])


def test_every_column_rests_on_hmcs_samples_and_on_its_own():
    samples = CENTRE + torch.randn(35, NETWORK.num_weights, generator=random(4))
    columns, fits = fitted(samples[:30], "hmc", 10)
    more_columns, more_fits = fitted(samples[30:], "ensemble", 10)
    columns |= more_columns | {"vi": columns["hmc_direct"]}
    errors = errors_of(columns, fits=fits | more_fits, chains={"hmc": 1, "ensemble": 1})
    found = errors.table()
    assert found["hmc_sample"]["agreement"] == found["hmc_sample"]["total_variation"] == 0
    assert {name: list(row) for name, row in found.items()} == {
        name: list(row) for name, row in make_table(columns, LABELS).items()
    }
    for name in ("ensemble_sample", "ensemble_direct", "vi"):
        truth = errors.of_samples(name, "hmc")
        assert truth["total_variation"] > 0  # the truth moves,
        assert truth["sample_accuracy"] == 0  # and they stay where they are
        assert found[name]["total_variation"] > truth["total_variation"]
    own = errors.of_samples("ensemble_direct", "ensemble")
    assert found["ensemble_direct"]["nll"] >= own["nll"] > 0


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


def fixed_truth() -> Column:
    return predictions(CENTRE + torch.randn(200, NETWORK.num_weights, generator=random(77)), 1)


def test_errors_of_hmcs_gaussian_are_those_of_repeated_experiments():
    """The truth is of the same samples; held still while these change, TV's error is 1.8 times."""

    def experiment(seed: int):
        samples = CENTRE + 0.7 * torch.randn(100, NETWORK.num_weights, generator=random(seed))
        columns, fits = fitted(samples, "hmc", 20, num_draws=100)
        errors = errors_of(columns, fits=fits)
        table = make_table(columns, LABELS)["hmc_direct"]
        return table, errors.of_samples("hmc_direct", "hmc")

    # a deviation between 40 experiments is good to 11 %, and the noise of draws is common to all
    found = ratios(experiment, 40, ("total_variation", "agreement", "nll"))
    assert all(0.65 < ratio < 1.5 for ratio in found.values()), found


def test_errors_of_an_ensemble_of_five_are_those_of_repeated_experiments():
    truth = fixed_truth()

    def experiment(seed: int):
        members = CENTRE + 0.7 * torch.randn(5, NETWORK.num_weights, generator=random(seed))
        columns, fits = fitted(members, "ensemble", 20)
        columns["hmc_sample"] = truth
        errors = errors_of(columns, fits=fits, chains={"ensemble": 1})
        table = make_table(columns, LABELS)["ensemble_direct"]
        return table, errors.of_samples("ensemble_direct", "ensemble")

    found = ratios(experiment, 40, ("total_variation", "nll", "sample_accuracy"))
    assert all(0.6 < ratio < 1.8 for ratio in found.values()), found


def test_errors_of_chains_that_have_not_mixed_are_those_of_repeated_experiments():
    """Four chains, each around a mode of its own: their blocks tell half of it."""

    def experiment(seed: int):
        normal = partial(torch.randn, generator=random(seed))
        modes = CENTRE + 0.9 * normal(4, 1, NETWORK.num_weights)
        samples = (modes + 0.3 * normal(4, 25, NETWORK.num_weights)).flatten(0, 1)
        columns = {"hmc_sample": predictions(samples, 20)}
        errors = errors_of(columns, chains={"hmc": 4}, num_bootstraps=25)
        return make_table(columns, LABELS)["hmc_sample"], errors.of_samples("hmc_sample", "hmc")

    found = ratios(experiment, 40, ("sample_accuracy", "nll", "brier"))
    assert all(0.75 < ratio < 1.6 for ratio in found.values()), found
