"""The paper's claims, each with its criterion, its judge and its sentences for the report.

The criteria are ours: the paper gives no thresholds. A judge reads the results of runs and returns
a Finding; "in short" is for the top of the report, one sentence for each mark. When there is no
verdict is the rule in `verdicts`.
"""

from functools import partial

from papers.compact.planted_pairs import rank_correlation
from papers.compact.tables import PAPER_METHODS, points_lost, published_table1
from papers.compact.verdicts import (
    NUM_ERRORS,
    clear_mark,
    error_of_chain_mean,
    error_of_mean,
    leave_one_out_error,
    mark_above,
    mark_below,
)
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
    criterion="holds if agreement rises by at least 0.2; in part if it rises",
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
        clear_mark(lambda rise: mark_above(rise, 0.2, 0.0), (after - before, error)),
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
    criterion="holds if samples are more accurate than draws, and μ_r too; in part if one is",
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
    gains = [
        (other - draws, np.hypot(error, draws_error))
        for other, error in ((samples, samples_error), (mean, mean_error))
    ]
    return Finding(
        clear_mark(lambda *each: mark_above(sum(gain > 0 for gain in each), 2, 1), *gains),
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
    "q_r and the samples is below 0.1, and its cycle error below 0.1; in part below 0.3 and 0.5",
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

    def mark_of(distance: float, cycles: float) -> str:
        marks = (mark_below(distance, 0.1, 0.3), mark_below(cycles, 0.1, 0.5))
        return min(marks, key=(FAILS, PARTLY, HOLDS).index)  # the worse of the two

    title = columns_of(diagnostics["names"])[best].title(diagnostics["names"])
    return Finding(
        clear_mark(mark_of, distance, cycles),
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
    members, rebased, direct = cells
    losses = [
        (members[0] - other[0], np.hypot(members[1], other[1])) for other in (rebased, direct)
    ]

    def mark_of(rebased_loss: float, direct_loss: float) -> str:
        if rebased_loss < 0.015:
            return HOLDS
        return PARTLY if rebased_loss < direct_loss / 4 else FAILS

    ensemble, q_r, q_d = (_percent(*cell) for cell in cells)
    return Finding(
        clear_mark(mark_of, *losses),
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
        clear_mark(
            lambda *shares: mark_above(min(shares), 0.98, 0.95), (ensemble, error), (vi, vi_error)
        ),
        f"The ensemble agrees with HMC's prediction on {ensemble:.4f} ± {error:.4f} of the test "
        f"images, VI on {vi:.4f} ± {vi_error:.4f}"
        + _in_paper(results, "agreement", "ensemble_sample", "vi"),
        f"they give HMC's label to {100 * ensemble:.1f} % and {100 * vi:.1f} % of the test images",
    )


@claim(
    "The accuracies of HMC, ensemble and VI.",
    source="Table 1",
    criterion="holds if all three are within 0.3 percentage points of the paper's; in part if one "
    "is. The paper's test images are ours, so the errors of these differences are paired: two runs "
    "of a method are taken to differ by no more than the method and HMC, or halves of HMC, do",
    kinds=("eval",),
)
def accuracies_match(results: Results) -> Finding:
    published = published_table1(results.dataset)
    if results.preset == "quick" or not published:
        raise Missing("The paper's numbers are for a larger network or other data")
    paired = results.json("eval", "diagnostics.json").get("accuracy_differences")
    gaps, comparisons = [], []
    for column in ("hmc_sample", "ensemble_sample", "vi"):
        value, error = _cell(results, column, "sample_accuracy")
        paper = published[column]["sample_accuracy"]
        gaps.append((abs(value - paper), paired[column]["error"] if paired else error))
        comparisons.append(f"{_percent(value, error)} ({100 * paper:.2f})")
    errors = ", ".join(f"{100 * error:.2f}" for gap, error in gaps)

    def mark_of(*gaps: float) -> str:
        return HOLDS if max(gaps) <= 0.003 else PARTLY if min(gaps) <= 0.003 else FAILS

    return Finding(
        clear_mark(mark_of, *gaps),
        f"HMC, ensemble and VI, the paper's in brackets: {', '.join(comparisons)}. "
        + (
            f"Paired errors of the differences: at most {errors} points."
            if paired
            else "The paired errors of the differences are missing (evaluate again); these include "
            "the choice of the test images, which the paper shares."
        ),
    )


# ---- Figures 2 and 3


@claim(
    "Rebasin removes the loss barrier between two networks throughout training.",
    source="Figure 2",
    criterion="holds if after every epoch the barrier with rebasin is below a tenth of that "
    "without; in part if below 0.4 of it. A single pair of networks, so without a standard error",
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
    trained = (dynamics["epochs"] > 0) & (as_is > 0)
    if not trained.any():
        raise Missing("There is no barrier without rebasin")
    shares = rebased[trained] / as_is[trained]
    return Finding(
        mark_below(shares.max(), 0.1, 0.4),
        f"Test loss barrier after the last epoch: {_nats(as_is[-1])} nats without rebasin, "
        f"{_nats(rebased[-1])} with it; the largest at any epoch: {_nats(as_is.max())} and "
        f"{_nats(rebased.max())}. The share that rebasin leaves is {shares.mean():.3f} on average "
        f"over epochs and {shares.max():.3f} at most (epoch "
        f"{dynamics['epochs'][trained][shares.argmax()]}). One pair: another may differ.",
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
    trained = _trained_pairs(results)
    units = sum(trained[0]["hidden_sizes"])
    changes = [np.abs(np.subtract(record["found"], record["planted"])).sum() for record in trained]
    change = summary["mean_change"], error_of_mean(changes)
    planted, found = (np.array([sum(r[key]) for r in trained]) for key in ("planted", "found"))
    rank = _rank(planted, found)

    def mark_of(change: float, rank: float) -> str:
        return HOLDS if change <= 0.02 * units else PARTLY if rank > 0.9 else FAILS

    return Finding(
        clear_mark(mark_of, change, (rank, leave_one_out_error(_rank, planted, found))),
        "NoT found after training differs from NoT planted at initialisation by "
        f"{change[0]:.2f} ± {change[1]:.2f} on average over {len(trained)} pairs, with {units} "
        f"units; their rank correlation is {rank:.3f}.",
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
    rank, trained = summary["rank_correlation_planted_barrier"] or 0.0, _trained_pairs(results)
    planted = np.array([sum(record["planted"]) for record in trained])
    heights = np.array([record["test_loss_barrier"] for record in trained])
    error = leave_one_out_error(_rank, planted, heights)
    barriers: dict[int, list[float]] = {}  # over the experiment's runs, by NoT
    for record in trained:
        barriers.setdefault(sum(record["planted"]), []).append(record["test_loss_barrier"])
    least, most = min(barriers), max(barriers)
    low, high = (_nats(float(np.mean(barriers[planted]))) for planted in (least, most))
    return Finding(
        clear_mark(lambda rank: mark_above(rank, 0.9, 0.5), (rank, error)),
        f"Test loss barrier between networks that start as permuted copies: {low} nats at NoT "
        f"{least}, {high} at {most}; rank correlation {with_error(rank, error, 3)}.",
        f"{low} nats at NoT {least}, {high} at {most}; rank correlation {rank:.2f}",
    )


@claim(
    "NoT grows monotonically along the line from one network to the other.",
    source="Figure 3",
    criterion="holds if NoT never falls; in part if at half of the checkpoints no fall is beyond 2 "
    "standard errors, each √2 standard deviations of a random permutation: a fall is a difference "
    "of two. A single pair of networks",
    kinds=("net_matching",),
)
def transpositions_are_monotone(results: Results) -> Finding:
    """Tell falls from the noise of random permutations, where NoT has reached chance level."""
    dynamics = np.load(results.runs["net_matching"].path("training_dynamics.npz"))
    counts = dynamics["transpositions"][:, 0].sum(-1)  # of W_1 without rebasin [epoch, λ]
    error = 2**0.5 * float(dynamics["random_deviation"])
    falls = np.maximum(-np.diff(counts, axis=1).min(axis=1), 0)  # the largest at each checkpoint
    share = float((falls <= NUM_ERRORS * error).mean())
    return Finding(
        HOLDS if not falls.any() else PARTLY if share >= 0.5 else FAILS,
        f"At {100 * (falls == 0).mean():.0f} % of the {len(counts)} checkpoints NoT never falls "
        f"along λ, at {100 * share:.0f} % not by more than {NUM_ERRORS * error:.1f}, two standard "
        f"errors. The largest fall is {falls.max()}.",
    )


@claim(
    "NoT also carries information about networks that were sampled or trained independently.",
    source="Figure 3, and NoT along the chain",
    criterion="holds if either NoT is at least a tenth below that of random permutations; in part "
    "from 2 %",
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
    second_half = chain[len(chain) // 2 :]
    late, late_error = second_half.mean(), error_of_chain_mean(second_half)
    dynamics = np.load(results.runs["net_matching"].path("training_dynamics.npz"))
    trained = dynamics["alignment_transpositions"][-1, 0].sum()
    expected = float(dynamics["random_transpositions"].sum())
    deviation = float(dynamics["random_deviation"])
    below_chance = [
        (1 - late / counts["random"], late_error / counts["random"]),
        (1 - trained / expected, deviation / expected),
    ]
    return Finding(
        clear_mark(lambda *shares: mark_above(max(shares), 0.1, 0.02), *below_chance),
        "NoT of HMC samples in the second half of the chain to its first sample: "
        f"{with_error(late, late_error, 1)} on average, of random permutations "
        f"{counts['random']:.1f}; of two independently trained networks: {trained}, at random "
        f"{expected:.1f} ± {deviation:.1f}.",
        f"{late:.0f} between samples of a chain and {trained} between two trained networks, where "
        f"chance has {counts['random']:.0f} and {expected:.0f}",
    )


# ---- Figures 4 and 5


@claim(
    "After rebasin, HMC, ensembles and VI can be compared weight by weight.",
    source="Figure 4",
    criterion="cross-fitted: units are matched on half of the pixels, and weights of the other "
    "half correlated. Holds if all correlations with HMC's, of μ and of σ, are at least 0.1; in "
    "part if those of μ are at least 0.03; no verdict if networks from the prior in place of HMC's "
    "samples reach 0.03, too. Errors: hidden units and blocks of samples are resampled",
    kinds=("eval",),
    in_short={
        HOLDS: "After rebasin the weights of HMC, ensemble and VI can be compared one by one",
        PARTLY: "Rebasin makes the weights of HMC, ensemble and VI only partly comparable",
        FAILS: "Rebasin does not make the weights of HMC, ensemble and VI comparable",
    },
)
def weights_compare(results: Results) -> Finding:
    diagnostics = results.json("eval", "diagnostics.json")
    found = (diagnostics.get("limits") or {}).get("cross_fitted") or {}
    others = [name for name in PAPER_METHODS if name in found]
    if not others or diagnostics.get("truth", "hmc") != "hmc":
        raise Missing("The evaluation has not correlated cross-fitted weights with HMC's")
    parts = ("mean", "std", "null")
    cells = {o: {p: (found[o][p], found[o].get(f"{p}_error")) for p in parts} for o in others}
    if any(value is None for cell in cells.values() for value, error in cell.values()):
        raise Missing("Some weights or deviations are constant and have no correlation")

    def mark_of(*values: float) -> str:
        means, stds, nulls = np.reshape(values, (-1, 3)).T
        if np.abs(nulls).max() >= 0.03:
            return UNDECIDED
        mark = mark_above(means.min(), 0.1, 0.03)
        return PARTLY if mark == HOLDS and stds.min() < 0.1 else mark

    texts = {
        other: [with_known_error(*cell[part], 3, sign="+") for part in parts]
        for other, cell in cells.items()
    }
    comparisons = "; ".join(
        f"HMC and {PAPER_METHODS[other]}: μ {mean}, σ {std} (prior networks: μ {null})"
        for other, (mean, std, null) in texts.items()
    )
    known = all(error is not None for cell in cells.values() for value, error in cell.values())
    means, stds = (
        " and ".join(f"{texts[other][number]} ({PAPER_METHODS[other]})" for other in others)
        for number in (0, 1)
    )
    return Finding(
        clear_mark(mark_of, *(cell[part] for cell in cells.values() for part in parts)),
        f"Cross-fitted correlations over weights: {comparisons}. In brackets: with networks from "
        "the prior in place of HMC's samples."
        + _correlations_of_all_pixels(diagnostics, others)
        + ("" if known else " The errors are missing: evaluate again."),
        f"over weights that matching did not see, μ correlates with HMC's by {means}, σ by {stds}",
    )


def _correlations_of_all_pixels(diagnostics: dict, others: list[str]) -> str:
    """Return what matching on all pixels reaches, most of which it reaches for noise, too."""
    after, null = diagnostics["correlations"]["after"], diagnostics["prior_networks"]["mean_with"]
    pairs = {other: f"hmc and {other}" for other in others}
    if not all(pair in after and other in null for other, pair in pairs.items()):
        return ""
    listed = "; ".join(
        f"{PAPER_METHODS[other]} {_signed(after[pair]['mean'])} ({_signed(null[other])})"
        for other, pair in pairs.items()
    )
    return f" Matched and correlated on all pixels, μ of {listed}: mostly alignment of noise."


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
    gains = [_gain(sigma, chance, "sparsity", loss) for loss in losses]

    def listed(loss: str) -> str:
        shares = (
            f"{name} {_sparsity(alive[order], loss)} ({_sparsity(everything[order], loss)})"
            for order, name in orders.items()
        )
        return f"at {points_lost(loss)} {', '.join(shares)}"

    return Finding(
        clear_mark(lambda *each: mark_above(min(each), 0.2, 0.0), *gains),
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


def _trained_pairs(results: Results) -> list[dict]:
    """Return the records of planted pairs after training."""
    records = results.runs["transpositions"].records("transpositions.jsonl")
    return [record for record in records if record["stage"] == "trained"]


def _rank(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's ρ; 0 if one of the two does not vary."""
    rank = rank_correlation(first, second)
    return rank if np.isfinite(rank) else 0.0


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
