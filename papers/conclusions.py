"""What both papers' results mean for a reader: advice, computed from the results of runs.

Each function returns a sentence or two that say what to do, with numbers and costs, or "" where the
results do not say. A rule decides between the sentences, so that none contradicts its numbers.
"""

from collections.abc import Mapping

from papers.compact import claims as compact_claims
from papers.symmetry import claims, mass_claims, quality_claims
from papers.symmetry.balance import pairs
from papers.symmetry.table1 import change
from utils.networks.registry import load_network
from utils.report.paper import CLEAR, Conclusion
from utils.report.results import Results
from utils.report.tables import number, with_error
from utils.runs.progress import duration
from utils.settings.wording import plural

import numpy as np

AllResults = Mapping[str, Results]  # by paper
PREDICTS_ALIKE = 0.98  # agreement from which methods predict alike
WORTH_WHILE = 0.002  # the least gain of accuracy

# ---- what symmetries do


def compare_without_symmetries(results: AllResults) -> str:
    """Return whether weights of two halves of HMC compare as they are, sorted, or not at all."""
    rows = results["symmetry"].json("symmetry_table", "table.json")
    removed = results["symmetry"].json("symmetry_table", "summary.json")["symmetries_removed"]
    half = [row for row in rows if row["name"] == "hmc"][-1]["distances"]["hmc"]
    beyond = {space: half[space]["value"] > half[space]["high"] for space in SPACES}
    if not beyond["weights"]:
        advice = "Here weights compare as they are"
    elif not beyond["canonical"]:
        advice = "Compare predictions, or weights at minimum mass and sorted"
    elif not beyond["inside"]:
        advice = "Compare predictions, not weights"
    else:
        advice = "Here nothing can be compared before the chains agree"
    values = ", ".join(
        f"{number(half[space]['value'], 2)} by {title} (null up to {half[space]['high']:.2f})"
        for space, title in SPACES.items()
    )
    return (
        f"They copy it: the units of the network in Table 1 can be ordered in "
        f"10^{removed['log10_permutations']:.1f} ways and {removed['scalings']} of them scaled "
        f"without changing what it computes. {advice}: MMD² between two halves of HMC's samples is "
        f"{values}."
    )


SPACES = {
    "weights": "weights as they are", "canonical": "weights at minimum mass and sorted",
    "inside": "predictions",
}  # fmt: skip


def leave_scales_alone(results: AllResults) -> str:
    """Return what projection to the minimum mass is worth in training."""
    masses = results["symmetry"].json("symmetry_mass", "summary.json")
    run = results["symmetry"].runs["symmetry_mass"]
    cells = results["symmetry"].json("symmetry_balance", "summary.json")["cells"]
    changes = np.array([after["accuracy"] - before["accuracy"] for before, after in pairs(cells)])
    error = changes.std(ddof=1) / len(changes) ** 0.5
    if changes.mean() + CLEAR * error < WORTH_WHILE:
        advice = "Do not scale networks to their minimum mass in training"
    elif changes.mean() > CLEAR * error:
        advice = "Scale networks to their minimum mass in training"
    else:
        advice = "To scale networks to their minimum mass in training may help"
    return (
        f"{advice}: it changes accuracy by {with_error(changes.mean(), error, 2, 100, '+')} points "
        f"over {len(changes)} cells of a grid. {plural(masses['networks'], 'network')} are "
        f"{100 * masses['excess_quantiles'][3]:.0f} % heavier than their minimum in the median; to "
        f"compute that of all takes {duration(run.seconds)}."
    )


# ---- which approximation


def average_networks(results: AllResults) -> str:
    """Return the best posterior with several modes, and what it costs to train."""
    rows = results["symmetry"].json("symmetry_table", "table.json")
    several = {row["name"]: row for row in rows if row["modes"] == "multi" and row["name"] != "hmc"}
    networks = several.pop("networks")
    count = networks["num_modes"]
    others = [row for row in several.values() if row["num_modes"] == count]
    best = min(others, key=lambda row: row["scores"]["nll"])
    if _is_clearly_better(best, networks):
        advice = f"Take {best['name']} with {count} modes: {_nll(best)} of training"
        comparison = f"{count} plain networks have {_nll(networks)}"
    else:
        advice = (
            f"Train {count} plain networks and average what they predict: {_nll(networks)} of "
            "training"
        )
        comparison = (
            f"of {plural(len(others), 'approximation')} with as many modes none is clearly better, "
            f"the best is {best['name']} with {_nll(best)}"
        )
    return f"{advice}; {comparison}."


def one_training(results: AllResults) -> str:
    """Return the best posterior with one mode."""
    rows = results["symmetry"].json("symmetry_table", "table.json")
    one = {row["name"]: row for row in rows if row["modes"] == "one" and row["name"] != "hmc"}
    network = one.pop("networks")
    best = min(one.values(), key=lambda row: row["scores"]["nll"])
    if _is_clearly_better(best, network):
        return (
            f"If you can train only once, take {best['name']}: {_nll(best)}, a plain network "
            f"{_nll(network)}."
        )
    return (
        f"If you can train only once, no approximation is clearly better than the network itself, "
        f"{_nll(network)}; the best is {best['name']}, {_nll(best)}."
    )


def fit_a_temperature(results: AllResults) -> str:
    """Return what a temperature does to the calibration of averaged networks."""
    rows = results["symmetry"].json("symmetry_table", "table.json")
    (row,) = [row for row in rows if row["name"] == "networks" and row["modes"] == "multi"]
    plain, scaled = (row["scores"][name] for name in ("ece", "scaled_ece"))
    errors = (row["errors"][name] or 0.0 for name in ("ece", "scaled_ece"))
    if plain - scaled <= CLEAR * np.hypot(*errors):
        return ""
    return (
        f"Fit a temperature to held-out images afterwards: it takes the ECE of the "
        f"{row['num_modes']} networks from {plain:.3f} to {scaled:.3f}."
    )


