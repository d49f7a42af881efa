"""Numbers in README.md and docs/ are those of results/ and benchmarks/: tables and sentences."""

import csv
import json
import math
import re
from statistics import fmean, median, stdev
from typing import NamedTuple

from papers.symmetry import quality_claims
from tests.conftest import REPOSITORY

import pytest
from scipy.stats import t

RESULTS = REPOSITORY / "results"


class Table(NamedTuple):
    head: list[str]
    rows: list[list[str]]


def page(name: str) -> str:
    """Return a page with ASCII minus signs."""
    path = REPOSITORY / name if name == "README.md" else REPOSITORY / "docs" / name
    return path.read_text().replace("−", "-")


def section(name: str, title: str) -> str:
    """Return what stands below a heading of any level, up to the next of this level."""
    _, level, rest = re.split(rf"^(#+) {re.escape(title)}$", page(name), maxsplit=1, flags=re.M)
    return re.split(rf"^{level} ", rest, maxsplit=1, flags=re.M)[0]


def tables(text: str) -> list[Table]:
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text + "\n", flags=re.M):
        head, _, *rows = (
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in block.splitlines()
        )
        found.append(Table(head, rows))
    return found


def words(text: str) -> str:
    return " ".join(text.split())


def stored(path: str):
    return json.loads((RESULTS / path).read_text())


def laptop(*keys: str):
    """Return an entry of the committed report's numbers."""
    found = stored("laptop/numbers.json")
    for key in keys:
        found = found[key]
    return found


def with_error(value: float, error: float, digits: int, factor: float = 1, sign: str = "") -> str:
    return f"{factor * value:{sign}.{digits}f} ± {factor * error:.{digits}f}"


def spread(values: list[float], digits: int, factor: float = 1, sign: str = "") -> str:
    """Return mean ± standard error."""
    mean = fmean(values)
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return with_error(mean, error, digits, factor, sign)


# ---- docs/quality.md: rows of symmetry_table.py

POSTERIORS = {  # by section: the folder of its table.json, or the laptop report
    "OptuNet beside two references": "laptop",
    "OptuNet on 10,000 images": "optunet-10k",
    "LeNet on FashionMNIST": "lenet-FashionMNIST",
    "LeNet on CIFAR-10": "lenet-CIFAR10",
    "Paper A's network beside its chain": "mlp-MNIST",
}
SUMMARY = {  # their rows in the table of claims
    "OptuNet, 1,000 images": "laptop", "OptuNet, 10,000 images": "optunet-10k",
    "LeNet, FashionMNIST": "lenet-FashionMNIST", "LeNet, CIFAR-10": "lenet-CIFAR10",
    "784-512-10, MNIST": "mlp-MNIST",
}  # fmt: skip
NAMES = {  # on the page: in the results
    "networks (other half)": "networks", "HMC (other half)": "hmc",
    "SWAG's means (SWA)": "SWAG_mean", "Laplace, linearised": "Laplace_linearised",
    "snapshots": "snapshot",
}  # fmt: skip
SCORES = {  # columns: score, digits and factor, with or without an error
    "accuracy (%)": ("accuracy", 1, 100, True), "NLL": ("nll", 3, 1, True),
    "Brier": ("brier", 3, 1, False), "ECE": ("ece", 3, 1, False),
    "ECE after scaling": ("scaled_ece", 3, 1, False), "AUPR in (%)": ("aupr_in", 1, 100, False),
}  # fmt: skip
BESIDE = {"TV to the networks": "networks", "TV to HMC": "hmc", "TV to published HMC": "published"}
SPACES = {
    "weights": "weights", "sorted": "canonical", "rebased": "rebased", "predictions": "inside",
    "sets of units": "units",
}  # fmt: skip


def rows_of(folder: str) -> list[dict]:
    return laptop("posteriors") if folder == "laptop" else stored(f"{folder}/table.json")


def row_of(rows: list[dict], name: str, modes: int) -> dict:
    (found,) = [r for r in rows if (r["name"], r["num_modes"]) == (NAMES.get(name, name), modes)]
    return found


