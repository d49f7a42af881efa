"""Results as lines of text, ours beside the paper's."""

import math
from pathlib import Path

from utils.evaluation.columns import COLUMNS
from utils.evaluation.diagnostics import FEWEST_DRAWS

import yaml

PAPER_VALUES = Path(__file__).resolve().parents[2] / "papers" / "compact" / "values.yaml"


def paper_table1(dataset: str) -> dict[str, dict[str, float]]:
    """What the paper prints in its Table 1: {column: {row: value}}; of MNIST alone, else {}."""
    return yaml.safe_load(PAPER_VALUES.read_text())["table1"] if dataset == "MNIST" else {}


def number(value: float | None, digits: int, sign: str = "") -> str:
    """A dash stands for what is not finite, which JSON files have as null."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:{sign}.{digits}f}".replace("-", "−")


def column_name(column: str, label: str) -> str:
    """How a column of Table 1 is called, if `label` stands in HMC's place."""
    return COLUMNS[column] if label == "HMC" else COLUMNS[column].removeprefix("HMC ")


def table_rows(
    table: dict, errors: dict, paper: dict, rows: tuple[str, ...], label: str = "HMC"
) -> list[list[str]]:
    """A line per column of the table: its name, then each score as "ours ± error (paper's)"."""
    lines = []
    for name, column in table.items():
        line = [column_name(name, label)]
        for row in rows:
            cell = "–"
            if row in column:
                cell = f"{number(column[row], 4)} ± {number(errors[name][row], 4)}"
                published = paper.get(name, {}).get(row)
                cell += "" if published is None else f" ({number(published, 4)})"
            line.append(cell)
        lines.append(line)
    return lines


def table_numbers(
    table: dict, errors: dict, paper: dict, rows: tuple[str, ...], label: str = "HMC"
) -> tuple[list[str], list[list]]:
    """Headings and lines of the same as numbers: each score, its error, and the paper's if any."""
    parts = {"": table, " ±": errors, " paper": paper}
    shown = [
        (row, suffix) for row in rows for suffix, part in parts.items()
        if any(row in column for column in part.values())
    ]  # fmt: skip
    lines = [
        [column_name(name, label), *(parts[suffix].get(name, {}).get(row) for row, suffix in shown)]
        for name in table
    ]
    return ["posterior", *(row + suffix for row, suffix in shown)], lines


def print_table(lines: list[list[str]]) -> None:
    """Lines of cells, the first with the headings, as columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def method_names(label: str) -> dict[str, str]:
    """How methods are called, if `label` stands in HMC's place."""
    return METHODS | {"hmc": label}


def samples_of(label: str) -> str:
    return "HMC samples" if label == "HMC" else label


def summary_lines(diagnostics: dict) -> list[str]:
    """The checks and findings of an evaluation, a line each."""
    return [
        *_dead_pixel_lines(diagnostics),
        *_mixing_lines(diagnostics["mixing"]),
        *_prior_lines(diagnostics),
        *_transposition_lines(diagnostics),
        _low_rank_line(diagnostics),
        _halves_line(diagnostics),
    ]


def _dead_pixel_lines(diagnostics: dict) -> list[str]:
    check, rebased = diagnostics["dead_pixels"], diagnostics["dead_pixels_rebased"]
    vi = diagnostics["dead_pixels_vi"]
    if check is None:
        return ["Dead pixels: none in these images, so nothing to check against the prior."]
    suspect = "look at the sampler"
    if diagnostics["label"] != "HMC":
        suspect = "samples of this posterior would have it so"
    lines = [_dead_pixel_line("Dead pixels'", check, suspect)]
    if rebased:
        lines.append(_dead_pixel_line("After rebasin dead pixels'", rebased, suspect))
    if vi:
        lines.append(
            f"VI's σ of dead pixels' weights is {vi['std']:.4f} on average, their μ "
            f"{vi['root_mean_square']:.4f} in size: 1 and 0 once VI has converged"
        )
    return lines


def _dead_pixel_line(whose: str, check: dict, suspect: str) -> str:
    measured = (
        f"{whose} {check['weights']} weights: mean square {check['mean_square']:.4f} ± "
        f"{check['standard_error']:.4f}, average σ {check['std']:.4f}"
    )
    if check["passed"] is None:
        return f"{measured}; too few effective samples to hold them against the prior."
    verdict = "as the prior has it" if check["passed"] else f"NOT the prior's: {suspect}"
    return (
        f"{measured} ({check['std_expected']:.4f} expected of {check['effective_samples']:.0f} "
        f"effective samples): {verdict}."
    )


