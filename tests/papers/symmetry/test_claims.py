"""The rules by which the paper's claims are judged, on results made up to meet them or not."""

import json
import math
from pathlib import Path

from papers.symmetry import batch_norm, claims, mass_claims
from papers.symmetry.batch_norm import shrink_network
from papers.symmetry.paper import PAPER
from papers.symmetry.values import median_error, published
from utils.report.paper import FAILS, HOLDS, PARTLY, UNDECIDED, UNKNOWN, Claim, judge
from utils.report.results import Results, open_results

import numpy as np
import pytest

KINDS = [step.kind for step in PAPER.steps]


def results_of(batch: Path) -> Results:
    return open_results(batch, "quick", "MNIST", {kind: kind for kind in KINDS})


def verdict(batch: Path, claim: Claim, content: dict, name: str = "summary.json"):
    """Return how a claim fares on this result file."""
    (batch / claim.kinds[0]).mkdir(exist_ok=True)
    (batch / claim.kinds[0] / name).write_text(json.dumps(content))
    return judge(claim, results_of(batch))


def test_without_runs_nothing_is_measured(tmp_path):
    of_runs = [claim for claim in PAPER.claims if claim.kinds]
    assert {judge(claim, results_of(tmp_path)).mark for claim in of_runs} == {UNKNOWN}


def test_the_papers_nine_claims_are_numbered_in_order():
    numbers = [number for claim in PAPER.claims for number in claim.number.split(", ") if number]
    assert {number[0] for number in numbers} == set("123456789")
    assert len(numbers) == len(set(numbers))
    firsts = [claim.number for claim in PAPER.claims if claim.number]
    assert firsts == sorted(firsts)
    assert not any(claim.number for claim in PAPER.claims if claim.ours)


def test_batch_norm_is_degenerate(monkeypatch, tmp_path):
    """The outputs stay only if running statistics are scaled, too, and do vary over images."""
    assert judge(mass_claims.batch_norm_is_degenerate, results_of(tmp_path)).mark == HOLDS
    found = shrink_network(factor=0.1)
    assert found.change < 1e-12
    assert found.convolutions[1] == pytest.approx(0.01 * found.convolutions[0])
    monkeypatch.setattr(batch_norm, "BATCH_NORM_EPS", 1e-3)  # not what the network has
    assert shrink_network(factor=0.1).change > 1e-3
    assert judge(mass_claims.batch_norm_is_degenerate, results_of(tmp_path)).mark == FAILS


@pytest.mark.parametrize(
    ("p_values", "mark"), [((0.5, 0.5), HOLDS), ((0.5, 0.001), PARTLY), ((1e-5, 1e-5), FAILS)]
)
def test_mixture_of_copies(tmp_path, p_values, mark):
    copies = dict(zip(("equal_shares_p", "equal_weights_p"), p_values, strict=True))
    copies |= {"counts": [495, 505], "tests": 9}
    result = verdict(tmp_path, claims.mixture_of_copies, {"copies": copies})
    assert result.mark == mark
    assert "0.4950, 0.5050 (expected 0.5000 ± 0.0158" in result.evidence
    assert result.in_short


def test_few_networks_do_not_tell_whether_copies_differ(tmp_path):
    copies = {"equal_shares_p": 0.5, "equal_weights_p": 0.5, "counts": [4, 4, 5], "tests": 9}
    result = verdict(tmp_path, claims.mixture_of_copies, {"copies": copies})
    assert result.mark == UNKNOWN
    assert "13 networks in 3 orders" in result.evidence
    copies["counts"] = [5, 4, 6]
    assert verdict(tmp_path, claims.mixture_of_copies, {"copies": copies}).mark == HOLDS


@pytest.mark.parametrize(
    ("entropies", "mark"), [((9, 8, 7), HOLDS), ((9, 9.5, 8), PARTLY), ((9, 10, 9.5), FAILS)]
)
def test_simpler_without_symmetries(tmp_path, entropies, mark):
    content = {"entropies": dict(zip("abc", entropies, strict=True))}
    assert verdict(tmp_path, claims.simpler_without_symmetries, content).mark == mark


@pytest.mark.parametrize(("factors", "mark"), [
    ((1, 1, 1, 1.05), HOLDS), ((1, 1, 1.2, 1.2), PARTLY), ((1, 1.2, 1.2, 1.2), FAILS),
])  # fmt: skip
def test_shapes_match(tmp_path, factors, mark):
    values = published("toy")
    shape = {name: f * values[name] for name, f in zip(values, factors, strict=True)}
    content = {"shape": shape, "shape_errors": dict.fromkeys(shape, 0.01)}
    assert verdict(tmp_path, claims.shapes_match, content).mark == mark


