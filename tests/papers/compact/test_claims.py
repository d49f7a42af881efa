"""The rules by which the paper's claims are judged, on results made up to meet them or not."""

import json
from itertools import product
from pathlib import Path

from papers.compact import claims
from papers.compact.paper import PAPER
from papers.compact.planted_pairs import rank_correlation
from papers.compact.tables import PAPER_METHODS
from utils.report.paper import FAILS, HOLDS, PARTLY, UNDECIDED, UNKNOWN, Claim, judge
from utils.report.results import Missing, Results, open_results
from utils.symmetry.permutation import expected_transpositions, transpositions_deviation

import numpy as np
import pytest

KINDS = ("ensemble", "VI", "net_matching", "transpositions", "HMC", "eval", "eval_pruning")


def results_of(batch: Path, preset: str = "laptop") -> Results:
    return open_results(batch, preset, "MNIST", {kind: kind for kind in KINDS})


def write(batch: Path, kind: str, name: str, content) -> None:
    (batch / kind).mkdir(exist_ok=True)
    (batch / kind / name).write_text(json.dumps(content))


def write_table(batch: Path, error: float, columns: dict) -> None:
    errors = {name: dict.fromkeys(column, error) for name, column in columns.items()}
    write(batch, "eval", "table1.json", columns)
    write(batch, "eval", "table1_errors.json", errors)


def judge_table(batch: Path, claim: Claim, error: float = 0.01, **columns: dict) -> str:
    """Return the mark of a claim about these columns of Table 1, all with the same error."""
    write_table(batch, error, columns)
    return claim.judge(results_of(batch)).mark


TABLE = {
    "hmc_sample": {"agreement": 1.0, "sample_accuracy": 0.983},
    "hmc_direct": {"agreement": 0.12, "total_variation": 0.86, "sample_accuracy": 0.11},
    "hmc_rebased": {
        "agreement": 0.82, "total_variation": 0.65, "sample_accuracy": 0.81, "mean_accuracy": 0.92,
    },
    "ensemble_sample": {"agreement": 0.99, "sample_accuracy": 0.986},
    "ensemble_direct": {"sample_accuracy": 0.52},
    "ensemble_rebased": {"sample_accuracy": 0.97},
    "vi": {"agreement": 0.98, "sample_accuracy": 0.98},
}  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "ours", "paper"),
    [
        (claims.rebasin_gives_meaning, ["0.820 ± 0.010", "0.120 ± 0.010", "0.650", "0.860"],
         ["0.825, 0.121", "0.657, 0.864"]),
        (claims.rebased_is_not_the_posterior,
         ["samples 98.30 ± 1.00 %", "draws of q_r 81.00 ± 1.00 %", "μ_r: 92.00 ± 1.00 %"],
         ["98.43, 82.34 %", "92.25 %"]),
        (claims.ensemble_survives,
         ["ensemble 98.60 ± 1.00 %", "its q_r 97.00 ± 1.00 %", "its q_d 52.00 ± 1.00 %"],
         ["98.66, 97.72, 52.25 %"]),
        (claims.methods_predict_alike, ["0.9900 ± 0.0100", "VI on 0.9800 ± 0.0100"],
         ["0.993, 0.989"]),
    ],
)  # fmt: skip
def test_the_evidence_is_what_the_table_says(tmp_path, claim, ours, paper):
    """On MNIST with the paper's values in brackets, on other data without."""
    write_table(tmp_path, 0.01, TABLE)
    evidence = claim.judge(results_of(tmp_path)).evidence
    for text in (*ours, *(f"(paper: {values})." for values in paper)):
        assert text in evidence
    other = open_results(tmp_path, "laptop", "FashionMNIST", {kind: kind for kind in KINDS})
    assert "paper" not in claim.judge(other).evidence


def write_paired_errors(batch: Path, error: float) -> None:
    found = {key: {"difference": 0.0, "error": error} for key in ("hmc_sample", "ensemble_sample")}
    found["vi"] = {"difference": 0.0, "error": 2 * error}
    write(batch, "eval", "diagnostics.json", {"accuracy_differences": found})


