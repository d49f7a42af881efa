"""The paper's claims, each with its criterion, its judge and its sentences for the report.

The criteria are ours: the paper gives no thresholds. A judge reads the results of runs and returns
a Finding; "in short" is for the top of the report, one sentence for each mark.
"""

from functools import partial

from papers.compact.tables import PAPER_METHODS, points_lost, published_table1
from utils.evaluation.metrics import METRICS
from utils.evaluation.predictions import columns_of
from utils.evaluation.pruning import COARSE_PERCENT
from utils.rebasin.paths import barrier
from utils.report.paper import FAILS, HOLDS, PARTLY, UNDECIDED, Finding, claim
from utils.report.results import Missing, Results
from utils.report.tables import number, with_error, with_known_error

import numpy as np
import torch

# ---- Table 1


@claim(
    "Without rebasin a Gaussian per weight is meaningless; with it, the Gaussian describes HMC's "
    "posterior: q_r agrees with the samples far better than q_d does.",
    source="Table 1",
    criterion="holds if agreement rises by at least 0.2 and 3 standard errors; in part if it rises "
    "by 3 standard errors; no verdict if 0.2 is within 2 standard errors",
    kinds=("eval",),
    in_short={
        HOLDS: "Rebasin turns the meaningless μ and σ of the weights into a rough summary of the "
        "posterior",
        PARTLY: "Rebasin makes the μ and σ of the weights only a slightly better summary of the "
        "posterior",
        FAILS: "Rebasin does not make the μ and σ of the weights a better summary of the posterior",
    },
)
def rebasin_gives_meaning(results: Results) -> Finding:
    after, after_error = _cell(results, "hmc_rebased", "agreement")
    before, before_error = _cell(results, "hmc_direct", "agreement")
    error = float(np.hypot(after_error, before_error))
    distances = [_cell(results, c, "total_variation")[0] for c in ("hmc_rebased", "hmc_direct")]
    return Finding(
        _clear_mark(after - before, max(0.2, 3 * error), 3 * error, 0.2, error),
        f"Networks drawn from the Gaussian agree with the samples' prediction on {after:.3f} ± "
        f"{after_error:.3f} of the test images with rebasin, on {before:.3f} ± {before_error:.3f} "
        "without it"
        + _in_paper(results, "agreement", "hmc_rebased", "hmc_direct")
        + " TV, which also compares how sure the predictions are, is "
        + f"{distances[0]:.3f} with rebasin and {distances[1]:.3f} without it"
        + _in_paper(results, "total_variation", "hmc_rebased", "hmc_direct"),
        f"networks drawn from q_r agree with HMC on {100 * after:.0f} % of the test images, those "
        f"drawn from q_d on {100 * before:.0f} %",
    )


@claim(
    "q_r is a summary, not the posterior itself: its draws predict worse than HMC's samples, and "
    "the single network at its mean μ_r predicts better than its draws.",
    source="Table 1",
    criterion="holds if both differences exceed 3 standard errors; in part if one does",
    kinds=("eval",),
    in_short={
        HOLDS: "Draws of q_r predict worse than the posterior's samples, and worse than the one "
        "network at its mean",
        PARTLY: "Draws of q_r do not predict as well as both the posterior's samples and the one "
        "network at its mean",
        FAILS: "Draws of q_r predict as well as the posterior's samples",
    },
)
def rebased_is_not_the_posterior(results: Results) -> Finding:
    samples, samples_error = _cell(results, "hmc_sample", "sample_accuracy")
    draws, draws_error = _cell(results, "hmc_rebased", "sample_accuracy")
    mean, mean_error = _cell(results, "hmc_rebased", "mean_accuracy")
    below = samples - draws > 3 * np.hypot(samples_error, draws_error)
    above = mean - draws > 3 * np.hypot(mean_error, draws_error)
    return Finding(
        HOLDS if below and above else PARTLY if below or above else FAILS,
        f"Test accuracy: samples {_percent(samples, samples_error)}, draws of q_r "
        f"{_percent(draws, draws_error)}"
        + _in_paper(results, "sample_accuracy", "hmc_sample", "hmc_rebased")
        + f" The one network at μ_r: {_percent(mean, mean_error)}"
        + _in_paper(results, "mean_accuracy", "hmc_rebased"),
        f"samples are {100 * samples:.1f} % accurate, draws {100 * draws:.1f} %, the mean network "
        f"{100 * mean:.1f} %",
    )


