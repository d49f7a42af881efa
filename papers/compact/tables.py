"""The paper's tables from the result files of an evaluation and of a pruning."""

from pathlib import Path

from utils.evaluation.diagnostics import MIN_DRAWS
from utils.evaluation.metrics import METRICS, Metric
from utils.evaluation.predictions import columns_of
from utils.report.tables import Table, number, with_error, with_known_error

import yaml

PAPER_METHODS = {"hmc": "HMC", "ensemble": "ensemble", "vi": "VI"}
PAPERS_METRICS = ("agreement", "total_variation", "sample_accuracy", "mean_accuracy")


def metrics_of_tables() -> tuple[list[Metric], list[Metric]]:
    """Return the rows of the paper's Table 1, and all others: likelihood and calibration."""
    others = [metric for name, metric in METRICS.items() if name not in PAPERS_METRICS]
    return [METRICS[name] for name in PAPERS_METRICS], others


def published_table1(dataset: str) -> dict[str, dict[str, float]]:
    """Return the Table 1 that the paper prints as {column: {row: value}}; {} if not of MNIST."""
    values = yaml.safe_load(Path(__file__).with_name("values.yaml").read_text())
    return values["table1"] if dataset == "MNIST" else {}


def samples_of(label: str) -> str:
    return "HMC samples" if label == "HMC" else label


# ---- Table 1


def score_table(
    table: dict, errors: dict, published: dict, metrics: list[Metric], names: dict, **texts
) -> Table:
    """Return posteriors by scores: ours ± its standard error, and below it the paper's value."""
    columns, body = columns_of(names), []
    for key, scores in table.items():
        cells = [columns[key].title(names)]
        for metric in metrics:
            paper, name = published.get(key, {}).get(metric.name), metric.name
            known = name in scores
            cells.append(_score(metric, scores[name], errors[key][name], paper) if known else "–")
        body.append(cells)
    return Table(["", *(metric.heading for metric in metrics)], body, **texts)


def _score(
    metric: Metric, value: float | None, error: float | None, published: float | None
) -> str:
    factor, digits = metric.shown
    ours = with_error(value, error, digits, factor)
    return ours if published is None else f"{ours}\npaper {number(factor * published, digits)}"


def score_records(
    table: dict, errors: dict, published: dict, metrics: list[Metric], names: dict
) -> list[dict]:
    """Return the same as numbers: scores, errors and the paper's values."""
    parts = {"": table, " ±": errors, " paper": published}
    shown = [
        (metric.name, suffix) for metric in metrics for suffix, part in parts.items()
        if any(metric.name in scores for scores in part.values())
    ]  # fmt: skip
    columns = columns_of(names)
    return [
        {"posterior": columns[key].title(names)}
        | {name + suffix: parts[suffix].get(key, {}).get(name) for name, suffix in shown}
        for key in table
    ]


def ways_table(diagnostics: dict, table: dict) -> Table | str:
    """Return the ways of rebasin side by side: what they leave, and what their q_r predicts."""
    ways, names = diagnostics.get("ways"), diagnostics["names"]
    if not ways:
        return "Samples were rebased in the paper's way only."
    columns = columns_of(names)
    rows = [
        [
            columns[key].title(names),
            f"{100 * way['remaining_variance']:.2f} %",
            with_error(way["cycle_error"], way["cycle_error_se"], 3),
            number(table[key]["total_variation"], 3),
            number(table[key]["agreement"], 3),
            f"{100 * table[key]['mean_accuracy']:.2f} %",
            "–"
            if way["rounds"] is None
            else f"{way['rounds']}, " + ("at rest" if way["at_rest"] else "not converged"),
        ]
        for key, way in ways.items()
        if key in table
    ]
    scales = [
        f"{columns[key].title(names)}: {', '.join(f'{tau:g}' for tau in taus)}"
        for key, taus in diagnostics["scales"].items()
    ]
    note = (
        "Remaining variance: of all weights but those of dead pixels, in percent of that before "
        "rebasin. Cycle error: the share of units that do not come back if one sample is matched "
        "to another directly, and back through the common order."
    )
    chosen = f" τ chosen on training images: {'; '.join(scales)}." if scales else ""
    return Table(
        ["", "remaining variance", "cycle error", "TV ↓", "agreement ↑", "accuracy of μ", "rounds"],
        rows, title="Ways of rebasin", note=note + chosen,
    )  # fmt: skip


# ---- checks of an evaluation: diagnostics.json


