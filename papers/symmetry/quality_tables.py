"""The table of posteriors: scores, distances to both references, power and time."""

from dataclasses import replace

from utils.distances.spaces import TITLES
from utils.quality.scores import QUALITY
from utils.report.tables import Table, number, with_known_error

REFERENCES = ("networks", "hmc")
UNCONVERGED = "†"
IN_TABLE = (
    "accuracy", "nll", "brier", "ece", "adaptive_ece", "scaled_ece", "auroc", "aupr_in",
    "aupr_out", "fpr95_in", "mi_inside", "mi_outside",
)  # fmt: skip


def quality_tables(rows: list[dict], summary: dict) -> list[Table]:
    """Return the tables of scores, of distances to each reference, and of power."""
    powers = summary["power"]
    tables = [quality_table(rows, summary), closeness_table(rows)]
    tables += [distance_table(rows, name) for name in powers]
    tables = [explained(table) for table in tables]
    return [*tables, *(power_table(power, name) for name, power in powers.items())]


def explained(table: Table) -> Table:
    """Add to the note what the mark of some rows means, if there are any."""
    if not any(UNCONVERGED in line[0] for line in table.rows):
        return table
    meaning = f"{UNCONVERGED} Training had not converged: more epochs would fit better."
    return replace(table, note=f"{table.note} {meaning}")


def row_name(row: dict) -> list[str]:
    """Return the cells that say which row it is; tables of earlier versions have no `converged`."""
    mark = f" {UNCONVERGED}" if row.get("converged") is False else ""
    other_half = ", other half" if row["name"] in REFERENCES else ""
    mean = f" (mean of {row['averaged']})" if row["averaged"] > 1 else ""
    samples = "–" if row["samples"] is None else str(row["samples"])
    return [f"{row['name']}{other_half}{mark}", f"{row['num_modes']}{mean}", samples]


def quality_table(rows: list[dict], summary: dict) -> Table:
    metrics = [QUALITY[name] for name in IN_TABLE]
    lines = [
        [
            *row_name(row), *(score_cell(row, metric) for metric in metrics),
            *(number(row[f"{name}_seconds"], 1) for name in ("training", "sampling", "prediction")),
        ]
        for row in rows
    ]  # fmt: skip
    head = ["posterior", "modes", "samples", *(metric.heading for metric in metrics)]
    inside, outside = (100 * summary[f"base_rate_{side}"] for side in ("in", "out"))
    return Table(
        [*head, "training", "sampling", "prediction"], lines,
        title="Scores",
        note="± standard errors over modes, not over test images, which all rows share. Modes of "
        "HMC are contiguous pieces of its chains. Rows of one posterior have equally many samples, "
        "except for single networks. ECE has bins of "
        "equal width, adaptive ECE of equal mass; ECE after scaling uses a temperature fitted to "
        "held-out test images and is probably the paper's ACE. In: test images are the positive "
        f"class; out: those of {summary['ood']}. AUPR by chance is {inside:.0f} % and "
        f"{outside:.0f} %. Training (of all modes of the row), sampling and prediction are in "
        "core-seconds.",
    )  # fmt: skip


def score_cell(row: dict, metric) -> str:
    factor, digits = metric.shown
    value, error = (row[part].get(metric.name) for part in ("scores", "errors"))
    return with_known_error(value, error, digits, factor)


def closeness_table(rows: list[dict]) -> Table:
    names = list(rows[0]["beside"])
    head = ["posterior", "modes", "samples"]
    for name in names:
        head += [f"agreement, {name} ↑", f"TV, {name} ↓"]
    lines = [
        [
            *row_name(row),
            *(closeness_cell(row, name, key) for name in names
              for key in ("agreement", "total_variation")),
        ]
        for row in rows
    ]  # fmt: skip
    return Table(
        head, lines, title="Predictions beside the references",
        note="± standard errors over the modes of the row.",
    )  # fmt: skip


def closeness_cell(row: dict, reference: str, key: str) -> str:
    value, error = (row[part][reference][key] for part in ("beside", "beside_errors"))
    return with_known_error(value, error, 4)


def distance_table(rows: list[dict], reference: str) -> Table:
    spaces = {**TITLES, "classifier": "classifier"}
    lines = [
        [*row_name(row), *(distance_cell(row, reference, space) for space in spaces)]
        for row in rows
        if row["distances"].get(reference)
    ]
    other = [row for row in rows if row["name"] == reference][-1]
    band = ["null, other half", "", ""]
    for space in spaces:
        null = other["distances"][reference].get(space, {})
        low, high = (number(null.get(end), 4) for end in ("low", "high"))
        band.append(f"{low} to {high}")
    return Table(
        ["posterior", "modes", "samples", *spaces.values()], [band, *lines],
        title=f"MMD² to {reference}",
        note="Unbiased, so 0 on average for equal distributions; pairs of samples of one mode do "
        "not count, unless there is no other one. * has p < 0.05 by permuting modes: it is beyond "
        "the 95 % quantile (≤) of the row's own null. The first line has the null's 5 % and 95 % "
        "quantiles. A row of one mode has no null. Sorted and rebased weights are without "
        "symmetries (NS). The last column is the accuracy of a classifier between both sets: 0.5 "
        "is chance.",
    )  # fmt: skip


def distance_cell(row: dict, reference: str, space: str) -> str:
    cell = row["distances"][reference].get(space, {})
    value, error, high, p = (cell.get(name) for name in ("value", "error", "high", "p"))
    if value is None:
        return "–"
    star = "*" if p is not None and p < 0.05 else ""
    spread = "" if error is None else f" ± {number(error, 4)}"
    limit = "" if high is None else f" (≤ {number(high, 4)})"
    return f"{number(value, 4)}{star}{spread}{limit}"


def power_table(power: dict, reference: str) -> Table:
    changes = list(next(iter(power.values())))
    lines = [
        [TITLES[space], *(number(found[change], 2) for change in changes)]
        for space, found in power.items()
    ]
    return Table(
        ["compared by", *changes], lines,
        title=f"How often changes planted in {reference} are found",
        note="Half of the reference beside the other half with the change: the share of splits "
        "above the null's band.",
    )  # fmt: skip
