"""The figures on the quality and diversity of posteriors, each drawn from a run's result file."""

import json
from itertools import cycle
from pathlib import Path

from utils.report.figures import BLUE, GOLD, GREEN, GREY, ORANGE, PURPLE, SKY, panels
from utils.report.paper import figure
from utils.settings.wording import plural

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

MODES = {  # of rows: what they are called, and their look
    "one": ("one mode", ORANGE, "white", -0.22), "multi": ("several modes", BLUE, BLUE, 0.0),
    "each": ("as many modes as samples", GREEN, GREEN, 0.22),
}  # fmt: skip
GROUPS = {  # of pairs, as symmetry_diversity.py names them; wide below narrow where they coincide
    "": ("independent networks", BLUE, 1.2),
    "one_chain_": ("HMC, one chain", SKY, 3.5),
    "two_chains_": ("HMC, two chains", PURPLE, 1.2),
    "copies_": ("copies, fine-tuned apart", ORANGE, 1.2),
}


@figure(
    "symmetry_diversity",
    "diversity.npz",
    title="Figure 3: how different independent networks are as functions",
    caption="The mutual information (MI) of all pairs of independent networks on test images, on "
    "images out of the distribution, and both together. Dashed lines are the means of two copies "
    "of one network that were fine-tuned apart: pairs at or below them would be a collapse.",
)
def functional_collapse(source: Path) -> Figure:
    """Draw the paper's Figure 3."""
    results = np.load(source)
    labels = {"inside": "MI on test images [nats]", "outside": f"MI on {results['ood']} [nats]"}
    drawn, (axes,) = panels(1, 3)
    for axis, (side, label) in zip(axes, labels.items(), strict=False):
        axis.hist(results[side], bins=60, color=BLUE)
        axis.axvline(results[f"copies_{side}"].mean(), color=ORANGE, linestyle="--")
        axis.set(xlabel=label, ylabel="pairs of networks")
        axis.set_xlim(left=0)
    density = axes[2].hexbin(
        results["inside"], results["outside"], gridsize=40, mincnt=1, cmap="Blues", linewidths=0,
        vmin=0, rasterized=True,
    )  # fmt: skip
    drawn.colorbar(density, ax=axes[2], label="pairs")
    axes[2].set(xlabel=labels["inside"], ylabel=labels["outside"])
    return drawn


@figure(
    "symmetry_diversity", "diversity.npz", "What a mutual information means",
    caption="Mutual information (MI, left) and disagreement (right) of different kinds of pairs, "
    "in and out of the distribution: means, and bars from the 5 % to the 95 % quantile.",
)  # fmt: skip
def diversity_scale(source: Path) -> Figure:
    """Draw means and spreads of the groups of pairs."""
    results = np.load(source)
    groups = {key: look for key, look in GROUPS.items() if f"{key}inside" in results}
    drawn, (axes,) = panels(1, 2)
    quantities = {"": ("MI", " [nats]"), "_disagreement": ("disagreement", "")}
    for axis, (suffix, (label, unit)) in zip(axes, quantities.items(), strict=True):
        for key, (title, color, width) in groups.items():
            sides = [results[f"{key}{side}{suffix}"] for side in ("inside", "outside")]
            means = [side.mean() for side in sides]
            low, high = np.quantile(sides[0], [0.05, 0.95]), np.quantile(sides[1], [0.05, 0.95])
            axis.hlines(means[1], *low, color=color, linewidth=width)
            axis.vlines(means[0], *high, color=color, linewidth=width)
            axis.scatter(*means, color=color, s=15 * width, label=title, zorder=3)
        ends = [0, max(axis.get_xlim()[1], axis.get_ylim()[1])]
        axis.plot(ends, ends, color=GREY, linewidth=0.8)
        axis.set(xlim=ends, ylim=ends, xlabel=f"{label} on test images{unit}")
        axis.set(ylabel=f"{label} on {results['ood']}{unit}")
    axes[0].legend(loc="lower right")
    return drawn


# ---- Table 1

COLORS = (BLUE, ORANGE, GREEN, PURPLE, GOLD, SKY, "#8B4513", "#000000")
DOTS = {  # scores in the figure of the table: titles and factors
    "accuracy": ("accuracy [%]", 100), "brier": ("Brier", 1), "ece": ("ECE", 1),
    "scaled_ece": ("ECE after scaling", 1), "aupr_in": ("AUPR in [%]", 100),
    "fpr95_in": ("FPR95 in [%]", 100), "mi_inside": ("MI in [nats]", 1),
    "mi_outside": ("MI out [nats]", 1),
}  # fmt: skip
BESIDE_SCORES = (  # distances, and the scores that they are drawn with
    ("rebased", "accuracy"), ("rebased", "ece"), ("rebased", "aupr_in"), ("inside", "accuracy"),
)  # fmt: skip
MEASURED = {"rebased": "rebased", "inside": "predictions"}
AGAINST = {"accuracy": "accuracy", "ece": "ECE", "aupr_in": "AUPR in"}