def test_accuracies_are_shown_beside_the_papers(tmp_path):
    write_table(tmp_path, 0.01, TABLE)
    write_paired_errors(tmp_path, 0.0004)
    evidence = claims.accuracies_match.judge(results_of(tmp_path)).evidence
    assert "98.30 ± 1.00 % (98.43), 98.60 ± 1.00 % (98.66), 98.00 ± 1.00 % (98.11)." in evidence
    assert evidence.endswith("at most 0.04, 0.04, 0.08 points.")


@pytest.mark.parametrize(
    ("after", "before", "error", "mark"),
    [
        (0.82, 0.12, 0.01, HOLDS),
        (0.82, 0.70, 0.01, PARTLY),
        (0.12, 0.82, 0.01, FAILS),
        (0.82, 0.80, 0.01, UNDECIDED),  # a rise of 0 is within two errors
        (0.82, 0.57, 0.10, UNDECIDED),  # 0.2 is within two errors
        (0.82, 0.63, 0.01, UNDECIDED),
    ],
)
def test_rebasin_gives_meaning(tmp_path, after, before, error, mark):
    agreements = {"hmc_rebased": after, "hmc_direct": before}
    cells = {name: TABLE[name] | {"agreement": value} for name, value in agreements.items()}
    assert judge_table(tmp_path, claims.rebasin_gives_meaning, error, **cells) == mark
    in_short = judge(claims.rebasin_gives_meaning, results_of(tmp_path)).in_short
    assert in_short.startswith("These runs do not decide it") == (mark == UNDECIDED)
    assert f"on {100 * after:.0f} % of the test images" in in_short
    assert f"from q_d on {100 * before:.0f} %" in in_short


@pytest.mark.parametrize(
    ("distance", "cycles", "mark"),
    [
        (0.05, 0.05, HOLDS),
        (0.20, 0.05, PARTLY),
        (0.05, 0.30, PARTLY),
        (0.57, 0.80, FAILS),
        (0.05, 0.80, FAILS),
        (0.09, 0.05, UNDECIDED),
        (0.05, 0.49, UNDECIDED),
    ],
)
def test_posterior_is_nearly_unimodal(tmp_path, distance, cycles, mark):
    """Of two ways that with the smaller TV is judged; errors are 0.01."""
    cells = {"hmc_rebased": TABLE["hmc_rebased"] | {"total_variation": 0.6},
             "hmc_consensus": TABLE["hmc_rebased"] | {"total_variation": distance}}  # fmt: skip
    write_table(tmp_path, 0.01, TABLE | cells)
    ways = {"hmc_rebased": (0.9, 0.01), "hmc_consensus": (cycles, 0.01)}
    found = {key: {"cycle_error": way[0], "cycle_error_se": way[1]} for key, way in ways.items()}
    write(tmp_path, "eval", "diagnostics.json", {"names": PAPER_METHODS, "ways": found})
    assert claims.posterior_is_nearly_unimodal.judge(results_of(tmp_path)).mark == mark


@pytest.mark.parametrize(
    ("samples", "draws", "mean", "mark"),
    [
        (0.98, 0.82, 0.92, HOLDS),
        (0.98, 0.82, 0.70, PARTLY),
        (0.72, 0.82, 0.70, FAILS),
        (0.98, 0.82, 0.84, UNDECIDED),
    ],
)
def test_rebased_is_not_the_posterior(tmp_path, samples, draws, mean, mark):
    rebased = {"sample_accuracy": draws, "mean_accuracy": mean}
    cells = {"hmc_sample": {"sample_accuracy": samples}, "hmc_rebased": rebased}
    assert judge_table(tmp_path, claims.rebased_is_not_the_posterior, **cells) == mark


