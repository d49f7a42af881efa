"""What the paper says, each claim held against our own numbers by a rule that is stated with it.

A claim's `judge` takes the Results and returns its mark and the numbers that say so, of some claims
also in short, as a clause for utils/findings.py. The rules are ours: the paper gives no thresholds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from utils.report.results import Missing, Results, RunResult
from utils.report.tables import number, paper_table1
from utils.runs.files import UNREADABLE
from utils.symmetry.paths import barrier
from utils.symmetry.permutation import expected_transpositions, transpositions_deviation

import numpy as np
import torch

HOLDS, PARTLY, FAILS, UNKNOWN = "holds", "holds in part", "does not hold", "not measured"
# What reading results raises where they are not whole, or have not the form that they have now.
DAMAGED = (*UNREADABLE, AttributeError, IndexError)


@dataclass(frozen=True)
class Claim:
    text: str
    where: str  # in the paper
    rule: str
    judge: Callable[[Results], tuple[str, ...]]
    kinds: tuple[str, ...]  # of the runs that it reads
    ours: bool = False  # no claim of the paper, but a question that it leaves open


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    mark: str
    evidence: str
    in_short: str = ""  # the evidence's main numbers


def judge_all(results: Results) -> list[Verdict]:
    """Every claim's verdict; one whose runs are not there yet, or are damaged, is `UNKNOWN`."""
    verdicts = []
    for claim in CLAIMS:
        try:
            found = claim.judge(results)
        except (Missing, *DAMAGED) as error:
            found = UNKNOWN, why_not(error, *(results.runs[kind] for kind in claim.kinds))
        verdicts.append(Verdict(claim, *found))
    return verdicts


def why_not(error: Exception, *runs: RunResult) -> str:
    """Why nothing can be told of these runs, in a sentence."""
    if isinstance(error, Missing):
        return f"{error}."
    names = ", ".join(run.directory.name for run in runs)
    return (
        f"{f'One of {names}' if len(runs) > 1 else names} was left by another version, or is "
        "damaged: move it away, and run it again."
    )


def graded(value: float, holds: float, partly: float) -> str:
    """The mark of a value that should be large."""
    return HOLDS if value >= holds else PARTLY if value >= partly else FAILS


# ---- Table 1


def rebasin_gives_meaning(results: Results) -> tuple[str, str, str]:
    cells = [_cell(results, f"hmc_{part}", "agreement") for part in ("rebased", "direct")]
    (after, error_after), (before, error_before) = cells
    error = float(np.hypot(error_after, error_before))
    mark = graded(after - before, max(0.2, 3 * error), 3 * error)
    evidence = (
        f"Drawn from the Gaussian, networks agree with the samples' prediction on {after:.3f} ± "
        f"{error_after:.3f} of the test images after rebasin, on {before:.3f} ± "
        f"{error_before:.3f} before it" + _papers(results, "agreement", "hmc_rebased", "hmc_direct")
    )
    short = (
        f"networks drawn from q_r agree with HMC on {100 * after:.0f} % of the test images, those "
        f"drawn from q_d on {100 * before:.0f} %"
    )
    return mark, evidence, short


def rebased_is_not_the_posterior(results: Results) -> tuple[str, str]:
    samples, error = _cell(results, "hmc_sample", "sample_accuracy")
    draws, error_draws = _cell(results, "hmc_rebased", "sample_accuracy")
    mean, error_mean = _cell(results, "hmc_rebased", "mean_accuracy")
    below = samples - draws > 3 * np.hypot(error, error_draws)
    above = mean - draws > 3 * np.hypot(error_mean, error_draws)
    mark = HOLDS if below and above else PARTLY if below or above else FAILS
    return mark, (
        f"Test accuracy: samples {_percent(samples, error)}, draws of q_r "
        f"{_percent(draws, error_draws)}"
        + _papers(results, "sample_accuracy", "hmc_sample", "hmc_rebased")
        + f" The one network at μ_r: {_percent(mean, error_mean)}"
        + _papers(results, "mean_accuracy", "hmc_rebased")
    )


