"""How far to trust q_r's numbers: tables and a figure from diagnostics.json."""

import json
from pathlib import Path

from utils.evaluation.predictions import columns_of
from utils.report.figures import BLUE, GOLD, GREEN, GREY, ORANGE, PURPLE, SKY, panels
from utils.report.paper import figure
from utils.report.tables import Table, number, with_known_error

from matplotlib.figure import Figure

NOISE_COLORS = (BLUE, ORANGE, GREEN, PURPLE, GREY, GOLD, SKY)


def limit_tables(diagnostics: dict) -> list[Table | str]:
    """Return what is found out about q_r beyond its scores."""
    limits = diagnostics.get("limits")
    if not limits:
        return []
    names, tables = diagnostics["names"], [_draws(limits["draws"])]
    if limits["held_out"]:
        tables.append(_held_out(limits["held_out"], names))
    if all(limits["reliability"].values()):
        tables.append(_reliability(limits["reliability"], names))
    tables.append(_similarity(limits["similarity"]))
    if limits["noise"]:
        tables.append(_noise(limits["noise"], diagnostics["ways"], names))
    if limits.get("cross_fitted"):
        tables.append(_cross_fitted(limits["cross_fitted"], names))
    return tables


def _title(key: str, names: dict[str, str]) -> str:
    columns = columns_of(names)
    if key in names or key not in columns:
        return names.get(key, key)
    return columns[key].title(names)


def _draws(draws: dict) -> Table:
    scores = ("agreement", "total_variation")
    rows = [
        [str(row["draws"]), *(with_known_error(row[s], row[f"{s}_error"], 3) for s in scores)]
        for row in draws["rows"]
    ]
    if draws["limit"]:
        rows.append(["∞ (extrapolated)", *(number(draws["limit"][s], 3) for s in scores)])
    return Table(
        ["draws", "agreement", "TV"], rows, title="q_r by the number of draws",
        note="Agreement depends on how many draws are averaged: it is no property of q_r alone. "
        "The last row is a of a + b/√n. Errors are over disjoint batches of draws.",
    )  # fmt: skip


def _held_out(held_out: dict, names: dict) -> Table:
    rows = []
    for name, scores in held_out.items():
        kind, comma, how = name.partition(", ")
        title = f"{kind}, {_title(how, names)}" if comma else "samples of the first half"
        cells = [number(scores[s], 3) for s in ("agreement", "total_variation", "nll")]
        rows.append([title, *cells, f"{100 * scores['accuracy']:.1f} %"])
    return Table(
        ["fitted to the first half of the chain", "agreement", "TV", "NLL", "accuracy"], rows,
        title="Held out: compared with the second half of the chain",
        note="Shuffled: units of every sample in random order, the control for what rebasin adds.",
    )  # fmt: skip


def _reliability(reliability: dict, names: dict) -> Table:
    rows = [
        [
            _title(key, names), group,
            *(number(row[part][of], 3) for part in ("mean", "std") for of in ("halves", "whole")),
            "no" if (row["std"]["whole"] or 0) < 0.5 else "yes",
        ]
        for key, groups in reliability.items() if groups
        for group, row in groups.items()
    ]  # fmt: skip
    return Table(
        ["", "weights", "μ: between halves", "μ: whole chain", "σ: between halves",
         "σ: whole chain", "σ measurable"],
        rows, title="Split-half reliability of μ and σ",
        note="Correlations over weights. Of the whole chain: 2r / (1 + r), what a repetition of it "
        "would correlate. Below 0.5 noise is more than half of what is seen: not measurable.",
    )  # fmt: skip


def _similarity(similarity: dict) -> Table:
    rows = [
        [
            f"by {matching}",
            *(with_known_error(each["cosine"], each["error"], 3) for each in kinds.values()),
        ]
        for matching, kinds in similarity.items()
    ]
    heads = {"samples": "two samples", "sample and prior": "sample and network from the prior",
             "prior": "two networks from the prior"}  # fmt: skip
    first = next(iter(similarity.values()))
    return Table(
        ["mean cosine of matched units", *(heads[kind] for kind in first)], rows,
        title="Is there anything to align?",
        note="If units of networks from the prior match as well as those of samples, the "
        "similarity says nothing about the posterior.",
    )  # fmt: skip


def _noise(noise: dict, ways: dict, names: dict) -> Table:
    rows = [
        [
            _title(key, names),
            f"{100 * ways[key]['remaining_variance']:.2f} %",
            f"{100 * left:.2f} %",
        ]
        for key, left in noise.items()
    ]
    return Table(
        ["", "samples", "networks from the prior"], rows,
        title="Variance left after rebasin, of samples and of noise",
        note="Live weights. What rebasin removes from networks of the prior is alignment of noise; "
        "these are as many as the study's samples, so they lose more the fewer they are.",
    )  # fmt: skip


def _cross_fitted(found: dict, names: dict) -> Table:
    truth = next(iter(names.values()))
    parts = ("mean", "std", "null")
    rows = [
        [f"{truth} and {names[name]}"]
        + [with_known_error(row[p], row.get(f"{p}_error"), 3, sign="+") for p in parts]
        for name, row in found.items()
    ]
    return Table(
        ["", "μ", "σ", f"μ, networks from the prior in place of {truth}'s"], rows,
        title="Weight by weight, cross-fitted",
        note="Units are matched on half of the pixels, and the weights of the other half are "
        "correlated, so alignment of noise has no part in it. Errors: hidden units and blocks of "
        "samples are resampled; a distribution's training is not.",
    )  # fmt: skip


@figure(
    "eval", "diagnostics.json", "Noise on dead pixels",
    caption="Accuracy and calibration on test images with Gaussian noise on the pixels that are "
    "zero in all training images. The data say nothing about their weights: exact Bayesian model "
    "averaging keeps the prior's, so that noise reaches the prediction.",
)  # fmt: skip
def noise_on_dead_pixels(source: Path) -> Figure:
    """Draw accuracy and ECE of every posterior against the noise."""
    results = json.loads(Path(source).read_text())
    names, found = results["names"], results["limits"]["dead_pixels"]
    drawn, (axes,) = panels(1, 2, width=3.8, height=3.0)
    parts = (("accuracy", 100, "test accuracy [%]"), ("ece", 1, "expected calibration error"))
    for axis, (part, factor, label) in zip(axes, parts, strict=True):
        for color, (name, rows) in zip(
            NOISE_COLORS, found["rows"].items() if found else (), strict=False
        ):
            noise = [row["noise"] for row in rows]
            values = [factor * row[part] for row in rows]
            axis.plot(noise, values, color=color, marker="o", label=_title(name, names))
        axis.set(xlabel="deviation of the noise on dead pixels", ylabel=label)
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return drawn