def check_tables(diagnostics: dict) -> list[Table | str]:
    """Return the checks of an evaluation, and what the paper does not report."""
    return [
        _dead_pixel_table(diagnostics),
        _mixing_table(diagnostics["mixing"]),
        _sigma_table(diagnostics),
        _other_checks(diagnostics),
        reference_table(diagnostics),
    ]


def _dead_pixel_table(diagnostics: dict) -> Table | str:
    label, samples = diagnostics["label"], samples_of(diagnostics["label"])
    checks = {
        samples: diagnostics["dead_pixels"],
        f"{samples}, rebased": diagnostics["dead_pixels_rebased"],
    }
    if not any(checks.values()):
        return "No pixel is zero in all training images, so there is nothing to check on the prior."
    differs = "exact samples would not" if label != "HMC" else "look at the sampler"
    verdicts = {True: "yes", False: f"NO: {differs}", None: "too few effective samples to tell"}
    rows = [
        [
            name,
            with_error(check["mean_square"], check["standard_error"], 4),
            number(check["std"], 4),
            "–" if check["passed"] is None else number(check["std_expected"], 4),
            number(check["effective_samples"], 0),
            verdicts[check["passed"]],
        ]
        for name, check in checks.items()
        if check
    ]
    count = next(check["weights"] for check in checks.values() if check)
    return Table(
        ["", "mean square (prior: 1)", "average σ", "expected σ", "effective samples",
         "follows the prior"],
        rows,
        title="Weights of dead pixels",
        note=f"The data say nothing about these {count} weights, so exact samples of them follow "
        "the prior, in units of its σ.",
    )  # fmt: skip


def _mixing_table(mixing: dict) -> Table | str:
    if not any(mixing.values()):
        return f"No R-hat or ESS: chains have fewer than {MIN_DRAWS} samples or stand still."
    groups = list(dict.fromkeys(name for groups in mixing.values() for name in groups))
    parts = [("median_rhat", 3), ("median_ess", 0)]
    rows = [
        [
            name,
            *(
                number(mixing[frame].get(name, {}).get(part), digits)
                for part, digits in parts
                for frame in ("before", "after")
            ),
        ]
        for name in groups
    ]
    head = ["weights", "R-hat before rebasin", "R-hat after", "ESS before rebasin", "ESS after"]
    return Table(head, rows, title="Mixing of the weights (medians)")


def _sigma_table(diagnostics: dict) -> Table:
    names, frames = diagnostics["names"], ("before", "after")
    truth = next(iter(names))
    averages, prior = diagnostics["average_std"], diagnostics["at_prior"]
    shares = {f: f"{100 * prior[f]['share']['alive']:.1f} %" if f in prior else "–" for f in frames}
    rows = [
        [
            name,
            *(number(averages.get(f, {}).get(method, {}).get("alive"), 3) for f in frames),
            *(shares[f] if method == truth else "–" for f in frames),
        ]
        for method, name in names.items()
        if any(method in gaussians for gaussians in averages.values())
    ]
    low, high = next((found["band"] for found in prior.values()), (None, None))
    note = "Without the weights of dead pixels."
    if low is not None:
        note += (
            f" At the prior: between {number(low, 3)} and {number(high, 3)}, where σ of 95 % of "
            "draws from the prior lies."
        )
    head = ["", "average σ before rebasin", "after", "at the prior before rebasin", "after"]
    return Table(head, rows, title="Standard deviations of the weights", note=note)


def _other_checks(diagnostics: dict) -> Table:
    names = diagnostics["names"]
    samples, chain = samples_of(diagnostics["label"]), diagnostics["transpositions"]["along_chain"]
    average = sum(chain[1:]) / len(chain[1:])
    prior, halves = diagnostics["prior_networks"], diagnostics[f"halves_of_{next(iter(names))}"]
    rows = [
        [f"NoT of {samples} to the first, on average", number(average, 1)],
        ["NoT of networks from the prior", number(prior["average_transpositions"], 1)],
        ["NoT of random permutations", number(diagnostics["transpositions"]["random"], 1)],
        [f"Agreement between the two halves of {samples}", number(halves["agreement"], 4)],
        ["TV between these halves", number(halves["total_variation"], 4)],
    ]
    if kept := diagnostics.get("low_rank"):
        share = f"{100 * kept['variance_kept']:.1f} %"
        rows += [
            ["Rank of the low-rank Gaussian", str(kept["rank"])],
            ["Share of the samples' variance that it keeps", share],
        ]
    for name, title in names.items():
        if dead := diagnostics.get(f"dead_pixels_{name}"):
            rms = number(dead["root_mean_square"], 4)
            rows += [
                [f"{title}: average σ of dead pixels' weights (prior: 1)", number(dead["std"], 4)],
                [f"{title}: root mean square of their μ (prior: 0)", rms],
            ]
    note = "No approximation can be expected to agree with the samples more than their halves do."
    return Table(["", "value"], rows, title="Other checks", note=note)


