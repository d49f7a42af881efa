"""Figures of posteriors weight by weight, and of pruning, drawn from result files alone."""

import json
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from utils.figures import BLUE, GREEN, GREY, ORANGE, panels, styled

METHODS = {"hmc": "HMC", "ensemble": "Ensemble", "vi": "VI"}
SYMBOLS = {"mean": "μ", "std": "σ"}
FRAMES = {"before": "before rebasin", "after": "after rebasin"}
NUM_BINS = 120
OUTSIDE = 0.001  # share of weights beyond each end of an axis


@styled
def weight_pairs(source: Path, part: str) -> Figure:
    """Paper A's Figure 4: μ or σ of every two methods, weight by weight, before and after.

    Weights of dead pixels are left out.
    """
    results = np.load(source)
    alive = results["alive"]
    there = [name for name in METHODS if f"{name}_after_{part}" in results]
    pairs = [(a, b) for i, a in enumerate(there) for b in there[i + 1 :]]
    figure, axes = panels(2, max(len(pairs), 1), width=3.3, height=3.0)
    image = None
    for row, (frame, title) in zip(axes, FRAMES.items(), strict=True):
        for axis, (a, b) in zip(row, pairs, strict=False):
            values = [results[f"{name}_{frame}_{part}"][alive] for name in (a, b)]
            image = _density(axis, *values)
            axis.set_title(f"{title}: correlation {np.corrcoef(*values)[0, 1]:.3f}")
            symbol = SYMBOLS[part]
            axis.set(xlabel=f"{symbol} of {METHODS[a]}", ylabel=f"{symbol} of {METHODS[b]}")
    if image:
        figure.colorbar(image, ax=axes, label="share of the densest bin, log scale", shrink=0.6)
    return figure


def _density(axis: Axes, x: np.ndarray, y: np.ndarray):
    """Where weights lie, as colours on a log scale relative to the densest bin."""
    bins = [np.linspace(*_range(values), NUM_BINS + 1) for values in (x, y)]
    counts, *_ = np.histogram2d(x, y, bins)
    shares = np.ma.masked_equal(counts.T / max(counts.max(), 1), 0)
    axis.grid(False)
    return axis.pcolormesh(*bins, shares, norm=LogNorm(1e-4, 1), cmap="viridis", rasterized=True)


def _range(values: np.ndarray) -> np.ndarray:
    """All but the outermost weights, with some room."""
    low, high = np.quantile(values, [OUTSIDE, 1 - OUTSIDE])
    room = 0.05 * (high - low) or 1e-6
    return np.array([low - room, high + room])


@styled
def transpositions_along_chain(source: Path) -> Figure:
    """NoT of HMC's samples to the first of them, beside networks that know nothing of it."""
    results = json.loads(Path(source).read_text())
    chain, random = results["transpositions"]["along_chain"], results["transpositions"]["random"]
    null = results["prior_networks"]["transpositions"]
    figure, ((axis,),) = panels(1, 1, width=5.5, height=3.2)
    axis.plot(chain, color=BLUE, linewidth=1, label="HMC samples")
    places = np.linspace(0, len(chain) - 1, len(null))
    axis.plot(places, null, "x", color=ORANGE, markersize=3, label="networks from the prior")
    axis.axhline(random, color=GREY, linestyle=(0, (5, 2)), label=f"random: n − Hₙ = {random:.0f}")
    axis.set(xlabel="sample of HMC", ylabel="NoT to the first sample", ylim=(0, 1.08 * random))
    axis.legend(loc="lower right")
    return figure


# ---- Figure 5: sigma_histograms.npz and pruning.json

METHOD_STYLES = {
    "hmc": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "ensemble": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "vi": {"color": GREEN, "linestyle": "-.", "marker": "^"},
}
CRITERIA = {
    "std": ("lowest σ", {"color": BLUE, "linestyle": "-", "marker": "o"}),
    "abs_mean": ("largest |μ|", {"color": ORANGE, "linestyle": "--", "marker": "s"}),
    "signal_to_noise": ("largest |μ|/σ", {"color": GREEN, "linestyle": "-.", "marker": "^"}),
    "random": ("random", {"color": GREY, "linestyle": ":", "marker": "x"}),
}
PARTS = {"all": "all weights", "alive": "without dead pixels' weights"}