def expected_cell(row: dict, title: str, reference: str) -> str:
    """Return what a row of symmetry_table.py has in a column of the page."""
    if title in SCORES:
        score, digits, factor, error = SCORES[title]
        value = row["scores"][score]
        if error:
            return with_error(value, row["errors"][score], digits, factor)
        return f"{factor * value:.{digits}f}"
    if title == "MI in, out (nats)":
        inside, outside = (row["scores"][f"mi_{side}"] for side in ("inside", "outside"))
        return "–" if inside is None else f"{inside:.3f}, {outside:.3f}"
    if title in BESIDE:
        return f"{row['beside'][BESIDE[title]]['total_variation']:.3f}"
    found = row["distances"][reference][SPACES[title]]
    return f"{found['value']:.2f}" + ("*" if (found["p"] or 1) < 0.05 else "")


def check_row(rows: list[dict], head: list[str], name: str, modes: int, cells: list[str]) -> None:
    """Compare a line with its row; "to HMC: weights" says what later columns compare with."""
    row, reference, expected = row_of(rows, name, modes), "networks", []
    for title in head:
        if ": " in title:
            prefix, title = title.split(": ")
            reference = "hmc" if "HMC" in prefix else "networks"
        expected.append(expected_cell(row, title, reference))
    assert cells == expected, f"{name} ({modes}) should be: | {' | '.join(expected)} |"


@pytest.mark.parametrize("title", POSTERIORS)
def test_rows_of_posteriors_are_those_of_their_run(title):
    rows, name, shown = rows_of(POSTERIORS[title]), "", []
    for head, body in tables(section("quality.md", title)):
        for first, *cells in body:
            if head[1] == "modes":
                name = first or name
                modes, samples, *cells = cells
                assert samples == str(row_of(rows, name, int(modes))["samples"] or "–")
                check_row(rows, head[3:], name, int(modes), cells)
            else:
                name, modes = re.fullmatch(r"(.*) \((\d+)\)", first).groups()
                check_row(rows, head[1:], name, int(modes), cells)
            shown.append(NAMES.get(name, name))
    several = [row["name"] for row in rows if row["modes"] != "one" and row["distances"]]
    if POSTERIORS[title] == "laptop":
        assert shown == [row["name"] for row in rows] + several
    else:  # the short tables leave SWAG's means out, and more than ten networks
        assert shown == [name for name in dict.fromkeys(several) if name != "SWAG_mean"]


class Stored(NamedTuple):
    """The files of a symmetry_table.py run, as claims read them."""

    folder: str

    def json(self, kind: str, name: str):
        if name == "table.json":
            return rows_of(self.folder)
        folder = "optunet-1k" if self.folder == "laptop" else self.folder
        return stored(f"{folder}/{name}")


def test_claims_on_posteriors_are_judged_as_the_page_says():
    (table,) = tables(section("quality.md", "The claims on five posteriors"))
    assert [name for name, *_ in table.rows] == list(SUMMARY)
    for name, better, diverse, between, within, *taus in table.rows:
        results = Stored(SUMMARY[name])
        several = quality_claims.several_modes_are_better.judge(results).evidence
        counts = re.search(r"better in (\d+) of (\d+) cases, clearly worse in (\d+)", several)
        assert better == "{} and {} of {}".format(*(counts[k] for k in (1, 3, 2)))
        more = quality_claims.several_modes_are_more_diverse.judge(results).evidence
        assert diverse == re.search(r"more in (\d+ of \d+) cases", more)[1]
        claims = quality_claims.no_correlation, quality_claims.no_correlation_of_modes
        for claim, shown in zip(claims, (between, within), strict=True):
            evidence = claim.judge(results).evidence
            p = re.search(r"corrected for all 15, p ([≤=] [\d.]+)", evidence)[1]
            assert shown == p.removeprefix("= ")
        orders = results.json("", "correlations.json")["orders"]
        for space, tau in zip(("total_variation", "inside", "units"), taus, strict=True):
            assert tau == (f"{orders[space]['tau']:.2f}" if orders else "–")


def test_sentences_on_posteriors_are_those_of_their_runs():
    text = words(page("quality.md"))
    for sentence in (*sentences_on_references(), *sentences_on_chains(), *sentences_on_lenets()):
        assert sentence in text