@pytest.mark.parametrize(
    ("rebased", "mark"),
    [(0.999, HOLDS), (0.977, HOLDS), (0.965, PARTLY), (0.70, FAILS), (0.973, UNDECIDED)],
)
def test_ensemble_survives(tmp_path, rebased, mark):
    accuracies = {"sample": 0.987, "direct": 0.52, "rebased": rebased}
    cells = {f"ensemble_{name}": {"sample_accuracy": a} for name, a in accuracies.items()}
    assert judge_table(tmp_path, claims.ensemble_survives, 0.001, **cells) == mark


@pytest.mark.parametrize(
    ("vi", "mark"), [(0.985, HOLDS), (0.96, PARTLY), (0.9, FAILS), (0.981, UNDECIDED)]
)
def test_methods_predict_alike(tmp_path, vi, mark):
    cells = {"ensemble_sample": {"agreement": 0.993}, "vi": {"agreement": vi}}
    assert judge_table(tmp_path, claims.methods_predict_alike, 0.001, **cells) == mark


def test_methods_that_learned_from_different_images_need_not_predict_alike(tmp_path):
    cells = {"ensemble_sample": {"agreement": 0.993}, "vi": {"agreement": 0.985}}
    for kind, others, expected in (("HMC", 2000, HOLDS), ("VI", 2000, HOLDS), ("VI", 20000, None)):
        write(tmp_path, kind, "meta.json", {})
        write(tmp_path, kind, "config.yaml", {"num_train": others})  # JSON is YAML, too
        if expected:
            mark = judge_table(tmp_path, claims.methods_predict_alike, 0.001, **cells)
            assert mark == expected
    with pytest.raises(Missing, match="different training images"):
        judge_table(tmp_path, claims.methods_predict_alike, **cells)


@pytest.mark.parametrize(
    ("accuracies", "mark"),
    [
        ((0.9843, 0.9866, 0.9811), HOLDS),  # the paper's own
        ((0.9800, 0.9866, 0.9811), PARTLY),
        ((0.95, 0.95, 0.95), FAILS),
        ((0.9843, 0.9866, 0.9785), UNDECIDED),  # 0.26 ± 0.08 points
    ],
)
def test_accuracies_match(tmp_path, accuracies, mark):
    """The errors of the table are too large for a verdict, those of the same images are not."""
    names = ("hmc_sample", "ensemble_sample", "vi")
    pairs = zip(names, accuracies, strict=True)
    cells = {name: {"sample_accuracy": accuracy} for name, accuracy in pairs}
    write_paired_errors(tmp_path, 0.0004)
    assert judge_table(tmp_path, claims.accuracies_match, **cells) == mark
    with pytest.raises(Missing, match="larger network"):
        claims.accuracies_match.judge(results_of(tmp_path, "quick"))


def test_accuracies_of_a_run_without_paired_errors_are_judged_by_those_of_the_table(tmp_path):
    published = {"hmc_sample": 0.9843, "ensemble_sample": 0.9866, "vi": 0.9811}
    cells = {name: {"sample_accuracy": accuracy} for name, accuracy in published.items()}
    write(tmp_path, "eval", "diagnostics.json", {})
    for error, mark in ((0.0014, HOLDS), (0.0016, UNDECIDED)):
        assert judge_table(tmp_path, claims.accuracies_match, error, **cells) == mark
    assert "missing" in claims.accuracies_match.judge(results_of(tmp_path)).evidence


def chance_of(size: int) -> dict:
    return {
        "random_transpositions": [expected_transpositions(size)],
        "random_deviation": transpositions_deviation(size),
    }


def dynamics(batch: Path, **arrays) -> Results:
    (batch / "net_matching").mkdir(exist_ok=True)
    arrays = chance_of(512) | arrays
    np.savez(batch / "net_matching" / "training_dynamics.npz", **arrays)
    return results_of(batch)


