"""Figures of posteriors weight by weight, and of pruning, drawn from result files alone."""

import json
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from utils.figures import BLUE, GREY, ORANGE, panels, styled

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
