"""What the paper says about the mass of networks, and why weight decay does not minimise it.

The criteria are ours: the paper gives no thresholds.
"""

import math

from papers.symmetry.balance import converged, pairs, remark, training_of
from papers.symmetry.values import published
from utils.report.paper import FAILS, HOLDS, PARTLY, Finding, claim
from utils.report.results import Missing, Results
from utils.settings.wording import plural

FEWEST_NETWORKS = 20  # networks for shares of them, and for symmetry_mass.py to look for clusters

# ---- Figure 2


@claim(
    "The mass is strictly convex in the logarithms of the scales, so it has one minimum.",
    source="Proposition 2",
    criterion="holds if no second difference of log m along random directions is below 0 by more "
    "than rounding, 1e-11, and ten points of an orbit have the same minimum to 1e-9",
    kinds=("symmetry_mass",),
    in_short={
        HOLDS: "Of all scales of the units one has the smallest mass",
        FAILS: "The mass has several minima",
    },
)
def mass_is_convex(results: Results) -> Finding:
    summary = results.json("symmetry_mass", "summary.json")
    second, spread = (
        summary[name] for name in ("smallest_second_difference", "minimum_spread_over_orbit")
    )
    return Finding(
        HOLDS if second > -1e-11 and spread < 1e-9 else FAILS,
        f"The smallest second difference is {second:.2g}; ten points of an orbit have minima that "
        f"differ by {spread:.1g}.",
        f"log m is convex along all random lines, and ten points of an orbit have the same minimum "
        f"to {spread:.0e}",
    )


@claim(
    "Training with weight decay does not reach the minimum mass.",
    source="Figure 2",
    criterion="holds if 95 % of the networks are at least 1 % heavier than their minimum; in part "
    "if half of them are",
    kinds=("symmetry_mass",),
    in_short={
        HOLDS: "Training with weight decay stays above the minimum mass",
        PARTLY: "Training with weight decay stays above the minimum mass more often than not",
        FAILS: "Training with weight decay comes to the minimum mass",
    },
)
def training_stays_above_minimum(results: Results) -> Finding:
    summary = results.json("symmetry_mass", "summary.json")
    if summary["networks"] < FEWEST_NETWORKS:
        raise Missing(
            f"The shares of networks above their minimum need at least {FEWEST_NETWORKS} networks"
        )
    low, low_5, _, median, _, _, most = summary["excess_quantiles"]
    return Finding(
        HOLDS if low_5 > 0.01 else PARTLY if median > 0.01 else FAILS,
        f"{summary['networks']:,} networks, {summary['network']}, are {100 * low:.1f} to "
        f"{100 * most:.1f} % heavier than their minimum, in the median {100 * median:.1f} %.",
        f"{summary['networks']:,} networks are {100 * low:.0f} to {100 * most:.0f} % heavier",
    )


@claim(
    "OptuNets are in two clusters of mass and minimum mass, with an excess near 30 % and 10 %.",
    source="Figure 2",
    criterion="holds if mass and minimum of both clusters are within 10 % of the paper's; in part "
    "if those of one are",
    kinds=("symmetry_mass",),
)
def clusters_match(results: Results) -> Finding:
    summary, paper = results.json("symmetry_mass", "summary.json"), published("mass")["clusters"]
    _require_optunets(summary)
    pairs = list(zip(summary["clusters"], paper, strict=True))
    close = [
        abs(ours["mass"] / theirs[0] - 1) < 0.1 and abs(ours["minimum"] / theirs[1] - 1) < 0.1
        for ours, theirs in pairs
    ]
    listed = "; ".join(
        f"{ours['mass']:.0f} → {ours['minimum']:.0f} ({theirs[0]} → {theirs[1]}), excess "
        f"{100 * ours['excess']:.0f} %, {plural(ours['networks'], 'network')}"
        for ours, theirs in pairs
    )
    return Finding(
        HOLDS if all(close) else PARTLY if any(close) else FAILS,
        f"Medians of the two clusters, the paper's in brackets: {listed}.",
    )