@pytest.mark.parametrize(
    ("lines", "mark"),
    [
        ([[0, 200, 400, 500]] * 2, HOLDS),
        ([[0, 400, 506, 500]] * 2, PARTLY),  # up and down as chance does: ± 2.3 each
        ([[0, 400, 507, 500]] * 2, FAILS),  # by more than 2 √2 2.27 = 6.4
        ([[0, 400, 300, 500], [0, 200, 400, 500]], PARTLY),
        ([[0, 400, 300, 500]] * 2, FAILS),
    ],
)
def test_transpositions_are_monotone(tmp_path, lines, mark):
    found = np.array(lines)[:, None, :, None].repeat(2, 1)
    results = dynamics(tmp_path, transpositions=found)
    assert claims.transpositions_are_monotone.judge(results).mark == mark


@pytest.mark.parametrize(("left", "mark"), [(0.02, HOLDS), (0.1, PARTLY), (0.3, FAILS)])
def test_barrier_vanishes(tmp_path, left, mark):
    """Judged by the rebasin that the run was to show, after the epoch where most is left.

    Before training there is no barrier to remove.
    """
    heights = np.array([[0.0, 0.01, 0], [0.3, left, 0.4], [0.4, 0.01, 0.4]])  # [epoch, alignment]
    losses = 0.1 + heights[..., None] * [0, 1, 0]
    lines = {"test_loss": losses, "fractions": [0, 0.5, 1], "epochs": [0, 1, 2]}
    results = dynamics(tmp_path, **lines, rebased=1)
    finding = claims.barrier_vanishes.judge(results)
    assert finding.mark == mark
    assert finding.numbers == f"at most 0.400 nats without rebasin, {left:.3f} with it"
    assert "last epoch: 0.400 nats without rebasin, 0.010 with it" in finding.evidence
    assert f"the largest at any epoch: 0.400 and {left:.3f}" in finding.evidence
    assert f"{left / 0.3:.3f} at most (epoch 1)" in finding.evidence


def write_correlations(batch: Path, **cross_fitted) -> None:
    """With the ensemble everything is correlated, with VI as given; all errors are 0.01."""
    found = {
        "ensemble": {"mean": 0.5, "std": 0.5, "null": 0.0},
        "vi": {"mean": 0.5, "std": 0.5, "null": 0.0} | cross_fitted,
    }
    for row in found.values():
        row |= {f"{part}_error": 0.01 for part in ("mean", "std", "null")}
    write_cross_fitted(batch, found)


def write_cross_fitted(batch: Path, found: dict) -> None:
    after = {"hmc and vi": {"mean": 0.33, "std": 0.1}}
    diagnostics = {
        "limits": {"cross_fitted": found},
        "correlations": {"after": after},
        "prior_networks": {"mean_with": {"vi": 0.2}},
    }
    write(batch, "eval", "diagnostics.json", diagnostics)


@pytest.mark.parametrize(
    ("found", "mark"),
    [
        ({}, HOLDS),
        ({"std": 0.05}, PARTLY),
        ({"mean": 0.06}, PARTLY),
        ({"mean": 0.11, "std": 0.05}, PARTLY),  # 0.1 is near, but decides nothing
        ({"mean": 0.11}, UNDECIDED),
        ({"mean": 0.04}, UNDECIDED),
        ({"mean": 0.0}, FAILS),
        ({"null": 0.2}, UNDECIDED),  # alignment alone does as much
        ({"null": -0.02}, UNDECIDED),
    ],
)
def test_weights_compare(tmp_path, found, mark):
    write_correlations(tmp_path, **found)
    finding = claims.weights_compare.judge(results_of(tmp_path))
    assert finding.mark == mark
    mean = found.get("mean", 0.5)
    assert f"HMC and VI: μ {mean:+.3f} ± 0.010" in finding.evidence
    assert f"{mean:+.3f} ± 0.010 (VI)" in finding.numbers


def test_cross_fitted_correlations_of_a_former_version_are_shown_without_a_verdict(tmp_path):
    write_cross_fitted(tmp_path, {"vi": {"mean": 0.159, "std": 0.005, "null": 0.007}})
    finding = claims.weights_compare.judge(results_of(tmp_path))
    assert finding.mark == UNDECIDED
    assert "μ +0.159, σ +0.005 (prior networks: μ +0.007)" in finding.evidence
    assert "VI +0.33 (+0.20)" in finding.evidence
    assert "errors are missing" in finding.evidence
    write(tmp_path, "eval", "diagnostics.json", {"limits": {"cross_fitted": None}})
    with pytest.raises(Missing):
        claims.weights_compare.judge(results_of(tmp_path))