def sentences_on_references() -> list[str]:
    rows = rows_of("laptop")
    networks, hmc = row_of(rows, "networks", 10), row_of(rows, "hmc", 10)
    beside = [
        f"{row_of(rows, name, modes)['beside']['hmc']['total_variation']:.3f}"
        for name, modes in (("snapshot", 10), ("SWAG_mean", 100), ("networks", 100), ("hmc", 10))
    ]
    gains = [
        100 * (row["scores"]["accuracy"] - row_of(rows, row["name"], 10)["scores"]["accuracy"])
        for row in rows
        if row["num_modes"] == 100 and row["name"] != "networks"
    ]
    errors = [
        100 * math.hypot(*(row_of(rows, row["name"], k)["errors"]["accuracy"] for k in (10, 100)))
        for row in rows
        if row["num_modes"] == 100 and row["name"] != "networks"
    ]
    power = laptop("runs", "symmetry_table", "summary", "power", "networks")
    shift = {space: power[space]["means + 0.1 sd"] for space in power}
    weights = [100 * shift[space] for space in ("weights", "canonical", "rebased")]
    assert shift["inside"] == 1
    laplace = laptop("runs", "Laplace", "summary")
    linearised = row_of(rows, "Laplace_linearised", 100)["scores"]["nll"]
    distances = hmc["distances"]["hmc"]
    return [
        f"further apart than anything else ({distances['weights']['value']:.2f})",
        f"they are the same ({distances['rebased']['value']:.2f})",
        "more accurate than HMC ({:.1f} and {:.1f} %)".format(
            *(100 * row["scores"]["accuracy"] for row in (networks, hmc))
        ),
        "snapshots ({}), a hundred means of SWAG ({}) and plain networks ({}); another chain is at "
        "{}".format(*beside),
        f"are {min(gains):.1f} to {max(gains):.1f} points more accurate than ten with ten",
        f"than {max(g / e for g, e in zip(gains, errors, strict=True)):.1f} standard errors",
        f"in {min(weights):.0f} to {max(weights):.0f} % of the trials by weights",
        f"have an NLL of {laplace['draws_test_nll']:.3f} instead of {linearised:.3f}",
    ]


def sentences_on_chains() -> list[str]:
    groups = stored("optunet-1k/hmc.json")["diagnostics"]
    functions = [groups[name]["largest_rhat"] for name in FUNCTIONS]
    rows = rows_of("optunet-10k")
    hmc, networks = row_of(rows, "hmc", 10), row_of(rows, "networks", 10)
    long = stored("optunet-10k/hmc.json")
    potentials = sorted(chain["mean_potential"] for chain in long["chains"])
    assert potentials[2] - potentials[0] < 3
    return [
        f"(R-hat at most {max(functions):.3f} for functions and "
        f"{groups['invariants']['largest_rhat']:.3f} for functionals of the weights)",
        f"at a potential {potentials[3] - potentials[2]:.0f} nats above the others",
        f"(R-hat up to {long['diagnostics']['probability']['largest_rhat']:.1f} for single "
        "probabilities",
        "of predictions ({:.2f}; networks and a chain {:.2f})".format(
            *(row["distances"]["hmc"]["inside"]["value"] for row in (hmc, networks))
        ),
        "its mutual information is {:.3f} nats, that of ten networks {:.3f}.".format(
            *(row["scores"]["mi_inside"] for row in (hmc, networks))
        ),
        f"({100 * hmc['scores']['accuracy']:.1f} % accurate, NLL {hmc['scores']['nll']:.3f})",
    ]


FUNCTIONS = "test_log_likelihood", "train_nll", "probability"


def sentences_on_lenets() -> list[str]:
    grey, colour = (stored(f"lenet-{name}/methods.json") for name in ("FashionMNIST", "CIFAR10"))
    rows = rows_of("lenet-CIFAR10")
    snapshot, network = (row_of(rows, name, 1) for name in ("snapshot", "networks"))
    base = stored("lenet-CIFAR10/summary.json")["base_rate_in"]
    hot = {f"{colour[name]['temperature']:.2f}" for name in ("SGHMC", "SGLD")}
    assert len(hot) == 1
    return [
        "velocities of SGHMC and SGLD are {:.2f} and {:.2f} times as hot".format(
            *(grey[name]["temperature"] for name in ("SGHMC", "SGLD"))
        ),
        f"SGHMC and SGLD are {hot.pop()} times as hot",
        "(NLL {:.3f} and {:.3f})".format(*(r["scores"]["nll"] for r in (snapshot, network))),
        f"so AUPR in is {100 * base:.0f} % by chance",
    ]


# ---- docs/quality.md: pairs of networks


