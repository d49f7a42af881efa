"""The paper's numbers next to ours, and tables of what the paper leaves open."""

from papers.symmetry.balance import converged, pairs, remark
from papers.symmetry.collapse import SIDES
from papers.symmetry.values import published
from utils.report.results import Results
from utils.report.tables import Table, number, with_error
from utils.settings.wording import plural
from utils.symmetry.unit_order import p_value

import numpy as np

GAUSSIAN_SCORES = {  # of posteriors: title, factor, digits
    "agreement": ("agreement", 1, 3),
    "total_variation": ("TV", 1, 3),
    "accuracy": ("accuracy [%]", 100, 2),
    "mean_accuracy": ("accuracy at the mean [%]", 100, 2),
}
EFFECTS = {  # of projection: title, factor
    "accuracy": ("accuracy [points]", 100),
    "nll": ("NLL [nats]", 1),
    "calibration_error": ("ECE [points]", 100),
    "barrier": ("barrier [nats]", 1),
}


def spread(values: np.ndarray, factor: float, digits: int, sign: str = "") -> str:
    """Return mean ± standard error."""
    if not len(values):
        return "–"
    values = np.asarray(values)
    if len(values) < 2:
        return number(factor * values.mean(), digits, sign)
    values = factor * values
    return with_error(values.mean(), values.std(ddof=1) / len(values) ** 0.5, digits, sign=sign)


# ---- Figure 1


def toy_shapes(results: Results) -> list[Table]:
    summary, paper = results.json("symmetry_toy", "summary.json"), published("toy")
    names = {
        "radius": "as trained: radius of the circle",
        "lobe": "as trained: lobes, at (±a, ∓a)",
        "side": "scales removed: sides, |w₁| + |w₂|",
        "scaled_lobe": "scales removed: lobes, at (±a, ∓a)",
    }
    rows = [
        [
            title,
            f"{paper[name]:.1f}",
            with_error(summary["shape"][name], summary["shape_errors"][name], 3),
        ]
        for name, title in names.items()
    ]
    note = "Medians over networks. The paper's values are read off its figure."
    return [Table(["", "paper", "ours"], rows, title="Shapes in Figure 1", note=note)]


# ---- Figure 2


def masses(results: Results) -> list[Table]:
    """Return ranges, and for OptuNets the paper's, its clusters and modes."""
    summary, paper = results.json("symmetry_mass", "summary.json"), published("mass")
    low, _, _, median, _, _, high = summary["excess_quantiles"]
    count = summary["networks"]
    title = f"{plural(count, 'network')}: {summary['network']}"
    rows = [
        ["mass as trained", _range(paper["mass_range"]), _range(summary["mass_range"])],
        ["minimum mass", _range(paper["minimum_range"]), _range(summary["minimum_range"])],
        ["excess [%]", _range(paper["excess_range"], 100), _range([low, high], 100)],
        ["median of the excess [%]", "–", number(100 * median, 1)],
    ]
    if not summary["network"].startswith("optunet"):
        note = "The paper's values are for OptuNet: see the presets laptop and paper."
        return [Table(["", "ours"], [[name, ours] for name, _, ours in rows], title, note)]
    modes = [
        ", ".join(number(100 * share, 0) for share in each["excess_modes"]) or "–"
        for each in (paper, summary)
    ]
    rows.append(["modes of the excess [%]", *modes])
    for cluster, theirs in zip(summary["clusters"], paper["clusters"], strict=False):
        published_excess = 100 * (theirs[0] / theirs[1] - 1)
        name = f"cluster of {plural(cluster['networks'], 'network')}"
        rows += [
            [f"{name}: mass", str(theirs[0]), _median(cluster, "mass")],
            ["its minimum mass", str(theirs[1]), _median(cluster, "minimum")],
            ["its excess [%]", number(published_excess, 0), _median(cluster, "excess", 100)],
        ]
    note = "Clusters: medians. The paper's values are read off its poster."
    return [Table(["", "paper", "ours"], rows, title, note)]


def _median(cluster: dict, name: str, factor: float = 1) -> str:
    return with_error(cluster[name], cluster[f"{name}_error"], 1, factor)


def _range(ends: list[float], factor: float = 1) -> str:
    return " to ".join(number(factor * end, 0) for end in ends)


# ---- weight decay and projection


def projection_effects(results: Results) -> list[Table]:
    """Return what projection to minimum mass changes, over cells of the grid, by network."""
    cells = results.json("symmetry_balance", "summary.json")["cells"]
    usual = [cell for cell in converged(cells) if not cell["projected"]]
    rows = []
    for network in dict.fromkeys(cell["network"] for cell in usual):
        of_network = [cell for cell in usual if cell["network"] == network]
        trained = [pair for pair in pairs(cells) if pair[0]["network"] == network]
        excesses = [100 * cell["excess"] for cell in of_network]
        changes = [
            spread([after[name] - before[name] for before, after in trained], factor, 3, "+")
            for name, (_, factor) in EFFECTS.items()
        ]
        rows.append([network, str(len(trained)), _range([min(excesses), max(excesses)]), *changes])
    titles = [f"change of {title}" for title, _ in EFFECTS.values()]
    note = (
        "Means over the cells of SGD's grid ± standard errors. Excess: without projection, Adam "
        f"included.{remark(cells)}"
    )
    return [
        Table(
            ["network", "cells", "excess mass [%]", *titles], rows,
            title="Projection to the minimum mass after every epoch", note=note,
        )
    ]  # fmt: skip