@claim(
    "After rebasin HMC's posterior is nearly unimodal: one Gaussian per weight is all of it.",
    source="the paper's conjecture, its reason for q_r",
    criterion="judged by the way of rebasin with the smallest TV. Holds if TV between draws of its "
    "q_r and the samples is below 0.1, and its cycle error below 0.1; in part below 0.3 and 0.5; "
    "no verdict if a deciding threshold is within 2 standard errors",
    kinds=("eval",),
)
def posterior_is_nearly_unimodal(results: Results) -> Finding:
    diagnostics = results.json("eval", "diagnostics.json")
    if not diagnostics.get("ways"):
        raise Missing("The evaluation has no further ways of rebasin")
    ways = {key: way for key, way in diagnostics["ways"].items() if key.startswith("hmc_")}
    if not ways:
        raise Missing("The evaluation has no HMC")
    cells = {key: _cell(results, key, "total_variation") for key in ways}
    best = min(cells, key=lambda key: cells[key][0])
    distance, cycles = cells[best], (ways[best]["cycle_error"], ways[best]["cycle_error_se"])
    marks = [
        _clear_mark_of_two(-value, error, -low, -high)
        for (value, error), low, high in ((distance, 0.1, 0.3), (cycles, 0.1, 0.5))
    ]
    title = columns_of(diagnostics["names"])[best].title(diagnostics["names"])
    return Finding(
        _worst(marks),
        f"{title}: TV between draws and samples {distance[0]:.3f} ± {distance[1]:.3f}. If one "
        f"sample is matched to another directly, and back through the common order, "
        f"{cycles[0]:.2f} ± {cycles[1]:.2f} of the units do not come back: matching finds no order "
        "that all samples share.",
    )


@claim(
    "An ensemble survives the summary almost intact: its q_r is nearly as accurate as the "
    "ensemble itself.",
    source="Table 1",
    criterion="holds if q_r loses less than 1.5 percentage points; in part if it loses less than a "
    "quarter of what q_d loses",
    kinds=("eval",),
)
def ensemble_survives(results: Results) -> Finding:
    columns = ("ensemble_sample", "ensemble_rebased", "ensemble_direct")
    cells = [_cell(results, column, "sample_accuracy") for column in columns]
    (members, _), (rebased, _), (direct, _) = cells
    gap = members - rebased
    ensemble, q_r, q_d = (_percent(*cell) for cell in cells)
    return Finding(
        HOLDS if gap < 0.015 else PARTLY if gap < (members - direct) / 4 else FAILS,
        f"Test accuracy: ensemble {ensemble}, its q_r {q_r}, its q_d {q_d}"
        + _in_paper(results, "sample_accuracy", *columns),
    )


@claim(
    "Ensembles and variational inference predict almost as HMC does.",
    source="Table 1",
    criterion="holds if both agree with HMC on at least 0.98 of the images; in part from 0.95",
    kinds=("eval", "HMC", "ensemble", "VI"),
    in_short={
        HOLDS: "Ensemble and VI predict almost as HMC does",
        PARTLY: "Ensemble and VI predict similarly to HMC, but not the same",
        FAILS: "Ensemble or VI predict differently from HMC",
    },
)
def methods_predict_alike(results: Results) -> Finding:
    runs = [results.runs[kind] for kind in ("HMC", "ensemble", "VI")]
    if len({run.config.get("num_train") for run in runs if run.begun}) > 1:
        raise Missing("These runs have different training images, so different posteriors")
    (ensemble, error), (vi, vi_error) = (
        _cell(results, column, "agreement") for column in ("ensemble_sample", "vi")
    )
    return Finding(
        _mark(min(ensemble, vi), 0.98, 0.95),
        f"The ensemble agrees with HMC's prediction on {ensemble:.4f} ± {error:.4f} of the test "
        f"images, VI on {vi:.4f} ± {vi_error:.4f}"
        + _in_paper(results, "agreement", "ensemble_sample", "vi"),
        f"they give HMC's label to {100 * ensemble:.1f} % and {100 * vi:.1f} % of the test images",
    )


