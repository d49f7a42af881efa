"""What the paper says about quality and diversity of posteriors, judged by our results.

The paper gives no thresholds, so the criteria are ours.
"""

from papers.symmetry.quality_tables import ORDERED, SCORES, WEIGHTS
from papers.symmetry.table1 import change
from papers.symmetry.values import SIGNIFICANT, published
from utils.report.paper import (
    CLEAR,
    FAILS,
    HOLDS,
    PARTLY,
    UNDECIDED,
    Finding,
    all_or_half,
    all_or_some,
    claim,
    decide,
)
from utils.report.results import Missing, Results
from utils.settings.wording import plural

WEAK = 0.3  # a rank correlation within ± this is weak


# ---- Figure 3


@claim(
    "Functional collapse is absent, yet independent networks differ by nearly the same amount in "
    "distribution, by more varied amounts out of it, and the two are only weakly related.",
    number="6",
    source="Section 5.1, Figure 3",
    criterion="three parts: less than 1 % of all pairs have a mutual information as low as copies "
    "of one network have on average; the relative deviation, without the noise of finite images, "
    "is smaller in distribution than out of it; and the 95 % interval of the rank correlation lies "
    f"within ±{WEAK}. Holds if all are met, in part if one or two; no verdict if that depends on "
    f"an interval with {WEAK} or −{WEAK} in it",
    kinds=("symmetry_diversity",),
)
def collapse_is_absent(results: Results) -> Finding:
    summary = results.json("symmetry_diversity", "summary.json")
    inside, outside, rho = (summary[name] for name in ("inside", "outside", "correlation"))
    copies, paper = summary["groups"]["copies"]["inside"], published("diversity")
    name = "relative_deviation_without_image_noise"
    met = (inside["quantiles"][1] > copies, inside[name] < outside[name], _is_weak(rho))
    return Finding(
        decide(met, all_or_some),
        f"{summary['networks']} networks: mutual information {inside['mean']:.4f} nats in "
        f"distribution (disagreement {100 * inside['disagreement']:.1f} %), {outside['mean']:.4f} "
        f"on {summary['ood']} ({100 * outside['disagreement']:.1f} %); copies of one network "
        f"{copies:.4f}, below the 1 % quantile {inside['quantiles'][1]:.4f} of all pairs: "
        f"{'yes' if met[0] else 'no'}. Relative deviation {100 * inside['relative_deviation']:.1f} "
        f"% and {100 * outside['relative_deviation']:.1f} %; without the noise of finite images "
        f"{100 * inside[name]:.1f} % and {100 * outside[name]:.1f} %. ρ = {rho['rho']:.2f} "
        f"({rho['low']:.2f} to {rho['high']:.2f}, Mantel p = {rho['p']:.3f}). The paper's "
        f"ResNet-18 on CIFAR-100: {_span(paper['inside'])} and {_span(paper['outside'])}.",
    )


def _is_weak(correlation: dict) -> bool | None:
    """Say whether a correlation lies within ±WEAK; None if its interval does not tell."""
    low, high = correlation["low"], correlation["high"]
    if -WEAK < low <= high < WEAK:
        return True
    return False if low > WEAK or high < -WEAK else None


def _span(ends: list[float]) -> str:
    lowest, mode, highest = ends
    return f"{mode} ({lowest} to {highest})"


# ---- Table 1

DISTANCES = (*WEIGHTS, "inside", "outside", "units")
HIGHER = ("accuracy", "aupr_in", "mi_inside", "mi_outside")  # is better, or more diverse
MARGIN = 0.02  # nats


def _pairs(rows: list[dict]) -> list[tuple[str, dict, dict]]:
    """Return names, and rows of one mode beside rows of more with as many samples, or nearly.

    Single networks are left out, since ensembles of them have more members.
    """
    ones = {row["name"]: row for row in rows if row["modes"] == "one" and row["samples"] != 1}
    return [
        (f"{row['name']} ({row['num_modes']} modes)", ones[row["name"]], row)
        for row in rows
        if row["modes"] != "one" and row["name"] in ones
        if 0.9 <= (row["samples"] or 1) / (ones[row["name"]]["samples"] or 1) <= 1 / 0.9
    ]