def span(part: dict, digits: int, ends: int) -> str:
    low, high = part["quantiles"][0], part["quantiles"][-1]
    return f"{part['mean']:.{digits}f} ({low:.{ends}f} to {high:.{ends}f})"


def column_of_diversity(found: dict) -> list[str]:
    inside, outside, rho = (found[name] for name in ("inside", "outside", "correlation"))
    copies, noiseless = found["groups"]["copies"], "relative_deviation_without_image_noise"
    return [
        span(inside, 4, 3),
        span(outside, 3, 3),
        f"{100 * inside[noiseless]:.1f}, {100 * outside[noiseless]:.1f}",
        f"{rho['rho']:.2f} ({rho['low']:.2f} to {rho['high']:.2f})",
        f"{100 * inside['disagreement']:.1f}, {100 * outside['disagreement']:.1f}",
        f"{copies['inside']:.3f}, {copies['outside']:.3f}",
    ]


def test_diversity_is_that_of_its_runs():
    figure, groups = tables(section("quality.md", "Diversity"))
    runs = laptop("diversity"), stored("lenet-FashionMNIST/diversity.json")
    for column, found in enumerate(runs, 2):
        assert [row[column] for row in figure.rows] == column_of_diversity(found)
    found = stored("optunet-1k/diversity.json")
    order = "one_chain", "two_chains", "independent", "copies"
    for (_, information, disagreement), name in zip(groups.rows, order, strict=True):
        group = found["groups"][name]
        assert information == f"{group['inside']:.4f}, {group['outside']:.3f}"
        sides = (100 * group[f"{side}_disagreement"] for side in ("inside", "outside"))
        assert disagreement == "{:.1f}, {:.1f}".format(*sides)
    rho, noiseless = found["correlation"], "relative_deviation_without_image_noise"
    assert (
        f"It varies by {100 * found['inside'][noiseless]:.0f} %, and the two sides are related "
        f"(ρ = {rho['rho']:.2f}, {rho['low']:.2f} to {rho['high']:.2f})"
    ) in words(page("quality.md"))


# ---- docs/symmetry.md


def test_shapes_and_masses_are_those_of_the_report():
    shapes, masses = tables(section("symmetry.md", "What we found"))[:2]
    toy, found = laptop("toy"), laptop("masses")
    for row, name in zip(shapes.rows, ("radius", "lobe", "side", "scaled_lobe"), strict=True):
        assert row[2] == with_error(toy["shape"][name], toy["shape_errors"][name], 3)
    excess = [100 * value for value in found["excess_quantiles"]]
    expected = [
        "{:.0f} to {:.0f}".format(*found["mass_range"]),
        "{:.0f} to {:.0f}".format(*found["minimum_range"]),
        f"{excess[0]:.1f} to {excess[-1]:.0f}",
        "{:.0f} and {:.0f}".format(*(100 * mode for mode in found["excess_modes"])),
        *(
            " → ".join(with_error(each[k], each[f"{k}_error"], 1) for k in ("mass", "minimum"))
            for each in found["clusters"]
        ),
    ]
    assert [row[2] for row in masses.rows] == expected


BALANCED = {"MLP 784-64-10": "mlp", "LeNet-5": "lenet", "OptuNet": "optunet"}


def cells_of(network: str, optimizer: str = "SGD", projected: bool = False) -> list[dict]:
    wanted = (network, optimizer, projected)
    return [
        cell for cell in laptop("balance", "cells")
        if (cell["network"], cell["optimizer"], cell["projected"]) == wanted
    ]  # fmt: skip


def training_of(cell: dict) -> tuple:
    return cell["learning_rate"], cell["momentum"]


