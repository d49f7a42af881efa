"""Figures of loss barriers and of numbers of transpositions, each with its title and caption."""

from pathlib import Path

from utils.rebasin.paths import barrier
from utils.report.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, WHOLE_NUMBERS, panels
from utils.report.paper import figure
from utils.runs.files import read_records
from utils.symmetry.permutation import expected_transpositions

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

# ---- Figure 2, Figure 3 right: training_dynamics.npz

ALIGNMENT_STYLES = (
    {"color": ORANGE, "linestyle": "-", "marker": "o"},
    {"color": BLUE, "linestyle": "-", "marker": "s"},
    {"color": GREEN, "linestyle": "--", "marker": "^"},
    {"color": PURPLE, "linestyle": ":", "marker": "D"},
)
BY_PERMUTATION = (1, 2)  # of the alignments, those by permutations
FRACTION_LABEL = "λ, from W₀ (0) to W₁ (1)"
SMALLEST_LOSS = 1e-6  # [nats]; the axis is logarithmic, and memorised images can have a loss of 0


@figure(
    "net_matching",
    "training_dynamics.npz",
    title="Figure 2: the loss between two networks over training",
    caption="Train and test loss of W_λ = (1 − λ) W₀ + λ W₁ after every epoch, with the second "
    "network as it is (left), and rebased to the first by activation and by weight. On the right "
    "each unit of the first takes the most similar unit of the second, many to one, which changes "
    "the network at λ = 1. White lines join points of equal loss. A ridge in the middle is a loss "
    "barrier.",
)
def loss_along_line(source: Path) -> Figure:
    """Draw the paper's Figure 2: loss over epoch and λ, as is and after each rebasin."""
    results = np.load(source)
    drawn, axes = panels(2, len(results["alignments"]), width=2.98, height=2.7)
    for row, part in zip(axes, ("train", "test"), strict=True):
        losses = np.maximum(results[f"{part}_loss"], SMALLEST_LOSS)  # [epoch, alignment, λ]
        # Untrained networks would take most colours, so they share the last one.
        scale = LogNorm(losses.min(), losses[1:].max())
        for k, axis in enumerate(row):
            image, lines = _surface(axis, results, losses[:, k], scale)
            height = _largest_barrier(losses[-1, k], results["fractions"])
            title = f"{part} loss, {_second_network(results, k)}"
            axis.set_title(f"{title}\nlargest barrier, trained: {height:.3f} nats")
        bar = drawn.colorbar(image, ax=row, label=f"{part} loss [nats], log scale", extend="max")
        bar.add_lines(lines)
        decades = np.log10(scale.vmax / scale.vmin)
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
        bar.ax.yaxis.set_major_formatter("{x:g}")
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
    return drawn


def _second_network(results, alignment: int) -> str:
    name = str(results["alignments"][alignment])
    if alignment in BY_PERMUTATION:
        return f"W₁ rebased {name}"
    return f"W₁ {name}" if alignment == 0 else f"W₁ matched {name}"


def _surface(axis: Axes, results, losses: np.ndarray, scale: LogNorm):
    """Draw the loss [epoch, λ] as colours with contour lines."""
    surface = results["fractions"], results["epochs"], losses
    image = axis.pcolormesh(
        *surface, norm=scale, cmap="viridis", shading="nearest", rasterized=True
    )
    levels = np.geomspace(scale.vmin, scale.vmax, 12)[1:-1]
    lines = axis.contour(*surface, levels=levels, colors="white", linewidths=0.7)
    axis.grid(False)
    axis.set(xlabel=FRACTION_LABEL, ylabel="epoch")
    axis.yaxis.set_major_locator(WHOLE_NUMBERS())
    return image, lines