def ensemble_survives(results: Results) -> tuple[str, str]:
    members, error = _cell(results, "ensemble_sample", "sample_accuracy")
    direct, error_direct = _cell(results, "ensemble_direct", "sample_accuracy")
    rebased, error_rebased = _cell(results, "ensemble_rebased", "sample_accuracy")
    gap = members - rebased
    mark = HOLDS if gap < 0.015 else PARTLY if gap < (members - direct) / 4 else FAILS
    return mark, (
        f"Test accuracy: ensemble {_percent(members, error)}, its q_r "
        f"{_percent(rebased, error_rebased)}, its q_d {_percent(direct, error_direct)}"
        + _papers(
            results, "sample_accuracy", "ensemble_sample", "ensemble_rebased", "ensemble_direct"
        )
    )


def methods_predict_alike(results: Results) -> tuple[str, str]:
    runs = [results.runs[kind] for kind in ("HMC", "ensemble", "VI")]
    if len({run.config.get("num_train") for run in runs if run.begun}) > 1:
        raise Missing("These runs have different training images, so different posteriors")
    names = {"ensemble_sample": "the ensemble", "vi": "VI"}
    cells = {name: _cell(results, name, "agreement") for name in names}
    mark = graded(min(value for value, _ in cells.values()), 0.98, 0.95)
    told = " and ".join(
        f"{names[name]} on {value:.4f} ± {error:.4f}" for name, (value, error) in cells.items()
    )
    papers = _papers(results, "agreement", "ensemble_sample", "vi")
    return mark, f"HMC's prediction is shared by {told} of the test images{papers}"


def accuracies_match(results: Results) -> tuple[str, str]:
    paper, wanted = paper_table1(results.dataset), ("hmc_sample", "ensemble_sample", "vi")
    if results.preset == "quick" or not paper:
        raise Missing("The paper's numbers are of a larger network, or of other data")
    gaps, told = [], []
    for name in wanted:
        value, error = _cell(results, name, "sample_accuracy")
        published = paper[name]["sample_accuracy"]
        gaps.append(abs(value - published))
        told.append(f"{_percent(value, error)} ({100 * published:.2f})")
    mark = HOLDS if max(gaps) <= 0.003 else PARTLY if min(gaps) <= 0.003 else FAILS
    return mark, f"HMC, ensemble, VI, the paper's in brackets: {', '.join(told)}."


# ---- Figures 2 and 3


def barrier_vanishes(results: Results) -> tuple[str, str, str]:
    dynamics = np.load(results.runs["net_matching"].path("training_dynamics.npz"))
    losses = torch.from_numpy(dynamics["test_loss"])
    heights = barrier(losses, dynamics["fractions"].tolist()).amax(-1).numpy()
    as_is, rebased = heights[:, 0], heights[:, int(dynamics["rebased"])]
    share = rebased.max() / as_is.max()
    mark = HOLDS if share < 0.1 else PARTLY if share < 0.4 else FAILS
    evidence = (
        f"Test loss barrier after the last epoch: {as_is[-1]:.3f} nats as is, {rebased[-1]:.3f} "
        f"after rebasin; the largest at any epoch: {as_is.max():.3f} and {rebased.max():.3f}."
    )
    short = f"at its highest {as_is.max():.3f} nats without rebasin, {rebased.max():.3f} with it"
    return mark, evidence, short


def training_keeps_transpositions(results: Results) -> tuple[str, str]:
    summary = results.summary("transpositions")["trained"]
    records = results.runs["transpositions"].records("transpositions.jsonl")
    units = sum(records[0]["hidden_sizes"])
    change, rank = summary["mean_change"], summary["rank_correlation_planted_found"] or 0.0
    mark = HOLDS if change <= 0.02 * units else PARTLY if rank > 0.9 else FAILS
    return mark, (
        f"NoT found after training differs from NoT planted at initialisation by {change:.1f} on "
        f"average, of {units} units; their rank correlation is {rank:.3f}."
    )


