"""The figures on the quality and diversity of posteriors, each drawn from a run's result file."""

from pathlib import Path

from utils.report.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, panels
from utils.report.paper import figure

import numpy as np
from matplotlib.figure import Figure

GROUPS = {  # of pairs, as symmetry_diversity.py names them
    "": ("independent networks", BLUE),
    "two_chains_": ("HMC, two chains", GREEN),
    "one_chain_": ("HMC, one chain", PURPLE),
    "copies_": ("copies, fine-tuned apart", ORANGE),
}


@figure(
    "symmetry_diversity",
    "diversity.npz",
    title="Figure 3: how different independent networks are as functions",
    caption="The mutual information (MI) of all pairs of independent networks on test images, on "
    "images out of the distribution, and both together. Dashed lines are the means of two copies "
    "of one network that were fine-tuned apart: pairs at or below them would be a collapse.",
)
def functional_collapse(source: Path) -> Figure:
    """Draw the paper's Figure 3."""
    results = np.load(source)
    labels = {
        "inside": "MI on test images [nats]",
        "outside": f"MI on {results['ood']} [nats]",
    }
    drawn, (axes,) = panels(1, 3)
    for axis, (side, label) in zip(axes, labels.items(), strict=False):
        axis.hist(results[side], bins=60, color=BLUE)
        axis.axvline(results[f"copies_{side}"].mean(), color=ORANGE, linestyle="--")
        axis.set(xlabel=label, ylabel="pairs of networks")
        axis.set_xlim(left=0)
    density = axes[2].hexbin(
        results["inside"], results["outside"], gridsize=40, mincnt=1, cmap="Blues", linewidths=0,
        vmin=0, rasterized=True,
    )  # fmt: skip
    drawn.colorbar(density, ax=axes[2], label="pairs")
    axes[2].set(xlabel=labels["inside"], ylabel=labels["outside"])
    return drawn


@figure(
    "symmetry_diversity",
    "diversity.npz",
    title="What a mutual information means",
    caption="Mutual information (MI, left) and disagreement (right) of different kinds of pairs, "
    "in and out of the distribution: means, and bars from the 5 % to the 95 % quantile.",
)
def diversity_scale(source: Path) -> Figure:
    """Draw means and spreads of the groups of pairs."""
    results = np.load(source)
    groups = {key: look for key, look in GROUPS.items() if f"{key}inside" in results}
    drawn, (axes,) = panels(1, 2)
    quantities = {"": ("MI", " [nats]"), "_disagreement": ("disagreement", "")}
    for axis, (suffix, (label, unit)) in zip(axes, quantities.items(), strict=True):
        for key, (title, color) in groups.items():
            sides = [results[f"{key}{side}{suffix}"] for side in ("inside", "outside")]
            means = [side.mean() for side in sides]
            low, high = np.quantile(sides[0], [0.05, 0.95]), np.quantile(sides[1], [0.05, 0.95])
            axis.hlines(means[1], *low, color=color, linewidth=1.2)
            axis.vlines(means[0], *high, color=color, linewidth=1.2)
            axis.scatter(*means, color=color, s=18, label=title)
        ends = [0, max(axis.get_xlim()[1], axis.get_ylim()[1])]
        axis.plot(ends, ends, color=GREY, linewidth=0.8)
        axis.set(xlim=ends, ylim=ends, xlabel=f"{label} on test images{unit}")
        axis.set(ylabel=f"{label} on {results['ood']}{unit}")
    axes[0].legend(loc="lower right")
    return drawn