def test_imbalance_left_is_that_of_the_report():
    left, grown = tables(section("symmetry.md", "What we found"))[2:4]
    for name, plain, momentum, last in left.rows:
        cells = cells_of(BALANCED[name])
        none = {training_of(c): c["share_left"] for c in cells if c["weight_decay"] == 0}
        shares = [(c, c["share_left"] / none[training_of(c)]) for c in cells]
        for rate, text in ((0.0, plain), (0.9, momentum)):
            gaps = [abs(share - math.exp(-2 * c["decay_time"])) for c, share in shares
                    if c["momentum"] == rate]  # fmt: skip
            assert text == f"{max(gaps):.2f}"
        share = max(shares, key=lambda each: each[0]["decay_time"])[1]
        assert last == f"{100 * share:.0f} %"
    for name, smallest, largest, excess, adam in grown.rows:
        cells = [c for c in cells_of(BALANCED[name]) if c["weight_decay"] == 0]
        first, end = min(cells, key=training_of), max(cells, key=training_of)
        (by_adam,) = [c for c in cells_of(BALANCED[name], "Adam") if c["weight_decay"] == 0]
        assert smallest == f"{first['share_left']:.2f}-fold"
        share = end["share_left"]
        assert largest == f"{share:.{0 if share > 10 else 1}f}-fold"
        assert excess == f"{100 * end['excess']:.0f} %"
        assert adam == f"{100 * by_adam['excess']:.0f} %"


def test_effects_of_projection_are_those_of_the_report():
    table = tables(section("symmetry.md", "What we found"))[4]
    scores = ("accuracy", 2, 100), ("nll", 3, 1), ("calibration_error", 2, 100), ("barrier", 3, 1)
    accuracies, barriers = [], []
    for name, *row in table.rows:
        pairs = list(
            zip(cells_of(BALANCED[name]), cells_of(BALANCED[name], projected=True), strict=True)
        )
        assert all(training_of(a) == training_of(b) for a, b in pairs)
        for (score, digits, factor), text in zip(scores, row, strict=True):
            changes = [after[score] - before[score] for before, after in pairs]
            assert text == spread(changes, digits, factor, sign="+")
            if score == "accuracy":
                accuracies += changes
            if score == "barrier":
                barriers += changes
    text = words(page("symmetry.md"))
    assert f"{100 * min(accuracies):.1f} to {100 * max(accuracies):+.1f} points of accuracy" in text
    assert f"falls by up to {-min(barriers):.1f} nats" in text


def test_largest_weights_and_order_are_those_of_the_report():
    marginals, order = laptop("marginals"), laptop("order")
    last = stored("optunet-1k/last_layer.json")
    networks, chain = (marginals[name]["groups"]["c2"] for name in ("sgd", "chain"))
    kept, kept_chain, blocks = (
        last[name] for name in ("sgd/c2/as they are", "chain/c2/as they are", "chain/g/as they are")
    )
    plain, plain_chain = networks["as they are"], chain["as they are"]
    shuffled = [
        group["shuffled"]["p"] for each in marginals.values() for group in each["groups"].values()
    ] + [test["p"] for name, test in last.items() if name.endswith("shuffled")]
    text = words(page("symmetry.md"))
    for sentence in (
        f"second convolution χ² = {plain['chi_square']:.1f}, p = {plain['p']:.2f}, and by",
        f"(`--key last_layer`) χ² = {kept['chi_square']:.1f}, p = {kept['p']:.2f}.",
        f"χ² is {plain_chain['chi_square']:.0f} and {kept_chain['chi_square']:,.0f}",
        f"are worth {plain_chain['effective_draws']:,.0f} independent ones, and p is "
        f"{plain_chain['p']:.2f}.",
        f"they are worth {kept_chain['effective_draws']:.0f}, p = {kept_chain['p']:.2f}, and the "
        f"order of the two blocks {blocks['effective_draws']:.0f}.",
        f"any sampler passes (p ≥ {min(shuffled):.2f})",
        f"with χ² = {networks['rebased']['chi_square']:.0f} for the OptuNets and "
        f"{chain['rebased']['chi_square']:.0f} for the chains",
        f"(τ = {order['norm_start_to_end']:.2f}) and settle (τ = {order['norm_step']['last']:.2f}",
        f"τ is {order['norm_step']['first']:.2f} over the first tenth of an epoch, and "
        f"{order['largest_step']['first']:.2f} if units are sorted by their largest weight",
        f"NoT is {order['not_by_activation_start_to_end']:.0f} from the start to the end, "
        f"{order['not_by_activation_step']['first']:.0f} over the first tenth of an epoch and "
        f"{order['not_by_activation_step']['last']:.0f} over the last epoch",
    ):
        assert sentence in text
    assert order["not_by_weight_start_to_end"] == 0