@pytest.mark.parametrize(("chain", "apart", "mark"), [
    (300, 505, HOLDS), (505, 300, HOLDS), (490, 505, PARTLY), (505, 506, FAILS),
])  # fmt: skip
def test_transpositions_inform(tmp_path, chain, apart, mark):
    along = [0, 9, chain, chain, *[100] * 4]  # another chain says nothing of this one
    transpositions = {"along_chain": along, "random": 505.2}
    diagnostics = {"num_chains": 2, "transpositions": transpositions}
    write(tmp_path, "eval", "diagnostics.json", diagnostics)
    found = np.array([[[10]], [[apart]]])  # [epoch, alignment, layer]: as is, before and after
    results = dynamics(tmp_path, alignment_transpositions=found)
    assert claims.transpositions_inform.judge(results).mark == mark


def test_transpositions_within_chance_carry_no_information(tmp_path):
    """Of 64 units 57 is 4 % below, but within two standard deviations of 2 % and of 10 %."""
    transpositions = {"along_chain": [0, 59, 59, 59], "random": 59.3}
    diagnostics = {"num_chains": 1, "transpositions": transpositions}
    write(tmp_path, "eval", "diagnostics.json", diagnostics)
    apart = {"alignment_transpositions": np.array([[[57]]])} | chance_of(64)
    assert claims.transpositions_inform.judge(dynamics(tmp_path, **apart)).mark == UNDECIDED
    # where units lie within blocks, chance is what the run says
    blocks = {"random_transpositions": [30.0, 50.0], "random_deviation": 3.0}
    finding = claims.transpositions_inform.judge(dynamics(tmp_path, **apart | blocks))
    assert "at random 80.0 ± 3.0" in finding.evidence
    assert finding.mark == HOLDS


def pruned_ensemble(batch: Path, gains: tuple, error: float = 0.03, known: bool = True) -> Results:
    """Leave a pruning of the ensemble's mean, where chance prunes 20 % and 50 % of live weights.

    HMC's σ prunes so much more at 1 and at 5 points of loss. Where 50 % are kept it is 8 points
    less accurate than chance, and where 10 % are kept 8 points more; both errors are the same.
    """
    shares = {"std of hmc": (0.2 + gains[0], 0.5 + gains[1]), "random of ensemble": (0.2, 0.5),
              "std of ensemble": (0.1, 0.3), "abs_mean of ensemble": (0.85, 0.95)}  # fmt: skip
    accuracies = {"std of hmc": [0.97, 0.6, 0.42, 0.58, 0.1]}
    curves = {"all": {}, "alive": {}}
    for (part, curve), (order, share) in product(curves.items(), shares.items()):
        losses = ("0.01", "0.05")
        curve[f"ensemble mean, {order}"] = found = {
            "sparsity": dict(zip(losses, share if part == "alive" else (0, 0), strict=True)),
            "accuracy": accuracies.get(order, [0.97, 0.6, 0.5, 0.5, 0.1]),
        }
        if known:
            found |= {
                "sparsity_error": dict.fromkeys(losses, error / 2**0.5),
                "accuracy_error": [error / 2**0.5] * 5,
            }
    pruning = {"curves": curves, "kept_percent": [100, 97, 50, 10, 1]}
    write(batch, "eval_pruning", "pruning.json", pruning)
    return results_of(batch)