@figure(
    "net_matching", "training_dynamics.npz", "The barrier that each way of rebasin leaves",
    caption="Test loss and error barriers over training (the largest over λ; error in percentage "
    "points), and NoT of the rebasin compared with a random permutation.",
)  # fmt: skip
def barriers(source: Path) -> Figure:
    """Draw the largest barrier over λ that each alignment of W₁ leaves, and its NoT, by epoch."""
    results = np.load(source)
    epochs = results["epochs"]
    names = [_second_network(results, k) for k in range(len(results["alignments"]))]
    looks = list(zip(names, ALIGNMENT_STYLES, strict=True))
    drawn, (axes,) = panels(1, 3, height=3.6)
    for axis, kind, factor, unit in (
        (axes[0], "loss", 1, "nats"),
        (axes[1], "error", 100, "points"),
    ):
        for k, (name, style) in enumerate(looks):
            height = factor * _largest_barrier(results[f"test_{kind}"][:, k], results["fractions"])
            axis.plot(epochs, height, label=name, markersize=3, markevery=5, **style)
        axis.set(xlabel="epoch", ylabel=f"largest test {kind} barrier over λ [{unit}]")
        axis.axhline(0, color=GREY, linewidth=0.8)
    for k in BY_PERMUTATION:
        name, style = looks[k]
        counts = results["alignment_transpositions"][:, k - 1].sum(-1)
        axes[2].plot(epochs, counts, label=name, markersize=3, markevery=5, **style)
    _baselines(axes[2], results["hidden_sizes"], results["random_transpositions"])
    most = results["hidden_sizes"].sum()
    axes[2].set(xlabel="epoch", ylabel="NoT of the rebasin of W₁ to W₀")
    axes[2].set(ylim=(-0.05 * most, 1.05 * most))
    for axis in axes:
        axis.xaxis.set_major_locator(WHOLE_NUMBERS())
    baselines = axes[2].lines[-2:]
    handles = [*axes[0].lines[: len(names)], *baselines]
    drawn.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5))
    return drawn