def _gain(one: dict, several: dict, score: str) -> tuple[float, float]:
    """Return by how much several modes are better, and its standard error."""
    difference, error = change(one, several, score)
    return difference * (1 if score in HIGHER else -1), error


def _is_better(one: dict, several: dict, score: str) -> bool:
    gain, error = _gain(one, several, score)
    return gain > CLEAR * error


@claim(
    "Posteriors with several modes are better than those with one: in accuracy, Brier score and "
    "calibration, and in detecting images from elsewhere.",
    number="3",
    source="Table 1",
    criterion=f"of all methods and the scores {', '.join(SCORES.values())}, with as many samples "
    f"of one mode as of several: holds if several modes are better by {CLEAR} standard errors in "
    "80 % of the cases and worse in none; in part if better in more cases than worse; no verdict "
    "if no difference is as large, since absence cannot be shown",
    kinds=("symmetry_table",),
    in_short={
        HOLDS: "Whatever the method, several modes are better than one",
        PARTLY: "Several modes are better than one more often than not",
        FAILS: "Several modes are no better than one",
    },
)
def several_modes_are_better(results: Results) -> Finding:
    pairs = _pairs(results.json("symmetry_table", "table.json"))
    if not pairs:
        raise Missing("No posterior has as many samples of one mode as of several")
    better, worse, details, cases = 0, 0, [], 0
    for name, one, several in pairs:
        clear = {"better": [], "worse": []}
        for score, title in SCORES.items():
            gain, error = _gain(one, several, score)
            cases += 1
            if abs(gain) > CLEAR * error:
                clear["better" if gain > 0 else "worse"].append(title)
        better, worse = better + len(clear["better"]), worse + len(clear["worse"])
        listed = (f"{word} in {', '.join(names)}" for word, names in clear.items() if names)
        details.append(f"{name}: {'; '.join(listed) or 'no clear difference'}")
    holds = better >= 0.8 * cases and not worse
    return Finding(
        HOLDS if holds else PARTLY if better > worse else FAILS if worse else UNDECIDED,
        f"Clearly better in {better} of {cases} cases, clearly worse in {worse}. "
        f"{'. '.join(details)}.",
        f"of {cases} scores in {plural(len(pairs), 'row')} {better} are clearly better and "
        f"{worse} worse",
    )


@claim(
    "Posteriors with several modes are more diverse, in and out of the distribution.",
    number="5",
    source="Table 1",
    criterion=f"holds if the mutual information is larger by {CLEAR} standard errors with several "
    "modes, for all methods and on both kinds of images; in part if in half of the cases",
    kinds=("symmetry_table",),
)
def several_modes_are_more_diverse(results: Results) -> Finding:
    more, details = [], []
    for name, one, several in _pairs(results.json("symmetry_table", "table.json")):
        if one["scores"]["mi_inside"] is None:
            continue  # linearised modes have none
        for score in ("mi_inside", "mi_outside"):
            more.append(_is_better(one, several, score))
        values = [f"{row['scores'][score]:.4f}" for score in ("mi_inside", "mi_outside")
                  for row in (one, several)]  # fmt: skip
        details.append(f"{name} {values[0]} → {values[1]} in, {values[2]} → {values[3]} out")
    if not more:
        raise Missing("No posterior has rows with several samples of one mode and of several")
    return Finding(
        all_or_half(more),
        f"Clearly more in {sum(more)} of {len(more)} cases (nats): {'; '.join(details)}.",
    )


UNRELATED_IF = (
    "rank correlations of MMD² of weights, as they are and without symmetries, with "
    f"{', '.join(SCORES.values())}, over {{}}: does not hold if one is significant (p < "
    f"{SIGNIFICANT}, corrected for their number); holds if all 95 % intervals lie within ±{WEAK}; "
    "else no verdict, since absence cannot be shown"
)
BETWEEN = UNRELATED_IF.format("rows, by ranks within those of one mode and of several")
WITHIN = UNRELATED_IF.format("single modes, by ranks within each method")