def when_to_run_hmc(results: AllResults) -> str:
    """Return how near an ensemble and VI come to HMC on the larger network, and the times."""
    found = results["compact"]
    table = found.json("eval", "table1.json")
    agreements = {"ensemble": "ensemble_sample", "VI": "vi"}
    near = {kind: table[column]["agreement"] for kind, column in agreements.items()}
    times = {kind: found.runs[kind].seconds for kind in ("HMC", "ensemble", "VI")}
    small, large = (
        load_network(results[paper].runs[kind].path("network.json")).num_weights
        for paper, kind in (("symmetry", "symmetry_table"), ("compact", "HMC"))
    )
    methods = " and ".join(
        f"{kind} ({duration(times[kind])}) on {100 * near[kind]:.1f} %" for kind in near
    )
    advice = (
        "run HMC for a reference, not for predictions"
        if min(near.values()) >= PREDICTS_ALIKE
        else "run HMC where the difference matters"
    )
    images = results["symmetry"].runs["networks"].config["num_train"]
    return (
        f"These are numbers of a network with {small:,} weights, trained on "
        f"{f'{images:,}' if images else 'all'} images. With {large:,} weights HMC took "
        f"{duration(times['HMC'])}, and its label is given by {methods} of the test images: "
        f"{advice}. Other sizes were not compared."
    )


def _nll(row: dict) -> str:
    cost = row["training_seconds"]
    after = "" if cost is None else f" after {cost:.1f} core-seconds"
    return f"NLL {with_error(row['scores']['nll'], row['errors']['nll'], 3)}{after}"


def _is_clearly_better(row: dict, other: dict) -> bool:
    difference, error = change(other, row, "nll")
    return difference < -CLEAR * error


# ---- what rebasin can do


def match_before_averaging(results: AllResults) -> str:
    """Return what rebasin does to the barrier, and the time of training and matching."""
    run = results["compact"].runs["net_matching"]
    summary = run.json("summary.json")
    ways = ("as is", "by activation")
    plain, rebased = (summary[way]["test_loss_barrier"] for way in ways)
    largest = summary["by activation"]["over_epochs"]["largest_test_loss_barrier"]
    advice = (
        "match networks before you average their weights"
        if rebased < 0.4 * plain
        else "do not average weights, even of matched networks"
    )
    return (
        f"Rebasin takes the barrier between two trained networks from {number(plain, 3)} to "
        f"{number(rebased, 3)} nats, and it is {number(largest, 3)} at most during training: "
        f"{advice}. Training both and matching them at every epoch took {duration(run.seconds)}."
    )


def keep_the_samples(results: AllResults) -> str:
    """Return what a Gaussian per weight keeps of HMC's accuracy."""
    table, errors = (
        results["compact"].json("eval", f"{name}.json") for name in ("table1", "table1_errors")
    )
    cells = ("hmc_sample", "sample_accuracy"), ("hmc_rebased", "sample_accuracy")
    (samples, error), (draws, other) = ((table[c][s], errors[c][s]) for c, s in cells)
    mean = table["hmc_rebased"]["mean_accuracy"]
    count = results["compact"].json("eval", "diagnostics.json")["num_samples"]
    advice = (
        "keep the samples to predict with"
        if samples - draws > CLEAR * np.hypot(error, other)
        else "q_r can stand for the samples"
    )
    return (
        f"q_r stores two numbers per weight instead of {count}; its draws are {100 * draws:.1f} % "
        f"accurate and the one network at its mean {100 * mean:.1f} %, HMC's samples "
        f"{100 * samples:.1f} %: {advice}."
    )


def prune_by(results: AllResults) -> str:
    """Return the best order of those in which the ensemble's mean network is pruned."""
    curves = results["compact"].json("eval_pruning", "pruning.json")["curves"]["alive"]
    orders = {
        "|μ|": "abs_mean of ensemble", "HMC's σ": "std of hmc", "its own σ": "std of ensemble",
        "random order": "random of ensemble",
    }  # fmt: skip
    shares = {
        title: curves[f"ensemble mean, {order}"]["sparsity"]["0.05"]
        for title, order in orders.items()
    }
    best, *others = sorted(shares, key=shares.get, reverse=True)
    rest = ", ".join(f"{100 * shares[title]:.0f} % by {title}" for title in others)
    return (
        f"Prune by {best}: {100 * shares[best]:.0f} % of the live weights of the ensemble's mean "
        f"network can go before 5 points of accuracy are lost ({rest})."
    )


# ---- all of it

CONCLUSIONS = (
    Conclusion(
        "What do symmetries do to a posterior?",
        (compare_without_symmetries, leave_scales_alone),
        (
            claims.mixture_of_copies,
            claims.units_are_exchangeable,
            mass_claims.training_stays_above_minimum,
            mass_claims.projection_changes_little,
            claims.scales_matter,
            compact_claims.weights_compare,
        ),
    ),
    Conclusion(
        "Which approximation should I use?",
        (average_networks, one_training, fit_a_temperature, when_to_run_hmc),
        (
            quality_claims.plain_networks_suffice,
            quality_claims.several_modes_are_better,
            compact_claims.methods_predict_alike,
            quality_claims.networks_stand_in,
        ),
    ),
    Conclusion(
        "What can rebasin do, and what can it not?",
        (match_before_averaging, keep_the_samples, prune_by),
        (
            compact_claims.barrier_vanishes,
            compact_claims.rebasin_gives_meaning,
            compact_claims.rebased_is_not_the_posterior,
            compact_claims.transpositions_inform,
            compact_claims.hmc_std_prunes,
        ),
    ),
)
