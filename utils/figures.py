"""Every figure, drawn from result files alone, so that it can be redrawn without a run.

Functions take the path of a result file and return a matplotlib Figure (see `Run.save_figure`).
Colours are Okabe and Ito's, which colour-blind readers can tell apart; lines differ in style too.
"""

import json
from pathlib import Path

from utils.barrier import barrier
from utils.permutation import expected_transpositions

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


styled = rc_context(STYLE)  # decorates the functions that draw


def panels(rows: int, columns: int, width: float = 3.4, height: float = 2.8):
    """A figure and its axes [rows][columns], each of this size in inches."""
    figure = Figure(figsize=(width * columns, height * rows), dpi=200, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


# ---- training of ensembles and VI: metrics.jsonl


@styled
def ensemble_training(source: Path) -> Figure:
    """Each member's training loss, and the ensemble's test accuracy, over the epochs."""
    records = [json.loads(line) for line in Path(source).read_text().splitlines()]
    names = [name for name in records[0] if name.startswith("train_loss")]
    figure, (axes,) = panels(1, 2)
    for name in names:
        axes[0].plot(*_series(records, name), color=BLUE, linewidth=0.9)
    axes[0].set(xlabel="epoch", ylabel="train loss of each member [nats]", yscale="log")
    axes[1].plot(*_series(records, "test_accuracy", 100), color=ORANGE, marker="o", markersize=2)
    axes[1].set(xlabel="epoch", ylabel="test accuracy of the ensemble [%]")
    return figure


@styled
def vi_training(source: Path) -> Figure:
    """−ELBO and its two parts, NLL and KL, and the mean network's test accuracy."""
    records = [json.loads(line) for line in Path(source).read_text().splitlines()]
    figure, (axes,) = panels(1, 2)
    for name, sign, label, color, line in (
        ("elbo", -1, "−ELBO", GREY, "-"),
        ("kl", 1, "KL to the prior", GREEN, "--"),
        ("nll", 1, "NLL of the training images", BLUE, ":"),
    ):
        axes[0].plot(*_series(records, name, sign), label=label, color=color, linestyle=line)
    axes[0].set(xlabel="epoch", ylabel="[nats]", yscale="log")
    axes[0].legend()
    axes[1].plot(*_series(records, "test_accuracy", 100), color=ORANGE, marker="o", markersize=2)
    axes[1].set(xlabel="epoch", ylabel="test accuracy of μ [%]")
    return figure


def _series(records: list[dict], name: str, factor: float = 1) -> tuple[list, list]:
    """Epochs (or iterations) and values of the records that have `name`."""
    found = [record for record in records if name in record]
    return [next(iter(r.values())) for r in found], [factor * r[name] for r in found]


# ---- HMC's chains: metrics.jsonl


@styled
def chain(source: Path) -> Figure:
    """Acceptance, NLL and test accuracies, per transition; averages over chains."""
    records = [json.loads(line) for line in Path(source).read_text().splitlines()]
    figure, (axes,) = panels(1, 3, height=2.6)
    looks = {"color": BLUE, "marker": ".", "markersize": 3, "linewidth": 0.6}
    axes[0].plot(*_series(records, "accept_prob"), **looks)
    axes[0].set(ylabel="acceptance probability", ylim=(0, 1.03))
    axes[1].plot(*_series(records, "nll"), **looks)
    axes[1].set(ylabel="NLL of the training images [nats]", yscale="log")
    axes[2].plot(*_series(records, "sample_test_accuracy", 100), label="newest sample", **looks)
    average = _series(records, "test_accuracy", 100)
    axes[2].plot(*average, color=ORANGE, linewidth=1.5, label="average so far")
    if average[1]:  # what comes before is burn-in, which would squeeze the rest
        shown = [value for name in ("sample_test_accuracy", "test_accuracy")
                 for at, value in zip(*_series(records, name, 100), strict=True)
                 if at >= average[0][0]]  # fmt: skip
        margin = 0.1 * (max(shown) - min(shown)) + 0.05
        axes[2].set(ylim=(min(shown) - margin, max(shown) + margin))
        for axis in axes:
            axis.axvspan(0, average[0][0] - 0.5, color=GREY, alpha=0.12, lw=0)
    axes[2].set(ylabel="test accuracy [%]")
    axes[2].legend()
    for axis in axes:
        axis.set(xlabel="transition (burn-in shaded)")
    return figure


# ---- loss barriers between two networks: training_dynamics.npz

ALIGNMENT_STYLES = (
    {"color": ORANGE, "linestyle": "-", "marker": "o"},
    {"color": BLUE, "linestyle": "-", "marker": "s"},
    {"color": GREEN, "linestyle": "--", "marker": "^"},
)
FRACTION_LABEL = "λ, from W₀ (0) to W₁ (1)"
SMALLEST_LOSS = 1e-6  # [nats] on a log scale: a few images learnt by heart leave a loss of 0


@styled
def loss_along_line(source: Path) -> Figure:
    """Paper A's Figure 2: train and test loss over epoch and λ, before and after each rebasin."""
    results = np.load(source)
    figure, axes = panels(2, len(results["alignments"]), width=3, height=2.7)
    for row, part in zip(axes, ("train", "test"), strict=True):
        losses = np.maximum(results[f"{part}_loss"], SMALLEST_LOSS)  # [epoch, alignment, λ]
        # Colours are for what comes after the first epoch: the untrained all have the last one.
        scale = LogNorm(losses.min(), losses[1:].max())
        for k, axis in enumerate(row):
            image, lines = _surface(axis, results, losses[:, k], scale)
            height = _largest_barrier(losses[-1, k], results["fractions"])
            title = f"{part} loss, {_second_network(results, k)}"
            axis.set_title(f"{title}\nbarrier after training {height:.3f} nats")
        bar = figure.colorbar(image, ax=row, label=f"{part} loss [nats], log scale", extend="max")
        bar.add_lines(lines)
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_major_formatter("{x:g}")
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
    return figure


def _second_network(results, alignment: int) -> str:
    name = str(results["alignments"][alignment])
    return f"W₁ rebased {name}" if alignment else f"W₁ {name}"


def _surface(axis: Axes, results, losses: np.ndarray, scale: LogNorm):
    """Loss [epoch, λ] as colours, and lines of equal loss that show its height."""
    where = results["fractions"], results["epochs"], losses
    image = axis.pcolormesh(*where, norm=scale, cmap="viridis", shading="nearest", rasterized=True)
    levels = np.geomspace(scale.vmin, scale.vmax, 12)[1:-1]
    lines = axis.contour(*where, levels=levels, colors="white", linewidths=0.7)
    axis.grid(False)
    axis.set(xlabel=FRACTION_LABEL, ylabel="epoch")
    return image, lines


@styled
def barriers(source: Path) -> Figure:
    """What each alignment of W₁ leaves of the barrier, over training, and its NoT."""
    results = np.load(source)
    epochs, names = results["epochs"], [str(name) for name in results["alignments"]]
    figure, (axes,) = panels(1, 3, height=3)
    for axis, kind, factor, unit in (
        (axes[0], "loss", 1, "nats"),
        (axes[1], "error", 100, "percentage points"),
    ):
        for k, (name, style) in enumerate(zip(names, ALIGNMENT_STYLES, strict=True)):
            height = factor * _largest_barrier(results[f"test_{kind}"][:, k], results["fractions"])
            axis.plot(epochs, height, label=name, markersize=3, markevery=5, **style)
        axis.set(xlabel="epoch", ylabel=f"test {kind} barrier [{unit}]")
        axis.axhline(0, color=GREY, linewidth=0.8)
    axes[0].legend(title="W₁")
    for k, style in enumerate(ALIGNMENT_STYLES[1:]):
        found = results["alignment_transpositions"][:, k].sum(-1)
        axes[2].plot(epochs, found, label=names[k + 1], markersize=3, markevery=5, **style)
    _random_baseline(axes[2], results["hidden_sizes"])
    most = results["hidden_sizes"].sum()
    axes[2].set(xlabel="epoch", ylabel="NoT of the rebasin of W₁ to W₀", ylim=(0, 1.05 * most))
    axes[2].legend(loc="lower right")
    return figure


def _largest_barrier(values: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Most that `values` [..., λ] have over the line between their ends."""
    return barrier(torch.from_numpy(values), fractions.tolist()).amax(-1).numpy()


@styled
def along_line(source: Path) -> Figure:
    """Paper A's Figure 3, right: weight distance and NoT from W₀ along the line to W₁."""
    results = np.load(source)
    fractions, rebased = results["fractions"], int(results["rebased"])
    styles = ALIGNMENT_STYLES[0], ALIGNMENT_STYLES[rebased]
    names = [_second_network(results, k) for k in (0, rebased)]
    figure, (axes,) = panels(1, 2, width=3.8, height=3.2)
    for checkpoint, when, fill in ((0, "untrained", "white"), (-1, "trained", None)):
        for k, (name, style) in enumerate(zip(names, styles, strict=True)):
            look = style | {"markerfacecolor": fill or style["color"], "markersize": 4}
            look["linestyle"] = ":" if fill else "-"
            distance = results["distance"][checkpoint, (0, rebased)[k], :, -1]
            found = results["transpositions"][checkpoint, k].sum(-1)
            axes[0].plot(fractions, distance, label=f"{name}, {when}", **look)
            axes[1].plot(fractions, found, **look)
    _random_baseline(axes[1], results["hidden_sizes"])
    axes[1].axhline(0, color=GREY, linewidth=0.8, label="identity: 0")
    axes[0].set(
        xlabel=FRACTION_LABEL, ylabel="weight distance $\\|W_\\lambda - W_0\\|$", ylim=(0, None)
    )
    axes[1].set(xlabel=FRACTION_LABEL, ylabel="NoT of $W_\\lambda$ against $W_0$")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _random_baseline(axis: Axes, hidden_sizes) -> None:
    """The mean NoT of uniformly random permutations, behind what was measured."""
    expected = sum(expected_transpositions(int(size)) for size in hidden_sizes)
    formula = "n − Hₙ" if len(hidden_sizes) == 1 else "Σ (n − Hₙ)"  # over the hidden layers
    axis.axhline(
        expected, color=GREY, linestyle=(0, (5, 2)), linewidth=1, zorder=1,
        label=f"random: {formula} = {expected:.0f}",
    )  # fmt: skip


# ---- number of transpositions before and after training: transpositions.jsonl

STAGE_STYLES = {
    "initial": {"color": GREY, "linestyle": ":", "marker": "x"},
    "trained": {"color": ORANGE, "linestyle": "-", "marker": "o"},
    "undone": {"color": BLUE, "linestyle": "-", "marker": "s"},
}
STAGE_NAMES = {
    "initial": "at initialisation",
    "trained": "after training",
    "undone": "after training, planted permutation undone",
}


@styled
def transpositions(source: Path) -> Figure:
    """Paper A's Figure 3, left: NoT, distance and barrier against NoT at initialisation.

    Lines are means over runs, bands one standard deviation to either side.
    """
    records = [json.loads(line) for line in Path(source).read_text().splitlines()]
    figure, (axes,) = panels(1, 3, height=3.3)
    _stage_lines(axes[0], records, lambda record: sum(record["found"]))
    _stage_lines(axes[1], records, lambda record: record["distance"]["total"])
    _stage_lines(axes[2], records, lambda record: record["test_loss_barrier"])
    planted, mean, _ = _by_planted(records, "trained", lambda record: record["train_loss_barrier"])
    axes[2].plot(planted, mean, "--", color=ORANGE, linewidth=1, label="after training, train loss")
    most = max(sum(record["planted"]) for record in records)
    axes[0].plot(
        [0, most], [0, most], color=GREEN, linewidth=2.5, alpha=0.4, zorder=1,
        label="unchanged: y = x",
    )  # fmt: skip
    _random_baseline(axes[0], records[0]["hidden_sizes"])
    labels = (
        "NoT found by rebasin",
        "weight distance of the two networks",
        "test loss barrier at λ = ½ [nats]",
    )
    for axis, label in zip(axes, labels, strict=True):
        axis.set(xlabel="NoT at initialisation", ylabel=label)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    known = [*axes[0].lines, axes[2].lines[-1]]
    figure.legend(handles=known, loc="outside lower center", ncols=3)
    return figure


def _stage_lines(axis: Axes, records: list[dict], measure) -> None:
    for stage, style in STAGE_STYLES.items():
        planted, mean, deviation = _by_planted(records, stage, measure)
        axis.plot(planted, mean, label=STAGE_NAMES[stage], markersize=3, linewidth=1, **style)
        axis.fill_between(
            planted, mean - deviation, mean + deviation, color=style["color"], alpha=0.2, lw=0
        )


def _by_planted(records: list[dict], stage: str, measure) -> tuple[np.ndarray, ...]:
    """The planted NoT, and mean and standard deviation over runs of what `measure` gives there."""
    values = {}
    for record in records:
        if record["stage"] == stage:
            values.setdefault(sum(record["planted"]), []).append(measure(record))
    planted = sorted(values)
    mean = np.array([np.mean(values[number]) for number in planted])
    return np.array(planted), mean, np.array([np.std(values[number]) for number in planted])


# ---- how much noise rebasin stands: benchmarks/recovery.json


@styled
def recovery(source: Path) -> Figure:
    """Share of units put back to their places, against noise on the weights, by each method."""
    results = json.loads(Path(source).read_text())
    figure, (axes,) = panels(1, len(results["recovered"]), height=3)
    looks = {"activation": ALIGNMENT_STYLES[1], "weight": ALIGNMENT_STYLES[2]}
    looks["cosine"] = {"color": PURPLE, "linestyle": ":", "marker": "v"}
    for axis, (network, curves) in zip(axes, results["recovered"].items(), strict=True):
        for method, shares in curves.items():
            percent = 100 * np.array(shares)
            axis.plot(
                results["noise"], percent, label=f"by {method}", markersize=3, **looks[method]
            )
        axis.set_xscale("symlog", linthresh=0.1)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set(xlabel="noise on the weights [their own σ]", ylabel="units recovered [%]")
        axis.set_title(network)
    axes[0].legend()
    return figure
