"""The rules by which the paper's claims are judged, on results made up to meet them or not."""

import json
from pathlib import Path

from papers.compact import claims
from papers.compact.paper import PAPER
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


def test_accuracies_are_shown_beside_the_papers(tmp_path):
    write_table(tmp_path, 0.01, TABLE)
    assert claims.accuracies_match.judge(results_of(tmp_path)).evidence.endswith(
        "98.30 ± 1.00 % (98.43), 98.60 ± 1.00 % (98.66), 98.00 ± 1.00 % (98.11)."
    )


@pytest.mark.parametrize(
    ("after", "before", "error", "mark"),
    [
        (0.82, 0.12, 0.01, HOLDS),
        (0.82, 0.70, 0.01, PARTLY),
        (0.82, 0.80, 0.01, FAILS),
        (0.12, 0.82, 0.01, FAILS),
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
    [(0.98, 0.82, 0.92, HOLDS), (0.98, 0.82, 0.80, PARTLY), (0.83, 0.82, 0.80, FAILS)],
)
def test_rebased_is_not_the_posterior(tmp_path, samples, draws, mean, mark):
    rebased = {"sample_accuracy": draws, "mean_accuracy": mean}
    cells = {"hmc_sample": {"sample_accuracy": samples}, "hmc_rebased": rebased}
    assert judge_table(tmp_path, claims.rebased_is_not_the_posterior, **cells) == mark


@pytest.mark.parametrize(
    ("rebased", "mark"), [(0.999, HOLDS), (0.977, HOLDS), (0.965, PARTLY), (0.70, FAILS)]
)
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
    with pytest.raises(Missing, match="larger network"):
        claims.accuracies_match.judge(results_of(tmp_path, "quick"))


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
        ([[0, 400, 506, 501], [0, 400, 503, 505]], HOLDS),  # up and down as chance does: ± 2.3
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
    """Judged by the rebasin that the run was to show, at the epoch where most is left."""
    heights = np.array([[0.3, left, 0.4], [0.4, 0.01, 0.4]])  # [epoch, alignment]
    losses = 0.1 + heights[..., None] * [0, 1, 0]
    results = dynamics(tmp_path, test_loss=losses, fractions=[0, 0.5, 1], rebased=1)
    finding = claims.barrier_vanishes.judge(results)
    assert finding.mark == mark
    assert finding.numbers == f"at most 0.400 nats without rebasin, {left:.3f} with it"
    assert "last epoch: 0.400 nats without rebasin, 0.010 with it" in finding.evidence
    assert f"the largest at any epoch: 0.400 and {left:.3f}" in finding.evidence


def write_correlations(batch: Path, found: dict) -> None:
    """With VI, networks from the prior correlate by 0.05."""
    null = {"mean_with": {"hmc": 0.3, "vi": 0.05}, "networks_of_mean_with": 153}
    write(batch, "eval", "diagnostics.json", {"correlations": found, "prior_networks": null})


@pytest.mark.parametrize(
    ("mean", "std", "mark"),
    [(0.5, 0.3, HOLDS), (0.5, 0.05, PARTLY), (0.3, 0.3, PARTLY), (0.22, 0.3, FAILS)],
)
def test_weights_compare(tmp_path, mean, std, mark):
    """0.2 is there before rebasin, and another 0.05 is what alignment brings to noise."""
    frames = {"before": {"mean": 0.2, "std": 0.0}, "after": {"mean": mean, "std": std}}
    found = {frame: {"hmc and vi": numbers} for frame, numbers in frames.items()}
    write_correlations(tmp_path, found)
    finding = claims.weights_compare.judge(results_of(tmp_path))
    assert finding.mark == mark
    assert f"at least {mean - 0.25:+.2f} beyond".replace("-", "−") in finding.numbers
    assert f"lowest correlation of σ is {std:+.2f}" in finding.numbers
    assert (
        f"HMC and VI: μ +0.20 → {mean:+.2f}, σ +0.00 → {std:+.2f} (prior networks: μ +0.05)."
        in finding.evidence
    )
    assert "with 153 networks from the prior" in finding.evidence


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
    """Of 64 units 57 to 64 are within 3 standard deviations: 3 % below is chance."""
    transpositions = {"along_chain": [0, 59, 59, 59], "random": 59.3}
    diagnostics = {"num_chains": 1, "transpositions": transpositions}
    write(tmp_path, "eval", "diagnostics.json", diagnostics)
    apart = {"alignment_transpositions": np.array([[[57]]])} | chance_of(64)
    assert claims.transpositions_inform.judge(dynamics(tmp_path, **apart)).mark == FAILS
    # where units lie within blocks, chance is what the run says
    blocks = {"random_transpositions": [30.0, 50.0], "random_deviation": 3.0}
    finding = claims.transpositions_inform.judge(dynamics(tmp_path, **apart | blocks))
    assert "at random 80.0 ± 3.0" in finding.evidence
    assert finding.mark == HOLDS


@pytest.mark.parametrize(
    ("reached", "accurate", "mark"),
    [(0.8, 0.5, HOLDS), (0.6, 0.58, PARTLY), (0.6, 0.55, FAILS), (0.5, 0.45, FAILS)],
)
def test_hmc_std_prunes(tmp_path, reached, accurate, mark):
    """Chance has an accuracy of 0.50 ± 0.02 where half of the weights are kept."""
    orders = {"std of hmc": reached, "random of ensemble": 0.5, "std of ensemble": 0.1,
              "abs_mean of ensemble": 0.9}  # fmt: skip
    curves = {
        part: {f"ensemble mean, {name}": {"sparsity": {"0.05": scale * share}}
               for name, share in orders.items()}
        for part, scale in (("all", 0), ("alive", 1))
    }  # fmt: skip
    curves["alive"]["ensemble mean, std of hmc"]["accuracy"] = [0.9, accurate, 0.1]
    chance = {"accuracy": [0.9, 0.5, 0.2], "deviation": [0, 0.02, 0.02]}
    curves["alive"]["ensemble mean, random of ensemble"] |= chance
    pruning = {"curves": curves, "kept_percent": [100, 50, 1]}
    write(tmp_path, "eval_pruning", "pruning.json", pruning)
    finding = claims.hmc_std_prunes.judge(results_of(tmp_path))
    assert finding.mark == mark
    assert f"remove {100 * reached:.0f} % of the live ones, random orders 50 %" in finding.numbers
    shares = f"HMC's σ 0 % ({100 * reached:.0f} %), chance 0 % (50 %), its own σ 0 % (10 %)"
    assert shares in finding.evidence
    if mark == PARTLY:
        best = "with 50 % of the live weights kept: 58.0 % accurate, chance 50.0 ± 2.0 %"
        assert best in finding.evidence


def test_values_that_are_not_finite_are_not_judged(tmp_path):
    cells = {"hmc_rebased": {"agreement": 0.8}, "hmc_direct": {"agreement": None}}
    write(tmp_path, "eval", "table1.json", cells)
    write(tmp_path, "eval", "table1_errors.json", cells)
    found = {frame: {"hmc and vi": {"mean": 0.1, "std": None}} for frame in ("before", "after")}
    write_correlations(tmp_path, found)
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


def planted(batch: Path, **trained) -> Results:
    """An experiment of two planted NoT, with these numbers in its summary."""
    write(batch, "transpositions", "summary.json", {"trained": trained})
    records = [
        {
            "stage": "trained",
            "planted": [n],
            "hidden_sizes": [100],
            "test_loss_barrier": n / 100 + e,
        }
        for n in (1, 99)
        for e in (-0.01, 0.01)  # of two runs
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (batch / "transpositions" / "transpositions.jsonl").write_text(lines)
    return results_of(batch)


@pytest.mark.parametrize(
    ("change", "rank", "mark"), [(1.5, 0.5, HOLDS), (5, 0.95, PARTLY), (5, 0.5, FAILS)]
)
def test_training_keeps_transpositions(tmp_path, change, rank, mark):
    results = planted(tmp_path, mean_change=change, rank_correlation_planted_found=rank)
    assert claims.training_keeps_transpositions.judge(results).mark == mark


@pytest.mark.parametrize(("rank", "mark"), [(0.95, HOLDS), (0.6, PARTLY), (None, FAILS)])
def test_barrier_grows(tmp_path, rank, mark):
    results = planted(tmp_path, rank_correlation_planted_barrier=rank)
    finding = claims.barrier_grows.judge(results)
    assert finding.mark == mark
    assert finding.numbers == f"0.010 nats at NoT 1, 0.990 at 99; rank correlation {rank or 0:.2f}"
    assert f"0.010 nats at NoT 1, 0.990 at 99; rank correlation {rank or 0:.3f}" in finding.evidence