@pytest.mark.parametrize(
    ("gains", "error", "mark"),
    [
        ((0.3, 0.3), 0.03, HOLDS),
        ((0.3, 0.1), 0.03, PARTLY),
        ((0.1, 0.3), 0.03, PARTLY),  # the worse of the two decides
        ((-0.1, 0.3), 0.03, FAILS),
        ((0.3, -0.1), 0.03, FAILS),
        ((0.3, 0.03), 0.03, UNDECIDED),  # within two errors of chance
        ((0.3, -0.05), 0.03, UNDECIDED),
        ((0.3, 0.16), 0.03, UNDECIDED),  # within two errors of 20 points
        ((-0.1, 0.03), 0.03, FAILS),
        ((0.3, 0.3), 0.06, UNDECIDED),
    ],
)
def test_hmc_std_prunes(tmp_path, gains, error, mark):
    finding = claims.hmc_std_prunes.judge(pruned_ensemble(tmp_path, gains, error))
    assert finding.mark == mark
    each = 100 * error / 2**0.5
    for loss, ours, chance in (("−1 point", 20 + 100 * gains[0], 20),
                               ("−5 points", 50 + 100 * gains[1], 50)):  # fmt: skip
        ours, chance = (f"{value:.1f} ± {each:.1f} %" for value in (ours, chance))
        assert f"at {loss} of accuracy it removes {ours} of the live ones" in finding.numbers
        assert f"random orders {chance}" in finding.numbers
        of_all = f"(0.0 ± {each:.1f} %)"
        shares = f"at {loss} HMC's σ {ours} {of_all}, chance {chance} {of_all}, its own σ "
        assert shares in finding.evidence


def test_all_points_are_judged_in_both_directions(tmp_path):
    """97 % is no point of chance's own, and at 1 % there is no difference."""
    evidence = claims.hmc_std_prunes.judge(pruned_ensemble(tmp_path, (0.1, 0.1))).evidence
    assert "With 3 shares of the live weights kept" in evidence
    assert "at 1 (10 %: +8.0 ± 3.0 points), and less at 1 (50 %: −8.0 ± 3.0 points)." in evidence
    evidence = claims.hmc_std_prunes.judge(pruned_ensemble(tmp_path, (0.1, 0.1), 0.05)).evidence
    assert "by more than 2 standard errors at 0, and less at 0." in evidence


def test_a_pruning_without_errors_is_not_judged(tmp_path):
    """As runs of earlier versions, and those whose chain is gone."""
    verdict = judge(claims.hmc_std_prunes, pruned_ensemble(tmp_path, (0.3, 0.3), known=False))
    assert verdict.mark == UNKNOWN
    assert "no standard errors" in verdict.evidence
    unknown = pruned_ensemble(tmp_path, (0.3, 0.3), error=float("nan"))
    pruning = tmp_path / "eval_pruning" / "pruning.json"
    pruning.write_text(pruning.read_text().replace("NaN", "null"))
    assert judge(claims.hmc_std_prunes, unknown).mark == UNKNOWN


def test_values_that_are_not_finite_are_not_judged(tmp_path):
    cells = {"hmc_rebased": {"agreement": 0.8}, "hmc_direct": {"agreement": None}}
    write(tmp_path, "eval", "table1.json", cells)
    write(tmp_path, "eval", "table1_errors.json", cells)
    write_correlations(tmp_path, std=None)
    for claim in (claims.rebasin_gives_meaning, claims.weights_compare):
        with pytest.raises(Missing):
            claim.judge(results_of(tmp_path))


def test_claims_without_runs_are_not_measured(tmp_path):
    verdicts = [judge(claim, results_of(tmp_path)) for claim in PAPER.claims]
    assert {verdict.mark for verdict in verdicts} == {UNKNOWN}
    assert not any(verdict.in_short for verdict in verdicts)


