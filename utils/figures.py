"""Every figure, drawn from result files alone, so that it can be redrawn without a run.

Functions take the path of a result file and return a matplotlib Figure (see `Run.save_figure`).
Colours are Okabe and Ito's, which colour-blind readers can tell apart; lines differ in style too.
"""

import json
from functools import partial
from pathlib import Path

from utils.barrier import barrier
from utils.permutation import expected_transpositions

import numpy as np
import torch
from matplotlib import colormaps, rc_context
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
    "figure.constrained_layout.w_pad": 0.1,  # [inches], that labels keep off the next panel
    "figure.constrained_layout.h_pad": 0.1,
}

WHOLE_NUMBERS = partial(MaxNLocator, 6, steps=[1, 2, 5, 10], integer=True)  # where ticks are


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
            axis.set_title(f"{title}\nlargest barrier, trained: {height:.3f} nats")
        bar = figure.colorbar(image, ax=row, label=f"{part} loss [nats], log scale", extend="max")
        bar.add_lines(lines)
        decades = np.log10(scale.vmax / scale.vmin)
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
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
    axis.yaxis.set_major_locator(WHOLE_NUMBERS())
    return image, lines


@styled
def barriers(source: Path) -> Figure:
    """What each alignment of W₁ leaves of the largest barrier over λ, in training, and its NoT."""
    results = np.load(source)
    epochs, names = results["epochs"], [_second_network(results, k) for k in range(3)]
    figure, (axes,) = panels(1, 3, height=3.6)
    for axis, kind, factor, unit in (
        (axes[0], "loss", 1, "nats"),
        (axes[1], "error", 100, "points"),
    ):
        for k, (name, style) in enumerate(zip(names, ALIGNMENT_STYLES, strict=True)):
            height = factor * _largest_barrier(results[f"test_{kind}"][:, k], results["fractions"])
            axis.plot(epochs, height, label=name, markersize=3, markevery=5, **style)
        axis.set(xlabel="epoch", ylabel=f"largest test {kind} barrier over λ [{unit}]")
        axis.axhline(0, color=GREY, linewidth=0.8)
    for k, style in enumerate(ALIGNMENT_STYLES[1:]):
        found = results["alignment_transpositions"][:, k].sum(-1)
        axes[2].plot(epochs, found, label=names[k + 1], markersize=3, markevery=5, **style)
    _baselines(axes[2], results["hidden_sizes"])
    most = results["hidden_sizes"].sum()
    axes[2].set(xlabel="epoch", ylabel="NoT of the rebasin of W₁ to W₀")
    axes[2].set(ylim=(-0.05 * most, 1.05 * most))
    for axis in axes:
        axis.xaxis.set_major_locator(WHOLE_NUMBERS())
    baselines = axes[2].lines[-2:]
    figure.legend(handles=[*axes[0].lines[:3], *baselines], loc="outside lower center", ncols=5)
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
    _baselines(axes[1], results["hidden_sizes"])
    axes[0].set(
        xlabel=FRACTION_LABEL, ylabel="weight distance $\\|W_\\lambda - W_0\\|$", ylim=(0, None)
    )
    axes[1].set(xlabel=FRACTION_LABEL, ylabel="NoT of $W_\\lambda$ against $W_0$")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _baselines(axis: Axes, hidden_sizes) -> None:
    """NoT of uniformly random permutations, on average, and of the identity."""
    expected = sum(expected_transpositions(int(size)) for size in hidden_sizes)
    formula = "n − Hₙ" if len(hidden_sizes) == 1 else "Σ (n − Hₙ)"  # over the hidden layers
    axis.axhline(
        expected, color=GREY, linestyle=(0, (5, 2)), linewidth=1, zorder=1,
        label=f"random: {formula} = {expected:.0f}",
    )  # fmt: skip
    axis.axhline(0, color=GREY, linewidth=0.8, zorder=1, label="identity: 0")


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

    Points are pairs, on average over runs; lines go through the means of those of one NoT. With
    several runs, bands are one standard deviation of these to either side.
    """
    records = [json.loads(line) for line in Path(source).read_text().splitlines()]
    figure, (axes,) = panels(1, 3, height=3.7)
    _stage_lines(axes[0], records, lambda record: sum(record["found"]))
    _stage_lines(axes[1], records, lambda record: record["distance"]["total"])
    _stage_lines(axes[2], records, lambda record: record["test_loss_barrier"])
    planted, mean, _ = _by_planted(records, "trained", lambda record: record["train_loss_barrier"])
    label = "after training, train loss"
    (train_loss,) = axes[2].plot(planted, mean, "--", color=ORANGE, linewidth=1, label=label)
    most = max(sum(record["planted"]) for record in records)
    axes[0].plot(
        [0, most], [0, most], "--", color="black", linewidth=1, zorder=3, label="unchanged: y = x"
    )  # before the points, which often lie exactly upon it
    _baselines(axes[0], records[0]["hidden_sizes"])
    labels = (
        "NoT found by rebasin",
        "weight distance of the pair",
        "test loss barrier at λ = ½ [nats]",
    )
    for axis, label in zip(axes, labels, strict=True):
        axis.set(xlabel="NoT at initialisation", ylabel=label)
        axis.xaxis.set_major_locator(WHOLE_NUMBERS())
    known = [line for line in axes[0].lines if line.get_label()[0] != "_"]  # those with a name
    figure.legend(handles=[*known, train_loss], loc="outside lower center", ncols=3)
    return figure


def _stage_lines(axis: Axes, records: list[dict], measure) -> None:
    for stage, style in STAGE_STYLES.items():
        planted, mean, deviation = _by_planted(records, stage, measure)
        looks = style | {"markersize": 3, "linewidth": 1}
        axis.plot(planted, mean, label=STAGE_NAMES[stage], markevery=[], **looks)
        axis.plot(*_pairs(records, stage, measure), **looks | {"linestyle": "none"})
        if deviation is not None:
            axis.fill_between(
                planted, mean - deviation, mean + deviation, color=style["color"], alpha=0.2, lw=0
            )


def _pairs(records: list[dict], stage: str, measure) -> tuple[list, list]:
    """Each pair's planted NoT, and the mean over runs of what `measure` gives."""
    values = _grouped(records, stage, measure, lambda r: (sum(r["planted"]), r["pair"]))
    return [planted for planted, _ in values], [np.mean(found) for found in values.values()]


