"""The rules by which the paper's claims are judged, on results made up to meet them or not."""

import json
from pathlib import Path

from utils import claims
from utils.claims import FAILS, HOLDS, PARTLY, UNKNOWN, judge_all
from utils.results import Missing, Results, open_results

import numpy as np
import pytest

KINDS = ("ensemble", "VI", "net_matching", "transpositions", "HMC", "eval", "eval_pruning")


def results_of(batch: Path, preset: str = "laptop") -> Results:
    return open_results(batch, preset, "MNIST", {kind: kind for kind in KINDS})


def write(batch: Path, kind: str, name: str, content) -> None:
    (batch / kind).mkdir(exist_ok=True)
    (batch / kind / name).write_text(json.dumps(content))


def judge_table(batch: Path, judge, error: float = 0.01, **columns: dict) -> str:
    """The mark of a claim about these columns of Table 1, all with the same error."""
    errors = {name: dict.fromkeys(column, error) for name, column in columns.items()}
    write(batch, "eval", "table1.json", columns)
    write(batch, "eval", "table1_errors.json", errors)
    return judge(results_of(batch))[0]


@pytest.mark.parametrize(
    ("after", "before", "error", "mark"),
    [
        (0.82, 0.12, 0.01, HOLDS),
        (0.82, 0.70, 0.01, PARTLY),
        (0.82, 0.80, 0.01, FAILS),
        (0.12, 0.82, 0.01, FAILS),
        (0.82, 0.57, 0.10, FAILS),  # of which the errors leave nothing
    ],
)
def test_rebasin_gives_meaning(tmp_path, after, before, error, mark):
    cells = {"hmc_rebased": {"agreement": after}, "hmc_direct": {"agreement": before}}
    assert judge_table(tmp_path, claims.rebasin_gives_meaning, error, **cells) == mark


@pytest.mark.parametrize(
    ("samples", "draws", "mean", "mark"),
    [(0.98, 0.82, 0.92, HOLDS), (0.98, 0.82, 0.80, PARTLY), (0.83, 0.82, 0.80, FAILS)],
)
def test_rebased_is_not_the_posterior(tmp_path, samples, draws, mean, mark):
    rebased = {"sample_accuracy": draws, "mean_accuracy": mean}
    cells = {"hmc_sample": {"sample_accuracy": samples}, "hmc_rebased": rebased}
    assert judge_table(tmp_path, claims.rebased_is_not_the_posterior, **cells) == mark


@pytest.mark.parametrize(("rebased", "mark"), [(0.977, HOLDS), (0.90, PARTLY), (0.70, FAILS)])
def test_ensemble_survives(tmp_path, rebased, mark):
    accuracies = {"sample": 0.987, "direct": 0.52, "rebased": rebased}
    cells = {f"ensemble_{name}": {"sample_accuracy": a} for name, a in accuracies.items()}
    assert judge_table(tmp_path, claims.ensemble_survives, **cells) == mark


@pytest.mark.parametrize(("vi", "mark"), [(0.985, HOLDS), (0.96, PARTLY), (0.9, FAILS)])
def test_methods_predict_alike(tmp_path, vi, mark):
    cells = {"ensemble_sample": {"agreement": 0.993}, "vi": {"agreement": vi}}
    assert judge_table(tmp_path, claims.methods_predict_alike, **cells) == mark


def test_methods_that_learned_from_different_images_need_not_predict_alike(tmp_path):
    cells = {"ensemble_sample": {"agreement": 0.993}, "vi": {"agreement": 0.985}}
    for kind, others, expected in (("HMC", 2000, HOLDS), ("VI", 2000, HOLDS), ("VI", 20000, None)):
        write(tmp_path, kind, "meta.json", {})
        write(tmp_path, kind, "config.yaml", {"num_train": others})  # JSON is YAML, too
        if expected:
            assert judge_table(tmp_path, claims.methods_predict_alike, **cells) == expected
    with pytest.raises(Missing, match="different training images"):
        judge_table(tmp_path, claims.methods_predict_alike, **cells)


@pytest.mark.parametrize(
    ("accuracies", "mark"),
    [
        ((0.9843, 0.9866, 0.9811), HOLDS),  # the paper's own
        ((0.9800, 0.9866, 0.9811), PARTLY),
        ((0.95, 0.95, 0.95), FAILS),
    ],
)
def test_accuracies_match(tmp_path, accuracies, mark):
    names = ("hmc_sample", "ensemble_sample", "vi")
    pairs = zip(names, accuracies, strict=True)
    cells = {name: {"sample_accuracy": accuracy} for name, accuracy in pairs}
    assert judge_table(tmp_path, claims.accuracies_match, **cells) == mark
    with pytest.raises(Missing, match="no numbers for this network"):
        claims.accuracies_match(results_of(tmp_path, "quick"))


def dynamics(batch: Path, **arrays) -> Results:
    (batch / "net_matching").mkdir(exist_ok=True)
    np.savez(batch / "net_matching" / "training_dynamics.npz", hidden_sizes=[512], **arrays)
    return results_of(batch)


