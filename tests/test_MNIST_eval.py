"""The script as a user runs it, on toy runs of the real scripts; every number found once more."""

import json
import os
import shutil
import signal
from pathlib import Path

from MNIST_eval import EvalConfig, find_candidates
from tests.conftest import TOY, TOY_EVALUATION, TOY_POSTERIORS, run_all
from tests.posteriors.test_samples import make_samples
from utils.data.datasets import load_pixels
from utils.evaluation import alignment
from utils.evaluation.diagnostics import rhat
from utils.evaluation.evaluate import Candidate, TableErrors
from utils.evaluation.metrics import METRICS
from utils.evaluation.pruning_study import list_prunings
from utils.evaluation.weight_space import open_weight_space
from utils.networks.mlp import MLP
from utils.posteriors.samples import Points
from utils.rebasin.matching import make_matcher
from utils.rebasin.rebase import rebase
from utils.runs.files import save_json
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch
import yaml

QUICK = ("--config_name", "quick", *TOY_EVALUATION)
COLUMNS = {
    "hmc_sample", "hmc_direct", "hmc_rebased", "hmc_mean_reference", "hmc_low_rank",
    "ensemble_sample", "ensemble_direct", "ensemble_rebased", "vi",
    "hmc_contribution", "hmc_consensus", "hmc_consensus_repair_tau", "ensemble_contribution",
}  # fmt: skip


@pytest.fixture
def run(evaluated):
    return evaluated / "default" / "eval-MNIST-quick"


@pytest.fixture
def images(data_dir) -> np.ndarray:
    return load_pixels("MNIST", data_dir).test_images.numpy().astype(np.float64)


@pytest.fixture
def labels(data_dir) -> np.ndarray:
    return load_pixels("MNIST", data_dir).test_labels.numpy()


def read(path) -> dict:
    return json.loads(path.read_text())


def sources_in(out_dir) -> list[str]:
    kinds = {"hmc": "HMC", "ensemble": "ensemble", "vi": "VI"}
    return [f"--{flag}={out_dir}/default/{kind}-MNIST-quick" for flag, kind in kinds.items()]


def predict(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Softmax of a 784-10-10 ReLU network in float64, with nothing of the project's."""
    weights = weights.astype(np.float64)
    first, bias = weights[:7840].reshape(10, 784), weights[7840:7850]
    second, last_bias = weights[7850:7950].reshape(10, 10), weights[7950:]
    logits = np.maximum(images @ first.T + bias, 0) @ second.T + last_bias
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def average(networks, images) -> np.ndarray:
    return np.mean([predict(weights, images) for weights in networks], axis=0)


def draws(mean: np.ndarray, std: np.ndarray, column: str):
    random = generator(0, "draws", column)
    for _ in range(10):
        yield mean + std * torch.randn(len(mean), generator=random).numpy()


def rebased(samples: np.ndarray, permutations: np.ndarray) -> np.ndarray:
    """Hidden units moved as the README says: W1[perm], b1[perm], W2[:, perm]."""
    moved = []
    for weights, perm in zip(samples, permutations, strict=True):
        first, second = weights[:7840].reshape(10, 784)[perm], weights[7850:7950].reshape(10, 10)
        bias = weights[7840:7850][perm]
        moved.append(np.concatenate([first.ravel(), bias, second[:, perm].ravel(), weights[7950:]]))
    return np.stack(moved)


def check_scores(column: dict, p: np.ndarray, truth: np.ndarray, labels: np.ndarray) -> None:
    """A column of table1.json against plain numpy."""
    rows, hits = np.arange(len(labels)), p.argmax(1) == labels
    confidence = p.max(1)
    ece = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15 + (low > 0.93))
        if inside.any():
            ece += inside.mean() * abs(hits[inside].mean() - confidence[inside].mean())
    expected = {
        "agreement": (p.argmax(1) == truth.argmax(1)).mean(),
        "total_variation": np.abs(p - truth).sum(1).mean() / 2,
        "sample_accuracy": hits.mean(),
        "nll": -np.log(p[rows, labels]).mean(),
        "ece": ece,
        "brier": np.square(p - np.eye(10)[labels]).sum(1).mean(),
    }
    # fp32 logits can turn an argmax that is nearly a tie: a few points of 10,000
    assert {row: column[row] for row in expected} == pytest.approx(expected, abs=5e-4, rel=1e-3)


