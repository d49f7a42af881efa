"""The table of posteriors: scores, distances to both references, power and time."""

from dataclasses import replace

from papers.symmetry.values import SIGNIFICANT
from utils.distances.spaces import TITLES
from utils.quality.scores import QUALITY
from utils.report.tables import Table, number, with_known_error

REFERENCES = ("networks", "hmc")
UNCONVERGED = "†"
WEIGHTS = {"weights": "weights", "canonical": "weights, sorted", "rebased": "weights, rebased"}
ORDERED = {"total_variation": "TV of averages", **TITLES}  # what orders of rows are of
SCORES = {  # that distances are related to
    "accuracy": "accuracy", "brier": "Brier score", "ece": "ECE", "aupr_in": "AUPR in",
    "fpr95_in": "FPR95 in",
}  # fmt: skip
IN_TABLE = (
    "accuracy", "nll", "brier", "ece", "adaptive_ece", "scaled_ece", "auroc", "aupr_in",
    "aupr_out", "fpr95_in", "mi_inside", "mi_outside",
)  # fmt: skip


def quality_tables(rows: list[dict], summary: dict, related: dict) -> list[Table]:
    """Return the tables of scores, distances to each reference, orders, correlations and power.

    Runs of earlier versions have neither orders, nor correlations beside HMC, nor power of modes.
    """
    powers, few = summary["power"], summary.get("power_of_modes", {})
    tables = [quality_table(rows, summary), closeness_table(rows)]
    tables += [distance_table(rows, name) for name in powers]
    tables = [explained(table) for table in tables]
    if related.get("orders"):
        tables.append(order_table(related["orders"]))
    if related["rows"] or related["modes"]:
        tables.append(correlation_table(related))
    return [*tables, *(power_table(power, few.get(name, {}), name)
                       for name, power in powers.items())]  # fmt: skip


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
        "the 95 % quantile (≤) of the row's own null, the smallest MMD² that it could have shown. "
        "A smaller difference is possible without *. The first line has the null's 5 % and 95 % "
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


def order_table(orders: dict) -> Table:
    """Return how alike the orders of rows by distance to the networks and to HMC are."""
    lines = []
    for measure, order in orders.items():
        several = order["several"]
        cells = [with_interval(each, "tau") if each else "–" for each in (order, several)]
        counts = [str(each["count"]) if each else "–" for each in (order, several)]
        lines.append([ORDERED[measure], counts[0], cells[0], counts[1], cells[1]])
    return Table(
        ["distance", "rows", "τ", "rows of several modes", "their τ"], lines,
        title="Orders by distance to the networks and to HMC",
        note="Kendall's τ of pairs of rows with equally many modes, with its 95 % interval by "
        "resampling methods, each with all its rows. Rows that no reference can tell apart are in "
        "an order by chance, which brings τ nearer to 0.",
    )  # fmt: skip


def correlation_table(related: dict) -> Table:
    """Return correlations of distances of weights with scores, beside both references."""
    columns = {
        f"{over} beside {reference}": found[over]
        for reference, found in zip(REFERENCES, (related, related.get("hmc", {})), strict=True)
        for over in ("rows", "modes")
        if found.get(over)
    }
    names = [f"{space}/{score}" for space in WEIGHTS for score in SCORES]
    tests = len(names)
    lines = [
        [
            WEIGHTS[name.split("/")[0]], SCORES[name.split("/")[1]],
            *(correlation_cell(cells.get(name), tests) for cells in columns.values()),
        ]
        for name in names
    ]  # fmt: skip
    return Table(
        ["MMD² of", "score", *columns], lines,
        title="Distances and scores",
        note="Spearman's ρ with its 95 % interval: over rows, by ranks within those of one mode "
        "and of several, and over single modes, by ranks within each method. * has p < "
        f"{SIGNIFICANT} after correction for the {tests} tests of a column.",
    )  # fmt: skip


def correlation_cell(cell: dict | None, tests: int) -> str:
    if cell is None or cell["rho"] is None:
        return "–"
    return with_interval(cell, "rho") + ("*" if tests * cell["p"] < SIGNIFICANT else "")


def with_interval(cell: dict, name: str) -> str:
    value, low, high = (number(cell[each], 2) for each in (name, "low", "high"))
    return f"{value} ({low} to {high})"


def power_table(power: dict, few: dict, reference: str) -> Table:
    """Return the shares of planted changes found by half of a reference, and by a row's modes."""
    changes = list(next(iter(power.values())))
    lines = [
        [TITLES[space], *(power_cell(found[change], few.get(space, {}).get(change))
                          for change in changes)]
        for space, found in power.items()
    ]  # fmt: skip
    by_modes = (
        " In brackets: a half beside as many changed networks, or pieces of chains, as rows of "
        "several modes have modes. Tests of these rows have about this power."
    )
    return Table(
        ["compared by", *changes], lines,
        title=f"How often changes planted in {reference} are found",
        note="Half of the reference beside the other half with the change: the share of splits "
        f"above the null's band.{by_modes if few else ' Rows of fewer modes find less.'}",
    )  # fmt: skip


def power_cell(share: float | None, by_modes: float | None) -> str:
    return number(share, 2) + (f" ({number(by_modes, 2)})" if by_modes is not None else "")