def _largest_barrier(values: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Return how far `values` [..., λ] rise above the line between their ends, at most."""
    return barrier(torch.from_numpy(values), fractions.tolist()).amax(-1).numpy()


@figure(
    "net_matching", "training_dynamics.npz", "Figure 3, right: on the line between two networks",
    caption="Weight distance and NoT of W_λ against W₀, before the first and after the last epoch.",
)  # fmt: skip
def along_line(source: Path) -> Figure:
    """Draw the paper's Figure 3, right: weight distance and NoT from W₀ along the line to W₁."""
    results = np.load(source)
    fractions, rebased = results["fractions"], int(results["rebased"])
    styles = ALIGNMENT_STYLES[0], ALIGNMENT_STYLES[rebased]
    names = [_second_network(results, k) for k in (0, rebased)]
    drawn, (axes,) = panels(1, 2, width=3.8, height=3.2)
    for checkpoint, when, fill in ((0, "untrained", "white"), (-1, "trained", None)):
        for k, (name, style) in enumerate(zip(names, styles, strict=True)):
            look = style | {"markerfacecolor": fill or style["color"], "markersize": 4}
            look["linestyle"] = ":" if fill else "-"
            distance = results["distance"][checkpoint, (0, rebased)[k], :, -1]
            counts = results["transpositions"][checkpoint, k].sum(-1)
            axes[0].plot(fractions, distance, label=f"{name}, {when}", **look)
            axes[1].plot(fractions, counts, **look)
    _baselines(axes[1], results["hidden_sizes"], results["random_transpositions"])
    axes[0].set(
        xlabel=FRACTION_LABEL, ylabel="weight distance $\\|W_\\lambda - W_0\\|$", ylim=(0, None)
    )
    axes[1].set(xlabel=FRACTION_LABEL, ylabel="NoT of $W_\\lambda$ against $W_0$")
    drawn.legend(loc="outside lower center", ncols=3)
    return drawn


def _baselines(axis: Axes, hidden_sizes, random: np.ndarray | float) -> None:
    """Draw NoT of the identity, and of uniformly random permutations on average.

    `random` has the average of each group, or of all. It is more than that of the sets where units
    lie within blocks, which are permuted as well.
    """
    of_sets = sum(expected_transpositions(int(size)) for size in hidden_sizes)
    expected = np.sum(random)
    formula = "n − Hₙ" if len(hidden_sizes) == 1 else "Σ (n − Hₙ)"  # over the hidden layers
    blocks_move = not np.isclose(expected, of_sets)
    label = f"{expected:.1f} on average" if blocks_move else f"{formula} = {expected:.0f}"
    axis.axhline(
        expected, color=GREY, linestyle=(0, (5, 2)), linewidth=1, zorder=1,
        label=f"random: {label}",
    )  # fmt: skip
    axis.axhline(0, color=GREY, linewidth=0.8, zorder=1, label="identity: 0")


# ---- Figure 3, left: transpositions.jsonl

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


@figure(
    "transpositions",
    "transpositions.jsonl",
    title="Figure 3, left: networks that start as permuted copies of each other",
    caption="NoT found by rebasin, weight distance and loss barrier at λ = ½ after training, each "
    "against the NoT planted at initialisation.",
)
def transpositions(source: Path) -> Figure:
    """Draw the paper's Figure 3, left: NoT, distance and barrier against NoT at initialisation.

    Points are pairs, averaged over runs; lines join the means at each NoT. With several runs,
    bands are one standard deviation over runs to either side.
    """
    records = read_records(source)
    drawn, (axes,) = panels(1, 3, height=3.7)
    _stage_lines(axes[0], records, lambda record: sum(record["found"]))
    _stage_lines(axes[1], records, lambda record: record["distance"]["total"])
    _stage_lines(axes[2], records, lambda record: record["test_loss_barrier"])
    planted, mean, _ = _by_planted(records, "trained", lambda record: record["train_loss_barrier"])
    label = "after training, train loss"
    (train_loss,) = axes[2].plot(planted, mean, "--", color=ORANGE, linewidth=1, label=label)
    most = max(sum(record["planted"]) for record in records)
    axes[0].plot(
        [0, most], [0, most], "--", color="black", linewidth=1, zorder=3, label="unchanged: y = x"
    )  # drawn first: the points often lie exactly on it
    _baselines(axes[0], records[0]["hidden_sizes"], records[0]["random_transpositions"])
    labels = (
        "NoT found by rebasin",
        "weight distance of the pair",
        "test loss barrier at λ = ½ [nats]",
    )
    for axis, label in zip(axes, labels, strict=True):
        axis.set(xlabel="NoT at initialisation", ylabel=label)
        axis.xaxis.set_major_locator(WHOLE_NUMBERS())
    named = [line for line in axes[0].lines if line.get_label()[0] != "_"]
    drawn.legend(handles=[*named, train_loss], loc="outside lower center", ncols=3)
    return drawn


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
    """Return each pair's planted NoT and the mean over runs of `measure`."""
    values = _grouped(records, stage, measure, lambda r: (sum(r["planted"]), r["pair"]))
    return [planted for planted, _ in values], [np.mean(group) for group in values.values()]


def _by_planted(
    records: list[dict], stage: str, measure
) -> tuple[list, np.ndarray, np.ndarray | None]:
    """Return the planted NoTs, and mean and standard deviation over runs of `measure` at each.

    Pairs of a run with the same planted NoT, as small networks have, count by their mean. A
    single run has no standard deviation.
    """
    values = _grouped(records, stage, measure, lambda r: (sum(r["planted"]), r["run"]))
    planted = sorted({planted for planted, _ in values})
    table = np.array([np.mean(group) for group in values.values()]).reshape(len(planted), -1)
    deviation = table.std(1, ddof=1) if table.shape[1] > 1 else None  # table: [planted, run]
    return planted, table.mean(1), deviation


def _grouped(records: list[dict], stage: str, measure, key) -> dict[tuple, list]:
    """Return `measure` of a stage's records, grouped by `key` and sorted by it."""
    values = {}
    for record in records:
        if record["stage"] == stage:
            values.setdefault(key(record), []).append(measure(record))
    return dict(sorted(values.items()))