@claim(
    "Between methods, there is no clear correlation between the distance of a posterior's weights "
    "to independent networks and its scores.",
    number="4",
    source="Section 4.3, Table 1",
    criterion=BETWEEN,
    kinds=("symmetry_table",),
)
def no_correlation(results: Results) -> Finding:
    return _uncorrelated(results, "rows", "networks")


@claim(
    "Between methods, there is no clear correlation between the distance of a posterior's weights "
    "to HMC and its scores.",
    source="ours; the paper has no HMC",
    criterion=BETWEEN,
    kinds=("symmetry_table",),
    ours=True,
)
def no_correlation_beside_hmc(results: Results) -> Finding:
    return _uncorrelated(results, "rows", "hmc")


@claim(
    "Between the modes of one method, there is no clear correlation between the distance of their "
    "weights to independent networks and their scores.",
    source="ours; the paper compares methods",
    criterion=WITHIN,
    kinds=("symmetry_table",),
    ours=True,
)
def no_correlation_of_modes(results: Results) -> Finding:
    return _uncorrelated(results, "modes", "networks")


@claim(
    "Between the modes of one method, there is no clear correlation between the distance of their "
    "weights to HMC and their scores.",
    source="ours; the paper has no HMC",
    criterion=WITHIN,
    kinds=("symmetry_table",),
    ours=True,
)
def no_correlation_of_modes_beside_hmc(results: Results) -> Finding:
    return _uncorrelated(results, "modes", "hmc")


def _uncorrelated(results: Results, over: str, reference: str) -> Finding:
    """Judge the correlations over rows or modes beside a reference, with their own correction."""
    content = results.json("symmetry_table", "correlations.json")
    if reference == "hmc" and "hmc" not in content:
        _need_hmc(results)
        raise Missing(f"Correlations beside HMC are not measured{EARLIER}")
    weights = {
        f"MMD² of {WEIGHTS[space]} and {SCORES[score]}": cell
        for name, cell in (content if reference == "networks" else content["hmc"])[over].items()
        for space, _, score in [name.partition("/")]
        if space in WEIGHTS and cell["low"] is not None
    }
    if not weights:
        raise Missing("Correlations need at least 5 posteriors besides the references, or 5 modes")
    name, cell = min(weights.items(), key=lambda item: (item[1]["p"], -abs(item[1]["rho"])))
    corrected = min(1, len(weights) * cell["p"])
    absent = all(-WEAK < each["low"] <= each["high"] < WEAK for each in weights.values())
    return Finding(
        FAILS if corrected < SIGNIFICANT else HOLDS if absent else UNDECIDED,
        f"Over {cell['count']} {over} the clearest of {len(weights)} correlations is of {name}: "
        f"ρ = {cell['rho']:.2f} ({cell['low']:.2f} to {cell['high']:.2f}), "
        f"{written_p(cell)}; corrected for all {len(weights)}, {written_p(cell, len(weights))}.",
    )


def written_p(cell: dict, tests: int = 1) -> str:
    """Write a p value, corrected for so many tests; ≤ if no permutation was as extreme."""
    p, least = min(1, tests * cell["p"]), cell["p"] <= cell.get("least_p", 0) * (1 + 1e-9)
    return f"p {'≤' if least else '='} {p:.4f}"


EARLIER = ", as the run is of an earlier version: delete its DONE and give --resume"


def _need_hmc(results: Results) -> None:
    rows = results.json("symmetry_table", "table.json")
    if "hmc" not in {row["name"] for row in rows}:
        raise Missing("There is no reference by HMC: give --hmc")


JUDGED = ("total_variation", "inside", "outside", "units")  # whatever the order of units
ALIKE = 0.5  # Kendall's τ if three of four pairs are in the same order


