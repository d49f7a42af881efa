"""What the paper says about the mass of networks, and why weight decay does not minimise it.

The criteria are ours: the paper gives no thresholds.
"""

import math

from papers.symmetry.balance import converged, pairs, remark, training_of
from papers.symmetry.batch_norm import shrink_network
from papers.symmetry.values import published
from utils.report.paper import (
    FAILS,
    HOLDS,
    PARTLY,
    Finding,
    all_or_half,
    all_or_some,
    claim,
    decide,
    is_below,
)
from utils.report.results import Missing, Results
from utils.settings.wording import plural

import numpy as np

FEWEST_NETWORKS = 20  # networks for shares of them, and for symmetry_mass.py to look for clusters

# ---- Figure 2


@claim(
    "The mass is strictly convex in the logarithms of the scales, so it has one minimum.",
    number="7",
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
    number="8a",
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
    "if those of one are; no verdict if that depends on one within 2 standard errors of 10 %",
    kinds=("symmetry_mass",),
)
def clusters_match(results: Results) -> Finding:
    summary, paper = results.json("symmetry_mass", "summary.json"), published("mass")["clusters"]
    _require_optunets(summary)
    pairs = list(zip(summary["clusters"], paper, strict=True))
    close = [_is_close(ours, theirs) for ours, theirs in pairs]
    listed = "; ".join(
        f"{ours['mass']:.0f} → {ours['minimum']:.0f} ({theirs[0]} → {theirs[1]}), excess "
        f"{100 * ours['excess']:.0f} %, {plural(ours['networks'], 'network')}"
        for ours, theirs in pairs
    )
    return Finding(
        decide(close, all_or_some),
        f"Medians of the two clusters, the paper's in brackets: {listed}.",
    )


def _is_close(cluster: dict, paper: list[float]) -> bool | None:
    """Say whether mass and minimum are within a tenth of the paper's; None if not decided."""
    close = [
        is_below(abs(cluster[name] / value - 1), 0.1, cluster[f"{name}_error"] / value)
        for name, value in zip(("mass", "minimum"), paper, strict=True)
    ]
    return False if False in close else None if None in close else True


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


@claim(
    "Batch normalisation makes the minimum-mass problem degenerate.",
    number="8c",
    source="the paper, on the minimum mass",
    criterion="holds if all convolutions of a network with batch normalisation can be made a "
    "hundred times smaller while the outputs stay the same to 1e-9: their mass then goes to 0 "
    "without a minimum",
    kinds=(),
)
def batch_norm_is_degenerate(results: Results) -> Finding:
    """Compute it, as no run is needed."""
    found = shrink_network()
    before, after = found.convolutions
    return Finding(
        HOLDS if found.change < 1e-9 and after < before else FAILS,
        f"Computed with the report, for a {found.network} with random weights: with convolutions "
        f"and running statistics scaled by {found.factor:g}, the mass of the convolutions falls "
        f"from {before:.3g} to {after:.3g} (that of all other weights is {found.others:.3g}), and "
        f"outputs change by {found.change:.0e} of their deviation.",
    )


# ---- weight decay and projection


@claim(
    "Gradients along the scales are negligible beside gradient noise, so weight decay does not "
    "balance units.",
    number="8b",
    source="the paper's reason for Figure 2",
    criterion="by the share of the imbalance left at the end, relative to the same training "
    "without weight decay: holds if in no cell of SGD's grid it is within 0.1 of what weight decay "
    "leaves without noise; in part if not in all; does not hold if in all",
    kinds=("symmetry_balance",),
)
def noise_outweighs_decay(results: Results) -> Finding:
    cells = results.json("symmetry_balance", "summary.json")["cells"]
    beside_noise = [abs(gap) >= 0.1 for gap in _gaps(cells)]
    return Finding(
        all_or_some(beside_noise),
        f"In {sum(beside_noise)} of {len(beside_noise)} cells weight decay leaves another share "
        "than it would without noise; in the others it acts as if there were none, and whether it "
        f"reaches balance is a matter of time.{remark(cells)}",
    )


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
    cells, gaps = _usual(everything), _gaps(everything)
    close = [abs(gap) < 0.1 for gap in gaps]
    largest = max(gaps, key=abs)
    drift = [cell["share_left"] for cell in cells if not cell["weight_decay"]]
    excess = [cell["excess"] for cell in cells]
    return Finding(
        all_or_half(close),
        f"{sum(close)} of {len(gaps)} cells are within 0.1; the largest gap is {largest:+.2f}. "
        "Without weight decay, gradient noise and finite steps multiply the imbalance by "
        f"{min(drift):.2f} to {max(drift):.2f}. At the end SGD's networks are "
        f"{100 * min(excess):.1f} to {100 * max(excess):.1f} % heavier than their "
        f"minimum.{remark(everything)}",
    )


def _usual(cells: list[dict]) -> list[dict]:
    """Return SGD's cells that converged without projection."""
    return [c for c in converged(cells) if c["optimizer"] == "SGD" and not c["projected"]]


def _gaps(cells: list[dict]) -> list[float]:
    """Return how far the share of imbalance left is from that without noise, in every cell.

    It is relative to the same training without weight decay.
    """
    usual = _usual(cells)
    without = {training_of(cell): cell["share_left"] for cell in usual if not cell["weight_decay"]}
    gaps = [
        cell["share_left"] / without[training_of(cell)] - math.exp(-2 * cell["decay_time"])
        for cell in usual
        if cell["weight_decay"] and training_of(cell) in without
    ]
    if not gaps:
        raise Missing("The grid has no weight decay of 0, or no other, to compare")
    return gaps


@claim(
    "Scaling networks to their minimum mass during training changes little about how they predict.",
    source="ours; asked for by a reviewer",
    criterion="holds if in no cell the mean test accuracy changes by more than 0.5 percentage "
    "points; in part if in half of them; no verdict if that depends on cells within 2 standard "
    "errors of it, over networks",
    kinds=("symmetry_balance",),
    ours=True,
)
def projection_changes_little(results: Results) -> Finding:
    cells = results.runs["symmetry_balance"].records("cells.jsonl")
    changes = [
        {name: np.subtract(after[name], before[name]) for name in ("accuracy", "nll", "barrier")}
        for before, after in pairs(cells)
    ]  # [networks], or [pairs] of them
    if not changes:
        raise Missing("No cell of SGD's grid was trained with projection and without diverging")
    small = [
        is_below(abs(change.mean()), 0.005, _standard_error(change))
        for change in (each["accuracy"] for each in changes)
    ]
    return Finding(
        decide(small, all_or_half),
        f"Over {len(changes)} cells, accuracy changes by {_range(changes, 'accuracy')}, NLL by "
        f"{_range(changes, 'nll')} nats, the barrier by {_range(changes, 'barrier')} nats. The "
        f"change of accuracy is clearly smaller than 0.005 in {small.count(True)} cells, clearly "
        f"larger in {small.count(False)}.{remark(cells)}",
    )


def _standard_error(values: np.ndarray) -> float:
    """Return that of the mean; 0 for a single value, whose error is not known."""
    return values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _range(changes: list[dict], name: str) -> str:
    values = [change[name].mean() for change in changes]
    return f"{min(values):.3f} to {max(values):.3f}".replace("-", "−")