def test_shapes_near_the_threshold_are_not_decided(tmp_path):
    shape = published("toy")
    shape["radius"] *= 1.09
    content = {"shape": shape, "shape_errors": dict.fromkeys(shape, 0.05)}
    assert verdict(tmp_path, claims.shapes_match, content).mark == UNDECIDED
    content["shape"] |= {"side": 2 * shape["side"]}  # in part, whatever the radius is
    assert verdict(tmp_path, claims.shapes_match, content).mark == PARTLY


@pytest.mark.parametrize(
    ("independent", "chain", "draws", "mark"),
    [
        (0.5, 1e-4, 3.0, HOLDS),
        (0.5, 0.5, 200.0, PARTLY),
        (0.5, 0.5, 3.0, UNDECIDED),
        (1e-4, 0.5, 3.0, FAILS),
        (None, 0.5, 3.0, UNKNOWN),
        (0.5, None, 3.0, UNKNOWN),
    ],
)
def test_units_are_exchangeable(tmp_path, independent, chain, draws, mark):
    def test_of(p: float) -> dict:
        return {"p": p, "effective_draws": draws, "counts": [10, 20]}

    content = {}
    if chain is not None:
        groups = {"h1": {"as they are": test_of(chain)}}
        content["HMC"] = {"independent": False, "groups": groups}
    if independent is not None:
        groups = {"h1": {"as they are": test_of(independent)}}
        content["sgd"] = {"independent": True, "groups": groups}
    result = verdict(tmp_path, claims.units_are_exchangeable, content, "marginals.json")
    assert result.mark == mark
    if mark != UNKNOWN:
        assert f"30 networks worth {draws:.1f} draws" in result.evidence


def test_p_values_are_corrected_for_the_number_of_groups(tmp_path):
    tests = [{"p": p, "effective_draws": 900.0, "counts": [9]} for p in (0.006, 0.5)]
    groups = {name: {"as they are": test} for name, test in zip("ab", tests, strict=True)}
    content = {name: {"independent": name == "sgd", "groups": groups} for name in ("sgd", "HMC")}
    result = verdict(tmp_path, claims.units_are_exchangeable, content, "marginals.json")
    assert "p = 0.012" in result.evidence
    assert result.mark == PARTLY


MASSES = {
    "network": "optunet for [1, 28, 28]", "networks": 1000,
    "excess_quantiles": [0.012, 0.03, 0.1, 0.25, 0.3, 0.4, 0.6], "excess_modes": [0.11, 0.28],
    "clusters": [
        {"mass": 155, "mass_error": 1, "minimum": 115, "minimum_error": 1, "excess": 0.34,
         "networks": 600},
        {"mass": 205, "mass_error": 1, "minimum": 180, "minimum_error": 1, "excess": 0.13,
         "networks": 400},
    ],
    "smallest_second_difference": 1e-4, "minimum_spread_over_orbit": 1e-15,
}  # fmt: skip


@pytest.mark.parametrize(
    ("second", "spread", "mark"),
    [(1e-4, 1e-15, HOLDS), (-3e-14, 1e-15, HOLDS), (-1e-9, 1e-15, FAILS), (1e-4, 0.1, FAILS)],
)
def test_mass_is_convex(tmp_path, second, spread, mark):
    changed = {"smallest_second_difference": second, "minimum_spread_over_orbit": spread}
    assert verdict(tmp_path, mass_claims.mass_is_convex, MASSES | changed).mark == mark


@pytest.mark.parametrize(("low", "median", "mark"), [
    (0.02, 0.2, HOLDS), (0.0, 0.2, PARTLY), (0.0, 0.005, FAILS),
])  # fmt: skip
def test_training_stays_above_the_minimum(tmp_path, low, median, mark):
    changed = {"excess_quantiles": [0, low, median, median, median, 0.3, 0.4]}
    assert (
        verdict(tmp_path, mass_claims.training_stays_above_minimum, MASSES | changed).mark == mark
    )


def test_shares_of_few_networks_are_not_measured(tmp_path):
    claim = mass_claims.training_stays_above_minimum
    assert verdict(tmp_path, claim, MASSES | {"networks": 19}).mark == UNKNOWN
    assert verdict(tmp_path, claim, MASSES | {"networks": 20}).mark == HOLDS