def _by_planted(
    records: list[dict], stage: str, measure
) -> tuple[list, np.ndarray, np.ndarray | None]:
    """The values of planted NoT, and mean and standard deviation over runs of what `measure` gives.

    Pairs of small networks can have the same planted NoT: those of a run count by their mean. One
    run has no standard deviation.
    """
    values = _grouped(records, stage, measure, lambda r: (sum(r["planted"]), r["run"]))
    planted = sorted({planted for planted, _ in values})
    table = np.array([np.mean(found) for found in values.values()]).reshape(len(planted), -1)
    deviation = table.std(1, ddof=1) if table.shape[1] > 1 else None  # of [planted, run]
    return planted, table.mean(1), deviation


def _grouped(records: list[dict], stage: str, measure, key) -> dict[tuple, list]:
    """What `measure` gives of a stage's records, gathered by `key` and in its order."""
    values = {}
    for record in records:
        if record["stage"] == stage:
            values.setdefault(key(record), []).append(measure(record))
    return dict(sorted(values.items()))


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


# ---- sweeps: sweep.json

MOST_LINES = 7  # that a panel can hold and its reader tell apart
WIDE = 20  # from this ratio of its largest to its smallest value on, an axis is logarithmic
PANELS_PER_ROW = 4
SWEEP_MARKS = ("best at each value", "best run", "no value")