def test_gaussians_without_scales_are_those_of_the_report():
    config = laptop("runs", "symmetry_compact", "config")
    text = words(section("symmetry.md", "What we found"))
    assert f"matched by {config['matching']}" in text
    assert f"with {config['num_draws']} draws of q_r for each of four predictions" in text
    assert config["num_repeats"] == 4
    table = tables(section("symmetry.md", "What we found"))[5]
    for name, row in zip(("HMC", "ensemble"), table.rows, strict=True):
        scales = {
            key: each["q_r"]["agreement"]
            for key, each in laptop("gaussians", name, "scales").items()
        }
        plain = scales["as they are"]
        gains = [
            [after - before for before, after in zip(plain, scales[key], strict=True)]
            for key in ("minimum mass", "unit norm")
        ]
        expected = [spread(plain, 1, 100), *(spread(gain, 1, 100, sign="+") for gain in gains)]
        assert row[1:] == [cell.replace("-0.0", "+0.0") for cell in expected]
    scales = laptop("gaussians", "HMC", "scales")
    means = {
        (key, score): fmean(each["q_r"][score])
        for key, each in scales.items()
        for score in ("accuracy", "total_variation", "agreement")
    }
    accuracies = (100 * means[key, "accuracy"] for key in ("as they are", "minimum mass"))
    distances = (means[key, "total_variation"] for key in ("as they are", "minimum mass"))
    assert (
        "rises from {:.1f} to {:.1f} %, and TV falls from {:.3f} to {:.3f}".format(
            *accuracies, *distances
        )
        in text
    )
    agreement = fmean(laptop("gaussians", "ensemble", "scales")["unit norm"]["q_r"]["agreement"])
    assert f"the ensemble's q_r falls to {100 * agreement:.0f} %" in text


# ---- docs/hmc.md; its section "Which prior?" and that on exactness are about other runs


def test_chains_of_optunet_are_those_of_their_run():
    regions, diagnostics = tables(section("hmc.md", "Other networks, and a mass"))
    run = stored("optunet-1k/hmc.json")
    left_out = run["left_out"]
    kept = [chain for k, chain in enumerate(run["chains"]) if k not in left_out]
    out = [chain for k, chain in enumerate(run["chains"]) if k in left_out]
    potentials = [chain["mean_potential"] for chain in kept]
    weights = [", ".join(f"{chain['log_weight']:.1f}" for chain in part) for part in (kept, out)]
    assert regions.rows == [
        ["region A", f"{min(potentials):.0f} to {max(potentials):.0f}", weights[0]],
        ["region B", f"{out[0]['mean_potential']:.0f}", weights[1]],
    ]
    text = words(page("hmc.md"))
    kept_weights = [chain["log_weight"] for chain in kept]
    gap, spread = fmean(kept_weights) - out[0]["log_weight"], stdev(kept_weights)
    limit = gap - t.ppf(0.99, len(kept) - 1) * spread * (1 + 1 / len(kept)) ** 0.5
    assert f"estimated to hold e^-{gap:.0f} of the posterior" in text
    assert (
        f"deviation of {spread:.1f} nats, so the 99 % limit of this estimate is e^-{limit:.0f}"
        in text
    )
    assert f"e^-{gap:.0f} of the posterior (99 % limit e^-{limit:.0f};" in words(page("quality.md"))
    for row, name in zip(diagnostics.rows, (*FUNCTIONS, "invariants"), strict=True):
        found = run["diagnostics"][name]
        assert row[1] == f"{found['largest_rhat']:.3f}"
        assert row[2] == f"{found['smallest_ess_bulk']:,.0f}"
    steps = {f"{chain['step_size']:.2f}" for chain in kept}
    numbers = {f"{chain['mean_steps']:.0f}" for chain in kept}
    assert f"sizes are {steps.pop()} in units of its deviations, with {numbers.pop()} steps" in text
    assert not steps | numbers  # they were alike


def test_chains_of_lenet_are_those_of_their_run():
    run, text = stored("lenet-FashionMNIST/hmc.json"), words(page("hmc.md"))
    networks = row_of(rows_of("lenet-FashionMNIST"), "networks", 99)["scores"]
    rhat = [run["diagnostics"][k]["largest_rhat"] for k in ("test_log_likelihood", "train_nll")]
    assert (
        "R-hat is {:.1f} for the test log-likelihood and {:.1f} for the training NLL".format(*rhat)
    ) in text
    assert (
        f"is {100 * run['test_accuracy']:.1f} % accurate with an NLL of {run['test_nll']:.3f}; "
        f"that of 99 independent networks is {100 * networks['accuracy']:.1f} % accurate with "
        f"{networks['nll']:.3f}."
    ) in text