def test_clusters_and_excess_are_compared_for_optunets_only(tmp_path):
    for claim in (mass_claims.clusters_match, mass_claims.excess_matches):
        assert verdict(tmp_path, claim, MASSES).mark == HOLDS
        assert verdict(tmp_path, claim, MASSES | {"network": "784-64-10 (relu)"}).mark == UNKNOWN
        assert verdict(tmp_path, claim, MASSES | {"clusters": []}).mark == UNKNOWN


@pytest.mark.parametrize(
    ("masses", "mark"),
    [((155, 240), PARTLY), ((110, 240), FAILS), ((155, 221), UNDECIDED), ((110, 221), UNDECIDED)],
)
def test_other_clusters(tmp_path, masses, mark):
    pairs = zip(MASSES["clusters"], masses, strict=True)
    clusters = [cluster | {"mass": mass} for cluster, mass in pairs]
    result = verdict(tmp_path, mass_claims.clusters_match, MASSES | {"clusters": clusters})
    assert result.mark == mark


@pytest.mark.parametrize(("modes", "high", "mark"), [
    ([0.11, 0.4], 0.4, PARTLY), ([0.11], 0.4, PARTLY), ([0.11, 0.28], 0.7, PARTLY),
    ([0.2], 0.7, FAILS),
])  # fmt: skip
def test_another_excess(tmp_path, modes, high, mark):
    changed = {"excess_modes": modes, "excess_quantiles": [0.01, 0.03, 0.1, 0.2, 0.3, high, 0.8]}
    assert verdict(tmp_path, mass_claims.excess_matches, MASSES | changed).mark == mark


def cells(gap: float = 0.0, accuracy_change: float = 0.0, decays=(0.0, 0.01)) -> dict:
    """Return a grid of two networks that follows the law up to a gap in half of its cells."""
    made = []
    for network in ("mlp", "lenet"):
        for decay in decays:
            time = 30 * decay
            kept = math.exp(-2 * time) + (gap if decay and network == "lenet" else 0)
            for projected in (False, True):
                changed = accuracy_change if projected and network == "lenet" else 0
                made.append({
                    "network": network, "optimizer": "SGD", "learning_rate": 0.1, "momentum": 0.0,
                    "weight_decay": decay, "projected": projected, "decay_time": time,
                    "share_left": 1.5 * kept, "excess": 0.1, "accuracy": 0.9 + changed,
                    "nll": 0.3, "barrier": 0.1,
                })  # fmt: skip
    return {"cells": made}


def test_imbalance_decays_as_without_noise(tmp_path):
    """What is left is relative to training without decay, here 1.5 of the start."""
    claim = mass_claims.imbalance_decays_as_without_noise
    assert verdict(tmp_path, claim, cells()).mark == HOLDS
    partly = verdict(tmp_path, claim, cells(gap=0.2))
    assert partly.mark == PARTLY
    assert "1 of 2 cells are within 0.1; the largest gap is +0.20" in partly.evidence
    assert verdict(tmp_path, claim, cells(decays=(0.01,))).mark == UNKNOWN


@pytest.mark.parametrize(("change", "mark"), [(0.001, HOLDS), (0.02, PARTLY)])
def test_projection_changes_little(tmp_path, change, mark):
    result = verdict_on_projection(tmp_path, cells(accuracy_change=change)["cells"])
    assert result.mark == mark
    assert f"accuracy changes by 0.000 to {change:.3f}" in result.evidence


def test_a_change_within_two_errors_of_the_threshold_is_not_decided(tmp_path):
    made = [
        cell | {"accuracy": [0.9, 0.9 + 0.008 * cell["projected"]]} for cell in cells()["cells"]
    ]  # 0.004 ± 0.004
    result = verdict_on_projection(tmp_path, made)
    assert result.mark == UNDECIDED
    assert "smaller than 0.005 in 0 cells, clearly larger in 0." in result.evidence


