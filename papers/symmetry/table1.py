"""The paper's Table 1 beside ours: the scores that both have, and what several modes change."""

import math

from papers.symmetry.values import published
from utils.report.paper import CLEAR
from utils.report.tables import Table, with_known_error

COMPARED = {  # scores of the paper's table: our names, and titles
    "accuracy": ("accuracy", "accuracy ↑"),
    "ece": ("ece", "ECE ↓"),
    "ace": ("scaled_ece", "ECE after scaling ↓"),
    "brier": ("brier", "Brier ↓"),
    "fpr95": ("fpr95_out", "FPR95 ↓"),
    "mi_inside": ("mi_inside", "MI in"),
    "mi_outside": ("mi_outside", "MI out"),
}


def published_tables(rows: list[dict], network: str, dataset: str) -> list[Table]:
    """Return the paper's Table 1 with our rows, and what several modes change in both."""
    return [compared_scores(rows, network, dataset), compared_signs(rows, dataset)]


def published_rows() -> dict[str, dict[tuple[str, str], dict[str, float]]]:
    """Return the rows of the paper's Table 1 by data set, method and modes."""
    content = published("table1")
    columns = content.pop("columns")
    return {
        data: {
            (method, modes): dict(zip(columns, values, strict=True))
            for modes, methods in kinds.items()
            for method, values in methods.items()
        }
        for data, kinds in content.items()
    }


def compared_scores(rows: list[dict], network: str, dataset: str) -> Table:
    theirs, ours = published_rows(), {(row["name"], row["modes"]): row for row in rows}
    listed = dict.fromkeys(key for each in theirs.values() for key in each)
    methods = dict.fromkeys(method for method, _ in listed)
    lines = []
    for key in sorted(listed, key=lambda key: (list(methods).index(key[0]), key[1] != "one")):
        name = [key[0], "one" if key[1] == "one" else "several"]
        lines += [
            [*name, f"paper, {data}", *(str(values[key][score]) for score in COMPARED)]
            for data, values in theirs.items()
            if key in values
        ]
        if key in ours:
            lines.append([*name, f"ours, {dataset}", *map(_cell_of(ours[key]), COMPARED)])
    return Table(
        ["posterior", "modes", "of", *(title for _, title in COMPARED.values())], lines,
        title=f"Table 1: paper (ResNet-18) | ours ({network}, {dataset})",
        note="All numbers times 100: in %, but Brier scores (a sum over classes) and mutual "
        "information (MI, nats). Levels differ with network and data; what compares is the "
        "order of methods, and the signs below. The paper's MMD, NS and AUPR cannot be compared: "
        "they depend on the network, the data, the kernels' bandwidths and the base rate, which "
        "differ or are unknown. ECE after scaling stands beside the paper's ACE, which it probably "
        "is. Of FPR95 the paper does not say which images are positive; ours are those from "
        "elsewhere, as in TorchUncertainty. VI is the paper's viBNN, networks are its DE.",
    )  # fmt: skip


def _cell_of(row: dict):
    """Return the function that formats our value of one of the paper's scores."""

    def cell(name: str) -> str:
        score = COMPARED[name][0]
        return with_known_error(row["scores"][score], row["errors"].get(score), 1, 100)

    return cell


def compared_signs(rows: list[dict], dataset: str) -> Table:
    """Return the signs of what several modes change, by method, source and score."""
    theirs, ours = published_rows(), {(row["name"], row["modes"]): row for row in rows}
    lines, pairs = [], []  # pairs: the paper's sign in the first of its data sets, and ours
    for method in dict.fromkeys(method for each in theirs.values() for method, _ in each):
        keys = (method, "one"), (method, "multi")
        signs = {
            f"paper, {data}": signs_of_paper(*(values[key] for key in keys))
            for data, values in theirs.items()
            if all(key in values for key in keys)
        }
        if signs and all(key in ours for key in keys):
            found = signs_of_ours(*(ours[key] for key in keys))
            pairs += zip(next(iter(signs.values())), found, strict=True)
            signs[f"ours, {dataset}"] = found
        lines += [[method, source, *each] for source, each in signs.items()]
    clear = [pair for pair in pairs if pair[1] in "+−"]
    same = sum(paper == own for paper, own in clear)
    return Table(
        ["posterior", "of", *(title for _, title in COMPARED.values())], lines,
        title="Several modes minus one: the signs",
        note=f"Ours is “?” within {CLEAR} standard errors of 0. Of the {len(clear)} signs of ours "
        f"that are clear, {same} are the paper's with {next(iter(theirs))}.",
    )  # fmt: skip


def signs_of_paper(one: dict[str, float], several: dict[str, float]) -> list[str]:
    return [_sign(several[name] - one[name]) for name in COMPARED]


def signs_of_ours(one: dict, several: dict) -> list[str]:
    return [_sign(*change(one, several, score)) for score, _ in COMPARED.values()]


def change(one: dict, several: dict, score: str) -> tuple[float, float]:
    """Return by how much a score differs with several modes, and its standard error."""
    values, errors = ([row[part][score] for row in (several, one)] for part in ("scores", "errors"))
    if None in values:
        return math.nan, math.nan
    return values[0] - values[1], math.hypot(*(error or 0.0 for error in errors))


def _sign(value: float, error: float = 0.0) -> str:
    if math.isnan(value):
        return "–"
    return "?" if abs(value) <= CLEAR * error else "+" if value > 0 else "−"