# ---- docs/methods.md

OF_METHOD = {  # row of the page: name of the posterior
    "`sgd`": "networks", "`swag`": "SWAG", "`swag`, its mean": "SWAG_mean", "`vi`": "VI",
    "`dropout`": "dropout", "`laplace`": "Laplace", "`laplace` linearised": "Laplace_linearised",
    "`sghmc`": "SGHMC", "`sgld`": "SGLD", "`snapshot`": "snapshot", "`hmc`, one chain": "hmc",
}  # fmt: skip


def test_methods_on_optunet_are_those_of_the_report():
    rows = rows_of("laptop")
    (table,) = [each for each in tables(page("methods.md")) if each.head[0] == "method"]
    assert [name for name, *_ in table.rows] == list(OF_METHOD)
    for name, *cells in table.rows:
        several = row_of(rows, OF_METHOD[name], 10)
        ones = [r for r in rows if (r["name"], r["num_modes"]) == (several["name"], 1)]
        one = ones[0]["scores"] if ones else None
        ten, chain = several["scores"], several["name"] == "hmc"
        seconds = several["training_seconds"] if chain else several["training_seconds"] / 10
        assert cells == [
            f"{100 * one['accuracy']:.1f}" if one else "–", f"{100 * ten['accuracy']:.1f}",
            f"{one['nll']:.3f}" if one else "–", f"{ten['nll']:.3f}", f"{ten['scaled_ece']:.3f}",
            f"{100 * ten['aupr_in']:.1f}", f"{several['beside']['hmc']['total_variation']:.3f}",
            f"{seconds:.{0 if chain else 1}f}",
        ]  # fmt: skip


def test_hessians_are_those_of_the_report():
    found = laptop("runs", "Laplace", "summary")
    negative, smallest = found["num_negative"], found["smallest"]
    text = words(page("methods.md"))
    assert f"{median(negative):.0f} of 392 (median of {len(negative)} modes)" in text
    assert f"about {median(smallest):.1f} times the prior's precision" in text
    assert f"in {sum(s < -1 for s in smallest)} of the {len(smallest)} the posterior's" in text


# ---- docs/networks.md

SETS = {  # by the beginning of its row: the file with a row for each network
    "1,000 OptuNets": "optunet-MNIST/networks.csv",
    "200 LeNets": "lenet-FashionMNIST/scores.csv",
    "100 LeNets": "lenet-CIFAR10/scores.csv",
    "1,000 MLPs": "mlp-MNIST/scores.csv",
}


def test_sets_of_networks_have_the_accuracies_of_the_page():
    (table,) = tables(section("networks.md", "Many independent networks"))
    for (name, *_, text), (start, file) in zip(table.rows, SETS.items(), strict=True):
        with open(RESULTS / file) as lines:
            found = [100 * float(row["test_accuracy"]) for row in csv.DictReader(lines)]
        assert name.startswith(start)
        assert len(found) == int(start.split()[0].replace(",", ""))
        assert text == f"{min(found):.1f} to {max(found):.1f}, median {median(found):.1f}"


def test_barriers_of_lenets_are_those_of_their_run():
    (table,) = tables(section("networks.md", "Barriers between two networks"))
    run = stored("lenet-FashionMNIST/barriers.json")
    names = "as is", "by activation", "by weight", "many to one"
    for row, name in zip(table.rows, names, strict=True):
        found = run[name]
        swaps = " + ".join(map(str, found.get("transpositions_per_layer", ())))
        swaps = {"as is": "–", "many to one": "no permutation"}.get(name, swaps)
        loss, error = found["test_loss_barrier"], 100 * found["test_error_barrier"]
        assert row[1:] == [f"{loss:.2f}", f"{error:.1f}", swaps]
    found = run["many to one"]
    assert (
        f"{' + '.join(map(str, found['lost']))} units of it are lost, and it has a test error of "
        f"{100 * found['end_test_error']:.1f} % and a test loss of {found['end_test_loss']:.2f} "
    ) in words(page("networks.md"))


# ---- benchmarks


def benchmark(title: str) -> dict:
    return json.loads((REPOSITORY / "benchmarks" / "results.json").read_text())[title]