@claim(
    "Independent networks are a good stand-in for the posterior.",
    source="asked for by reviewers",
    criterion="by what they predict (total variation of averages, MMD² of predictions in and out "
    "of the distribution) and by sets of units: holds if the orders of posteriors by distance to "
    "the networks and to HMC are alike in all four (the 95 % interval of Kendall's τ over methods, "
    f"among rows with equally many modes, is above {ALIKE}: more than three of four pairs of rows "
    "are in the same order) and the networks' MMD² to HMC is below the null's 95 % quantile in all "
    "three; in part if some of these seven are met; does not hold if none is",
    kinds=("symmetry_table",),
    ours=True,
    in_short={
        HOLDS: "Independent networks are as good a reference as HMC",
        PARTLY: "Independent networks can stand in for HMC by some measures, not by all",
        FAILS: "Independent networks are no substitute for HMC as a reference",
    },
)
def networks_stand_in(results: Results) -> Finding:
    _need_hmc(results)
    rows = results.json("symmetry_table", "table.json")
    content = results.json("symmetry_table", "correlations.json")
    if "orders" not in content:
        raise Missing(f"Orders of posteriors are not measured by all distances{EARLIER}")
    orders = content["orders"]
    if not set(JUDGED) <= set(orders):
        raise Missing("Too few methods to compare their orders: at least 5 are needed")
    met = [orders[measure]["low"] > ALIKE for measure in JUDGED]
    taus = [
        f"{ORDERED[measure]} {order['tau']:.2f} ({order['low']:.2f} to {order['high']:.2f})"
        for measure, order in ((each, orders[each]) for each in JUDGED)
    ]
    halves = {row["name"]: row for row in rows if row["name"] in ("networks", "hmc")}  # the last
    distances = []
    for space in ("inside", "outside", "units"):
        ours, null = (halves[name]["distances"]["hmc"][space] for name in ("networks", "hmc"))
        met.append(ours["value"] <= null["high"])
        distances.append(f"{ORDERED[space]} {ours['value']:.4f} (null up to {null['high']:.4f})")
    return Finding(
        HOLDS if all(met) else PARTLY if any(met) else FAILS,
        f"{sum(met)} of 7 are met. τ of the orders by distance to networks and to HMC: "
        f"{', '.join(taus)}. MMD² of the networks to HMC: {', '.join(distances)}.",
        f"τ of the orders of posteriors by distance to networks and to HMC is {', '.join(taus)}",
    )


@claim(
    "Several plain networks predict as well as any approximation with as many modes.",
    source="ours; the comparison that users ask for",
    criterion=f"by NLL, of methods other than HMC with as many modes as networks: does not hold if "
    f"several are better by {CLEAR} standard errors, in part if one is; holds if the networks are "
    f"at most {MARGIN} nats worse than each, with {CLEAR} standard errors; else no verdict",
    kinds=("symmetry_table",),
    ours=True,
    in_short={
        HOLDS: "No approximation with several modes predicts better than as many plain networks",
        PARTLY: "One approximation predicts better than as many plain networks",
        FAILS: "Several approximations predict better than as many plain networks",
        UNDECIDED: "No approximation is clearly better than as many plain networks, but one could "
        f"be by more than {MARGIN} nats",
    },
)
def plain_networks_suffice(results: Results) -> Finding:
    rows = results.json("symmetry_table", "table.json")
    several = {row["name"]: row for row in rows if row["modes"] == "multi"}
    networks = several.pop("networks", None)
    several.pop("hmc", None)
    if networks is None:
        raise Missing("The table has no networks with several modes")
    several = {n: row for n, row in several.items() if row["num_modes"] == networks["num_modes"]}
    if not several:
        raise Missing("The table has no method with as many modes as networks")
    better = [name for name, row in several.items() if _is_better(networks, row, "nll")]
    gains = [_gain(networks, row, "nll") for row in several.values()]
    close = all(gain + CLEAR * error <= MARGIN for gain, error in gains)
    mark = (HOLDS if close else UNDECIDED, PARTLY, FAILS)[min(len(better), 2)]
    order = sorted([("networks", networks), *several.items()], key=lambda each: _nll(each[1])[0])
    listed = ", ".join(f"{name} {_nll(row)[0]:.3f} ± {_nll(row)[1]:.3f}" for name, row in order)
    return Finding(
        mark,
        f"NLL with several modes, in nats: {listed}.",
        f"the NLL is {listed} nats",
    )


def _nll(row: dict) -> tuple[float, float]:
    return row["scores"]["nll"], row["errors"]["nll"] or 0.0