REFERENCE_MARKERS = {"networks": "x", "hmc": "+"}
MARKERS = "os^DvP*<>hp"  # as many as have no divisor in common with COLORS
LEAST_IN_BIN = 20  # images, of a reliability diagram


def looks_of(names: list[str]) -> dict[str, tuple[str, str]]:
    """Return a marker and a color for each posterior; up to eight differ in both.

    No two of 88 are alike.
    """
    others = [name for name in names if name not in REFERENCE_MARKERS]
    looks = {name: (marker, GREY) for name, marker in REFERENCE_MARKERS.items() if name in names}
    return looks | dict(zip(others, zip(cycle(MARKERS), cycle(COLORS)), strict=False))


def _rows(source: Path, chosen=lambda row: True) -> tuple[list[dict], list[str]]:
    """Return the rows of table.json, or some of them, and the names of their posteriors."""
    rows = [row for row in json.loads(Path(source).read_text()) if chosen(row)]
    return rows, list(dict.fromkeys(row["name"] for row in rows))


@figure(
    "symmetry_table",
    "table.json",
    title="Table 1: the quality of posteriors with one mode and with several",
    caption="Scores of every posterior with one of its modes (hollow: the mean over modes), with "
    "several, and with as many as samples, with standard errors over modes. Networks are "
    "independent ones.",
)
def posterior_quality(source: Path) -> Figure:
    """Draw the scores of all rows as dots."""
    rows, names = _rows(source)
    drawn, axes = panels(2, len(DOTS) // 2, width=3.1, height=0.9 + 0.26 * len(names))
    for axis, (score, (title, factor)) in zip(axes.flat, DOTS.items(), strict=True):
        for row in rows:
            value, error = (row[part].get(score) for part in ("scores", "errors"))
            if value is None:
                continue
            _, color, face, shift = MODES[row["modes"]]
            axis.errorbar(
                factor * value, names.index(row["name"]) + shift, xerr=factor * (error or 0),
                fmt="o", markersize=3.5, color=color, mfc=face, linewidth=1,
            )  # fmt: skip
        axis.set(xlabel=title, ylim=(len(names) - 0.5, -0.5), ylabel="posterior")
        axis.set_yticks(range(len(names)), names)
        axis.xaxis.set_major_locator(MaxNLocator(3))
    _explain_modes(drawn, rows)
    return drawn


def _explain_modes(drawn: Figure, rows: list[dict]) -> None:
    handles = [
        Line2D([], [], marker="o", markersize=4, linestyle="", color=color, mfc=face, label=label)
        for kind, (label, color, face, _) in MODES.items()
        if kind in {row["modes"] for row in rows}
    ]
    drawn.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _small_panels(count: int) -> tuple[Figure, list]:
    """Return a figure with so many small panels, at most four in a row."""
    columns = min(4, count)
    drawn, axes = panels(-(-count // columns), columns, width=2.4, height=2.0)
    for axis in axes.flat[count:]:
        axis.remove()
    return drawn, list(axes.flat[:count])


@figure(
    "symmetry_table", "table.json", "Distances to the references against scores",
    caption="Distances to independent networks and, if known, to HMC: by weights without "
    "symmetries (NS) and by predictions. One mode and several do not compare, so they have panels "
    "of their own. With one mode, dots are single modes and large markers their means; ρ is the "
    "rank correlation of the dots within methods. With several, hollow markers have as many modes "
    "as samples; ρ is that of all rows, within those of one mode and of several. Brackets have 95 "
    "% intervals. The references are crosses and do not count.",
)  # fmt: skip
def quality_and_scores(source: Path) -> Figure:
    """Draw scores against distances, with a row for one mode and for several of each reference."""
    related = json.loads(Path(source).with_name("correlations.json").read_text())
    rows, names = _rows(source, lambda row: row["distances"])
    looks = looks_of(names)
    references = list(rows[0]["distances"])
    known = rows[0]["distances"][references[0]]
    shown = [pair for pair in BESIDE_SCORES if pair[0] in known]
    drawn, axes = panels(2 * len(references), len(shown), width=2.9, height=2.5)
    for number, line in enumerate(axes):
        reference, one = references[number // 2], number % 2 == 0
        some = [row for row in rows if (row["modes"] == "one") == one]
        found = related if reference == "networks" else related.get(reference, {})
        for axis, (measure, score) in zip(line, shown, strict=True):
            for row in some:
                _draw_row(axis, row, reference, measure, score, *looks[row["name"]])
            whom = {"hmc": "HMC"}.get(reference, reference)
            axis.set_xlabel(f"MMD² to {whom}, {MEASURED[measure]}", fontsize=10)
            axis.set_ylabel(AGAINST[score], fontsize=10)
            axis.tick_params(labelsize=10)
            axis.xaxis.set_major_locator(MaxNLocator(4))
            axis.yaxis.set_major_locator(MaxNLocator(4))
            over = "modes" if one else "rows"
            title = "one mode; ρ of modes" if one else "several; ρ of all rows"
            cell = found.get(over, {}).get(f"{measure}/{score}")
            axis.set_title(f"{title}\n{_correlation(cell)}", fontsize=10)
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=color, label=name)
        for name, (marker, color) in looks.items()
    ]
    drawn.legend(
        handles=handles, loc="outside lower center", ncols=min(6, len(handles)), fontsize=10
    )
    return drawn


def _draw_row(axis, row: dict, reference: str, measure: str, score: str, marker, color) -> None:
    """Draw a row, and single modes behind it; those without a distance are left out."""
    for point in row.get("points", ()):
        _draw_point(axis, point, reference, measure, score, "o", markersize=3, color=color,
                    alpha=0.6, markeredgewidth=0)  # fmt: skip
    hollow = row["modes"] == "each" and marker not in REFERENCE_MARKERS.values()
    _draw_point(axis, row, reference, measure, score, marker, markersize=7, color=color,
                mfc="none" if hollow else color)  # fmt: skip


def _draw_point(axis, item: dict, reference: str, measure: str, score: str, marker, **look) -> None:
    if cell := item["distances"].get(reference, {}).get(measure):
        axis.plot(cell["value"], item["scores"][score], linestyle="", marker=marker, **look)


def _correlation(cell: dict | None) -> str:
    """Write a correlation with its interval; those of too few items are not known."""
    if not cell or cell["low"] is None:
        return "not measured"
    return f"{cell['rho']:.2f} ({cell['low']:.2f} to {cell['high']:.2f})".replace("-", "−")


@figure(
    "symmetry_table", "table.json", "Reliability diagrams",
    caption="Accuracy minus confidence by confidence, in 15 bins of equal width: below 0 a "
    "posterior is overconfident. Bars are standard errors over the images of a bin; with one mode, "
    "points of all modes are taken together. Bins with fewer than 20 images are left out.",
)  # fmt: skip
def reliability_diagrams(source: Path) -> Figure:
    """Draw the gaps of all rows, each posterior in a panel of its own."""
    rows, names = _rows(source)
    drawn, axes = _small_panels(len(names))
    for row in rows:
        _, color, face, _ = MODES[row["modes"]]
        diagram = {key: np.array(each) for key, each in row["reliability"].items()}
        images = diagram["sizes"] / row["averaged"]  # bins of all modes have the same images
        used, accuracy = images >= LEAST_IN_BIN, diagram["accuracy"]
        errors = np.sqrt(accuracy * (1 - accuracy) / np.maximum(images, 1))
        axes[names.index(row["name"])].errorbar(
            diagram["confidence"][used], (accuracy - diagram["confidence"])[used],
            yerr=errors[used], marker="o", markersize=3, linewidth=1, color=color, mfc=face,
        )  # fmt: skip
    largest = max(abs(limit) for axis in axes for limit in axis.get_ylim())
    for name, axis in zip(names, axes, strict=True):
        axis.axhline(0, color=GREY, linewidth=0.8)
        axis.set(xlabel="confidence", ylabel="accuracy − confidence", title=name)
        axis.set(xlim=(0, 1), ylim=(-largest, largest))
    _explain_modes(drawn, rows)
    return drawn


@figure(
    "symmetry_table", "table.json", "Confidence in and out of the distribution",
    caption="Histograms of the largest probability, on test images (solid) and on images from "
    "elsewhere (dashed). Means over modes where a row has one mode.",
)  # fmt: skip
def confidence(source: Path) -> Figure:
    """Draw a histogram of confidence for each row."""
    rows, _ = _rows(source)
    drawn, axes = _small_panels(len(rows))
    for axis, row in zip(axes, rows, strict=True):
        for side, color, style in (("inside", BLUE, "-"), ("outside", ORANGE, "--")):
            shares = np.array(row["confidence"][side])
            edges = np.linspace(0, 1, len(shares) + 1)
            axis.stairs(shares, edges, color=color, linestyle=style, linewidth=1)
        axis.set(yscale="log", xlabel="confidence", ylabel="share of images", ylim=(1e-5, 1))
        axis.set_title(f"{row['name']},\n{plural(row['num_modes'], 'mode')}")
    handles = [
        Line2D([], [], color=BLUE, label="test images"),
        Line2D([], [], color=ORANGE, linestyle="--", label="images from elsewhere"),
    ]
    drawn.legend(handles=handles, loc="outside lower center", ncols=2)
    return drawn
