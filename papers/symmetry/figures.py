"""The figures on symmetry, each drawn from a run's result file, with its title and caption."""

import json
from pathlib import Path

from papers.symmetry.balance import converged, pairs, training_of
from papers.symmetry.values import published
from utils.report.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, WHOLE_NUMBERS, panels
from utils.report.paper import figure
from utils.runs.files import read_records
from utils.symmetry.unit_order import p_value

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

OPTIMISERS = {"SGD": BLUE, "SGD with momentum": ORANGE, "Adam": GREY}  # their colours
NEAR_ZERO = 1e-3  # up to here an axis of weight decay × time is linear


@figure(
    "symmetry_toy", "toy.npz", "Figure 1: a posterior with and without its symmetries",
    caption="The first two weights of the last layer of independently trained networks with one "
    "hidden layer: as trained, after scaling all incoming weights to one norm, and after sorting "
    "hidden units by their weight in the last layer as well. The few networks with much larger "
    "weights are cut off.",
)  # fmt: skip
def toy(source: Path) -> Figure:
    """Draw the paper's Figure 1."""
    results = np.load(source)
    layers = results["last_layers"][:, :, :2]
    limit = 2 * np.median(np.abs(layers).max(-1))
    drawn, (axes,) = panels(1, len(layers), width=2.9, height=3.0)
    for axis, weights, title in zip(axes, layers, results["panels"], strict=True):
        axis.scatter(*weights.T, s=1.5, alpha=0.25, color=BLUE, linewidths=0, rasterized=True)
        axis.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", title=title)
        axis.set(xlabel="weight of unit 1")
    axes[0].set(ylabel="weight of unit 2")
    return drawn


@figure(
    "symmetry_mass", "mass.npz", "Figure 2: networks are heavier than they need to be",
    caption="The sum of squared weights of trained networks against the smallest that scaling "
    "hidden units can reach; crosses are the centres of the paper's two clusters, for OptuNet. In "
    "the middle the excess over that minimum. On the right the logarithm of the mass of some "
    "networks along random directions in the logarithms of the scales.",
)  # fmt: skip
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
    lines = np.log(curves / curves.min(-1, keepdims=True)).reshape(-1, curves.shape[-1])
    axes[2].plot(results["steps"], lines[:40].T, color=BLUE, alpha=0.4, linewidth=0.7)
    axes[2].set(xlabel="distance in log λ", ylabel="log(mass / smallest on the line)")
    return drawn


@figure(
    "symmetry_balance",
    "cells.jsonl",
    "Weight decay and the minimum mass",
    caption="Each line is a cell of the grid that did not diverge, each point an epoch, averaged "
    "over networks; x is weight decay · ∫ learning rate dt / (1 − momentum). Left: what is left of "
    "the initial difference between incoming and outgoing mass of hidden units, relative to the "
    "same training without weight decay, and exp(−2x); biases count, as they decay, too. Middle: "
    "the excess over the minimum mass, without biases, as in the paper; all cells begin at 0, and "
    "those without weight decay go to the left, where x stays 0. Right: mass (solid) and minimum "
    "mass (dashed) during training. A row for each network.",
)
def balance(source: Path) -> Figure:
    """Draw imbalance and excess against weight decay × time, and masses over epochs."""
    cells = [cell for cell in converged(read_records(source)) if not cell["projected"]]
    names = list(dict.fromkeys(cell["network"] for cell in cells))
    drawn, rows = panels(len(names), 3, height=2.6)
    for name, axes in zip(names, rows, strict=True):
        _draw_balance(axes, [cell for cell in cells if cell["network"] == name])
        axes[0].set(ylabel=f"{name}: share of imbalance left")
    for name, color in OPTIMISERS.items():
        rows[0][1].plot([], [], color=color, label=name)
    rows[0][0].legend()
    rows[0][1].legend()
    return drawn


def _draw_balance(axes, cells: list[dict]) -> None:
    without = {training_of(cell): cell for cell in cells if not cell["weight_decay"]}
    look = {"markersize": 3, "linewidth": 0.7, "marker": "."}
    for cell in cells:
        color, times, other = _color(cell), cell["decay_time"], without.get(training_of(cell))
        beside = times if cell["weight_decay"] else np.linspace(0, -NEAR_ZERO, len(times))
        axes[1].plot(beside, 100 * np.mean(cell["excess"], -1), color=color, **look)
        if cell["optimizer"] == "SGD" and other:
            shares = (np.mean(each["share_left"], -1) for each in (cell, other))
            axes[0].plot(times, np.divide(*shares), color=color, **look)
        axes[2].plot(np.mean(cell["mass"], -1), color=color, linewidth=0.9)
        axes[2].plot(np.mean(cell["minimum"], -1), color=color, linewidth=0.9, linestyle="--")
    grid = np.linspace(0, max(cell["decay_time"][-1] for cell in cells), 100)
    axes[0].plot(grid, np.exp(-2 * grid), color="black", linewidth=1, label="exp(−2x)")
    axes[0].set(xlabel="x")
    axes[1].axvspan(-1.1 * NEAR_ZERO, 0, color=GREY, alpha=0.12, linewidth=0)
    axes[1].set_xscale("symlog", linthresh=NEAR_ZERO)
    axes[1].set_xticks([0, *(10.0**k for k in range(-3, 9) if 10.0**k <= grid[-1])])
    axes[1].set(xlabel="x (shaded: no weight decay)", ylabel="excess mass [%]", ylim=(0, None))
    axes[2].set(xlabel="epoch", ylabel="mass", yscale="log")


