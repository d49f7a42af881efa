"""Figures of posteriors weight by weight, and of pruning, drawn from result files alone."""

import json
from pathlib import Path

from utils.report.figures import BLUE, GREEN, GREY, ORANGE, panels, styled
from utils.report.tables import METHODS, ORDERS, samples_of

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

SYMBOLS = {"mean": "μ", "std": "σ"}
FRAMES = {"before": "before rebasin", "after": "after rebasin"}
NUM_BINS = 120
SMALLEST_STD = 1e-6  # what is smaller, as where all samples agree, is shown as this
OUTSIDE = 0.001  # share of weights beyond each end of an axis


@styled
def weight_pairs(source: Path, part: str, names: dict[str, str] = METHODS) -> Figure:
    """The paper's Figure 4: μ or σ of every two methods, weight by weight, before and after.

    Weights of dead pixels are left out. There must be two methods or more; `names` is how they
    are called.
    """
    results = np.load(source)
    alive = results["alive"]
    there = [name for name in METHODS if f"{name}_after_{part}" in results]
    pairs = [(a, b) for i, a in enumerate(there) for b in there[i + 1 :]]
    figure, axes = panels(2, len(pairs), width=3.3, height=3.1)
    for column, pair in enumerate(pairs):
        values = {
            frame: [_shown(results[f"{name}_{frame}_{part}"][alive], part) for name in pair]
            for frame in FRAMES
        }
        together = [np.concatenate(both) for both in zip(*values.values(), strict=True)]
        bins = [_bins(every, part) for every in together]
        for axis, (frame, title) in zip(axes[:, column], FRAMES.items(), strict=True):
            image = _density(axis, *values[frame], bins)
            found = np.corrcoef(*values[frame])[0, 1]
            axis.set_title(f"{title}\ncorrelation {found:.3f}")
            labels = [f"{SYMBOLS[part]} of {names[name]}" for name in pair]
            axis.set(xlabel=labels[0], ylabel=labels[1])
            axis.set(xscale=_scale(bins[0], part), yscale=_scale(bins[1], part))
            _sparse_ticks(axis.xaxis, bins[0])
            _sparse_ticks(axis.yaxis, bins[1])
    label = "weights, share of the densest bin"
    figure.colorbar(image, ax=axes, label=label, shrink=0.6, pad=0.1 / len(pairs))
    return figure


def _density(axis: Axes, x: np.ndarray, y: np.ndarray, bins: list[np.ndarray]):
    """Where weights lie, as colours on a log scale relative to the densest bin."""
    counts, *_ = np.histogram2d(x, y, bins)
    shares = np.ma.masked_equal(counts.T / max(counts.max(), 1), 0)
    axis.grid(False)
    return axis.pcolormesh(*bins, shares, norm=LogNorm(1e-4, 1), cmap="viridis", rasterized=True)


def _shown(values: np.ndarray, part: str) -> np.ndarray:
    return np.maximum(values, SMALLEST_STD) if part == "std" else values


def _bins(values: np.ndarray, part: str) -> np.ndarray:
    """Edges of bins that hold all but the outermost weights, with some room."""
    low, high = np.quantile(values, [OUTSIDE, 1 - OUTSIDE])
    logarithmic = _scale(np.array([low, high]), part) == "log"
    ends = np.log10([low, high]) if logarithmic else np.array([low, high])
    room = 0.05 * np.ptp(ends) or 1e-6
    edges = np.linspace(ends[0] - room, ends[1] + room, NUM_BINS + 1)
    return 10**edges if logarithmic else edges


def _scale(values: np.ndarray, part: str) -> str:
    """Of an axis from the first to the last value: logarithmic for σ, if it covers a decade."""
    return "log" if part == "std" and values[-1] > 10 * values[0] > 0 else "linear"


