"""The figures on symmetry, each drawn from a run's result file, with its title and caption."""

import json
from pathlib import Path

from utils.report.figures import BLUE, GREY, ORANGE, panels
from utils.report.paper import figure

import numpy as np
import yaml
from matplotlib.figure import Figure


def published(name: str) -> dict:
    """Return numbers that the paper prints, or that were read off its figures."""
    return yaml.safe_load(Path(__file__).with_name("values.yaml").read_text())[name]


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


@figure(
    "symmetry_mass",
    "mass.npz",
    title="Figure 2: networks are heavier than they need to be",
    caption="The sum of squared weights of trained networks against the smallest that scaling "
    "hidden units can reach; crosses are the centres of the paper's two clusters, for OptuNet. In "
    "the middle the excess over that minimum. On the right the mass of some networks along random "
    "directions in the logarithms of the scales, on a logarithmic axis: all curves are convex.",
)
def representation_cost(source: Path) -> Figure:
    """Draw the paper's Figure 2, and the mass along the orbit."""
    results = np.load(source)
    total, minimum, curves = results["mass"], results["minimum"], results["curves"]
    drawn, (axes,) = panels(1, 3)
    axes[0].scatter(total, minimum, s=4, alpha=0.5, color=BLUE, linewidths=0)
    if json.loads(Path(source).with_name("network.json").read_text()).get("network") == "optunet":
        axes[0].scatter(*zip(*published("mass")["clusters"], strict=True), marker="x", color=ORANGE)
    ends = [minimum.min(), total.max()]
    axes[0].plot(ends, ends, color=GREY, linewidth=0.8)
    axes[0].set(xlabel="mass as trained", ylabel="minimum mass")
    axes[1].hist(100 * (total / minimum - 1), bins="auto", color=BLUE)
    axes[1].set(xlabel="excess mass [%]", ylabel="networks")
    lines = (curves / curves.min(-1, keepdims=True)).reshape(-1, curves.shape[-1])
    axes[2].plot(results["steps"], lines[:40].T, color=BLUE, alpha=0.4, linewidth=0.7)
    axes[2].set(xlabel="distance in log λ", ylabel="mass / smallest on the line", yscale="log")
    return drawn


@figure(
    "symmetry_marginals",
    "marginals.json",
    title="Which hidden unit holds the largest weight",
    caption="In how many networks each unit of the first hidden layer holds the layer's largest "
    "incoming weight: as the networks are, with the units of each network shuffled, and after "
    "rebasin to the first network. The line is the same share for all units. χ² is corrected for "
    "the correlation of a chain's draws.",
)
def marginals(source: Path) -> Figure:
    """Draw the check of the corollary, as on the paper's poster."""
    results = json.loads(Path(source).read_text())
    firsts = {name: next(iter(result["groups"].values())) for name, result in results.items()}
    views = list(next(iter(firsts.values())))
    drawn, axes = panels(len(firsts), len(views), width=2.9, height=2.2)
    for row, (name, tests) in zip(axes, firsts.items(), strict=True):
        for axis, view in zip(row, views, strict=True):
            test = tests[view]
            counts = np.array(test["counts"])
            axis.bar(np.arange(len(counts)), counts, width=1.0, color=BLUE)
            axis.axhline(counts.mean(), color=ORANGE, linewidth=1)
            axis.set_title(f"{view}: χ² = {test['corrected_chi_square']:.1f}, p = {test['p']:.2g}")
        row[0].set(ylabel=f"{name}: networks")
    for axis in axes[-1]:
        axis.set(xlabel="hidden unit")
    return drawn
