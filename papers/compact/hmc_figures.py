"""Figures and tables of HMC under priors of different width, and beside biased samplers."""

import json
from pathlib import Path

from utils.methods.registry import METHODS
from utils.report.figures import BLUE, GREEN, GREY, ORANGE, Look, panels, styled
from utils.report.tables import Table, number, with_error
from utils.runs.files import read_records

from matplotlib.figure import Figure

LOOKS = {  # by column and score
    ("hmc", "sample"): (Look(BLUE), "HMC"),
    ("q_r", "sample"): (Look(ORANGE, "--", "s"), "q_r"),
    ("q_r", "mean"): (Look(GREEN, ":", "^"), "μ_r"),
}


@styled
def prior_width(source: Path) -> Figure:
    """Draw scores of HMC, of q_r's draws and of μ_r by the prior's σ, and the cost of HMC.

    The grey line is the ECE that calibrated predictions as sure as HMC's would have.
    """
    widths = json.loads(source.read_text())
    drawn, axes = panels(2, 3, height=2.6)
    rows = [
        (axes[0, 0], "accuracy [%]", [("hmc", "sample_accuracy"), ("q_r", "sample_accuracy"),
                                      ("q_r", "mean_accuracy")]),
        (axes[0, 1], "NLL [nats]", [("hmc", "nll"), ("q_r", "nll")]),
        (axes[0, 2], "ECE", [("hmc", "ece"), ("q_r", "ece")]),
        (axes[1, 0], "agreement with HMC", [("q_r", "agreement")]),
        (axes[1, 1], "TV to HMC", [("q_r", "total_variation")]),
    ]  # fmt: skip
    for axis, label, lines in rows:
        for column, name in lines:
            draw_line(axis, widths, column, name)
        axis.set(ylabel=label)
    sigmas = [each["prior_std"] for each in widths]
    null = [each["calibrated_ece"] for each in widths]
    axes[0, 2].plot(sigmas, null, color=GREY, label="calibrated")
    costs = [each["cost"]["steps_per_effective_sample"] for each in widths]
    axes[1, 2].plot(sigmas, costs, color=BLUE, marker="o", markersize=4)
    axes[1, 2].set(ylabel="steps per effective sample", yscale="log")
    for axis in axes.flat:
        axis.set(xlabel="σ of the prior", xscale="log", xticks=sigmas)
        axis.set_xticklabels(map(sigmas_of, widths))
        axis.minorticks_off()
    for axis in axes[0]:
        axis.legend()
    return drawn


def sigmas_of(width: dict) -> str:
    """Return σ of each layer, or of all."""
    return ", ".join(f"{std:.4g}" for std in width["stds"])


def draw_line(axis, widths: list[dict], column: str, name: str) -> None:
    look, label = LOOKS[column, "mean" if name == "mean_accuracy" else "sample"]
    factor = 100 if name.endswith("accuracy") else 1
    values, errors = (
        [factor * (each[column][part][name] or 0) for each in widths]
        for part in ("values", "errors")
    )
    axis.errorbar(
        [each["prior_std"] for each in widths], values, errors, label=label, color=look.color,
        linestyle=look.line, marker=look.marker, markersize=4, linewidth=1.2,
    )  # fmt: skip


WIDTH_COLUMNS = (  # heading, column, score, factor, digits
    ("HMC: accuracy (%)", "hmc", "sample_accuracy", 100, 2),
    ("NLL", "hmc", "nll", 1, 3),
    ("ECE", "hmc", "ece", 1, 3),
    ("q_r: agreement", "q_r", "agreement", 1, 3),
    ("TV", "q_r", "total_variation", 1, 3),
    ("accuracy (%)", "q_r", "sample_accuracy", 100, 2),
    ("NLL of q_r", "q_r", "nll", 1, 3),
    ("accuracy of μ_r (%)", "q_r", "mean_accuracy", 100, 2),
)