def reference_table(diagnostics: dict) -> Table:
    """Return how q_r comes out with other references, and if the samples come from the prior."""
    head = [
        "q_r of samples rebased to", "agreement", "TV", "accuracy", "accuracy of μ", "average σ",
        "corr(μ, reference)", "on dead pixels", "corr(μ, μ of row 1)", "corr(σ, σ of row 1)",
        "NoT",
    ]  # fmt: skip
    references = diagnostics["references"]
    rows = references | {"networks from the prior": diagnostics["prior_networks"]}
    scores = ("agreement", "total_variation", "sample_accuracy", "mean_accuracy", "average_std")
    alike = ("mean_with_reference", "dead_with_reference", "mean_with_first", "std_with_first")
    body = [
        [
            name,
            *(number(row[score], 4) for score in scores),
            *(number(row.get(part), 3, "+") for part in alike),
            number(row["average_transpositions"], 1),
        ]
        for name, row in rows.items()
    ]
    note = (
        f"{diagnostics['study_samples']} other samples, matched on {diagnostics['study_images']} "
        "images; correlations are over weights. The last row rebases networks from the prior to "
        "the first reference: what it reaches is due to the alignment alone."
    )
    return Table(head, body, title="q_r with other references", note=note)


# ---- pruning: pruning.json

ORDERS = {  # of weights, by which some are kept
    "std": "lowest σ", "abs_mean": "largest |μ|", "signal_to_noise": "largest |μ|/σ",
    "random": "chance", "std_repaired": "lowest σ, with REPAIR,",
}  # fmt: skip


def pruned_network(curve: dict, names: dict[str, str]) -> tuple[str, str]:
    """Return the posterior of what is pruned, and which network of it: "mean" or "single"."""
    networks = {f"{name} {part}": (name, part) for name in names for part in ("mean", "single")}
    return networks[curve["network"]]


def curve_title(curve: dict, names: dict[str, str]) -> str:
    """Return what is pruned, and by what."""
    method, part = pruned_network(curve, names)
    part = {"mean": "μ", "single": "one network"}[part]
    whose = "" if curve["criterion"] == "random" else f" of {names[curve['by']]}"
    return f"{part} of {names[method]}, kept by {ORDERS[curve['criterion']]}{whose}"


def sparsity_summary(pruning: dict) -> dict[str, dict[str, str]]:
    """Return what a pruning's summary.json holds: by curve, accuracy and shares of weights."""
    curves, names = pruning["curves"], pruning["names"]
    summary = {}
    for name, curve in curves["all"].items():
        cells = {"accuracy, unpruned": f"{100 * curve['accuracy'][0]:.2f} %"}
        for part, loss in _losses(pruning):
            share = curves[part][name]["sparsity"][loss]
            error = curves[part][name].get("sparsity_error", {}).get(loss)
            text = with_known_error(share, error, 1, 100)
            cells[f"zero at {points_lost(loss)}, {part}"] = f"{text} %"
        summary[curve_title(curve, names)] = cells
    return summary


def sparsity_table(pruning: dict) -> Table:
    """Return the share of weights that can be zero before this much accuracy is lost."""
    weights = {"all": "all weights", "alive": "live pixels"}
    head = ["network, order", "unpruned accuracy"]
    head += [f"pruned at {points_lost(loss)}, {weights[part]}" for part, loss in _losses(pruning)]
    truth = next(iter(pruning["names"].values()))
    return Table(
        head,
        [[title, *cells.values()] for title, cells in sparsity_summary(pruning).items()],
        title="Share of weights that can be zero before this much accuracy is lost",
        note="“Live pixels” leaves out the weights of dead pixels. ± are standard errors: of "
        f"resampled test images, of the random orders and, where {truth} orders the weights, of "
        "fitting it again to resampled blocks of its samples. They leave out how the others were "
        "trained, and which single network is pruned.",
    )


def _losses(pruning: dict) -> list[tuple[str, str]]:
    """Return the pairs of weights pruned (all or alive) and accuracy lost."""
    curves = pruning["curves"]
    return [
        (part, loss) for part in curves for loss in next(iter(curves["all"].values()))["sparsity"]
    ]


def points_lost(loss: str) -> str:
    """Say how much accuracy is lost: "−1 point"."""
    return f"−{100 * float(loss):g} point{'s' if float(loss) > 0.01 else ''}"
