"""Figure and table of HMC and q_r under priors of different width."""

import json
from pathlib import Path

from utils.report.figures import BLUE, GREEN, GREY, ORANGE, Look, panels
from utils.report.paper import figure
from utils.report.tables import number, with_error

from matplotlib.figure import Figure

LOOKS = {  # by column and score
    ("hmc", "sample"): (Look(BLUE), "HMC"),
    ("q_r", "sample"): (Look(ORANGE, "--", "s"), "q_r"),
    ("q_r", "mean"): (Look(GREEN, ":", "^"), "μ_r"),
}


@figure(
    "prior_width", "widths.json", "Width of the prior",
    "Scores of HMC, of draws from q_r and of the one network at its mean μ_r, against the prior's "
    "σ, with standard errors; and what an effective sample of the test log-likelihood costs HMC. "
    "The grey line is the ECE that calibrated predictions as sure as HMC's would have.",
)  # fmt: skip
def prior_width(source: Path) -> Figure:
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
        axis.set_xticklabels([f"{sigma:g}" for sigma in sigmas])
        axis.minorticks_off()
    for axis in axes[0]:
        axis.legend()
    return drawn


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


COLUMNS = (  # heading, column, score, factor, digits
    ("HMC: accuracy (%)", "hmc", "sample_accuracy", 100, 2),
    ("NLL", "hmc", "nll", 1, 3),
    ("ECE", "hmc", "ece", 1, 3),
    ("q_r: agreement", "q_r", "agreement", 1, 3),
    ("TV", "q_r", "total_variation", 1, 3),
    ("accuracy (%)", "q_r", "sample_accuracy", 100, 2),
    ("NLL of q_r", "q_r", "nll", 1, 3),
    ("accuracy of μ_r (%)", "q_r", "mean_accuracy", 100, 2),
)


def width_rows(widths: list[dict]) -> list[list[str]]:
    """Return a row for each σ, the heading first."""
    last = ["steps per effective sample", "largest R-hat"]
    rows = [["σ", *(column[0] for column in COLUMNS), *last]]
    for each in widths:
        cells = []
        for _, column, name, factor, digits in COLUMNS:
            value, error = (each[column][part][name] for part in ("values", "errors"))
            cells.append(with_error(value, error, digits, factor))
        cost = each["cost"]
        steps = number(cost["steps_per_effective_sample"], 0)
        rows.append([f"{each['prior_std']:g}", *cells, steps, number(cost["largest_rhat"], 3)])
    return rows