@figure(
    "symmetry_balance",
    "cells.jsonl",
    title="Scaling networks to their minimum mass while they are trained",
    caption="Every cell of SGD's grid trained as usual (horizontally), and how each score changes "
    "if networks are scaled to their minimum mass, including biases, as these decay, too, after "
    "every epoch (vertically), from the same start and in the same order of images: one point for "
    "each network, or pair of networks. ECE is the expected calibration error.",
)
def intervention(source: Path) -> Figure:
    """Draw the effect of the intervention against scores without it."""
    cells = pairs(read_records(source))
    names = dict.fromkeys(plain["network"] for plain, _ in cells)
    markers = dict(zip(names, "os^vDP", strict=False))
    drawn, (axes,) = panels(1, 4, width=2.6, height=2.6)
    labels = {
        "accuracy": "test accuracy", "nll": "test NLL [nats]", "calibration_error": "ECE",
        "barrier": "barrier [nats]",
    }  # fmt: skip
    for axis, (name, label) in zip(axes, labels.items(), strict=True):
        for plain, projected in cells:
            look = {"color": _color(plain), "marker": markers[plain["network"]]}
            change = np.subtract(projected[name], plain[name])
            axis.scatter(plain[name], change, s=10, linewidths=0, alpha=0.7, **look)
        axis.axhline(0, color=GREY, linewidth=0.8)
        axis.set(xlabel=f"{label}, as usual", ylabel="change")
    looks = {name: (GREY, marker) for name, marker in markers.items()}
    looks |= {name: (OPTIMISERS[name], ".") for name in ("SGD", "SGD with momentum")}
    handles = [
        Line2D([], [], linestyle="", marker=marker, markersize=4, color=color, label=name)
        for name, (color, marker) in looks.items()
    ]
    drawn.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return drawn


@figure(
    "symmetry_order", "order.npz", "Section 5.2: units change their order while they are trained",
    caption="Left: Kendall's τ of the order of hidden units (by the norm of their incoming weights "
    "and three other keys) in neighbouring snapshots, ten in the first epoch and then one per "
    "epoch: 1 means that no two units have changed places. Middle: the same between each snapshot "
    "and the end. Right: the number of transpositions of rebasin, by activation and by weight, "
    "between the same snapshots, per network. Averages over networks and layers.",
)  # fmt: skip
def order(source: Path) -> Figure:
    """Draw how orders of units change during training."""
    results = np.load(source)
    epochs = results["epochs"]
    names = [name.removesuffix("_step") for name in results.files if name.endswith("_step")]
    keys = [name for name in names if not name.startswith("not_by_")]
    drawn, (axes,) = panels(1, 3)
    lines = zip(keys, (BLUE, ORANGE, GREEN, PURPLE), ("-", "--", ":", "-."), strict=True)
    for key, color, line in lines:
        look = {"color": color, "linestyle": line, "label": key.replace("_", " ")}
        axes[0].plot(epochs[1:], np.nanmean(results[f"{key}_step"], (1, 2)), **look)
        axes[1].plot(epochs[:-1], np.nanmean(results[f"{key}_end"], (1, 2)), **look)
    for method, color in (("activation", BLUE), ("weight", ORANGE)):
        for part, at, line in (("step", epochs[1:], ".-"), ("end", epochs[:-1], ".--")):
            label = f"by {method}, to {'the end' if part == 'end' else 'the snapshot before'}"
            moves = results[f"not_by_{method}_{part}"].sum(-1).mean(-1)
            axes[2].plot(at, moves, line, color=color, label=label)
    axes[0].legend()
    axes[2].legend()
    axes[0].set(ylabel="τ to the snapshot before")
    axes[1].set(ylabel="τ to the end")
    axes[2].set(ylabel="number of transpositions (NoT)", ylim=(0, max(1, axes[2].get_ylim()[1])))
    for axis in axes:
        axis.set(xlabel="epoch")
    return drawn


def _color(cell: dict) -> str:
    return OPTIMISERS["SGD with momentum" if cell["momentum"] else cell["optimizer"]]


@figure(
    "symmetry_marginals", "marginals.json", "Which hidden unit holds the largest weight",
    caption="In how many networks each unit of the largest hidden layer holds the layer's largest "
    "incoming weight: as the networks are, with the units of each network shuffled, and after "
    "rebasin to the first network. The line is the same share for all units. χ² is corrected for "
    "the correlation of a chain's draws.",
)  # fmt: skip
def largest_weights(source: Path) -> Figure:
    """Draw the check of the corollary, as on the paper's poster."""
    results = json.loads(Path(source).read_text())
    largest = {
        name: max(result["groups"].values(), key=lambda tests: len(tests["as they are"]["counts"]))
        for name, result in results.items()
    }
    views = list(next(iter(largest.values())))
    drawn, axes = panels(len(largest), len(views), width=2.9, height=2.2)
    for row, (name, tests) in zip(axes, largest.items(), strict=True):
        for axis, view in zip(row, views, strict=True):
            test = tests[view]
            counts = np.array(test["counts"])
            axis.bar(np.arange(len(counts)), counts, width=1.0, color=BLUE)
            axis.axhline(counts.mean(), color=ORANGE, linewidth=1)
            axis.xaxis.set_major_locator(WHOLE_NUMBERS())
            axis.set_title(f"{view}: χ² = {test['corrected_chi_square']:.1f}, {p_value(test['p'])}")
        row[0].set(ylabel=f"{name}: networks")
    for axis in axes[-1]:
        axis.set(xlabel="hidden unit")
    return drawn