def barrier_grows(results: Results) -> tuple[str, str, str]:
    rank = results.summary("transpositions")["trained"]["rank_correlation_planted_barrier"] or 0.0
    barriers: dict[int, list[float]] = {}  # of every run of the experiment, by NoT
    for record in results.runs["transpositions"].records("transpositions.jsonl"):
        if record["stage"] == "trained":
            found = barriers.setdefault(sum(record["planted"]), [])
            found.append(record["test_loss_barrier"])
    least, most = min(barriers), max(barriers)
    low, high = (float(np.mean(barriers[planted])) for planted in (least, most))
    evidence = (
        f"Test loss barrier between networks that start as permuted copies: {low:.3f} nats where "
        f"NoT is {least}, {high:.3f} where it is {most}; rank correlation {rank:.3f}."
    )
    short = f"{low:.3f} nats at NoT {least}, {high:.3f} at {most}; rank correlation {rank:.2f}"
    return graded(rank, 0.9, 0.5), evidence, short


def transpositions_are_monotone(results: Results) -> tuple[str, str]:
    """Where NoT has reached chance level it goes up and down as chance does, which says nothing."""
    dynamics = np.load(results.runs["net_matching"].path("training_dynamics.npz"))
    found = dynamics["transpositions"][:, 0].sum(-1)  # of W_1 as it is [epoch, λ]
    variances = [transpositions_deviation(int(size)) ** 2 for size in dynamics["hidden_sizes"]]
    chance = 3 * sum(variances) ** 0.5
    falls = -np.diff(found, axis=1).min(axis=1)  # the largest at each checkpoint
    share = float((falls <= chance).mean())
    mark = HOLDS if share == 1 else PARTLY if share >= 0.5 else FAILS
    return mark, (
        f"At {100 * share:.0f} % of the {len(found)} checkpoints NoT never falls along λ by more "
        f"than {chance:.1f}; at {100 * (falls <= 0).mean():.0f} % not at all. The largest fall is "
        f"{max(falls.max(), 0)}."
    )