def faster(title: str, way: str, baseline: str | None = None) -> float:
    """Return how many times as fast a way is as another one, or as the benchmark's baseline."""
    ratios = benchmark(title)["times_faster"]
    return ratios[way] / ratios.get(baseline, 1.0)


def test_speed_of_hmc_is_that_of_the_benchmarks():
    (table,) = tables(section("hmc.md", "Speed"))
    step = "A leapfrog step of HMC, 784-512-10, 60,000 images"
    match = "Rebasin by activation, 784-512-10, 60,000 images"
    line = "Losses at 11 points of a line, 784-512-10, 60,000 images"
    listed = "ours, neighbour list"
    limit = 1 / faster(match, "ours", "limit: matrix products and assignment")
    expected = [
        (
            f"({benchmark(step)['seconds'][listed]:.3f} s)",
            f"{faster(step, listed):.1f} (PyTorch autograd), "
            f"{faster(step, listed, 'blackjax, jitted JAX'):.1f} (blackjax)",
        ),
        ("batch 64", f"{faster('Training 784-512-10 by SGD, batch 64', 'ours, a stack of 4'):.1f}"),
        ("by activation", f"{faster(match, 'ours'):.0f} "),
        ("11 points", f"{faster(line, 'ours'):.1f} "),
    ]
    for (name, text), (part, start) in zip(table.rows, expected, strict=True):
        assert part in name
        assert text.startswith(start)
    assert f"takes {limit:.2f} × the time of its products and assignment" in table.rows[2][1]


IMAGES = {  # of gradients: how the benchmark calls the network and its images
    "OptuNet": ("optunet", "1 × 28 × 28, 8"), "LeNet, grey images": ("lenet", "1 × 28 × 28, 8"),
    "LeNet, colour": ("lenet", "3 × 32 × 32, 1"), "ResNet-8": ("resnet8_frn", "3 × 32 × 32, 1"),
    "ResNet-20": ("resnet20_frn", "3 × 32 × 32, 1"), "ResNet-18": ("resnet18", "3 × 32 × 32, 1"),
}  # fmt: skip


def test_speed_of_networks_is_that_of_the_benchmarks():
    (table,) = tables(section("networks.md", "Speed"))
    assert [name for name, *_ in table.rows] == list(IMAGES)
    for name, epochs, gradient, microseconds in table.rows:
        network, images = IMAGES[name]
        title = f"Gradient of {network} on images of {images} at a time, batches of 64"
        ratio = faster(title, "ours")
        assert gradient == f"{ratio:.{1 if ratio > 2 else 2}f}"
        time = float(re.search(r"takes ([\d.]+) µs", benchmark(title)["notes"][0])[1])
        assert microseconds == (f"{time:.1f}" if time < 100 else f"{time:,.0f}")
        batches = {"OptuNet": 64, "LeNet, grey images": 128}.get(name)
        if batches:
            training = f"Training {network} on MNIST, batches of {batches}"
            ratio = faster(training, "ours, 2 processes with stacks of 8")
            assert epochs == f"{ratio:.{0 if ratio > 50 else 1}f}"
        else:
            assert epochs == "–"
    notes = " ".join(benchmark("Training optunet on MNIST, batches of 64")["notes"])
    hour = int(re.search(r"(\d+) networks per hour", notes)[1])
    assert f"{hour:,} OptuNets an hour" in words(page("networks.md"))


# ---- docs/gold.md


def test_gold_standards_are_those_of_their_cards():
    table = tables(page("gold.md"))[0]
    for cells in table.rows:
        name = re.match(r"\[([\w-]+)\]", cells[0])[1]
        card = (RESULTS / "gold" / f"{name}.md").read_text()
        checks = tables(section_of(card, "Checks"))[0].rows
        counted = [row for row in checks if not row[0].startswith("random projections")]
        rhat = max(float(row[1]) for row in counted)
        chains, samples = re.search(r"(\d+) chains? of ([\d,]+) samples", card).groups()
        ess = min(int(row[2].replace(",", "")) for row in counted)
        floor = re.search(r"agreement ([\d.]+), TV ([\d.]+)\.", card).groups()
        assert cells[2:] == [
            f"{chains} × {int(samples.replace(',', '')):,} samples",
            f"{rhat:.3f}",
            f"{ess:,}",
            "agreement {:.3f}, TV {:.3f}".format(*map(float, floor)),
        ]


def section_of(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]
