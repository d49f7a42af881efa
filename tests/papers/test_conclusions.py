"""Conclusions across papers: they rest on judged claims, and their advice follows the results."""

import json
from pathlib import Path

from papers import CONCLUSIONS, PAPERS, conclusions
from utils.report.paper import FAILS, HOLDS, PARTLY
from utils.report.results import Results, open_results

import pytest


def test_every_conclusion_rests_on_claims_that_are_judged():
    judged = [claim for paper in PAPERS for claim in paper.claims]
    for conclusion in CONCLUSIONS:
        assert conclusion.question.endswith("?")
        assert all(claim in judged for claim in conclusion.claims)


def test_main_claims_have_a_sentence_for_every_mark():
    for claim in (claim for conclusion in CONCLUSIONS for claim in conclusion.claims):
        assert not claim.in_short or claim.in_short.keys() >= {HOLDS, PARTLY, FAILS}, claim.text


@pytest.fixture
def results(tmp_path) -> dict[str, Results]:
    """Results by paper, of a batch that has no runs yet."""
    return {
        paper.name: open_results(
            tmp_path, "quick", "MNIST", {step.kind: step.kind for step in paper.steps}
        )
        for paper in PAPERS
    }


def write(results: dict[str, Results], paper: str, kind: str, **contents) -> None:
    """Leave result files of a run."""
    directory = results[paper].runs[kind].directory
    directory.mkdir(exist_ok=True)
    for name, content in contents.items():
        (directory / f"{name}.json").write_text(json.dumps(content))


def row(name: str, modes: str, nll: float, **more) -> dict:
    return {
        "name": name, "modes": modes, "num_modes": 1 if modes == "one" else 10,
        "scores": {"nll": nll, "ece": 0.1, "scaled_ece": 0.02},
        "errors": {"nll": 0.01, "ece": 0.01, "scaled_ece": None},
        "training_seconds": 2.0, **more,
    }  # fmt: skip


def test_without_runs_there_is_no_advice(results):
    assert [conclusion.advise(results) for conclusion in CONCLUSIONS] == ["", "", ""]


@pytest.mark.parametrize(
    ("others", "advice"),
    [
        ((0.28, 0.4), "Train 10 plain networks and average what they predict: NLL 0.300 ± 0.010"),
        ((0.25, 0.4), "Take a with 10 modes: NLL 0.250 ± 0.010 after 2.0 core-seconds"),
    ],
)
def test_plain_networks_are_advised_unless_something_is_clearly_better(results, others, advice):
    """The error of a difference is 0.014."""
    rows = [row("networks", "multi", 0.3), row("hmc", "multi", 0.1)]
    rows += [row(name, "multi", nll) for name, nll in zip("ab", others, strict=True)]
    rows += [row("networks", "one", 0.5), row("a", "one", 0.49), row("b", "one", 0.6)]
    write(results, "symmetry", "symmetry_table", table=rows)
    assert conclusions.average_networks(results).startswith(advice)
    assert "no approximation is clearly better" in conclusions.one_training(results)
    assert "from 0.100 to 0.020" in conclusions.fit_a_temperature(results)
    rows[0]["scores"]["scaled_ece"] = 0.09
    rows[-2]["scores"]["nll"] = 0.4
    write(results, "symmetry", "symmetry_table", table=rows)
    assert conclusions.fit_a_temperature(results) == ""
    assert "train only once, take a: NLL 0.400" in conclusions.one_training(results)


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ((1.0, 0.0, 0.0), "Compare predictions, or weights"),
        ((1.0, 1.0, 0.0), "Compare predictions, not weights"),
        ((1.0, 1.0, 1.0), "Here nothing can be compared"),
        ((0.0, 0.0, 0.0), "Here weights compare as they are"),
    ],
)
def test_weights_are_compared_where_halves_of_a_chain_are_alike(results, values, advice):
    spaces = zip(("weights", "canonical", "inside"), values, strict=True)
    halves = {"hmc": {space: {"value": value, "high": 0.5} for space, value in spaces}}
    write(
        results, "symmetry", "symmetry_table", table=[row("hmc", "multi", 0.1, distances=halves)],
        summary={"symmetries_removed": {"log10_permutations": 4.46, "scalings": 12}},
    )  # fmt: skip
    assert advice in conclusions.compare_without_symmetries(results)
    assert "10^4.5 ways and 12 of them" in conclusions.compare_without_symmetries(results)