# ---- Figure 3


def pairs_of_networks(results: Results) -> list[Table]:
    """Return how much pairs of independent networks differ as functions."""
    summary, paper = results.json("symmetry_diversity", "summary.json"), published("diversity")
    sides, rho = [summary[side] for side in ("inside", "outside")], summary["correlation"]
    copies = summary["groups"]["copies"]
    theirs = [f"{mode} ({low} to {high})" for low, mode, high in (paper[s] for s in SIDES)]
    ours = [
        f"{number(side['mean'], 4)} ({number(side['quantiles'][0], 3)} to "
        f"{number(side['quantiles'][-1], 3)})"
        for side in sides
    ]

    def both(name: str) -> str:
        return ", ".join(number(100 * side[name], 1) for side in sides)

    interval = f"({number(rho['low'], 2)} to {number(rho['high'], 2)})"
    rows = [
        ["MI in distribution [nats]", theirs[0], ours[0]],
        ["MI out of distribution [nats]", theirs[1], ours[1]],
        ["rank correlation of both", paper["correlation"], f"{number(rho['rho'], 2)} {interval}"],
        ["deviation of MI without the noise of finite images, relative to its mean, in and out [%]",
         "–", both("relative_deviation_without_image_noise")],
        ["disagreement, in and out [%]", "–", both("disagreement")],
        ["MI of copies of one network, trained on apart, in and out [nats]", "–",
         ", ".join(number(copies[side], 4) for side in SIDES)],
    ]  # fmt: skip
    note = (
        "The paper's MI is the mode (lowest to highest) over pairs of 1,000 ResNet-18 on "
        "CIFAR-100, with SVHN out of distribution, read off its figure. Ours is the mean (lowest "
        f"to highest) over all pairs of {summary['networks']:,} networks on {results.dataset}, "
        f"with {summary['ood']} out of distribution; of the correlation, the 95 % interval."
    )
    return [Table(["", "paper", "ours"], rows, title="Figure 3: paper | ours", note=note)]


# ---- the corollary


def uniformity_tests(results: Results) -> list[Table]:
    """Return the tests of every group of units, as the networks are, shuffled and rebased."""
    paper, rows = published("marginals"), []
    for name, result in results.json("symmetry_marginals", "marginals.json").items():
        for group, views in result["groups"].items():
            for view, test in views.items():
                p = p_value(test["p"]).removeprefix("p = ")
                rows.append([
                    name, f"{len(test['counts'])} of {group}", view, str(sum(test["counts"])),
                    number(test["effective_draws"], 1), number(test["chi_square"], 1),
                    number(test["corrected_chi_square"], 1), p,
                ])  # fmt: skip
    head = ["posterior", "units", "view", "networks", "worth", "χ²", "corrected χ²", "p"]
    note = (
        "Worth: independent draws of the label that a chain's draws are worth. The paper's poster "
        f"has χ² = {paper['ensemble']} for 753 independent networks and {paper['HMC']} for 753 "
        "draws of three HMC chains, over 16 units of another network and without the correction."
    )
    return [Table(head, rows, title="Which unit holds the largest weight", note=note)]


# ---- Section 5.2


def order_changes(results: Results) -> list[Table]:
    summary = results.json("symmetry_order", "summary.json")
    names = [name.removesuffix("_step") for name in summary if name.endswith("_step")]
    rows = []
    for name in names:
        is_not = name.startswith("not_by_")
        title = f"NoT per layer, {name[4:]}" if is_not else f"τ by {name}"
        changes = summary[f"{name}_step"]
        values = changes["first"], changes["last"], summary[f"{name}_start_to_end"]
        digits = 2 if is_not else 3
        rows.append([title.replace("_", " "), *(number(value, digits) for value in values)])
    first, last = (number(summary["interval"][when], 1) for when in ("first", "last"))
    head = ["", f"first {first} epochs", f"last {last} epochs", "start to end"]
    return [Table(head, rows, title="Changes of the order of units while networks are trained")]


# ---- where both papers meet


def gaussians_without_scales(results: Results) -> list[Table]:
    rows = []
    for posterior, result in results.json("symmetry_compact", "compact.json").items():
        for scales, columns in result["scales"].items():
            for key, scores in columns.items():
                cells = (spread(scores[name], *look[1:]) for name, look in GAUSSIAN_SCORES.items())
                rows.append([posterior, scales, key, *cells])
    head = ["posterior", "scales", "", *(title for title, _, _ in GAUSSIAN_SCORES.values())]
    note = (
        "Networks drawn from the Gaussians q_d and q_r, compared with the average prediction of "
        "the networks they are fitted to. Standard errors are over repeated draws, not over "
        "chains: those of another chain differ more."
    )
    return [Table(head, rows, title="q_d and q_r with and without scales", note=note)]