@styled
def sigma_histograms(source: Path) -> Figure:
    """Paper A's Figure 5, left: σ of every method before and after rebasin."""
    results = np.load(source)
    edges = 10 ** results["edges"]
    there = [name for name in METHODS if f"{name}_after_all" in results]
    figure, (axes,) = panels(1, len(there), height=3.2)
    for axis, method in zip(axes, there, strict=True):
        frames = ("before", "after") if method != "vi" else ("after",)  # permuted, it is the same
        for frame, color, style in zip(frames, (ORANGE, BLUE), ("--", "-"), strict=False):
            for part, width in (("all", 0.8), ("alive", 1.6)):
                counts = results[f"{method}_{frame}_{part}"]
                label = f"{'σ_d' if frame == 'before' else 'σ_r'}, {PARTS[part]}"
                label = label if method != "vi" else f"σ, {PARTS[part]}"
                axis.stairs(counts, edges, color=color, ls=style, lw=width, label=label)
        filled = np.flatnonzero(sum(results[f"{method}_{f}_all"] for f in frames))
        axis.set(xscale="log", yscale="log", title=METHODS[method])
        axis.set(xlim=(edges[filled[0]], edges[filled[-1] + 1]), ylim=(0.8, None))
        axis.set(xlabel="σ of a weight", ylabel="weights in a bin")
        axis.legend(loc="upper left")
    return figure


@styled
def pruning(source: Path) -> Figure:
    """Paper A's Figure 5, right: accuracy of pruned means, and of pruned single networks."""
    results = json.loads(Path(source).read_text())
    figure, axes = panels(2, 2, width=3.6, height=3.0)
    for row, (part, title) in zip(axes, PARTS.items(), strict=True):
        for axis, kind in zip(row, ("mean", "single"), strict=True):
            for curve in results["curves"][part].values():
                method, network = curve["network"].split()
                if network == kind and curve["criterion"] == "std":
                    look = METHOD_STYLES[method] | {
                        "linestyle": METHOD_STYLES[curve["by"]]["linestyle"]
                    }
                    label = f"{METHODS[method]}, σ of {METHODS[curve['by']]}"
                    _accuracy_line(axis, results, curve, label, look)
            what = "mean networks" if kind == "mean" else "single networks"
            _kept_axis(axis, f"{what}, {title}")
    return figure


@styled
def criteria(source: Path) -> Figure:
    """Accuracy of every method's mean, pruned by σ, |μ|, |μ|/σ and at random."""
    results = json.loads(Path(source).read_text())
    curves = results["curves"]
    there = [m for m in METHODS if f"{m} mean, std of {m}" in curves["all"]]
    figure, axes = panels(2, len(there), width=3.4, height=3.0)
    for row, (part, title) in zip(axes, PARTS.items(), strict=True):
        for axis, method in zip(row, there, strict=True):
            for criterion, (label, look) in CRITERIA.items():
                curve = curves[part][f"{method} mean, {criterion} of {method}"]
                _accuracy_line(axis, results, curve, label, look)
            _kept_axis(axis, f"{METHODS[method]}, {title}")
    return figure


def _accuracy_line(axis: Axes, results: dict, curve: dict, label: str, look: dict) -> None:
    percent = 100 * np.array(curve["accuracy"])
    axis.plot(results["kept_percent"], percent, label=label, markersize=3, linewidth=1, **look)


def _kept_axis(axis: Axes, title: str) -> None:
    axis.set(xscale="log", xlabel="weights kept [%]", ylabel="test accuracy [%]", title=title)
    axis.set_xticks([100, 50, 20, 10, 5, 2, 1])
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("")
    axis.invert_xaxis()
    axis.legend(loc="lower left")
