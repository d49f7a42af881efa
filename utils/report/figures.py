"""Figures are drawn from result files alone, so that they can be redrawn without a run.

Functions take the path of a result file and return a matplotlib Figure (see `Run.save_figure`).
Colours are Okabe and Ito's, which colour-blind readers can tell apart; lines differ in style too.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

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
