"""Draw sweep.json: the metric of every run against the settings that vary."""

import json
from pathlib import Path
from typing import NamedTuple

from utils.report.figures import BLUE, GREY, ORANGE, panels, styled

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

WIDE_SETTING, WIDE_METRIC = 20, 4  # ratio of largest to smallest from which an axis is logarithmic
MOST_CELLS = 12  # in a row or column of a heat map
FEW_VALUES = 7  # of a setting, joined by a line through the best run at each
PANELS_PER_ROW = 4
POINT_LABELS = ("best at each value", "best run", "no value")


class Objective(NamedTuple):
    """The metric as it is drawn."""

    label: str
    values: np.ndarray  # [runs], NaN for runs that have none
    sign: int  # -1 if high is good
    log: bool

    @property
    def known(self) -> np.ndarray:
        return np.flatnonzero(np.isfinite(self.values))

    def best(self, runs: np.ndarray) -> int:
        """Return which of these runs is the best."""
        return min(runs, key=lambda run: self.sign * self.values[run])


@styled
def sweep_figure(source: Path) -> Figure:
    """Draw a heat map of a grid of two settings; for any other sweep a panel for each setting."""
    results = json.loads(Path(source).read_text())
    metric = _metric(results)
    settings = {
        name: [run["settings"][name] for run in results["runs"]] for name in results["varied"]
    }
    levels = [_levels(values) for values in settings.values()]
    sizes = [len(names) for names in levels]
    if len(sizes) == 2 and min(sizes) > 1 and max(sizes) <= MOST_CELLS:
        grid = np.full(sizes[::-1], -1)  # the run in each row and column
        for run, values in enumerate(zip(*settings.values(), strict=True)):
            column, row = (n.index(str(v)) for n, v in zip(levels, values, strict=True))
            grid[row, column] = run
        if (grid >= 0).all():
            return _heat_map(list(settings), levels, grid, metric)
    return _panels(settings, metric)


def _metric(results: dict) -> Objective:
    """Choose how to draw the metric.

    A loss with a wide range has a log scale, so that one bad run does not hide the differences
    between the others. A negative metric to maximise, such as the ELBO, is minus a loss.
    """
    name, sign = results["metric"], -1 if results["goal"] == "maximize" else 1
    values = np.array([run["value"] for run in results["runs"]], dtype=float)
    losses = sign * values[np.isfinite(values)]
    log = bool(losses.size and losses.min() > 0 and losses.max() >= WIDE_METRIC * losses.min())
    if log and sign == -1:
        name, sign, values = f"−{name}", 1, -values
    return Objective(f"{name} ({'low' if sign == 1 else 'high'} is good)", values, sign, log)


def _levels(values: list) -> list[str]:
    """Return the different values of a setting, numbers in order."""
    numbers = all(_is_number(value) for value in values)
    return list(dict.fromkeys(str(value) for value in (sorted(values) if numbers else values)))


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---- two settings


def _heat_map(names: list[str], levels: list, grid: np.ndarray, metric: Objective) -> Figure:
    """Draw the metric in the cell of each pair of values, with a frame around the best."""
    rows, columns = grid.shape
    figure, ((axis,),) = panels(1, 1, width=2.2 + 0.7 * columns, height=1.2 + 0.4 * rows)
    values = metric.values[grid]
    image = axis.imshow(
        values, norm=LogNorm() if metric.log else Normalize(), origin="lower", aspect="auto"
    )
    for (row, column), value in np.ndenumerate(values):
        known = np.isfinite(value)
        dark = known and image.norm(value) < 0.6
        axis.text(column, row, f"{value:.4g}" if known else "none", ha="center", va="center",
                  color="white" if dark else "black")  # fmt: skip
    if metric.known.size:
        ((row, column),) = np.argwhere(grid == metric.best(metric.known))
        cell = (column - 0.5, row - 0.5)
        axis.add_patch(Rectangle(cell, 1, 1, fill=False, edgecolor=ORANGE, lw=3, clip_on=False))
    axis.grid(False)
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.set_xticks(range(columns), levels[0])
    axis.set_yticks(range(rows), levels[1])
    figure.colorbar(image, label=metric.label)
    return figure


# ---- any number of settings


def _panels(settings: dict[str, list], metric: Objective) -> Figure:
    columns = min(len(settings), PANELS_PER_ROW)
    figure, axes = panels(-(-len(settings) // columns), columns, height=3)
    axes = list(axes.flat)
    for axis, (name, values) in zip(axes, settings.items(), strict=False):
        axis.set(xlabel=name, ylabel=metric.label)
        _draw_runs(axis, _places(axis, values), metric)
        if metric.log:
            axis.set_yscale("log")
    for axis in axes[len(settings) :]:
        axis.remove()
    lines = {line.get_label(): line for axis in axes for line in axis.lines}
    marks = [lines[label] for label in POINT_LABELS if label in lines]
    figure.legend(handles=marks, loc="outside lower center", ncols=3)
    return figure


def _places(axis: Axes, values: list) -> np.ndarray:
    """Return where the values lie on the axis: numbers as they are, others side by side."""
    if all(_is_number(value) for value in values):
        if min(values) > 0 and max(values) >= WIDE_SETTING * min(values):
            axis.set_xscale("log")
        return np.array(values)
    names = _levels(values)
    axis.set_xticks(range(len(names)), names)
    axis.set_xlim(-0.5, len(names) - 0.5)
    return np.array([names.index(str(value)) for value in values])


def _draw_runs(axis: Axes, places: np.ndarray, metric: Objective) -> None:
    """Draw the runs, the best of them, and at the bottom those that have no value."""
    known = metric.known
    axis.plot(places[known], metric.values[known], "o", color=BLUE, markersize=4, alpha=0.7)
    values = np.unique(places[known])
    if len(values) <= max(FEW_VALUES, len(known) // 2):
        best = [metric.best(known[places[known] == value]) for value in values]
        axis.plot(values, metric.values[best], "-", color=BLUE, linewidth=1.2, zorder=1,
                  label=POINT_LABELS[0])  # fmt: skip
    missing = np.delete(places, known)
    if missing.size:
        axis.plot(missing, np.full(missing.size, 0.02), "x", color=GREY, label=POINT_LABELS[2],
                  transform=axis.get_xaxis_transform())  # fmt: skip
    if known.size:
        best = metric.best(known)
        axis.plot(places[best], metric.values[best], "*", color=ORANGE, markersize=12, zorder=5,
                  label=POINT_LABELS[1])  # fmt: skip