@claim(
    "The excess of OptuNets over their minimum mass is 1 to 58 %, most often near 10 and 30 %.",
    source="Figure 2",
    criterion="holds if 90 % of the networks are in that range, from the 5 to the 95 % quantile, "
    "and the density has its two highest maxima within 5 points of 10 and 30 %; in part if one "
    "of both",
    kinds=("symmetry_mass",),
)
def excess_matches(results: Results) -> Finding:
    summary, paper = results.json("symmetry_mass", "summary.json"), published("mass")
    modes, quantiles = summary["excess_modes"], summary["excess_quantiles"]
    _require_optunets(summary)
    (low, high), expected = paper["excess_range"], paper["excess_modes"]
    in_range = low <= quantiles[1] and quantiles[-2] <= high
    near = len(modes) == 2 and all(
        abs(ours - theirs) <= 0.05 for ours, theirs in zip(modes, expected, strict=True)
    )
    maxima = " and ".join(f"{100 * mode:.1f}" for mode in modes)
    return Finding(
        (FAILS, PARTLY, HOLDS)[in_range + near],
        f"{plural(summary['networks'], 'network')}: {100 * quantiles[0]:.1f} to "
        f"{100 * quantiles[-1]:.1f} %, 90 % of them from {100 * quantiles[1]:.1f} to "
        f"{100 * quantiles[-2]:.1f} %; maxima of the density at {maxima} %.",
    )


def _require_optunets(summary: dict) -> None:
    if not summary["network"].startswith("optunet"):
        raise Missing("The paper's numbers are for OptuNet")
    if not summary["clusters"]:
        raise Missing(f"Clusters need at least {FEWEST_NETWORKS} networks")


# ---- weight decay and projection


@claim(
    "Weight decay leaves the share exp(−2 · weight decay · ∫ learning rate dt / (1 − momentum)) of "
    "the imbalance of units, as if there were no gradient noise.",
    source="ours; the paper blames gradient noise for it",
    criterion="holds if in every cell of SGD's grid the share left at the end, relative to the "
    "same training without weight decay, is within 0.1 of that; in part if in half of them",
    kinds=("symmetry_balance",),
    ours=True,
)
def imbalance_decays_as_without_noise(results: Results) -> Finding:
    everything = results.json("symmetry_balance", "summary.json")["cells"]
    cells = [c for c in converged(everything) if c["optimizer"] == "SGD" and not c["projected"]]
    without = {training_of(cell): cell["share_left"] for cell in cells if not cell["weight_decay"]}
    gaps = [
        cell["share_left"] / without[training_of(cell)] - math.exp(-2 * cell["decay_time"])
        for cell in cells
        if cell["weight_decay"] and training_of(cell) in without
    ]
    if not gaps:
        raise Missing("The grid has no weight decay of 0, or no other, to compare")
    close = sum(abs(gap) < 0.1 for gap in gaps)
    largest, drift = max(gaps, key=abs), list(without.values())
    excess = [cell["excess"] for cell in cells]
    return Finding(
        HOLDS if close == len(gaps) else PARTLY if 2 * close >= len(gaps) else FAILS,
        f"{close} of {len(gaps)} cells are within 0.1; the largest gap is {largest:+.2f}. Without "
        f"weight decay, gradient noise and finite steps multiply the imbalance by {min(drift):.2f} "
        f"to {max(drift):.2f}. At the end SGD's networks are {100 * min(excess):.1f} to "
        f"{100 * max(excess):.1f} % heavier than their minimum.{remark(everything)}",
    )


@claim(
    "Scaling networks to their minimum mass during training changes little about how they predict.",
    source="ours; asked for by a reviewer",
    criterion="holds if in no cell the mean test accuracy changes by more than 0.5 percentage "
    "points; in part if in half of them",
    kinds=("symmetry_balance",),
    ours=True,
)
def projection_changes_little(results: Results) -> Finding:
    cells = results.json("symmetry_balance", "summary.json")["cells"]
    changes = [
        {name: projected[name] - plain[name] for name in ("accuracy", "nll", "barrier")}
        for plain, projected in pairs(cells)
    ]
    if not changes:
        raise Missing("No cell of SGD's grid was trained with projection and without diverging")
    small = sum(abs(change["accuracy"]) < 0.005 for change in changes)
    return Finding(
        HOLDS if small == len(changes) else PARTLY if 2 * small >= len(changes) else FAILS,
        f"Over {len(changes)} cells, accuracy changes by {_range(changes, 'accuracy')}, NLL by "
        f"{_range(changes, 'nll')} nats, the barrier by {_range(changes, 'barrier')} nats."
        f"{remark(cells)}",
    )


def _range(cells: list[dict], name: str) -> str:
    values = [cell[name] for cell in cells]
    return f"{min(values):.3f} to {max(values):.3f}".replace("-", "−")