@claim(
    "The accuracies of HMC, ensemble and VI.",
    source="Table 1",
    criterion="holds if all three are within 0.3 percentage points of the paper's; in part if one "
    "is",
    kinds=("eval",),
)
def accuracies_match(results: Results) -> Finding:
    published = published_table1(results.dataset)
    if results.preset == "quick" or not published:
        raise Missing("The paper's numbers are for a larger network or other data")
    gaps, comparisons = [], []
    for column in ("hmc_sample", "ensemble_sample", "vi"):
        value, error = _cell(results, column, "sample_accuracy")
        paper = published[column]["sample_accuracy"]
        gaps.append(abs(value - paper))
        comparisons.append(f"{_percent(value, error)} ({100 * paper:.2f})")
    return Finding(
        HOLDS if max(gaps) <= 0.003 else PARTLY if min(gaps) <= 0.003 else FAILS,
        f"HMC, ensemble and VI, the paper's in brackets: {', '.join(comparisons)}.",
    )


# ---- Figures 2 and 3


@claim(
    "Rebasin removes the loss barrier between two networks throughout training.",
    source="Figure 2",
    criterion="holds if the highest barrier with rebasin is below a tenth of the highest without; "
    "in part if below 0.4 of it",
    kinds=("net_matching",),
    in_short={
        HOLDS: "Two networks trained independently have a barrier between them, and rebasin "
        "removes it",
        PARTLY: "Rebasin removes most of the barrier between two independently trained networks, "
        "but not all of it throughout training",
        FAILS: "Rebasin does not remove the barrier between two independently trained networks",
    },
)
def barrier_vanishes(results: Results) -> Finding:
    dynamics = np.load(results.runs["net_matching"].path("training_dynamics.npz"))
    losses = torch.from_numpy(dynamics["test_loss"])
    heights = barrier(losses, dynamics["fractions"].tolist()).amax(-1).numpy()
    as_is, rebased = heights[:, 0], heights[:, int(dynamics["rebased"])]
    share = rebased.max() / as_is.max()
    return Finding(
        HOLDS if share < 0.1 else PARTLY if share < 0.4 else FAILS,
        f"Test loss barrier after the last epoch: {_nats(as_is[-1])} nats without rebasin, "
        f"{_nats(rebased[-1])} with it; the largest at any epoch: {_nats(as_is.max())} and "
        f"{_nats(rebased.max())}.",
        f"at most {_nats(as_is.max())} nats without rebasin, {_nats(rebased.max())} with it",
    )


@claim(
    "Training hardly changes the NoT between two networks.",
    source="Figure 3",
    criterion="holds if the mean change is at most 2 % of the units; in part if the rank "
    "correlation is above 0.9",
    kinds=("transpositions",),
)
def training_keeps_transpositions(results: Results) -> Finding:
    summary = results.json("transpositions", "summary.json")["trained"]
    records = results.runs["transpositions"].records("transpositions.jsonl")
    units = sum(records[0]["hidden_sizes"])
    change, rank = summary["mean_change"], summary["rank_correlation_planted_found"] or 0.0
    return Finding(
        HOLDS if change <= 0.02 * units else PARTLY if rank > 0.9 else FAILS,
        f"NoT found after training differs from NoT planted at initialisation by {change:.1f} on "
        f"average, with {units} units; their rank correlation is {rank:.3f}.",
    )


@claim(
    "The loss barrier grows with NoT.",
    source="Figure 3",
    criterion="holds if their rank correlation is at least 0.9; in part from 0.5",
    kinds=("transpositions",),
    in_short={
        HOLDS: "Two networks that start as copies of each other with some units swapped have a "
        "barrier between them after training, which grows with the number of swaps",
        PARTLY: "Two networks that start as copies of each other with some units swapped have a "
        "barrier between them after training, which grows only roughly with the number of swaps",
        FAILS: "After training, the barrier between two networks that started as copies of each "
        "other with some units swapped has little to do with the number of swaps",
    },
)
def barrier_grows(results: Results) -> Finding:
    summary = results.json("transpositions", "summary.json")["trained"]
    rank = summary["rank_correlation_planted_barrier"] or 0.0
    barriers: dict[int, list[float]] = {}  # over the experiment's runs, by NoT
    for record in results.runs["transpositions"].records("transpositions.jsonl"):
        if record["stage"] == "trained":
            barriers.setdefault(sum(record["planted"]), []).append(record["test_loss_barrier"])
    least, most = min(barriers), max(barriers)
    low, high = (_nats(float(np.mean(barriers[planted]))) for planted in (least, most))
    return Finding(
        _mark(rank, 0.9, 0.5),
        f"Test loss barrier between networks that start as permuted copies: {low} nats at NoT "
        f"{least}, {high} at {most}; rank correlation {rank:.3f}.",
        f"{low} nats at NoT {least}, {high} at {most}; rank correlation {rank:.2f}",
    )


