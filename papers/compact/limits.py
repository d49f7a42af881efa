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
    null = limits.get("null", {})  # evaluations of earlier versions have none
    if all(limits["reliability"].values()):
        tables.append(_reliability(limits["reliability"], null, names))
    tables.append(_similarity(limits["similarity"]))
    if null:
        tables.append(_null(null, diagnostics, names))
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
    if limit := draws["limit"]:
        cells = [with_known_error(limit[s], limit.get(f"{s}_error"), 3) for s in scores]
        rows.append(["∞ (extrapolated)", *cells])
    return Table(
        ["draws", "agreement", "TV"], rows, title="q_r by the number of draws",
        note="Agreement depends on how many draws are averaged: it is no property of q_r alone. "
        "The last row is a of a + b/√n from 50 draws on, with its jackknife error. Errors are over "
        "disjoint batches of draws.",
    )  # fmt: skip


def _held_out(held_out: dict, names: dict) -> Table:
    scores = ("agreement", "total_variation", "nll", "ece")
    rows = []
    for name, found in held_out.items():
        kind, comma, how = name.partition(", ")
        title = f"{kind}, {_title(how, names)}" if comma else f"{kind} of the first half"
        cells = [
            with_known_error(found.get(s), found.get(f"{s}_error"), 3)
            for s in (*scores, "accuracy")
        ]
        rows.append([title, *cells])
    return Table(
        ["fitted to the first half of the chain", "agreement", "TV", "NLL", "ECE", "accuracy"],
        rows,
        title="Held out: compared with the second half of the chain",
        note="Shuffled: units of every sample in random order, the control for what rebasin adds. "
        "A Gaussian takes as many numbers as two samples. Errors are over disjoint sets of samples "
        "that lie far apart in the chain.",
    )  # fmt: skip


def _reliability(reliability: dict, null: dict, names: dict) -> Table:
    rows = [
        [
            _title(key, names), group,
            *(number(row[part][of], 3) for part in ("mean", "std") for of in ("halves", "whole")),
            *(number(_null_halves(null, key, group, part), 3) for part in ("mean", "std")),
            *(
                "yes" if _measurable(row[part], _null_halves(null, key, group, part)) else "no"
                for part in ("mean", "std")
            ),
        ]
        for key, groups in reliability.items() if groups
        for group, row in groups.items()
    ]  # fmt: skip
    return Table(
        ["", "weights", "μ: between halves", "μ: whole chain", "σ: between halves",
         "σ: whole chain", "μ of the prior", "σ of the prior", "μ measured", "σ measured"],
        rows, title="Split-half reliability of μ and σ",
        note="Correlations over weights. Of the whole chain: 2r / (1 + r), what a repetition of it "
        "would correlate. Of the prior: halves of networks from the prior, which only alignment to "
        "the same reference makes alike. Measured: at least 0.5 for the whole chain, and twice as "
        "much between its halves as between those of the prior.",
    )  # fmt: skip


def _null_halves(null: dict, key: str, group: str, part: str) -> float | None:
    rows = null.get(key, {}).get("reliability")
    return rows[group][part]["halves"] if rows else None


def _measurable(found: dict, null: float | None) -> bool:
    """Tell whether most of what is seen is no noise, and most of it no work of the alignment."""
    return (found["whole"] or 0) >= 0.5 and found["halves"] >= 2 * (null or 0)


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


def _null(null: dict, diagnostics: dict, names: dict) -> Table:
    ways, rows = diagnostics["ways"], []
    for key, found in null.items():
        kept = ways[key]["remaining_variance"] if key in ways else None
        rows.append(
            [
                _title(key, names), _percent(kept), _percent(found["remaining_variance"]),
                number(found["closeness"]["agreement"], 3),
                number(found["closeness"]["total_variation"], 3),
            ]
        )  # fmt: skip
    return Table(
        ["", "variance left: samples", "of the prior", "agreement of the prior's q_r", "its TV"],
        rows, title="Rebasin of networks from the prior, the null of every way",
        note="Variance of live weights, relative to before rebasin. What rebasin removes from "
        "networks of the prior is alignment of noise; these are as many as the study's samples, so "
        "they lose more the fewer they are.",
    )  # fmt: skip


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f} %"


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
    """Draw accuracy and ECE of every posterior against the noise; of those beside them below."""
    results = json.loads(Path(source).read_text())
    names, found = results["names"], results["limits"]["dead_pixels"]
    groups = [each for each in (found["rows"], found.get("beside")) if each] if found else [{}]
    drawn, grid = panels(len(groups), 2, width=3.8, height=3.2)
    parts = (("accuracy", 100, "test accuracy [%]"), ("ece", 1, "expected calibration error"))
    for axes, rows in zip(grid, groups, strict=True):
        for axis, (part, factor, label) in zip(axes, parts, strict=True):
            for color, (name, row) in zip(NOISE_COLORS, rows.items(), strict=False):
                noise = [each["noise"] for each in row]
                values = [factor * each[part] for each in row]
                title = _title(name, names).replace("_", " ").replace(" q r", " q_r")
                axis.plot(noise, values, color=color, marker="o", label=title)
            axis.set(xlabel="deviation of the noise on dead pixels", ylabel=label)
        axes[0].set_ylim(*grid[0][0].get_ylim())
        axes[1].set_ylim(*grid[0][1].get_ylim())
        axes[0].legend(fontsize="small")
    return drawn