def width_table(widths: list[dict]) -> Table:
    """Return a row for each σ."""
    last = ["steps per effective sample", "largest R-hat"]
    rows = []
    for each in widths:
        cells = []
        for _, column, name, factor, digits in WIDTH_COLUMNS:
            value, error = (each[column][part][name] for part in ("values", "errors"))
            cells.append(with_error(value, error, digits, factor))
        cost = each["cost"]
        steps = number(cost["steps_per_effective_sample"], 0)
        rows.append([sigmas_of(each), *cells, steps, number(cost["largest_rhat"], 3)])
    return Table(["σ", *(column[0] for column in WIDTH_COLUMNS), *last], rows)


# ---- samplers without an accept step: cells.jsonl

SAMPLER_LOOKS = {"sgld": Look(BLUE, "-", "o"), "sghmc": Look(ORANGE, "--", "s")}
MOMENT_LINES = ("-", "--", ":", "-.")


@styled
def sampler_bias(source: Path) -> Figure:
    """Draw SGLD and SGHMC beside exact HMC on the same posterior, by step size.

    The grey line is between two halves of HMC's samples. Shifts are root mean squares in standard
    deviations of functionals without labels; biases are relative, of weights whose pixels are used.
    """
    hmc, *cells = read_records(source)
    drawn, axes = panels(2, 2, width=3.8)
    axes = axes.flatten()
    axes[0].axhline(hmc["halves"]["total_variation"], color=GREY, linewidth=1)
    for method in dict.fromkeys(cell["method"] for cell in cells):
        ours = [cell for cell in cells if cell["method"] == method and not cell["diverged"]]
        look, title = SAMPLER_LOOKS[method], METHODS[method].title
        rates = [cell["rate"] for cell in ours]
        style = {"color": look.color, "marker": look.marker, "markersize": 4, "linewidth": 1.2}
        for axis, name in ((axes[0], "total_variation"), (axes[1], "nll_difference")):
            errors = [cell[f"{name}_error"] for cell in ours]
            values = [cell[name] for cell in ours]
            axis.errorbar(rates, values, errors, label=title, linestyle=look.line, **style)
        shifts = [cell["shift"]["root_mean_square"] for cell in ours]
        axes[2].plot(rates, shifts, label=title, linestyle=look.line, **style)
        tensors = list(ours[0]["second_moments"])[: len(MOMENT_LINES)] if ours else []
        for tensor, line in zip(tensors, MOMENT_LINES, strict=False):
            moments = [cell["second_moments"][tensor] for cell in ours]
            axes[3].errorbar(
                rates, [each["bias"] for each in moments], [each["error"] for each in moments],
                label=f"{title}, {tensor}", linestyle=line, **style,
            )  # fmt: skip
    labels = ("TV to HMC", "NLL − HMC's [nats]", "shift of functionals [sd]",
              "bias of second moments")  # fmt: skip
    for axis, label in zip(axes, labels, strict=True):
        axis.set(xlabel="step size (learning rate)", ylabel=label, xscale="log")
        axis.legend(fontsize=6)
    return drawn


def bias_table(records: list[dict]) -> Table:
    """Return a row for each sampler and step size."""
    hmc, *cells = records
    tensors = next((list(c["second_moments"]) for c in cells if not c["diverged"]), [])
    moments = [f"second moment, {tensor}" for tensor in tensors]
    names = ("agreement", "TV", "NLL − HMC's", "shift [sd]", "beyond 3 errors", "temperature")
    halves = [number(hmc["halves"][name], 4) for name in ("agreement", "total_variation")]
    rows = [["HMC's halves", "", *halves, *[""] * (4 + len(moments))]]
    for cell in cells:
        start = [METHODS[cell["method"]].title, f"{cell['rate']:g}"]
        if cell["diverged"]:
            rows.append([*start, "diverged", *[""] * (5 + len(moments))])
            continue
        scores = [
            with_error(cell[name], cell[f"{name}_error"], 4)
            for name in ("agreement", "total_variation", "nll_difference")
        ]
        shift = cell["shift"]
        rows.append([
            *start, *scores, number(shift["root_mean_square"], 2),
            f"{100 * shift['share_beyond_3_errors']:.0f} %", number(cell["temperature"], 3),
            *(with_error(m["bias"], m["error"], 4, sign="+")
              for m in cell["second_moments"].values()),
        ])  # fmt: skip
    return Table(["sampler", "step size", *names, *moments], rows)
