"""Figures of posteriors weight by weight and of pruning, each with its title and caption."""

import json
from functools import partial
from itertools import cycle
from pathlib import Path

from papers.compact.tables import ORDERS, PAPER_METHODS, pruned_network, samples_of
from utils.methods.registry import METHODS
from utils.report.figures import BLUE, GOLD, GREEN, GREY, ORANGE, SKY, Look, panels, styled
from utils.report.paper import RunFigure, figure

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

SYMBOLS = {"mean": "μ", "std": "σ"}
FRAME_TITLES = {"before": "before rebasin", "after": "after rebasin"}
NUM_BINS = 120
SMALLEST_DRAWN = 1e-6  # smaller ones, as where all samples agree, are drawn as this
OUTSIDE = 0.001  # share of weights beyond each end of an axis

# ---- Figure 4: weight_space.npz and diagnostics.json


@styled
def weight_pairs(source: Path, names: dict[str, str] = PAPER_METHODS, *, part: str) -> Figure:
    """Draw the paper's Figure 4: μ or σ of every two methods, weight by weight.

    There must be at least two methods; of more than three only pairs with the first are drawn.
    `names` is what they are called.
    """
    results = np.load(source)
    alive = results["alive"]
    methods = [name for name in names if f"{name}_after_{part}" in results]
    firsts = methods if len(methods) <= 3 else methods[:1]
    pairs = [(a, b) for i, a in enumerate(firsts) for b in methods[i + 1 :]]
    smallest = SMALLEST_DRAWN if part == "std" else -np.inf
    drawn, axes = panels(2, len(pairs), width=3.3, height=3.1)
    for column, pair in enumerate(pairs):
        values = {
            frame: [np.maximum(results[f"{name}_{frame}_{part}"][alive], smallest) for name in pair]
            for frame in FRAME_TITLES
        }
        both_frames = [np.concatenate(both) for both in zip(*values.values(), strict=True)]
        bins = [_bins(every, part) for every in both_frames]
        for axis, (frame, title) in zip(axes[:, column], FRAME_TITLES.items(), strict=True):
            image = _density(axis, *values[frame], bins)
            axis.set_title(f"{title}\ncorrelation {np.corrcoef(*values[frame])[0, 1]:.3f}")
            labels = [f"{SYMBOLS[part]} of {names[name]}" for name in pair]
            axis.set(xlabel=labels[0], ylabel=labels[1])
            axis.set(xscale=_scale(bins[0], part), yscale=_scale(bins[1], part))
            _sparse_ticks(axis.xaxis, bins[0])
            _sparse_ticks(axis.yaxis, bins[1])
    label = "weights, share of the densest bin"
    drawn.colorbar(image, ax=axes, label=label, shrink=0.6, pad=0.1 / len(pairs))
    return drawn


weight_means = RunFigure(
    "eval", "weight_pairs_mean", "Figure 4: means of the weights",
    "μ of each weight by one method against another, before rebasin (top) and after it (bottom), "
    "as densities. Weights of dead pixels are left out.",
    "weight_space.npz", partial(weight_pairs, part="mean"),
)  # fmt: skip
weight_deviations = RunFigure(
    "eval", "weight_pairs_std", "Figure 4: standard deviations of the weights",
    "The same for σ. Values below 10⁻⁶ are drawn as 10⁻⁶.",
    "weight_space.npz", partial(weight_pairs, part="std"),
)  # fmt: skip


def _density(axis: Axes, x: np.ndarray, y: np.ndarray, bins: list[np.ndarray]):
    """Draw the density of weights as colours on a log scale, relative to the densest bin."""
    counts, *_ = np.histogram2d(x, y, bins)
    shares = np.ma.masked_equal(counts.T / max(counts.max(), 1), 0)
    axis.grid(False)
    return axis.pcolormesh(*bins, shares, norm=LogNorm(1e-4, 1), cmap="viridis", rasterized=True)


def _bins(values: np.ndarray, part: str) -> np.ndarray:
    """Return edges of bins that hold all but the outermost weights, with a margin."""
    low, high = np.quantile(values, [OUTSIDE, 1 - OUTSIDE])
    logarithmic = _scale(np.array([low, high]), part) == "log"
    ends = np.log10([low, high]) if logarithmic else np.array([low, high])
    room = 0.05 * np.ptp(ends) or 1e-6
    edges = np.linspace(ends[0] - room, ends[1] + room, NUM_BINS + 1)
    return 10**edges if logarithmic else edges


def _scale(values: np.ndarray, part: str) -> str:
    """Return the scale of an axis over these values: logarithmic for σ that spans a decade."""
    return "log" if part == "std" and values[-1] > 10 * values[0] > 0 else "linear"


