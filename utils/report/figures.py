"""Figures are drawn from result files alone, so that they can be redrawn without a run.

Functions take the path of a result file and return a matplotlib Figure (see `Run.save_figure`).
Colours are Okabe and Ito's, which colour-blind readers can tell apart; lines differ in style too.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

from utils.runs.files import read_records

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
SKY, GOLD = "#56B4E9", "#E69F00"
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


class Look(NamedTuple):
    """How a method is drawn in every figure."""

    color: str
    line: str = "-"
    marker: str = "o"


styled = rc_context(STYLE)  # decorates the functions that draw


def panels(rows: int, columns: int, width: float = 3.4, height: float = 2.8):
    """Return a figure and its axes [rows][columns], each of this size in inches."""
    figure = Figure(figsize=(width * columns, height * rows), dpi=200, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


# ---- training: metrics.jsonl


@styled
def training(source: Path) -> Figure:
    """Draw every network's training loss, and the test accuracy, over the epochs."""
    records = read_records(source)
    first = records[0] if records else {}
    names = [name for name in first if name.startswith("train_loss")]
    figure, (axes,) = panels(1, 2)
    for name in names:
        axes[0].plot(*_series(records, name), color=BLUE, linewidth=0.9)
    axes[0].set(xlabel="epoch", ylabel="train loss of each network [nats]", yscale="log")
    axes[1].plot(*_series(records, "test_accuracy", 100), color=ORANGE, marker="o", markersize=2)
    axes[1].set(xlabel="epoch", ylabel="test accuracy [%]")
    return figure


@styled
def vi_training(source: Path) -> Figure:
    """Draw −ELBO and its two parts, NLL and KL, and the mean network's test accuracy."""
    records = read_records(source)
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
    """Return epochs (or iterations) and values of the records that have `name`."""
    found = [record for record in records if name in record]
    return [next(iter(r.values())) for r in found], [factor * r[name] for r in found]


# ---- HMC's chains: metrics.jsonl


@styled
def chain(source: Path) -> Figure:
    """Draw acceptance, NLL and test accuracies, per transition; averages over chains."""
    records = read_records(source)
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