def transpositions_tell(results: Results) -> tuple[str, str]:
    diagnostics = results.diagnostics
    found = diagnostics["transpositions"]  # the first sample is of the first chain
    chain = np.array(found["along_chain"]).reshape(diagnostics["num_chains"], -1)[0, 1:]
    if not len(chain):
        raise Missing("The chain has a single sample")
    late = chain[len(chain) // 2 :].mean()
    dynamics = np.load(results.runs["net_matching"].path("training_dynamics.npz"))
    apart = dynamics["alignment_transpositions"][-1, 0].sum()
    sizes = [int(size) for size in dynamics["hidden_sizes"]]
    expected = sum(expected_transpositions(size) for size in sizes)
    deviation = sum(transpositions_deviation(size) ** 2 for size in sizes) ** 0.5
    below = [  # either may come from chance
        max(1 - late / diagnostics["transpositions"]["random"], 0.0),
        1 - apart / expected if expected - apart > 3 * deviation else 0.0,
    ]
    return graded(max(below), 0.1, 0.02), (
        f"NoT of HMC samples of the chain's second half to its first sample: {late:.1f} on "
        f"average, where random permutations have {diagnostics['transpositions']['random']:.1f}; "
        f"of two networks trained apart: {apart}, at random {expected:.1f} ± {deviation:.1f}."
    )


# ---- Figures 4 and 5


def weights_compare(results: Results) -> tuple[str, str, str]:
    found = results.diagnostics["correlations"]
    pairs = [pair for pair in found["after"] if pair.startswith("hmc")]
    if not pairs:
        raise Missing("The evaluation has no other method than HMC")
    values = [found[frame][pair].values() for frame in found for pair in pairs]
    if any(None in pair for pair in values):
        raise Missing("Some weights or deviations are constant and have no correlation")
    prior = results.diagnostics["prior_networks"]
    nulls, networks = prior["mean_with"], prior["networks_of_mean_with"]
    beyond, stds = [], [found["after"][pair]["std"] for pair in pairs]
    for pair in pairs:
        gain = found["after"][pair]["mean"] - found["before"][pair]["mean"]
        beyond.append(gain - abs(nulls[pair.removeprefix("hmc and ")]))
    mark = graded(min(beyond), 0.1, 0.03)
    if mark == HOLDS and min(stds) < 0.1:
        mark = PARTLY
    told = []
    for pair in pairs:
        before, after = found["before"][pair], found["after"][pair]
        changes = [
            f"{symbol} {_signed(before[part])} → {_signed(after[part])}"
            for symbol, part in (("μ", "mean"), ("σ", "std"))
        ]
        name = pair.replace("hmc", "HMC").replace("vi", "VI")
        null = nulls[pair.removeprefix("hmc and ")]
        told.append(f"{name}: {', '.join(changes)} (μ of networks from the prior {_signed(null)})")
    evidence = (
        f"Correlation over weights, before rebasin → after: {'; '.join(told)}. In brackets: what "
        f"alignment alone brings, where {networks} networks from the prior, as many as HMC's "
        "samples are worth, stand for these."
    )
    short = (
        f"the correlation of μ with HMC's rises by {_signed(min(beyond))} beyond what alignment "
        f"alone brings, and that of σ is {_signed(min(stds))} then, at the lowest"
    )
    return mark, evidence, short


def hmc_std_prunes(results: Results) -> tuple[str, str, str]:
    curves = results.pruning["curves"]
    orders = {"std of hmc": "HMC's σ", "random of ensemble": "chance"}
    orders |= {"std of ensemble": "its own σ", "abs_mean of ensemble": "|μ|"}
    names = {f"ensemble mean, {order}": told for order, told in orders.items()}
    if not names.keys() <= curves["all"].keys():
        raise Missing("The pruning has no ensemble")
    reached = {
        told: [curves[part][name]["sparsity"]["0.05"] for part in ("all", "alive")]
        for name, told in names.items()
    }
    by_std, by_chance = (reached[name][0] for name in ("HMC's σ", "chance"))
    told = ", ".join(
        f"{name} {100 * every:.0f} % ({100 * alive:.0f} %)"
        for name, (every, alive) in reached.items()
    )
    sigma, chance = (curves["all"][f"ensemble mean, {o}"] for o in list(orders)[:2])
    gains = np.subtract(sigma["accuracy"], chance["accuracy"])
    widest = int(gains.argmax())
    beyond_chance = (gains > 3 * np.array(chance["deviation"])).any()
    mark = HOLDS if by_std - by_chance >= 0.2 else PARTLY if beyond_chance else FAILS
    at = (
        f"with {results.pruning['kept_percent'][widest]} % of the weights kept: "
        f"{100 * sigma['accuracy'][widest]:.1f} % accurate, chance "
        f"{100 * chance['accuracy'][widest]:.1f} ± {100 * chance['deviation'][widest]:.1f} %"
    )
    evidence = (
        "Share of the ensemble's μ_r that can be set to zero before 5 points of accuracy are lost "
        f"(in brackets without the weights of dead pixels): by {told}. HMC's σ is furthest ahead "
        f"of chance {at}."
    )
    short = (
        f"before 5 points of accuracy are lost {100 * by_std:.0f} % of the weights can go by it, "
        f"{100 * by_chance:.0f} % by chance; {at}"
    )
    return mark, evidence, short


# ---- helpers


def _cell(results: Results, column: str, row: str) -> tuple[float, float]:
    """A value of Table 1 and its standard error."""
    table, errors = results.table, results.errors
    if column not in table:
        raise Missing(f"The evaluation has no column {column}")
    cell = table[column][row], errors[column][row]
    if None in cell:
        raise Missing(f"{row} of {column} is not finite, or its error is not")
    return cell


def _signed(correlation: float) -> str:
    return number(correlation, 2, "+")


def _percent(value: float, error: float) -> str:
    return f"{100 * value:.2f} ± {100 * error:.2f} %"


def _papers(results: Results, row: str, *columns: str) -> str:
    """The end of a sentence: what the paper has there, if it is about these data."""
    paper = paper_table1(results.dataset)
    if not paper:
        return "."
    published = [paper[column][row] for column in columns]
    if row == "agreement":
        return f" (paper: {', '.join(f'{value:.3f}' for value in published)})."
    return f" (paper: {', '.join(f'{100 * value:.2f}' for value in published)} %)."


CLAIMS = (
    Claim(
        "Without rebasin a Gaussian per weight is meaningless; after it, it describes HMC's "
        "posterior: q_r agrees with the samples far better than q_d.",
        "Table 1",
        "holds from 0.2 (and 3 standard errors) of agreement on; in part from 3 standard errors on",
        rebasin_gives_meaning,
        ("eval",),
    ),
    Claim(
        "q_r is a summary, not the posterior itself: its draws predict worse than HMC's samples, "
        "while the single network at its mean μ_r does better than these.",
        "Table 1",
        "holds where each of the two does by more than 3 standard errors; in part where one does",
        rebased_is_not_the_posterior,
        ("eval",),
    ),
    Claim(
        "An ensemble survives the summary nearly whole: its q_r is almost as accurate as itself.",
        "Table 1",
        "holds within 1.5 percentage points; in part within a quarter of what q_d loses",
        ensemble_survives,
        ("eval",),
    ),
    Claim(
        "Ensembles and variational inference predict almost as HMC does.",
        "Table 1",
        "holds where both agree on 0.98 of the images; in part from 0.95 on",
        methods_predict_alike,
        ("eval", "HMC", "ensemble", "VI"),
    ),
    Claim(
        "The accuracies of HMC, ensemble and VI.",
        "Table 1",
        "holds where all three are within 0.3 percentage points of the paper's; in part where one "
        "is",
        accuracies_match,
        ("eval",),
    ),
    Claim(
        "Rebasin takes the loss barrier between two networks away, throughout training.",
        "Figure 2",
        "holds where the highest rebased barrier is below a tenth of the highest as is; in part "
        "below 0.4",
        barrier_vanishes,
        ("net_matching",),
    ),
    Claim(
        "Training hardly changes the NoT between two networks.",
        "Figure 3",
        "holds where the mean change is at most 2 % of the units; in part where ranks correlate "
        "above 0.9",
        training_keeps_transpositions,
        ("transpositions",),
    ),
    Claim(
        "The loss barrier grows with NoT.",
        "Figure 3",
        "holds from a rank correlation of 0.9 on; in part from 0.5 on",
        barrier_grows,
        ("transpositions",),
    ),
    Claim(
        "NoT grows monotonically on the line from one network to the other.",
        "Figure 3",
        "holds where at no checkpoint NoT falls by more than 3 standard deviations of that of "
        "random permutations; in part at half of the checkpoints",
        transpositions_are_monotone,
        ("net_matching",),
    ),
    Claim(
        "NoT tells something also of networks that were sampled or trained apart.",
        "Figure 3, and NoT along the chain",
        "holds where the NoT of either is a tenth below that of random permutations, by more than "
        "chance; in part from 2 % on",
        transpositions_tell,
        ("eval", "net_matching"),
        ours=True,
    ),
    Claim(
        "After rebasin, HMC, ensembles and VI can be compared weight by weight.",
        "Figure 4",
        "holds where rebasin raises every correlation of μ with HMC's by 0.1 more than alignment "
        "alone brings, and those of σ are above 0.1; in part from 0.03 more on",
        weights_compare,
        ("eval",),
    ),
    Claim(
        "HMC's σ says which weights of an ordinary network can be pruned.",
        "Figure 5",
        "holds where, of all weights, it zeroes 20 percentage points more than random orders "
        "do; in part where it is anywhere more accurate than these by 3 of their deviations",
        hmc_std_prunes,
        ("eval_pruning",),
    ),
)