def _sparse_ticks(axis: Axis, values: np.ndarray) -> None:
    """Space the ticks of a logarithmic axis of few decades, where matplotlib's labels overlap."""
    if axis.get_scale() == "log" and values[-1] < 100 * values[0]:
        axis.set_major_locator(LogLocator(subs=(1, 3)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")


@figure(
    "eval", "diagnostics.json", "NoT along the chain",
    caption="NoT of the rebasin of each HMC sample to the first, compared with networks drawn from "
    "the prior and with random permutations.",
)  # fmt: skip
def transpositions_along_chain(source: Path) -> Figure:
    """Draw NoT of HMC's samples to the first of them, compared with the prior and with chance.

    All of these differ little once the chain has moved far; the second panel shows by how much.
    """
    results = json.loads(Path(source).read_text())
    counts, prior = results["transpositions"], results["prior_networks"]["transpositions"]
    chains = np.array(counts["along_chain"]).reshape(results["num_chains"], -1)
    drawn, (axes,) = panels(1, 2, width=3.8, height=3.0)
    for axis in axes:
        _transpositions(axis, results["label"], chains, prior, counts["random"])
        axis.set(xlabel="sample of its chain", ylabel="NoT to the first sample")
    late = chains[:, chains.shape[1] // 2 :]
    shown = np.array([counts["random"], *prior, *late.flat])
    low, high, room = shown.min(), shown.max(), 0.08 * np.ptp(shown) or 1
    axes[0].set(title="all", ylim=(0, 1.08 * max(high, chains.max(), 1)))
    axes[1].set(title="close-up: its axis does not begin at 0", ylim=(low - room, high + room))
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return drawn


def _transpositions(
    axis: Axes, label: str, chains: np.ndarray, prior: list[int], random: float
) -> None:
    """Draw NoT of chains [chains, samples], of networks from the prior, and of chance."""
    first, *others = chains
    which = ", first chain" if others else ""
    axis.plot(first, color=BLUE, linewidth=1, zorder=3, label=f"{samples_of(label)}{which}")
    for number, chain in enumerate(others):
        name = "other chains" if number == 0 else "_"  # "_" hides a line from the legend
        axis.plot(chain, color=GREEN, linewidth=0.6, label=name)
    places = np.linspace(0, chains.shape[1] - 1, len(prior))
    axis.plot(places, prior, "x", color=ORANGE, markersize=3, label="networks from the prior")
    chance = f"random permutations: {random:.{1 if random < 100 else 0}f}"
    axis.axhline(random, color=GREY, linestyle=(0, (5, 2)), label=chance)


# ---- Figure 5: sigma_histograms.npz and pruning.json

METHOD_LOOKS = {name: method.look for name, method in METHODS.items()}
MORE_LOOKS = (Look(GREY, "--", "x"), Look(GOLD, ":", "v"), Look(SKY, "-.", "P"))
ORDER_STYLES = {
    "std": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "abs_mean": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "signal_to_noise": {"color": GREEN, "linestyle": "-.", "marker": "^"},
    "random": {"color": GREY, "linestyle": ":", "marker": "x"},
}
MAX_BINS = 100  # of a histogram
MARKED = 3  # every so many points of a curve
PARTS = {"all": "all weights", "alive": "without dead pixels' weights"}


@figure(
    "eval_pruning", "sigma_histograms.npz", "Figure 5, left: σ before and after rebasin",
    caption="Histograms of σ over the weights. The prior's σ is 1.",
)  # fmt: skip
def sigma_histograms(source: Path, names: dict[str, str] = PAPER_METHODS) -> Figure:
    """Draw the paper's Figure 5, left: σ of every method before and after rebasin.

    Several of the file's fine bins are joined into one of the figure's.
    """
    results = np.load(source)
    edges = 10 ** results["edges"]
    methods = [name for name in names if f"{name}_after_all" in results]
    drawn, (axes,) = panels(1, len(methods), height=3.2)
    for axis, method in zip(axes, methods, strict=True):
        counts = [results[f"{method}_{frame}_all"] for frame in FRAME_TITLES]
        moved_only = np.array_equal(*counts)  # a Gaussian that was rebased as a whole
        frames = {"after": BLUE} if moved_only else {"before": ORANGE, "after": BLUE}
        filled = np.flatnonzero(sum(results[f"{method}_{f}_all"] for f in frames))
        first, end = filled[0], filled[-1] + 1
        starts = np.arange(first, end, -(-(end - first) // MAX_BINS))
        ends = np.append(edges[starts], edges[end])
        for frame, color in frames.items():
            for part, style in (("all", "-"), ("alive", ":")):
                counts = np.add.reduceat(results[f"{method}_{frame}_{part}"][:end], starts)
                label = f"{FRAME_TITLES[frame]}, {PARTS[part]}"
                axis.stairs(counts, ends, color=color, ls=style, lw=1, label=label)
        shown = ends[[0, -1]]
        axis.set(xscale=_scale(shown, "std"), yscale="log", title=names[method])
        _sparse_ticks(axis.xaxis, shown)
        below = ", the leftmost bin: and below" if first == 0 else ""
        margin = 0.7 if below else 1  # to see that bin's side
        axis.set(xlim=(margin * shown[0], shown[1]), ylim=(0.8, None))
        axis.set(xlabel=f"σ of a weight{below}", ylabel="weights in a bin")
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return drawn


@figure(
    "eval_pruning", "pruning.json", "Figure 5, right: accuracy of pruned networks",
    caption="Test accuracy if only the weights of lowest σ are kept and the others are zero, for "
    "mean networks and for single ones; below, without the weights of dead pixels. Grey: random "
    "orders, with bands of one standard deviation between them.",
)  # fmt: skip
def pruning(source: Path) -> Figure:
    """Draw the paper's Figure 5, right: accuracy of pruned means and of pruned single networks."""
    results = json.loads(Path(source).read_text())
    names = results["names"]
    # Posteriors that are no method's share a few looks.
    others, truth = cycle(MORE_LOOKS), next(iter(names))
    looks = {name: METHOD_LOOKS.get(name) or next(others) for name in names}
    drawn, axes = panels(2, 2, width=3.6, height=3.0)
    for row, (part, title) in zip(axes, PARTS.items(), strict=True):
        for axis, kind in zip(row, ("mean", "single"), strict=True):
            for curve in results["curves"][part].values():
                method, network = pruned_network(curve, names)
                if network == kind and curve["criterion"] in ("std", "random"):
                    look = _pruning_look(looks[method], looks[curve["by"]], curve, truth)
                    order = f"σ of {names[curve['by']]}"
                    label = "chance" if curve["criterion"] == "random" else order
                    _accuracy_line(axis, results, curve, f"{names[method]}, {label}", look)
            what = "mean networks" if kind == "mean" else "single networks"
            _kept_axis(axis, f"{what}, {title}")
    _legend_below(drawn, axes[0, ::-1])  # the panel with more curves comes first
    return drawn


def _pruning_look(network: Look, by: Look, curve: dict, truth: str) -> dict:
    """Return the network's line and marker, in the colour of what orders its weights.

    The truth's order stands out; chance is grey and in the background.
    """
    look = {"color": by.color, "linestyle": network.line, "marker": network.marker}
    if curve["criterion"] == "random":
        look |= {"color": GREY, "markersize": 2, "zorder": 1.5}
    elif curve["by"] == truth:
        look |= {"linewidth": 2.2, "markersize": 4.5, "zorder": 3}
    return look


@figure(
    "eval_pruning", "pruning.json", "Pruning by other orders",
    caption="Accuracy of each method's mean network, pruned by σ, |μ|, |μ|/σ and at random, "
    "with a band of one standard deviation between random orders.",
)  # fmt: skip
def pruning_criteria(source: Path) -> Figure:
    """Draw the accuracy of every method's mean, pruned by σ, |μ|, |μ|/σ and at random."""
    results = json.loads(Path(source).read_text())
    curves, names = results["curves"], results["names"]
    methods = [m for m in names if f"{m} mean, std of {m}" in curves["all"]]
    drawn, axes = panels(2, len(methods), width=3.4, height=3.0)
    for row, (part, title) in zip(axes, PARTS.items(), strict=True):
        for axis, method in zip(row, methods, strict=True):
            for order, look in ORDER_STYLES.items():
                curve = curves[part][f"{method} mean, {order} of {method}"]
                _accuracy_line(axis, results, curve, ORDERS[order], look)
            _kept_axis(axis, f"{names[method]}, {title}")
    _legend_below(drawn, axes[0])
    return drawn


def _legend_below(drawn: Figure, axes) -> None:
    """Draw one legend for several panels, with every label once."""
    lines = {}
    for axis in axes:
        lines |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    columns = 4 if len(lines) < 10 else 3
    drawn.legend(
        lines.values(), lines.keys(), loc="outside lower center", ncols=columns, handlelength=4
    )


def _accuracy_line(axis: Axes, results: dict, curve: dict, label: str, look: dict) -> None:
    percent = 100 * np.array(curve["accuracy"])
    look = {"markersize": 3, "linewidth": 1, "markevery": MARKED} | look
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