def _mixing_lines(mixing: dict) -> list[str]:
    if not any(mixing.values()):
        return [f"No R-hat, no ESS: chains have fewer than {FEWEST_DRAWS} samples, or stand still"]
    return [
        f"Weights {when} rebasin, {name}: median R-hat {number(numbers['median_rhat'], 3)}, "
        f"median ESS {number(numbers['median_ess'], 0)}"
        for when, groups in mixing.items()
        for name, numbers in groups.items()
    ]


def _prior_lines(diagnostics: dict) -> list[str]:
    label, lines = diagnostics["label"], []
    names = method_names(label)
    for frame, gaussians in diagnostics["average_std"].items():
        average = ", ".join(
            f"{names[name]} {groups['alive']:.3f}" for name, groups in gaussians.items()
        )
        lines.append(f"Average σ {frame} rebasin, without dead pixels' weights: {average}")
    for frame, found in diagnostics["at_prior"].items():
        low, high = found["band"]
        lines.append(
            f"{label} {frame} rebasin: {100 * found['share']['alive']:.1f} % of these weights have "
            f"a σ that can be the prior's ({low:.3f} to {high:.3f}; of draws from the prior 95 % "
            "have)"
        )
    return lines


def _transposition_lines(diagnostics: dict) -> list[str]:
    chain = diagnostics["transpositions"]["along_chain"][1:]
    null = diagnostics["prior_networks"]
    return [
        f"NoT of {samples_of(diagnostics['label'])} to the first: {sum(chain) / len(chain):.1f} "
        f"on average; of networks from the prior: {null['average_transpositions']:.1f}; of random "
        f"permutations: {diagnostics['transpositions']['random']:.1f}",
    ]


def _low_rank_line(diagnostics: dict) -> str:
    kept = diagnostics["low_rank"]
    return (
        f"The low-rank Gaussian has rank {kept['rank']} and "
        f"{100 * kept['variance_kept']:.1f} % of the samples' variance"
    )


def _halves_line(diagnostics: dict) -> str:
    halves = diagnostics["halves_of_hmc"]
    return (
        f"The two halves of {samples_of(diagnostics['label'])} agree on "
        f"{number(halves['agreement'], 4)} of the images, TV "
        f"{number(halves['total_variation'], 4)}: so far they know their own posterior"
    )


REFERENCE_HEADINGS = (
    "q_r of samples rebased to", "agreement", "TV", "accuracy", "of μ", "average σ",
    "μ with the reference", "of dead pixels", "μ with the first row's", "σ with the first row's",
    "average NoT",
)  # fmt: skip


def reference_rows(diagnostics: dict) -> list[list[str]]:
    """How q_r comes out with other references, and of networks from the prior; "with" tells
    correlations over weights."""
    rows = diagnostics["references"] | {"networks from the prior": diagnostics["prior_networks"]}
    scores = ("agreement", "total_variation", "sample_accuracy", "mean_accuracy", "average_std")
    alike = ("mean_with_reference", "dead_with_reference", "mean_with_first", "std_with_first")
    return [
        [
            name,
            *(number(row[score], 4) for score in scores),
            *(number(row.get(part), 3, "+") for part in alike),
            f"{row['average_transpositions']:.1f}",
        ]
        for name, row in rows.items()
    ]


ORDERS = {  # of weights, by which some are kept
    "std": "lowest σ", "abs_mean": "largest |μ|", "signal_to_noise": "largest |μ|/σ",
    "random": "chance",
}  # fmt: skip
METHODS = {"hmc": "HMC", "ensemble": "ensemble", "vi": "VI"}


def curve_title(curve: dict, names: dict[str, str]) -> str:
    """What is pruned, and by what."""
    method, part = curve["network"].split()
    part = {"mean": "μ", "single": "one network"}[part]
    whose = "" if curve["criterion"] == "random" else f" of {names[curve['by']]}"
    return f"{part} of {names[method]}, kept by {ORDERS[curve['criterion']]}{whose}"


def sparsity_table(pruning: dict) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a pruning.json: how much is zero when this much accuracy is lost."""
    curves, names = pruning["curves"], pruning.get("names", METHODS)
    losses = next(iter(curves["all"].values()))["sparsity"]
    columns = [(part, loss) for part in curves for loss in losses]
    headings = ["network, order", "accuracy whole"]
    headings += [
        f"zero at −{100 * float(loss):g} point{'s' if float(loss) > 0.01 else ''}, {part}"
        for part, loss in columns
    ]
    rows = []
    for name, curve in curves["all"].items():
        shares = [curves[part][name]["sparsity"][loss] for part, loss in columns]
        rows.append([curve_title(curve, names), f"{100 * curve['accuracy'][0]:.2f} %"])
        rows[-1] += [f"{100 * share:.0f} %" for share in shares]
    return headings, rows