def test_damaged_results_are_not_measured_and_their_runs_are_named(tmp_path):
    """Files that lack something, have another form, or are cut off; other claims are judged."""
    write_table(tmp_path, 0.01, {**TABLE, "hmc_rebased": {"agreement": 0.8, "total_variation": 0}})
    write(tmp_path, "eval", "diagnostics.json", {"correlations": {"after": []}})
    write(tmp_path, "transpositions", "summary.json", {"trained": None})
    write(tmp_path, "eval_pruning", "pruning.json", [])
    dynamics(tmp_path, transpositions=np.zeros((3, 2, 5, 1)))
    path = tmp_path / "net_matching" / "training_dynamics.npz"
    path.write_bytes(path.read_bytes()[:-100])
    results = results_of(tmp_path)
    assert judge(claims.rebasin_gives_meaning, results).mark == HOLDS
    for claim, run in (
        (claims.rebased_is_not_the_posterior, "eval"),
        (claims.barrier_vanishes, "net_matching"),
        (claims.transpositions_are_monotone, "net_matching"),
        (claims.barrier_grows, "transpositions"),
        (claims.transpositions_inform, "One of eval, net_matching"),
        (claims.hmc_std_prunes, "eval_pruning"),
    ):
        verdict = judge(claim, results)
        assert verdict.mark == UNKNOWN
        assert verdict.evidence.startswith(f"{run} was left by another version or is damaged")


def test_main_claims_have_a_sentence_for_every_mark():
    in_short = [claim.in_short for claim in PAPER.claims if claim.in_short]
    assert in_short
    for sentences in in_short:
        assert sentences.keys() == {HOLDS, PARTLY, FAILS}
        assert len(set(sentences.values())) == 3


def test_every_claim_is_judged_once():
    defined = [each for each in vars(claims).values() if isinstance(each, Claim)]
    assert len(PAPER.claims) == len({claim.text for claim in PAPER.claims})
    assert all(each in PAPER.claims for each in defined)


def planted(batch: Path, found=None, heights=None) -> Results:
    """An experiment of 40 pairs of networks with 100 units, four of each NoT."""
    not_planted = np.repeat(np.arange(5, 100, 10), 4)
    found = not_planted if found is None else found
    heights = not_planted / 100 if heights is None else heights
    ranks = (rank_correlation(not_planted, values) for values in (found, heights))
    names = ("rank_correlation_planted_found", "rank_correlation_planted_barrier")
    summary = dict(zip(names, (r if np.isfinite(r) else None for r in ranks), strict=True))
    summary["mean_change"] = float(np.abs(found - not_planted).mean())
    records = [
        {"stage": "trained", "planted": [int(p)], "found": [int(f)], "hidden_sizes": [100],
         "test_loss_barrier": float(h)}
        for p, f, h in zip(not_planted, found, heights, strict=True)
    ]  # fmt: skip
    records += [record | {"stage": "undone", "found": [0]} for record in records]
    write(batch, "transpositions", "summary.json", {"trained": summary})
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (batch / "transpositions" / "transpositions.jsonl").write_text(lines)
    return results_of(batch)


PLANTED = np.repeat(np.arange(5, 100, 10), 4)
ODD = np.arange(40) % 2


@pytest.mark.parametrize(
    ("found", "mark"),
    [
        (PLANTED + ODD, HOLDS),  # by 0.5 ± 0.08 of 100 units
        (PLANTED + 5, PARTLY),
        (100 - PLANTED, FAILS),
        (PLANTED + 4 * (ODD), UNDECIDED),  # by 2 ± 0.3
    ],
)
def test_training_keeps_transpositions(tmp_path, found, mark):
    finding = claims.training_keeps_transpositions.judge(planted(tmp_path, found=found))
    assert finding.mark == mark
    if mark == UNDECIDED:
        assert "by 2.00 ± 0.32 on average over 40 pairs" in finding.evidence


@pytest.mark.parametrize(
    ("heights", "mark"),
    [
        (PLANTED / 100, HOLDS),
        (PLANTED + 28 * (ODD * 2 - 1), PARTLY),  # rank correlation 0.7
        (PLANTED * 0, FAILS),
        (PLANTED + 15 * (ODD * 2 - 1), UNDECIDED),  # rank correlation 0.9
    ],
)
def test_barrier_grows(tmp_path, heights, mark):
    finding = claims.barrier_grows.judge(planted(tmp_path, heights=heights))
    assert finding.mark == mark
    if mark == HOLDS:
        assert finding.numbers == "0.050 nats at NoT 5, 0.950 at 95; rank correlation 1.00"
        assert "rank correlation 1.000 ± 0.000" in finding.evidence