def _sparse_ticks(axis: Axis, values: np.ndarray) -> None:
    """For logarithmic axes of few decades, where matplotlib's labels run into each other."""
    if axis.get_scale() == "log" and values[-1] < 100 * values[0]:
        axis.set_major_locator(LogLocator(subs=(1, 3)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")


@styled
def transpositions_along_chain(source: Path) -> Figure:
    """NoT of HMC's samples to the first of them, beside networks that know nothing of it.

    Where chains have gone far all of these differ by little, which the second panel shows.
    """
    results = json.loads(Path(source).read_text())
    found, null = results["transpositions"], results["prior_networks"]["transpositions"]
    chains = np.array(found["along_chain"]).reshape(results["num_chains"], -1)
    figure, (axes,) = panels(1, 2, width=3.8, height=3.0)
    for axis in axes:
        _transpositions(axis, results["label"], chains, null, found["random"])
        axis.set(xlabel="sample of its chain", ylabel="NoT to the first sample")
    late = chains[:, chains.shape[1] // 2 :]
    shown = np.array([found["random"], *null, *late.flat])
    low, high, room = shown.min(), shown.max(), 0.08 * np.ptp(shown) or 1
    axes[0].set(title="all", ylim=(0, 1.08 * max(high, chains.max(), 1)))
    axes[1].set(title="close-up: its axis does not begin at 0", ylim=(low - room, high + room))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _transpositions(
    axis: Axes, label: str, chains: np.ndarray, null: list[int], random: float
) -> None:
    """NoT of chains [chains, samples], of networks from the prior, and of chance."""
    first, *others = chains
    which = ", first chain" if others else ""
    axis.plot(first, color=BLUE, linewidth=1, zorder=3, label=f"{samples_of(label)}{which}")
    for number, chain in enumerate(others):
        known = "other chains" if number == 0 else "_"  # which hides it from the legend
        axis.plot(chain, color=GREEN, linewidth=0.6, label=known)
    places = np.linspace(0, chains.shape[1] - 1, len(null))
    axis.plot(places, null, "x", color=ORANGE, markersize=3, label="networks from the prior")
    chance = f"random permutations: {random:.{1 if random < 100 else 0}f}"
    axis.axhline(random, color=GREY, linestyle=(0, (5, 2)), label=chance)


# ---- Figure 5: sigma_histograms.npz and pruning.json

NETWORK_STYLES = {
    "hmc": {"linestyle": "-", "marker": "o"},
    "ensemble": {"linestyle": "--", "marker": "s"},
    "vi": {"linestyle": "-.", "marker": "^"},
}
SIGMA_STYLES = {  # HMC's σ is what the figure is about
    "hmc": {"color": BLUE, "linewidth": 2.2, "markersize": 4.5, "zorder": 3},
    "ensemble": {"color": ORANGE},
    "vi": {"color": GREEN},
}
ORDER_STYLES = {
    "std": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "abs_mean": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "signal_to_noise": {"color": GREEN, "linestyle": "-.", "marker": "^"},
    "random": {"color": GREY, "linestyle": ":", "marker": "x"},
}
MOST_BINS = 100  # of a histogram
PARTS = {"all": "all weights", "alive": "without dead pixels' weights"}


@styled
def sigma_histograms(source: Path, names: dict[str, str] = METHODS) -> Figure:
    """The paper's Figure 5, left: σ of every method before and after rebasin.

    Of the counts' fine bins several make one of the figure's.
    """
    results = np.load(source)
    edges = 10 ** results["edges"]
    there = [name for name in METHODS if f"{name}_after_all" in results]
    figure, (axes,) = panels(1, len(there), height=3.2)
    for axis, method in zip(axes, there, strict=True):
        frames = {"after": BLUE} if method == "vi" else {"before": ORANGE, "after": BLUE}
        filled = np.flatnonzero(sum(results[f"{method}_{f}_all"] for f in frames))
        first, end = filled[0], filled[-1] + 1
        starts = np.arange(first, end, -(-(end - first) // MOST_BINS))
        ends = np.append(edges[starts], edges[end])
        for frame, color in frames.items():
            for part, style in (("all", "-"), ("alive", ":")):
                counts = np.add.reduceat(results[f"{method}_{frame}_{part}"][:end], starts)
                label = f"{FRAMES[frame]}, {PARTS[part]}"
                axis.stairs(counts, ends, color=color, ls=style, lw=1, label=label)
        shown = ends[[0, -1]]
        axis.set(xscale=_scale(shown, "std"), yscale="log", title=names[method])
        _sparse_ticks(axis.xaxis, shown)
        below = ", the leftmost bin: and below" if first == 0 else ""
        margin = 0.7 if below else 1  # to see that bin's side
        axis.set(xlim=(margin * shown[0], shown[1]), ylim=(0.8, None))
        axis.set(xlabel=f"σ of a weight{below}", ylabel="weights in a bin")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@styled
def pruning(source: Path) -> Figure:
    """The paper's Figure 5, right: accuracy of pruned means, and of pruned single networks."""
    results = json.loads(Path(source).read_text())
    names = results.get("names", METHODS)
    figure, axes = panels(2, 2, width=3.6, height=3.0)
    for row, (part, title) in zip(axes, PARTS.items(), strict=True):
        for axis, kind in zip(row, ("mean", "single"), strict=True):
            for curve in results["curves"][part].values():
                method, network = curve["network"].split()
                if network == kind and curve["criterion"] == "std":
                    look = NETWORK_STYLES[method] | SIGMA_STYLES[curve["by"]]
                    label = f"{names[method]}, σ of {names[curve['by']]}"
                    _accuracy_line(axis, results, curve, label, look)
            what = "mean networks" if kind == "mean" else "single networks"
            _kept_axis(axis, f"{what}, {title}")
    _legend_below(figure, axes[0, ::-1])  # the panel with more curves gives their order
    return figure


@styled
def criteria(source: Path) -> Figure:
    """Accuracy of every method's mean, pruned by σ, |μ|, |μ|/σ and at random."""
    results = json.loads(Path(source).read_text())
    curves, names = results["curves"], results.get("names", METHODS)
    there = [m for m in METHODS if f"{m} mean, std of {m}" in curves["all"]]
    figure, axes = panels(2, len(there), width=3.4, height=3.0)
    for row, (part, title) in zip(axes, PARTS.items(), strict=True):
        for axis, method in zip(row, there, strict=True):
            for order, look in ORDER_STYLES.items():
                curve = curves[part][f"{method} mean, {order} of {method}"]
                _accuracy_line(axis, results, curve, ORDERS[order], look)
            _kept_axis(axis, f"{names[method]}, {title}")
    _legend_below(figure, axes[0])
    return figure


def _legend_below(figure: Figure, axes) -> None:
    """One legend for several panels, every label once."""
    known = {}
    for axis in axes:
        known |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=4, handlelength=4)


def _accuracy_line(axis: Axes, results: dict, curve: dict, label: str, look: dict) -> None:
    percent = 100 * np.array(curve["accuracy"])
    look = {"markersize": 3, "linewidth": 1} | look
    axis.plot(results["kept_percent"], percent, label=label, **look)
    if "deviation" in curve:
        spread = 100 * np.array(curve["deviation"])
        kept, ends = results["kept_percent"], (percent - spread, percent + spread)
        axis.fill_between(kept, *ends, color=look["color"], alpha=0.25, linewidth=0)


def _kept_axis(axis: Axes, title: str) -> None:
    axis.set(xscale="log", xlabel="weights kept [%]", ylabel="test accuracy [%]", title=title)
    axis.set_xticks([100, 50, 20, 10, 5, 2, 1])
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("")
    axis.invert_xaxis()
