"""The figures on symmetry, each drawn from a run's result file, with its title and caption."""

from pathlib import Path

from utils.report.figures import BLUE, panels
from utils.report.paper import figure

import numpy as np
from matplotlib.figure import Figure


@figure(
    "symmetry_toy",
    "toy.npz",
    title="Figure 1: a posterior with and without its symmetries",
    caption="The first two weights of the last layer of independently trained networks with one "
    "hidden layer: as trained, after scaling all incoming weights to one norm, and after sorting "
    "hidden units by their weight in the last layer as well. 99 % of the networks are in view.",
)
def toy(source: Path) -> Figure:
    """Draw the paper's Figure 1."""
    results = np.load(source)
    layers = results["last_layers"][:, :, :2]
    limit = np.quantile(np.abs(layers).max(-1), 0.99)
    drawn, (axes,) = panels(1, len(layers), width=2.9, height=3.0)
    for axis, weights, title in zip(axes, layers, results["panels"], strict=True):
        axis.scatter(*weights.T, s=1.5, alpha=0.25, color=BLUE, linewidths=0, rasterized=True)
        axis.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", title=title)
        axis.set(xlabel="weight of unit 1")
    axes[0].set(ylabel="weight of unit 2")
    return drawn