@pytest.mark.parametrize(
    ("lines", "mark"),
    [
        ([[0, 200, 400, 500]] * 2, HOLDS),
        ([[0, 400, 506, 501], [0, 400, 503, 505]], HOLDS),  # up and down as chance does: ± 2.3
        ([[0, 400, 300, 500], [0, 200, 400, 500]], PARTLY),
        ([[0, 400, 300, 500]] * 2, FAILS),
    ],
)
def test_transpositions_are_monotone(tmp_path, lines, mark):
    found = np.array(lines)[:, None, :, None].repeat(2, 1)
    assert claims.transpositions_are_monotone(dynamics(tmp_path, transpositions=found))[0] == mark


@pytest.mark.parametrize(("left", "mark"), [(0.02, HOLDS), (0.1, PARTLY), (0.3, FAILS)])
def test_barrier_vanishes(tmp_path, left, mark):
    losses = np.array([[[0.1, 0.5, 0.1], [0.1, 0.1 + left, 0.1]]])  # [epoch, alignment, λ]
    results = dynamics(tmp_path, test_loss=losses, fractions=[0, 0.5, 1], rebased=1)
    assert claims.barrier_vanishes(results)[0] == mark


@pytest.mark.parametrize(
    ("mean", "std", "mark"),
    [(0.3, 0.3, HOLDS), (0.3, 0.05, PARTLY), (0.05, 0.3, PARTLY), (0.0, 0.3, FAILS)],
)
def test_weights_compare(tmp_path, mean, std, mark):
    frames = {"before": {"mean": 0.0, "std": 0.0}, "after": {"mean": mean, "std": std}}
    found = {frame: {"hmc and vi": numbers} for frame, numbers in frames.items()}
    write(tmp_path, "eval", "diagnostics.json", {"correlations": found})
    assert claims.weights_compare(results_of(tmp_path))[0] == mark


@pytest.mark.parametrize(("chain", "apart", "mark"), [
    (300, 505, HOLDS), (505, 300, HOLDS), (490, 505, PARTLY), (505, 506, FAILS),
])  # fmt: skip
def test_transpositions_tell(tmp_path, chain, apart, mark):
    diagnostics = {"transpositions": {"along_chain": [0, 9, chain, chain], "random": 505.2}}
    write(tmp_path, "eval", "diagnostics.json", diagnostics)
    results = dynamics(tmp_path, alignment_transpositions=np.array([[[apart]]]))
    assert claims.transpositions_tell(results)[0] == mark


@pytest.mark.parametrize(("reached", "mark"), [(0.8, HOLDS), (0.6, PARTLY), (0.5, FAILS)])
def test_hmc_std_prunes(tmp_path, reached, mark):
    orders = {"std of hmc": reached, "random of ensemble": 0.5, "std of ensemble": 0.1,
              "abs_mean of ensemble": 0.9}  # fmt: skip
    curves = {f"ensemble mean, {name}": {"sparsity": {"0.05": s}} for name, s in orders.items()}
    write(tmp_path, "eval_pruning", "pruning.json", {"curves": {"all": curves, "alive": curves}})
    assert claims.hmc_std_prunes(results_of(tmp_path))[0] == mark


def test_what_is_not_finite_is_not_measured(tmp_path):
    cells = {"hmc_rebased": {"agreement": 0.8}, "hmc_direct": {"agreement": None}}
    write(tmp_path, "eval", "table1.json", cells)
    write(tmp_path, "eval", "table1_errors.json", cells)
    found = {frame: {"hmc and vi": {"mean": 0.1, "std": None}} for frame in ("before", "after")}
    write(tmp_path, "eval", "diagnostics.json", {"correlations": found})
    for judge in (claims.rebasin_gives_meaning, claims.weights_compare):
        with pytest.raises(Missing):
            judge(results_of(tmp_path))


def test_what_no_run_has_left_is_not_measured(tmp_path):
    verdicts = judge_all(results_of(tmp_path))
    assert {verdict.mark for verdict in verdicts} == {UNKNOWN}
    assert len(verdicts) == len(claims.CLAIMS)


def planted(batch: Path, **trained) -> Results:
    """An experiment of two planted NoT, with these numbers in its summary."""
    write(batch, "transpositions", "summary.json", {"trained": trained})
    records = [
        {"stage": "trained", "planted": [n], "hidden_sizes": [100], "test_loss_barrier": n / 100}
        for n in (1, 99)
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (batch / "transpositions" / "transpositions.jsonl").write_text(lines)
    return results_of(batch)


@pytest.mark.parametrize(
    ("change", "rank", "mark"), [(1.5, 0.5, HOLDS), (5, 0.95, PARTLY), (5, 0.5, FAILS)]
)
def test_training_keeps_transpositions(tmp_path, change, rank, mark):
    results = planted(tmp_path, mean_change=change, rank_correlation_planted_found=rank)
    assert claims.training_keeps_transpositions(results)[0] == mark


@pytest.mark.parametrize(("rank", "mark"), [(0.95, HOLDS), (0.6, PARTLY), (None, FAILS)])
def test_barrier_grows(tmp_path, rank, mark):
    results = planted(tmp_path, rank_correlation_planted_barrier=rank)
    mark_found, evidence = claims.barrier_grows(results)
    assert mark_found == mark
    assert "from 0.010 nats at NoT 1 to 0.990 at 99" in evidence