def test_hmc_columns_follow_from_the_samples(evaluated, run, images, labels):
    samples = np.load(evaluated / "default" / "HMC-MNIST-quick" / "samples.npy")
    table, compact = read(run / "table1.json"), np.load(run / "compact.npz")
    assert table.keys() == COLUMNS
    truth = average(samples, images)
    check_scores(table["hmc_sample"], truth, truth, labels)
    moved = rebased(samples, compact["permutations"])
    np.testing.assert_array_equal(compact["reference"], samples[0])
    assert compact["transpositions"][0] == 0
    assert compact["transpositions"].min() >= 0
    assert compact["transpositions"].max() > 3  # the other chain's units are in another order
    for column, fitted in (("hmc_direct", samples), ("hmc_rebased", moved)):
        mean, std = fitted.astype(float).mean(0), fitted.astype(float).std(0, ddof=1)
        mean, std = mean.astype(np.float32), std.astype(np.float32)
        check_scores(table[column], average(draws(mean, std, column), images), truth, labels)
        at_mean = (predict(mean, images).argmax(1) == labels).mean()
        assert table[column]["mean_accuracy"] == pytest.approx(at_mean, abs=5e-4)
    np.testing.assert_allclose(compact["mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(compact["std"], std, rtol=1e-5)
    assert np.abs(predict(moved[5], images[:50]) - predict(samples[5], images[:50])).max() < 1e-9


def test_ensemble_and_vi_columns_follow_from_their_runs(evaluated, run, images, labels):
    table, truth = read(run / "table1.json"), np.load(run / "predictions.npz")["hmc_sample"]
    members = np.load(evaluated / "default" / "ensemble-MNIST-quick" / "samples.npy")
    check_scores(table["ensemble_sample"], average(members, images), truth, labels)
    vi = np.load(evaluated / "default" / "VI-MNIST-quick" / "posterior.npz")
    p = average(draws(vi["mean"], vi["std"], "vi"), images)
    check_scores(table["vi"], p, truth, labels)
    permutations = np.load(run / "compact_ensemble_rebased.npz")["permutations"]
    moved = rebased(members, permutations).astype(float)
    for column, fitted in (("ensemble_direct", members), ("ensemble_rebased", moved)):
        mean, std = fitted.mean(0, dtype=float), fitted.std(0, ddof=1, dtype=float)
        mean, std = mean.astype(np.float32), std.astype(np.float32)
        check_scores(table[column], average(draws(mean, std, column), images), truth, labels)


def test_every_column_follows_from_the_saved_predictions(run, labels):
    table, saved = read(run / "table1.json"), np.load(run / "predictions.npz")
    np.testing.assert_array_equal(saved["labels"], labels)
    for name, column in table.items():
        check_scores(column, saved[name], saved["hmc_sample"], labels)
        if f"{name}_mean" in saved:
            hits = saved[f"{name}_mean"].argmax(1) == labels
            assert column["mean_accuracy"] == pytest.approx(hits.mean(), abs=1e-12)
        else:
            assert name in ("hmc_sample", "ensemble_sample")
            assert "mean_accuracy" not in column


def test_columns_beyond_the_paper_follow_from_what_is_saved(run, images, labels):
    """The low-rank Gaussian, and q_r to the mean, which is another than q_r to the first sample."""
    table, truth = read(run / "table1.json"), np.load(run / "predictions.npz")["hmc_sample"]
    to_mean = np.load(run / "compact_hmc_mean_reference.npz")
    drawn = draws(to_mean["mean"], to_mean["std"], "hmc_mean_reference")
    check_scores(table["hmc_mean_reference"], average(drawn, images), truth, labels)
    low_rank, random = np.load(run / "low_rank.npz"), generator(0, "draws", "hmc_low_rank")
    rank = len(low_rank["factor"])
    drawn = [
        low_rank["mean"] + torch.randn(rank, generator=random).numpy() @ low_rank["factor"]
        for _ in range(10)
    ]
    check_scores(table["hmc_low_rank"], average(drawn, images), truth, labels)


def further_means(run) -> dict[str, np.ndarray]:
    names = ("hmc_contribution", "hmc_consensus", "ensemble_contribution")
    return {name: np.load(run / f"compact_{name}.npz")["mean"] for name in names}


def test_further_ways_of_rebasin_are_told_by_what_they_leave(evaluated, run):
    """Moments from the samples and the permutations in the files, variance by plain NumPy."""
    samples = np.load(evaluated / "default" / "HMC-MNIST-quick" / "samples.npy")
    diagnostics, alive = read(run / "diagnostics.json"), np.load(run / "weight_space.npz")["alive"]
    assert diagnostics["ways"].keys() == {
        "hmc_rebased", "hmc_mean_reference", "hmc_contribution", "hmc_consensus"
    }  # fmt: skip
    for name in ("hmc_contribution", "hmc_consensus"):
        compact, way = np.load(run / f"compact_{name}.npz"), diagnostics["ways"][name]
        moved = rebased(samples, compact["permutations"])
        np.testing.assert_allclose(moved.mean(0), compact["mean"], atol=1e-5)
        share = moved.var(0)[alive].sum() / samples.var(0)[alive].sum()
        assert way["remaining_variance"] == pytest.approx(share, rel=1e-4)
        assert 0 <= way["cycle_error"] <= 1
    (tau,) = diagnostics["scales"]["hmc_consensus_repair_tau"]
    assert 0 <= tau <= 1


def test_every_mean_network_follows_from_its_weights(evaluated, run, images, labels):
    table, space = read(run / "table1.json"), np.load(run / "weight_space.npz")
    vi = np.load(evaluated / "default" / "VI-MNIST-quick" / "posterior.npz")
    means = {
        "hmc_direct": space["hmc_before_mean"],
        "hmc_rebased": np.load(run / "compact.npz")["mean"],
        "hmc_mean_reference": np.load(run / "compact_hmc_mean_reference.npz")["mean"],
        "hmc_low_rank": np.load(run / "low_rank.npz")["mean"],
        **further_means(run),
        "ensemble_direct": space["ensemble_before_mean"],
        "ensemble_rebased": np.load(run / "compact_ensemble_rebased.npz")["mean"],
        "vi": vi["mean"],
    }
    repaired = {"hmc_consensus_repair_tau"}  # its mean network follows from images, too
    with_mean = {name for name, column in table.items() if "mean_accuracy" in column}
    assert means.keys() == with_mean - repaired
    for name, mean in means.items():
        hits = predict(mean, images).argmax(1) == labels
        assert table[name]["mean_accuracy"] == pytest.approx(hits.mean(), abs=5e-4)


def test_the_low_rank_gaussian_has_the_samples_covariance(evaluated, run):
    samples = np.load(evaluated / "default" / "HMC-MNIST-quick" / "samples.npy")
    moved = rebased(samples, np.load(run / "compact.npz")["permutations"])
    low_rank = np.load(run / "low_rank.npz")
    some = slice(7800, 7960)
    expected = np.cov(moved[:, some].T)
    factor = low_rank["factor"][:, some]
    np.testing.assert_allclose(factor.T @ factor, expected, atol=1e-4)
    rank = read(run / "diagnostics.json")["low_rank"]
    distinct = len(np.unique(samples, axis=0))  # others were rejected
    assert rank == {"rank": distinct - 1, "variance_kept": pytest.approx(1, rel=1e-5)}


def test_every_cell_has_an_error(run):
    table, errors = read(run / "table1.json"), read(run / "table1_errors.json")
    for name, column in table.items():
        assert errors[name].keys() == column.keys()
        assert all(error >= 0 for error in errors[name].values())
        # no less than a tenth of the binomial error of 10,000 points: 4 resamplings are few
        p = column["sample_accuracy"]
        assert errors[name]["sample_accuracy"] > 0.1 * (p * (1 - p) / 1e4) ** 0.5
    assert errors["hmc_sample"]["agreement"] == errors["hmc_sample"]["total_variation"] == 0


def test_errors_come_from_all_that_a_column_rests_on(evaluated, script, tmp_path, monkeypatch):
    asked = {}

    def of_samples(errors, column, method):
        asked.setdefault(column.key, []).append(method)
        blocks = len(errors.predictions[errors.truth].sizes)
        asked["chains"], asked["blocks"] = errors.num_chains, blocks
        return dict.fromkeys(METRICS, 3.0)

    monkeypatch.setattr(TableErrors, "of_samples", of_samples)
    ended = script("MNIST_eval", *QUICK, *sources_in(evaluated), "--num_blocks", "5")
    assert ended.returncode == 0, ended.stderr
    assert asked.pop("chains") == {"hmc": 2, "ensemble": 1}
    assert asked.pop("blocks") == 4  # two of each chain, for five would have one of both
    assert asked == {
        name: ["hmc", "ensemble"] if name.startswith("ensemble") else ["hmc"] for name in COLUMNS
    }
    errors = read(tmp_path / "default" / "eval-MNIST-quick" / "table1_errors.json")
    for column, methods in asked.items():
        assert all(error >= 3 * len(methods) ** 0.5 for error in errors[column].values())


def test_methods_are_compared_in_one_frame(evaluated, run, images):
    space = np.load(run / "weight_space.npz")
    vi = np.load(evaluated / "default" / "VI-MNIST-quick" / "posterior.npz")
    np.testing.assert_array_equal(space["vi_before_mean"], vi["mean"])
    # moved as a whole: the same pairs of mean and std, elsewhere
    pairs = [
        sorted(zip(mean.tolist(), std.tolist(), strict=True))
        for mean, std in (
            (space["vi_after_mean"], space["vi_after_std"]), (vi["mean"], vi["std"]),
        )
    ]  # fmt: skip
    assert pairs[0] == pairs[1]
    assert (space["vi_after_mean"] != vi["mean"]).any()
    before, after = predict(vi["mean"], images[:50]), predict(space["vi_after_mean"], images[:50])
    np.testing.assert_allclose(before, after, atol=1e-9)
    member = np.load(evaluated / "default" / "ensemble-MNIST-quick" / "samples.npy")[0]
    single = predict(space["ensemble_single"], images[:50])
    np.testing.assert_allclose(single, predict(member, images[:50]), atol=1e-9)


def test_references_are_the_samples_they_are_named_after(evaluated, run):
    """Another one in every row: no two give the same accuracy."""
    found = read(run / "diagnostics.json")["references"]
    assert len(found) > 1
    assert next(iter(found)) == "sample 0"
    assert len({row["sample_accuracy"] for row in found.values()}) == len(found)
    assert len({row["average_transpositions"] for row in found.values()}) > 1


@pytest.mark.figures
def test_diagnostics(evaluated, run, data_dir):
    found = read(run / "diagnostics.json")
    samples = np.load(evaluated / "default" / "HMC-MNIST-quick" / "samples.npy").astype(float)
    dead = ~load_pixels("MNIST", data_dir, 300).train_images.numpy().any(0)
    assert dead.sum() > 67  # HMC has seen 300 images, where more pixels are dead than in all
    weights = samples[:, :7840].reshape(-1, 10, 784)[:, :, dead]
    check = found["dead_pixels"]
    assert check["weights"] == 10 * dead.sum()
    assert check["mean_square"] == pytest.approx(np.square(weights).mean(), rel=1e-6)
    assert check["std"] == pytest.approx(weights.var(0, ddof=1).mean() ** 0.5, rel=1e-6)
    rebased = found["dead_pixels_rebased"]  # by activation, so the same weights in other places
    assert rebased["mean_square"] == pytest.approx(check["mean_square"], rel=1e-6)
    vi = np.load(evaluated / "default" / "VI-MNIST-quick" / "posterior.npz")
    vi_std = vi["std"][:7840].reshape(10, 784)[:, dead]
    assert found["dead_pixels_vi"]["std"] == pytest.approx(vi_std.mean(), rel=1e-6)
    assert found["num_chains"] == 2
    assert check["passed"] is None  # trajectories of length 0.045 have not left the start
    assert found["mixing"].keys() == {"before", "after"}
    assert found["mixing"]["after"].keys() == {"W1", "b1", "W2", "b2", "dead pixels"}
    assert len(found["references"]) == 5
    assert len(found["study_positions"]) == found["study_samples"] == 4
    references = {int(name.removeprefix("sample ")) for name in found["references"]}
    assert not references & set(found["study_positions"])
    first = found["references"]["sample 0"]
    assert first["mean_with_first"] == pytest.approx(1)
    assert first["std_with_first"] == pytest.approx(1)
    compact = np.load(run / "compact.npz")
    assert found["transpositions"]["along_chain"] == compact["transpositions"].sum(1).tolist()
    assert found["transpositions"]["random"] == pytest.approx(10 - sum(1 / k for k in range(1, 11)))
    assert 0 < found["prior_networks"]["average_transpositions"] <= 9
    assert set(found["correlations"]["after"]) == {
        "hmc and ensemble",
        "hmc and vi",
        "ensemble and vi",
    }
    for name in ("weight_pairs_mean", "weight_pairs_std", "transpositions_along_chain"):
        assert (run / f"{name}.png").stat().st_size > 10_000


def test_weights_are_compared_as_they_are_saved(run):
    found, space = read(run / "diagnostics.json"), np.load(run / "weight_space.npz")
    alive = space["alive"]
    for frame, pairs in found["correlations"].items():
        for pair, correlations in pairs.items():
            first, second = pair.split(" and ")
            for part, value in correlations.items():
                both = [space[f"{name}_{frame}_{part}"][alive] for name in (first, second)]
                assert value == pytest.approx(np.corrcoef(*both)[0, 1], abs=1e-6)
    changed = found["correlations"]["after"]["hmc and vi"]["mean"]
    assert abs(changed - found["correlations"]["before"]["hmc and vi"]["mean"]) > 1e-3
    of_dead = np.quantile(space["hmc_before_std"][~alive], [0.025, 0.975])
    for frame, shares in found["at_prior"].items():
        band = shares["band"]
        assert band[0] > 2 * of_dead[0]  # these have not left the start, so they tell nothing
        std = space[f"hmc_{frame}_std"][alive]
        inside = ((std >= band[0]) & (std <= band[1])).mean()
        assert shares["share"]["alive"] == pytest.approx(inside, abs=1e-3)


def test_after_rebasin_by_weight_dead_pixels_are_not_held_against_the_prior(
    evaluated, script, tmp_path
):
    ended = script("MNIST_eval", *QUICK, *sources_in(evaluated), "--no-by_activation")
    assert ended.returncode == 0, ended.stderr
    found = read(tmp_path / "default" / "eval-MNIST-quick" / "diagnostics.json")
    assert found["dead_pixels"]["weights"] > 0
    assert found["dead_pixels_rebased"] is None


def test_mixing_is_of_the_two_chains(evaluated, run):
    samples = np.load(evaluated / "default" / "HMC-MNIST-quick" / "samples.npy")
    last_bias = samples[:, 7950:].reshape(2, 8, 10)  # all of b2 is watched, and never permuted
    found = read(run / "diagnostics.json")["mixing"]
    for frame in ("before", "after"):
        rhats = [rhat(last_bias[:, :, k]) for k in range(10)]
        assert found[frame]["b2"]["median_rhat"] == pytest.approx(np.median(rhats), rel=1e-6)


def test_the_mean_reference_and_the_null_are_what_they_are_called(evaluated, run, data_dir):
    """To a mean samples lie closer than to one of them; noise is matched to HMC's first sample."""
    samples = np.load(evaluated / "default" / "HMC-MNIST-quick" / "samples.npy")
    to_mean = np.load(run / "compact_hmc_mean_reference.npz")
    moved = rebased(samples, to_mean["permutations"]).astype(float)
    np.testing.assert_allclose(to_mean["mean"], moved.mean(0), atol=1e-6)
    assert not (rebased(to_mean["reference"][None], to_mean["permutations"][:1]) == samples).any()
    closest = np.abs(samples[:, None] - to_mean["reference"]).max(-1).min()
    assert closest > 1e-3  # it is none of the samples
    found = read(run / "diagnostics.json")["prior_networks"]
    network = MLP((784, 10, 10))
    images = load_pixels("MNIST", data_dir, 300).train_images[:100]
    matcher = make_matcher("activation", network, torch.from_numpy(samples[0]), images)
    planned = []
    for number in range(4):
        random = generator(0, "prior_network", number)
        planned.append(matcher(torch.randn(7960, generator=random)).transformation)
    assert found["transpositions"] == [each.total_transpositions() for each in planned]


def test_the_null_beside_other_methods_has_hmcs_effective_samples(evaluated, run, data_dir):
    found, space = read(run / "diagnostics.json"), np.load(run / "weight_space.npz")
    null, effective = found["prior_networks"], found["mixing"]["after"]["W1"]["median_ess"]
    count = null["networks_of_mean_with"]
    assert count == min(max(round(effective), 2), 16)
    network, alive = MLP((784, 10, 10)), space["alive"]
    images = load_pixels("MNIST", data_dir, 300).train_images[:100]
    reference = torch.from_numpy(np.load(run / "compact.npz")["reference"])
    matcher = make_matcher("activation", network, reference, images)
    moved = []
    for number in range(count):
        weights = torch.randn(7960, generator=generator(0, "prior_network", number))
        moved.append(rebase(network, weights, matcher).weights.double().numpy())
    for name, value in null["mean_with"].items():
        other = space[f"{name}_after_mean"][alive]
        known = np.corrcoef(np.mean(moved, axis=0)[alive], other)[0, 1]
        assert value == pytest.approx(known, abs=1e-6)


def test_permuted_copies_of_one_network(evaluated, script, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    source = evaluated / "default" / "HMC-MNIST-quick"
    first = np.load(source / "samples.npy")[:1].repeat(5, axis=0)
    orders = np.stack([np.random.default_rng(k).permutation(10) for k in range(5)])
    np.save(mine / "samples.npy", rebased(first, orders))
    shutil.copy(source / "network.json", mine)
    given = ("--samples", mine / "samples.npy", "--ensemble", "none", "--vi", "none")
    ended = script("MNIST_eval", *QUICK, *given)
    assert ended.returncode == 0, ended.stderr
    left = tmp_path / "default" / "eval-MNIST-quick"
    assert np.load(left / "compact.npz")["std"].max() == 0
    table = read(left / "table1.json")
    assert table["hmc_rebased"]["agreement"] == 1
    assert table["hmc_direct"]["agreement"] < 0.9
    assert read(left / "diagnostics.json")["low_rank"] == {"rank": 0, "variance_kept": 1}


def test_samples_stand_in_for_hmcs(evaluated, script):
    samples = evaluated / "default" / "HMC-MNIST-quick" / "samples.npy"
    ended = script("MNIST_eval", *QUICK, *sources_in(evaluated), "--samples", samples)
    assert ended.returncode == 2
    assert "give either --hmc or --samples" in ended.stderr


def test_users_own_samples_and_no_others(evaluated, script, tmp_path, run):
    mine = tmp_path / "mine"
    mine.mkdir()
    source = evaluated / "default" / "HMC-MNIST-quick"
    np.save(mine / "samples.npy", np.load(source / "samples.npy")[:6])
    shutil.copy(source / "network.json", mine)
    given = ("--samples", mine / "samples.npy", "--ensemble", "none", "--vi", "none")
    ended = script("MNIST_eval", *QUICK, *given)
    assert ended.returncode == 0, ended.stderr
    left = tmp_path / "default" / "eval-MNIST-quick"
    assert not (left / "weight_pairs_mean.png").exists()  # there is nothing to compare HMC with
    table = read(left / "table1.json")
    assert table.keys() == {name for name in COLUMNS if name.startswith("hmc")}
    assert str(mine / "samples.npy") in ended.stdout
    assert "\nsamples q_r " in ended.stdout
    assert "HMC" not in ended.stdout.replace(str(tmp_path), "")  # nor are the paper's beside them
    assert "0.8249" not in ended.stdout
    assert "fewer than 8 samples" in ended.stdout


def test_the_papers_numbers_stand_beside_hmcs(evaluated, script):
    others = ("--ensemble", "none", "--vi", "none")
    ended = script("MNIST_eval", *QUICK, sources_in(evaluated)[0], *others)
    assert ended.returncode == 0, ended.stderr
    assert "HMC q_r" in ended.stdout
    assert "(paper 0.8249)" in ended.stdout


def test_other_samples_are_not_taken_for_hmcs(evaluated, script):
    ensemble = evaluated / "default" / "ensemble-MNIST-quick"
    ended = script("MNIST_eval", *QUICK, "--hmc", ensemble, "--ensemble", "none", "--vi", "none")
    assert ended.returncode == 2
    assert "is a run of kind ensemble, not HMC" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_two_samples_are_too_few_for_other_references(evaluated, script, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    source = evaluated / "default" / "HMC-MNIST-quick"
    np.save(mine / "samples.npy", np.load(source / "samples.npy")[[0, -1]])
    shutil.copy(source / "network.json", mine)
    given = ("--samples", mine / "samples.npy", "--ensemble", "none", "--vi", "none")
    ended = script("MNIST_eval", *QUICK, *given)
    assert ended.returncode == 0, ended.stderr
    assert "\n0 other samples" in ended.stdout
    left = tmp_path / "default" / "eval-MNIST-quick"
    assert read(left / "diagnostics.json")["references"] == {}
    assert read(left / "table1_errors.json")["hmc_rebased"]["agreement"] is None  # NaN


@pytest.mark.parametrize("missing", ["HMC", "ensemble", "VI"])
def test_a_missing_run_names_the_command_that_makes_it(missing, evaluated, script, tmp_path):
    for kind in {"HMC", "ensemble", "VI"} - {missing}:
        name = f"{kind}-MNIST-quick"
        shutil.copytree(evaluated / "default" / name, tmp_path / "default" / name)
    ended = script("MNIST_eval", *QUICK)
    assert ended.returncode == 2
    names = {"HMC": "MNIST_HMC.py", "ensemble": "MNIST_Ensemble.py", "VI": "MNIST_VI.py"}
    command = f"python {names[missing]} --run_batch_name default --config_name quick --out_dir"
    assert command in ended.stderr
    without = f"or --{missing.lower()} none."
    assert ended.stderr.endswith(f"{without}\n") == (missing != "HMC")
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "default" / "eval-MNIST-quick").exists()


def test_networks_must_be_the_same(evaluated, script, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(evaluated / "default" / "VI-MNIST-quick", other)
    (other / "network.json").write_text('{"sizes": [784, 4, 10], "activation": "relu"}')
    np.savez(other / "posterior.npz", mean=np.zeros(3190), std=np.ones(3190))
    ended = script("MNIST_eval", *QUICK, *sources_in(evaluated)[:2], "--vi", other)
    assert ended.returncode == 2
    assert "of the network 784-4-10 (relu)" in ended.stderr
    assert "--vi none" in ended.stderr


def test_a_stopped_evaluation_goes_on_with_what_it_found(evaluated, script, tmp_path, monkeypatch):
    calls = []

    def rebase_and_count(*arguments):
        calls.append(arguments)
        if len(calls) == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return rebase(*arguments)

    monkeypatch.setattr(alignment, "rebase", rebase_and_count)
    stopped = script("MNIST_eval", *QUICK, *sources_in(evaluated))
    assert stopped.returncode == 130
    assert "--resume" in stopped.stderr
    assert len(calls) == 7
    other = tmp_path / "default" / "VI-MNIST-quick"
    shutil.copytree(evaluated / "default" / other.name, other)
    meta = read(other / "meta.json") | {"wandb_id": "of another start"}
    (other / "meta.json").write_text(json.dumps(meta))
    refused = script("MNIST_eval", *QUICK, *sources_in(evaluated)[:-1], f"--vi={other}", "--resume")
    assert refused.returncode == 2
    assert "was begun with other runs (VI is another one now): give --overwrite" in refused.stderr
    resumed = script("MNIST_eval", *QUICK, *sources_in(evaluated), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    # the other 9 of HMC's 16 samples, and 3 members
    assert len(calls) == 7 + 9 + 3
    results = [
        out / "default" / "eval-MNIST-quick" / "table1.json" for out in (evaluated, tmp_path)
    ]
    assert read(results[0]) == read(results[1])


# ---- which runs are compared


def make_run(out_dir, name: str, num_train=None, kind: str | None = None):
    """Make a finished run with samples; without a kind, as earlier versions have left them."""
    directory = out_dir / "default" / name
    directory.mkdir(parents=True)
    recorded = {"dataset": "MNIST", "num_train": num_train, "config_name": "x", "run_name": ""}
    save_json(directory / "config.yaml", recorded)  # JSON is YAML
    save_json(directory / "meta.json", {"wandb_id": name} | ({"kind": kind} if kind else {}))
    (directory / "DONE").touch()
    return make_samples(directory, 3)


def find(out_dir, **given) -> dict[str, Candidate]:
    return find_candidates(EvalConfig(out_dir=str(out_dir), **given))


def test_other_methods_runs_are_found_by_the_chains_network_and_data(tmp_path):
    """Though their configs have other names, and another run is newer."""
    hmc = make_run(tmp_path, "HMC-MNIST-laptop", num_train=3000)
    wanted = make_run(tmp_path, "ensemble-MNIST-quick", num_train=3000)
    make_run(tmp_path, "ensemble-MNIST-paper")
    found = find(tmp_path, vi="none")
    assert {name: each.run.path for name, each in found.items()} == {
        "hmc": hmc, "ensemble": wanted,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["VI", None])
def test_samples_of_another_method_are_not_taken_for_hmcs(tmp_path, kind):
    run = make_run(tmp_path, "VI-MNIST-x" if kind is None else "renamed", kind=kind)
    with pytest.raises(UserError, match="is a run of kind VI, not HMC: give another --hmc"):
        find(tmp_path, hmc=str(run))
    others = {"ensemble": "none", "vi": "none"}
    assert find(tmp_path, samples=str(run), **others)["hmc"].title == "samples"
    assert find(tmp_path, posteriors=[f"hmc={run}"], **others)["hmc"].title == "hmc"


def test_any_set_can_be_the_truth(tmp_path):
    chain, own = (make_run(tmp_path, name) for name in ("chain", "own"))
    none = dict.fromkeys(("hmc", "ensemble", "vi"), "none")
    given = [f"own={own}", f"chain={chain}"]
    found = find(tmp_path, truth="chain", posteriors=given, num_samples=2, **none)
    assert {name: len(each.posterior) for name, each in found.items()} == {"chain": 2, "own": 3}
    with pytest.raises(UserError, match="compared with other: give --posteriors other=PATH"):
        find(tmp_path, truth="other", posteriors=given, **none)


# ---- posteriors of any kind, under any name


@pytest.fixture(scope="module")
def others(evaluated, tmp_path_factory, data_dir) -> dict[str, Path]:
    """A second VI run, SWAG with one mode and with two, and networks without a run."""
    out_dir = tmp_path_factory.mktemp("others")
    epochs = ("--num_epochs", "6", "--num_pretrain_epochs", "3", "--num_draws", "2")
    swag = ("--method", "swag", *TOY, *epochs)
    run_all(out_dir, data_dir, {"train": swag})
    run_all(out_dir, data_dir, {"train": (*swag, "--num_modes", "2", "--run_name", "multi")})
    run_all(out_dir, data_dir, {"MNIST_VI": (*TOY, *TOY_POSTERIORS["MNIST_VI"], "--seed", "1")})
    samples = np.load(evaluated / "default" / "ensemble-MNIST-quick" / "samples.npy")
    Points(torch.from_numpy(samples), MLP((784, 10, 10))).save(out_dir)
    runs = out_dir / "default"
    return {
        "vi2": runs / "VI-MNIST-quick",
        "swag": runs / "SWAG-MNIST-quick",
        "swag_multi": runs / "SWAG-MNIST-quick-multi",
        "own": out_dir,
    }


def test_any_posterior_is_evaluated_under_its_name(
    evaluated, others, script, tmp_path, images, labels
):
    given = [f"{name}={path}" for name, path in others.items()]
    ended = script("MNIST_eval", *QUICK, *sources_in(evaluated), "--posteriors", *given)
    assert ended.returncode == 0, ended.stderr
    assert "swag_multi q " in ended.stdout
    left = tmp_path / "default" / "eval-MNIST-quick"
    table, errors = read(left / "table1.json"), read(left / "table1_errors.json")
    own = [f"own_{view}" for view in ("sample", "direct", "rebased", "contribution")]
    new = ["vi2", "swag", "swag_multi", *own]
    assert list(table) == [*read(evaluated / "default" / left.name / "table1.json"), *new]
    for key in set(table) - set(new):  # what others are compared beside it changes nothing
        assert table[key] == read(evaluated / "default" / left.name / "table1.json")[key]
    for part in ("sample", "rebased"):  # the same networks under another name
        assert table[f"own_{part}"].keys() == table[f"ensemble_{part}"].keys()
    assert table["own_sample"] == table["ensemble_sample"]
    assert "mean_accuracy" not in table["swag_multi"]  # a mixture has no mean network
    assert "mean_accuracy" in table["swag"]
    assert all(errors[key].keys() == table[key].keys() for key in new)
    assert min(errors[key]["nll"] for key in new) > 0

    vi2 = np.load(others["vi2"] / "posterior.npz")
    truth = np.load(left / "predictions.npz")["hmc_sample"]
    check_scores(
        table["vi2"], average(draws(vi2["mean"], vi2["std"], "vi2"), images), truth, labels
    )
    swag, space = np.load(others["swag"] / "low_rank.npz"), np.load(left / "weight_space.npz")
    std = np.sqrt(np.square(swag["factor"]).sum(0) + np.square(swag["diagonal"]))
    np.testing.assert_allclose(space["swag_before_std"], std, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(np.sort(space["swag_after_std"]), np.sort(std), rtol=1e-5, atol=1e-9)
    assert "swag_multi_after_mean" not in space
    np.testing.assert_array_equal(space["own_after_mean"], space["ensemble_after_mean"])
    meta = read(left / "meta.json")
    assert meta["inputs"].keys() == {"HMC", "ensemble", "VI", *others}
    found = read(left / "diagnostics.json")
    assert found["dead_pixels_swag"]["std"] == pytest.approx(std[: 784 * 10][dead_in(left)].mean())
    assert {"hmc and swag", "vi and vi2"} <= found["correlations"]["after"].keys()

    prunings = list_prunings(open_weight_space(left, torch.device("cpu")), seed=0)
    assert {each.name for each in prunings} >= {
        "vi2 mean, random of vi2", "own mean, std of swag", "own single, std of hmc",
    }  # fmt: skip
    assert not any("multi" in each.name for each in prunings)


def dead_in(left) -> np.ndarray:
    return ~np.load(left / "weight_space.npz")["alive"][: 784 * 10]


def test_an_ensemble_can_be_the_truth(evaluated, others, script, tmp_path):
    given = [f"{name}={others[name]}" for name in ("own", "swag")]
    none = ("--hmc", "none", "--ensemble", "none", "--vi", "none")
    ended = script("MNIST_eval", *QUICK, *none, "--truth", "own", "--posteriors", *given)
    assert ended.returncode == 0, ended.stderr
    left = tmp_path / "default" / "eval-MNIST-quick"
    table = read(left / "table1.json")
    views = (
        "sample", "direct", "rebased", "mean_reference", "low_rank", "contribution", "consensus",
        "consensus_repair_tau",
    )  # fmt: skip
    assert list(table) == [*(f"own_{view}" for view in views), "swag"]
    assert table["own_sample"]["agreement"] == 1
    assert (left / "compact_own_mean_reference.npz").exists()
    assert read(left / "diagnostics.json")["halves_of_own"]["agreement"] < 1


def test_what_costs_memory_can_be_left_out(evaluated, script, tmp_path):
    warm = tmp_path / "warm"  # said to be of another temperature, which is only warned of
    shutil.copytree(evaluated / "default" / "VI-MNIST-quick", warm)
    settings = yaml.safe_load((warm / "config.yaml").read_text())
    (warm / "config.yaml").write_text(yaml.safe_dump(settings | {"temperature": 0.5}))
    without = ("--num_refits", "0", "--rank", "0", "--mean_rounds", "0", "--vi", warm)
    ended = script("MNIST_eval", *QUICK, *sources_in(evaluated), *without)
    assert ended.returncode == 0, ended.stderr
    assert "different temperatures (HMC T = 1, ensemble T = 1, VI T = 0.5)" in ended.stdout
    left = tmp_path / "default" / "eval-MNIST-quick"
    table, errors = read(left / "table1.json"), read(left / "table1_errors.json")
    assert table.keys() == COLUMNS - {"hmc_low_rank", "hmc_mean_reference"}
    whole = read(evaluated / "default" / left.name / "table1.json")
    assert table["hmc_rebased"]["nll"] == pytest.approx(whole["hmc_rebased"]["nll"], rel=1e-4)
    assert set(errors["hmc_rebased"].values()) == {None}
    assert errors["vi"] == read(evaluated / "default" / left.name / "table1_errors.json")["vi"]