@styled
def sweep(source: Path) -> Figure:
    """The metric of every run against each setting that varies; crosses are runs without one.

    With two settings of few values, lines join the runs that have the other setting in common;
    else a line joins the best at every value, where values repeat.
    """
    results = json.loads(Path(source).read_text())
    varied, runs = results["varied"], results["runs"]
    columns = min(len(varied), PANELS_PER_ROW)
    figure, axes = panels(-(-len(varied) // columns), columns, height=3)
    axes = list(axes.flat)
    for axis, name in zip(axes, varied, strict=False):
        others = [other for other in varied if other != name]
        places, ticks = _places([run["settings"][name] for run in runs])
        points = list(zip(places, runs, strict=True))
        reached = [(place, run) for place, run in points if run["value"] is not None]
        if len(others) == 1 and len(_distinct(runs, others[0])) <= MOST_LINES:
            _line_for_each(axis, reached, others[0], _distinct(runs, others[0]))
        else:
            _line_of_the_best(axis, reached, results["goal"] == "maximize")
        _mark_runs(axis, points, results["goal"] == "maximize")
        _scale(axis, name, ticks, places)
        _scale_metric(axis, results, [run["value"] for _, run in reached])
    for axis in axes[len(varied) :]:
        axis.remove()
    known = [line for line in axes[0].lines if line.get_label() in SWEEP_MARKS]
    figure.legend(handles=known, loc="outside lower center", ncols=3)
    return figure


def _distinct(runs: list[dict], name: str) -> list:
    """The different values of a setting, in order."""
    values = []
    for run in runs:
        if run["settings"][name] not in values:
            values.append(run["settings"][name])
    return sorted(values) if all(_is_number(value) for value in values) else values


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _places(values: list) -> tuple[list, list[str] | None]:
    """Where values lie on an axis; for what is no number, 0, 1, … and what is written there."""
    if all(_is_number(value) for value in values):
        return values, None
    names = list(dict.fromkeys(str(value) for value in values))
    return [names.index(str(value)) for value in values], names


def _line_for_each(axis: Axes, reached: list, other: str, values: list) -> None:
    shades = colormaps["viridis"](np.linspace(0, 0.85, len(values)))
    for value, shade, marker in zip(values, shades, "osD^vPX", strict=False):
        line = sorted((x, run["value"]) for x, run in reached if run["settings"][other] == value)
        xs, ys = zip(*line, strict=True) if line else ((), ())
        axis.plot(xs, ys, color=shade, marker=marker, markersize=4, linewidth=1.2, label=value)
    axis.legend(title=other, title_fontsize=8)


def _line_of_the_best(axis: Axes, reached: list, maximize: bool) -> None:
    axis.plot([x for x, _ in reached], [run["value"] for _, run in reached], "o", color=BLUE,
              markersize=4, alpha=0.7)  # fmt: skip
    places = sorted({x for x, _ in reached})
    if len(places) <= max(MOST_LINES, len(reached) // 2) or len(places) == 1:
        choose = max if maximize else min
        best = [choose(run["value"] for x, run in reached if x == place) for place in places]
        axis.plot(places, best, "-", color=BLUE, linewidth=1.2, zorder=1, label=SWEEP_MARKS[0])


def _mark_runs(axis: Axes, points: list, maximize: bool) -> None:
    """The best run, and at the bottom those that have no value."""
    missing = [x for x, run in points if run["value"] is None]
    if missing:
        axis.plot(missing, [0.02] * len(missing), "x", color=GREY, label=SWEEP_MARKS[2],
                  transform=axis.get_xaxis_transform())  # fmt: skip
    reached = [(x, run["value"]) for x, run in points if run["value"] is not None]
    if reached:
        best = (max if maximize else min)(reached, key=lambda point: point[1])
        axis.plot(*best, "*", color=ORANGE, markersize=12, zorder=5, label=SWEEP_MARKS[1])


def _scale(axis: Axes, name: str, ticks: list[str] | None, places: list) -> None:
    axis.set_xlabel(name)
    if ticks is not None:
        axis.set_xticks(range(len(ticks)), ticks)
        axis.set_xlim(-0.5, len(ticks) - 0.5)
    elif min(places) > 0 and max(places) >= WIDE * min(places):
        axis.set_xscale("log")


def _scale_metric(axis: Axes, results: dict, values: list[float]) -> None:
    best = "high" if results["goal"] == "maximize" else "low"
    axis.set_ylabel(f"{results['metric']} ({best} is good)")
    if values and min(values) > 0 and max(values) >= WIDE * min(values):
        axis.set_yscale("log")
