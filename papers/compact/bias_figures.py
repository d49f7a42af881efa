"""Figure and table of how biased samplers without an accept step are."""

from pathlib import Path

from utils.methods.registry import METHODS
from utils.report.figures import BLUE, GREY, ORANGE, Look, panels
from utils.report.paper import figure
from utils.report.tables import number, with_error
from utils.runs.files import read_records

from matplotlib.figure import Figure

LOOKS = {"sgld": Look(BLUE, "-", "o"), "sghmc": Look(ORANGE, "--", "s")}
MOMENT_LINES = ("-", "--", ":", "-.")


@figure(
    "sampler_bias", "cells.jsonl", "Bias of samplers without an accept step",
    "SGLD and SGHMC beside exact HMC on the same posterior, by step size, with standard errors: TV "
    "of predictions (grey: between two halves of HMC's samples), difference of the test NLL from "
    "HMC's, root mean square shift of functionals without labels in their standard deviations, and "
    "relative bias of second moments of weights whose pixels are used, by tensor.",
)  # fmt: skip
def sampler_bias(source: Path) -> Figure:
    hmc, *cells = read_records(source)
    drawn, axes = panels(2, 2, width=3.8)
    axes = axes.flatten()
    axes[0].axhline(hmc["halves"]["total_variation"], color=GREY, linewidth=1)
    for method in dict.fromkeys(cell["method"] for cell in cells):
        ours = [cell for cell in cells if cell["method"] == method and not cell["diverged"]]
        look, title = LOOKS[method], METHODS[method].title
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


def bias_rows(records: list[dict]) -> list[list[str]]:
    """Return a row for each sampler and step size, the heading first."""
    hmc, *cells = records
    tensors = next((list(c["second_moments"]) for c in cells if not c["diverged"]), [])
    moments = [f"second moment, {tensor}" for tensor in tensors]
    names = ("agreement", "TV", "NLL − HMC's", "shift [sd]", "beyond 3 errors", "temperature")
    rows = [["sampler", "step size", *names, *moments]]
    halves = [number(hmc["halves"][name], 4) for name in ("agreement", "total_variation")]
    rows.append(["HMC's halves", "", *halves, *[""] * (4 + len(moments))])
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
    return rows