@pytest.mark.parametrize(
    ("changes", "advice"),
    [((0.0, 0.001), "Do not"), ((-0.05, -0.04), "Do not"), ((0.04, 0.05), "Scale"),
     ((-0.01, 0.05), "To scale networks to their minimum mass in training may help")],
)  # fmt: skip
def test_projection_is_advised_if_it_helps(results, changes, advice):
    cells = [
        {"optimizer": "SGD", "projected": projected, "accuracy": 0.9 + change * projected}
        for change in changes
        for projected in (False, True)
    ]
    write(results, "symmetry", "symmetry_balance", summary={"cells": cells})
    masses = {"networks": 9, "excess_quantiles": [0.0, 0.1, 0.1, 0.25, 0.3, 0.3, 0.4]}
    write(results, "symmetry", "symmetry_mass", summary=masses, meta={"seconds": 3})
    text = conclusions.leave_scales_alone(results)
    assert text.startswith(advice)
    assert "9 networks are 25 % heavier" in text
    assert text.endswith("takes 3 s.")


@pytest.mark.parametrize(
    ("vi", "advice"), [(0.99, "for a reference, not for predictions"), (0.9, "where the diff")]
)
def test_hmc_is_advised_where_others_predict_differently(results, vi, advice):
    table = {"ensemble_sample": {"agreement": 0.985}, "vi": {"agreement": vi}}
    write(results, "compact", "eval", table1=table)
    network = {"sizes": [4, 3, 2], "activation": "relu"}
    for kind, seconds in (("HMC", 7200), ("ensemble", 60), ("VI", 5)):
        write(results, "compact", kind, meta={"seconds": seconds}, network=network)
    write(results, "symmetry", "symmetry_table", network=network | {"sizes": [2, 2, 2]})
    write(results, "symmetry", "networks")
    (results["symmetry"].runs["networks"].directory / "config.yaml").write_text("num_train: 1000")
    text = conclusions.when_to_run_hmc(results)
    assert advice in text
    assert "With 23 weights HMC took 2 h 0 min" in text
    assert "ensemble (1 min 0 s) on 98.5 %" in text
    assert "with 12 weights, trained on 1,000 images" in text


@pytest.mark.parametrize(("rebased", "advice"), [(0.1, "match networks before"), (0.9, "do not")])
def test_matched_networks_are_averaged_if_the_barrier_falls(results, rebased, advice):
    summary = {
        "as is": {"test_loss_barrier": 1.0},
        "by activation": {
            "test_loss_barrier": rebased, "over_epochs": {"largest_test_loss_barrier": 0.95},
        },
    }  # fmt: skip
    write(results, "compact", "net_matching", summary=summary, meta={"seconds": 65})
    text = conclusions.match_before_averaging(results)
    assert advice in text
    assert f"from 1.000 to {rebased:.3f} nats, and it is 0.950 at most" in text


@pytest.mark.parametrize(("draws", "advice"), [(0.8, "keep the samples"), (0.97, "q_r can stand")])
def test_samples_are_kept_if_draws_are_worse(results, draws, advice):
    table = {
        "hmc_sample": {"sample_accuracy": 0.98},
        "hmc_rebased": {"sample_accuracy": draws, "mean_accuracy": 0.9},
    }
    errors = {name: {"sample_accuracy": 0.01} for name in table}
    write(
        results, "compact", "eval", table1=table, table1_errors=errors,
        diagnostics={"num_samples": 250},
    )  # fmt: skip
    assert advice in conclusions.keep_the_samples(results)


def test_pruning_follows_the_best_order(results):
    shares = {"abs_mean of ensemble": 0.5, "std of hmc": 0.7, "std of ensemble": 0.1,
              "random of ensemble": 0.3}  # fmt: skip
    alive = {f"ensemble mean, {n}": {"sparsity": {"0.05": share}} for n, share in shares.items()}
    write(results, "compact", "eval_pruning", pruning={"curves": {"alive": alive}})
    text = conclusions.prune_by(results)
    assert text.startswith("Prune by HMC's σ: 70 %")
    assert "50 % by |μ|, 30 % by random order, 10 % by its own σ" in text


def test_a_damaged_run_takes_only_its_own_advice_away(results):
    write(results, "symmetry", "symmetry_table", table=[row("networks", "multi", 0.3)])
    question = CONCLUSIONS[1]
    assert question.advise(results).startswith("Fit a temperature")
    Path(results["symmetry"].runs["symmetry_table"].directory / "table.json").write_text("[{")
    assert question.advise(results) == ""