def verdict_on_projection(batch: Path, made: list[dict]):
    """Judge by the records of cells, in which a score is a list over networks."""
    directory = batch / "symmetry_balance"
    directory.mkdir(exist_ok=True)
    records = [
        {name: np.atleast_1d(value).tolist() if name in SCORES else value
         for name, value in cell.items()}
        for cell in made
    ]  # fmt: skip
    (directory / "cells.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    return judge(mass_claims.projection_changes_little, results_of(batch))


SCORES = ("accuracy", "nll", "barrier")


@pytest.mark.parametrize(
    ("gaps", "mark"), [((0.2, 0.2), HOLDS), ((0, 0.2), PARTLY), ((0, 0), FAILS)]
)
def test_noise_outweighs_decay(tmp_path, gaps, mark):
    content = cells()
    for cell in content["cells"]:
        if cell["weight_decay"]:
            cell["share_left"] += 1.5 * gaps[cell["network"] == "lenet"]
    result = verdict(tmp_path, mass_claims.noise_outweighs_decay, content)
    assert result.mark == mark
    assert f"In {sum(gap > 0 for gap in gaps)} of 2 cells" in result.evidence


def test_cells_that_diverged_are_left_out_with_a_remark(tmp_path):
    """Also the partner of one that was compared with it, and all that no reference is left for."""
    claim = mass_claims.imbalance_decays_as_without_noise
    content = cells(gap=0.2, accuracy_change=0.02)
    for k, cell in enumerate(content["cells"]):
        if cell["network"] == "lenet" and not cell["projected"]:
            kept = ("network", "optimizer", "learning_rate", "momentum", "weight_decay")
            lost = {name: cell[name] for name in (*kept, "projected")}
            content["cells"][k] = lost | {"diverged": True}
    both = verdict(tmp_path, claim, content), verdict_on_projection(tmp_path, content["cells"])
    for judged in both:
        assert judged.mark == HOLDS
        assert "Training diverged in 2 of 8 cells, which are left out" in judged.evidence
    content["cells"] = [cell | {"diverged": True} for cell in content["cells"]]
    both = verdict(tmp_path, claim, content), verdict_on_projection(tmp_path, content["cells"])
    assert {judged.mark for judged in both} == {UNKNOWN}


@pytest.mark.parametrize(("whole", "last", "mark"), [
    (0.1, 0.95, HOLDS), (0.1, 0.5, PARTLY), (0.95, 0.5, FAILS),
])  # fmt: skip
def test_order_settles(tmp_path, whole, last, mark):
    steps = {"first": 0.2, "last": last}
    content = {
        "norm_start_to_end": whole, "norm_step": steps, "largest_start_to_end": 0.3,
        "largest_step": steps, "not_by_activation_step": {"first": 3.0, "last": 0.0},
        "not_by_activation_start_to_end": 5.0, "not_by_weight_step": {"first": 0.0, "last": 0.0},
        "not_by_weight_start_to_end": 1.0,
    }  # fmt: skip
    judged = verdict(tmp_path, claims.order_settles, content)
    assert judged.mark == mark
    assert "by activation 5.0 from start to end and 0.0 in the last epoch" in judged.evidence


def test_scales_matter(tmp_path):
    def result(gain: float, noise: float) -> dict:
        before, rise = np.array([0.5, 0.7, 0.6]), np.array([gain - noise, gain, gain + noise])
        agreements = {
            "as they are": before,
            "unit norm": before - 0.1,
            "minimum mass": before + rise,
        }
        return {"scales": {n: {"q_r": {"agreement": list(a)}} for n, a in agreements.items()}}

    for first, second, mark in ((0.02, 0.02, HOLDS), (0.02, -0.02, PARTLY), (0.0, 0.0, FAILS)):
        content = {"HMC": result(first, 0.001), "ensemble": result(second, 0.001)}
        judged = verdict(tmp_path, claims.scales_matter, content, "compact.json")
        assert judged.mark == mark
    noisy, clear = {"HMC": result(0.02, 0.05)}, {"ensemble": result(0.02, 0.001)}
    for content in (noisy, noisy | clear):  # 0.02 ± 0.03
        assert verdict(tmp_path, claims.scales_matter, content, "compact.json").mark == UNDECIDED


def test_the_error_of_a_median_covers_it():
    """In 68 % of sets of exponential numbers, up to 3 standard errors of that share."""
    random = np.random.default_rng(0)
    sets = random.exponential(size=(2000, 101))
    errors = np.array([median_error(values) for values in sets])
    covered = np.mean(np.abs(np.median(sets, axis=1) - math.log(2)) < errors)
    assert 0.6 < covered < 0.74
    assert errors.mean() == pytest.approx(1 / 101**0.5, rel=0.1)  # 1 / (2 f √n), f = ½