@claim(
    "NoT grows monotonically along the line from one network to the other.",
    source="Figure 3",
    criterion="holds if NoT never falls by more than 3 standard deviations of random permutations, "
    "at any checkpoint; in part if so at half of the checkpoints",
    kinds=("net_matching",),
)
def transpositions_are_monotone(results: Results) -> Finding:
    """Ignore falls within the noise of random permutations, where NoT has reached chance level."""
    dynamics = np.load(results.runs["net_matching"].path("training_dynamics.npz"))
    counts = dynamics["transpositions"][:, 0].sum(-1)  # of W_1 without rebasin [epoch, λ]
    noise = 3 * float(dynamics["random_deviation"])
    falls = -np.diff(counts, axis=1).min(axis=1)  # the largest at each checkpoint
    share = float((falls <= noise).mean())
    return Finding(
        HOLDS if share == 1 else PARTLY if share >= 0.5 else FAILS,
        f"At {100 * share:.0f} % of the {len(counts)} checkpoints NoT never falls along λ by more "
        f"than {noise:.1f}; at {100 * (falls <= 0).mean():.0f} % it never falls. The largest fall "
        f"is {max(falls.max(), 0)}.",
    )


@claim(
    "NoT also carries information about networks that were sampled or trained independently.",
    source="Figure 3, and NoT along the chain",
    criterion="holds if either NoT is at least a tenth, and more than chance, below that of random "
    "permutations; in part from 2 %",
    kinds=("eval", "net_matching"),
    ours=True,
    in_short={
        HOLDS: "The number of transpositions says how closely networks are related, even if they "
        "were trained or sampled independently",
        PARTLY: "The number of transpositions says little about networks that were trained or "
        "sampled independently",
        FAILS: "The number of transpositions says nothing about networks that were trained or "
        "sampled independently",
    },
)
def transpositions_inform(results: Results) -> Finding:
    diagnostics = results.json("eval", "diagnostics.json")
    counts = diagnostics["transpositions"]
    # The first sample, to which all others are rebased, is in the first chain.
    chain = np.array(counts["along_chain"]).reshape(diagnostics["num_chains"], -1)[0, 1:]
    if not len(chain):
        raise Missing("The chain has a single sample")
    late = chain[len(chain) // 2 :].mean()
    dynamics = np.load(results.runs["net_matching"].path("training_dynamics.npz"))
    trained = dynamics["alignment_transpositions"][-1, 0].sum()
    expected = float(dynamics["random_transpositions"].sum())
    deviation = float(dynamics["random_deviation"])
    below_chance = (
        max(1 - late / counts["random"], 0.0),
        1 - trained / expected if expected - trained > 3 * deviation else 0.0,
    )
    return Finding(
        _mark(max(below_chance), 0.1, 0.02),
        "NoT of HMC samples in the second half of the chain to its first sample: "
        f"{late:.1f} on average, of random permutations {counts['random']:.1f}; of two "
        f"independently trained networks: {trained}, at random {expected:.1f} ± {deviation:.1f}.",
        f"{late:.0f} between samples of a chain and {trained} between two trained networks, where "
        f"chance has {counts['random']:.0f} and {expected:.0f}",
    )


# ---- Figures 4 and 5


@claim(
    "After rebasin, HMC, ensembles and VI can be compared weight by weight.",
    source="Figure 4",
    criterion="holds if rebasin raises every correlation of μ with HMC's by at least 0.1 more than "
    "alignment alone does, and those of σ reach 0.1; in part from 0.03",
    kinds=("eval",),
    in_short={
        HOLDS: "After rebasin the weights of HMC, ensemble and VI can be compared one by one",
        PARTLY: "Rebasin makes the weights of HMC, ensemble and VI only partly comparable",
        FAILS: "Rebasin does not make the weights of HMC, ensemble and VI comparable",
    },
)
def weights_compare(results: Results) -> Finding:
    diagnostics = results.json("eval", "diagnostics.json")
    before, after = (diagnostics["correlations"][frame] for frame in ("before", "after"))
    pairs = {f"hmc and {other}": other for other in PAPER_METHODS}
    others = {pair: other for pair, other in pairs.items() if pair in after}
    if not others:
        raise Missing("The evaluation has no method other than HMC")
    if any(None in frame[pair].values() for frame in (before, after) for pair in others):
        raise Missing("Some weights or deviations are constant and have no correlation")
    prior = diagnostics["prior_networks"]
    nulls = {pair: prior["mean_with"][other] for pair, other in others.items()}
    gain = min(after[p]["mean"] - before[p]["mean"] - abs(nulls[p]) for p in others)
    lowest = min(after[pair]["std"] for pair in others)
    mark = _mark(gain, 0.1, 0.03)
    if mark == HOLDS and lowest < 0.1:
        mark = PARTLY
    comparisons = "; ".join(
        f"HMC and {PAPER_METHODS[other]}: "
        f"μ {_signed(before[pair]['mean'])} → {_signed(after[pair]['mean'])}, "
        f"σ {_signed(before[pair]['std'])} → {_signed(after[pair]['std'])} "
        f"(prior networks: μ {_signed(nulls[pair])})"
        for pair, other in others.items()
    )
    return Finding(
        mark,
        f"Correlation over weights before → after rebasin: {comparisons}. In brackets: what "
        f"alignment alone reaches, computed with {prior['networks_of_mean_with']} networks from "
        "the prior in place of HMC's samples, as many as these are worth.",
        f"the correlation of μ with HMC's rises by at least {_signed(gain)} beyond what alignment "
        f"alone brings; the lowest correlation of σ is {_signed(lowest)}",
    )


@claim(
    "HMC's σ shows which weights of an ordinary network can be pruned.",
    source="Figure 5",
    criterion="judged by the share of the live weights (those of dead pixels can go anyway) of the "
    "ensemble's μ_r that it prunes beyond random orders, before 1 and before 5 points of accuracy "
    "are lost; the worse of the two decides. Holds from 20 percentage points, in part from 0; no "
    "verdict if a deciding threshold is within 2 standard errors",
    kinds=("eval_pruning",),
    in_short={
        HOLDS: "HMC's σ shows which weights of an ordinary network can be set to zero",
        PARTLY: "HMC's σ is better than chance at choosing which weights of an ordinary network to "
        "set to zero, but not by much",
        FAILS: "HMC's σ is not better than chance, at one loss of accuracy or at both, at choosing "
        "which weights of an ordinary network to set to zero",
    },
)
def hmc_std_prunes(results: Results) -> Finding:
    pruning = results.json("eval_pruning", "pruning.json")
    orders = {
        "std of hmc": "HMC's σ", "random of ensemble": "chance", "std of ensemble": "its own σ",
        "abs_mean of ensemble": "|μ|",
    }  # fmt: skip
    alive, everything = (
        {order: pruning["curves"][part].get(f"ensemble mean, {order}") for order in orders}
        for part in ("alive", "all")
    )
    if None in alive.values():
        raise Missing("The pruning has no ensemble")
    sigma, chance = alive["std of hmc"], alive["random of ensemble"]
    if not _has_errors(sigma) or not _has_errors(chance):
        raise Missing(
            "The pruning has no standard errors, as an earlier version left it or because the "
            "chain's samples were gone: prune again with --overwrite"
        )
    losses = list(sigma["sparsity"])
    marks = [
        _clear_mark_of_two(*_gain(sigma, chance, "sparsity", loss), 0.2, 0.0) for loss in losses
    ]

    def listed(loss: str) -> str:
        shares = (
            f"{name} {_sparsity(alive[order], loss)} ({_sparsity(everything[order], loss)})"
            for order, name in orders.items()
        )
        return f"at {points_lost(loss)} {', '.join(shares)}"

    return Finding(
        _worst(marks),
        "Share of the live weights of the ensemble's μ_r that can be set to zero (in brackets: of "
        f"all weights), in the order of: {'; '.join(map(listed, losses))}. "
        f"{_beside_chance(pruning['kept_percent'], sigma, chance)}",
        "; ".join(
            f"at {points_lost(loss)} of accuracy it removes {_sparsity(sigma, loss)} of the live "
            f"ones, random orders {_sparsity(chance, loss)}"
            for loss in losses
        ),
    )


def _beside_chance(kept: list[float], sigma: dict, chance: dict) -> str:
    """Say where σ's order is more accurate than chance by more than 2 errors, and where less."""
    points = [k for k, percent in enumerate(kept) if percent in COARSE_PERCENT and percent < 100]
    gains = {kept[k]: _gain(sigma, chance, "accuracy", k) for k in points}
    better = {p: gain for p, gain in gains.items() if gain[0] > 2 * gain[1]}
    worse = {p: gain for p, gain in gains.items() if gain[0] < -2 * gain[1]}

    def listed(found: dict) -> str:
        points = (f"{p} %: {_points(*gain)}" for p, gain in found.items())
        return f" ({', '.join(points)} points)" if found else ""

    return (
        f"With {len(points)} shares of the live weights kept, σ's order is more accurate than "
        f"random ones by more than 2 standard errors at {len(better)}{listed(better)}, and less at "
        f"{len(worse)}{listed(worse)}."
    )


def _has_errors(curve: dict) -> bool:
    errors = [*curve.get("accuracy_error", [None]), *curve.get("sparsity_error", {}).values()]
    return None not in errors


def _gain(ours: dict, theirs: dict, part: str, key) -> tuple[float, float]:
    """Return the difference of two curves and its error, taking the curves' as independent."""
    errors = (curve[f"{part}_error"][key] for curve in (ours, theirs))
    return ours[part][key] - theirs[part][key], float(np.hypot(*errors))


def _sparsity(curve: dict, loss: str) -> str:
    error = curve.get("sparsity_error", {}).get(loss)
    return f"{with_known_error(curve['sparsity'][loss], error, 1, 100)} %"


# ---- helpers


def _clear_mark(value: float, holds: float, partly: float, threshold: float, error: float) -> str:
    """Return the mark, or no verdict if the threshold lies within two errors of the value."""
    return UNDECIDED if abs(value - threshold) < 2 * error else _mark(value, holds, partly)


def _mark(value: float, holds: float, partly: float) -> str:
    """Return the mark of a value that should be large."""
    return HOLDS if value >= holds else PARTLY if value >= partly else FAILS


def _cell(results: Results, column: str, row: str) -> tuple[float, float]:
    """Return a value of Table 1 and its standard error."""
    table = results.json("eval", "table1.json")
    errors = results.json("eval", "table1_errors.json")
    if column not in table:
        raise Missing(f"The evaluation has no column {column}")
    cell = table[column][row], errors[column][row]
    if None in cell:
        raise Missing(f"{row} of {column} is not finite, or its error is not")
    return cell


def _clear_mark_of_two(value: float, error: float, holds: float, partly: float) -> str:
    """Return the mark, or no verdict if the nearer of two thresholds is within two errors."""
    nearer = min(holds, partly, key=lambda threshold: abs(value - threshold))
    return _clear_mark(value, holds, partly, nearer, error)


def _worst(marks: list[str]) -> str:
    return min(marks, key=(FAILS, UNDECIDED, PARTLY, HOLDS).index)


_nats = partial(number, digits=3)
_points = partial(with_error, digits=1, factor=100, sign="+")
_signed = partial(number, digits=2, sign="+")


def _percent(value: float, error: float) -> str:
    return f"{100 * value:.2f} ± {100 * error:.2f} %"


def _in_paper(results: Results, row: str, *columns: str) -> str:
    """Return the paper's values as the end of a sentence; a full stop for other data."""
    published = published_table1(results.dataset)
    if not published:
        return "."
    values = [published[column][row] for column in columns]
    if not METRICS[row].percent:
        return f" (paper: {', '.join(f'{value:.3f}' for value in values)})."
    return f" (paper: {', '.join(f'{100 * value:.2f}' for value in values)} %)."
