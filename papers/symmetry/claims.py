"""What the paper says about symmetry, each with its criterion, its judge and its sentences.

The criteria are ours: the paper gives no thresholds.
"""

import itertools
import math

from papers.symmetry.values import SIGNIFICANT, published
from utils.report.paper import (
    FAILS,
    HOLDS,
    PARTLY,
    UNDECIDED,
    Finding,
    all_or_half,
    all_or_some,
    claim,
    decide,
    is_below,
)
from utils.report.results import Missing, Results
from utils.report.tables import number
from utils.settings.wording import plural

import numpy as np

FEWEST_EXPECTED = 5  # networks expected in each order, as χ² needs
ENOUGH_DRAWS = 100  # to tell that a chain passes: a share of one half has an error of 0.05
SLIGHT = 0.01  # of agreement: a smaller gain is none


@claim(
    "The posterior is a mixture of h! copies of the posterior of sorted networks.",
    number="1, 9a",
    source="Equation 8, Figure 1",
    criterion="holds if neither the shares of the h! orders of units nor the weights of sorted "
    f"networks differ between copies (p > {SIGNIFICANT}); in part if one of both",
    kinds=("symmetry_toy",),
    in_short={
        HOLDS: "The posterior consists of copies that differ only in the order of units",
        PARTLY: "The posterior consists of copies, but these are not quite equal",
        FAILS: "The posterior does not consist of equal copies",
    },
)
def mixture_of_copies(results: Results) -> Finding:
    copies = results.json("symmetry_toy", "summary.json")["copies"]
    p_values = copies["equal_shares_p"], copies["equal_weights_p"]
    equal = sum(p > SIGNIFICANT for p in p_values)
    counts, total = copies["counts"], sum(copies["counts"])
    if total < FEWEST_EXPECTED * len(counts):
        raise Missing(
            f"{plural(total, 'network')} in {plural(len(counts), 'order')} are fewer than "
            f"{FEWEST_EXPECTED} for each, too few to tell whether copies differ"
        )
    shares = ", ".join(f"{count / total:.4f}" for count in counts[:6])
    error = math.sqrt((1 - 1 / len(counts)) / len(counts) / total)
    return Finding(
        (FAILS, PARTLY, HOLDS)[equal],
        f"Of {total:,} networks the {len(counts)} orders have the shares {shares}"
        f"{', …' if len(counts) > 6 else ''} (expected {1 / len(counts):.4f} ± {error:.4f}; "
        f"p = {p_values[0]:.2f}). Do weights of sorted networks depend on the order they had? "
        f"p = {p_values[1]:.2f}, the smallest of {copies['tests']} tests, corrected for their "
        "number.",
        f"in {total:,} networks the {len(counts)} orders have shares of {min(counts) / total:.3f} "
        f"to {max(counts) / total:.3f} (± {error:.3f})",
    )


@claim(
    "Without symmetries the posterior is simpler.",
    number="9b",
    source="Figure 1",
    criterion="holds if the entropy of the first two weights of the last layer falls when scales "
    "are removed and again when the order is; in part if it falls over both",
    kinds=("symmetry_toy",),
    in_short={
        HOLDS: "Removing scales and order makes the posterior simpler, each for itself",
        PARTLY: "Removing scales and order makes the posterior simpler, but not each for itself",
        FAILS: "Removing scales and order does not make the posterior simpler",
    },
)
def simpler_without_symmetries(results: Results) -> Finding:
    entropies = results.json("symmetry_toy", "summary.json")["entropies"]
    values = list(entropies.values())
    falls = [after < before for before, after in itertools.pairwise(values)]
    listed = ", ".join(f"{name} {value:.2f}" for name, value in entropies.items())
    return Finding(
        HOLDS if all(falls) else PARTLY if values[-1] < values[0] else FAILS,
        f"Entropy in bits, of weights brought to one size: {listed}. Of two weights, sorting alone "
        "saves 1 bit at most.",
        f"the entropy of two weights is {', '.join(f'{value:.2f}' for value in values)} bits as "
        "trained, without scales, and without both",
    )


@claim(
    "The shapes in Figure 1: as trained a circle with two lobes, without scales two sides of a "
    "square with two lobes.",
    source="Figure 1",
    criterion="holds if radius, sides and places of the lobes are within 10 % of the paper's; in "
    "part if half of them are; no verdict if that depends on one within 2 standard errors of 10 %",
    kinds=("symmetry_toy",),
)
def shapes_match(results: Results) -> Finding:
    summary, paper = results.json("symmetry_toy", "summary.json"), published("toy")
    ours, errors = summary["shape"], summary["shape_errors"]
    close = [
        is_below(abs(ours[name] / paper[name] - 1), 0.1, errors[name] / paper[name])
        for name in paper
    ]
    pairs = ", ".join(
        f"{name.replace('_', ' ')} {ours[name]:.2f} ({paper[name]})" for name in paper
    )
    return Finding(
        decide(close, all_or_half),
        f"The paper's in brackets, read off its figure: {pairs}.",
    )


@claim(
    "Every unit of a layer holds the layer's largest weight equally often, as the exact posterior "
    "has it; but most approximations do not respect that, HMC included.",
    number="2",
    source="Corollary, poster",
    criterion="holds if independent networks pass the test of equal frequencies in every layer "
    f"(p > {SIGNIFICANT}, corrected for the number of tests), and chains do not pass it; in part "
    "if independent networks pass, and so do chains; no verdict if a chain passes with fewer than "
    f"{ENOUGH_DRAWS} effective draws of a layer's label",
    kinds=("symmetry_marginals",),
    in_short={
        HOLDS: "Units of independent networks are alike, those of a chain are not",
        PARTLY: "Units of independent networks are alike, and so are those of a chain",
        UNDECIDED: "Units of independent networks are alike; chains are worth too few draws to "
        "tell",
        FAILS: "Units of independent networks are not alike",
    },
)
def units_are_exchangeable(results: Results) -> Finding:
    smallest, sentences, short, few = {True: [], False: []}, [], [], False
    for name, result in results.json("symmetry_marginals", "marginals.json").items():
        tests = [views["as they are"] for views in result["groups"].values()]
        p = min(1.0, len(tests) * min(test["p"] for test in tests))
        smallest[result["independent"]].append(p)
        draws = min(test["effective_draws"] for test in tests)
        few |= not result["independent"] and p >= SIGNIFICANT and draws < ENOUGH_DRAWS
        networks = plural(sum(tests[0]["counts"]), "network")
        sentences.append(f"{name}: p = {p:.3g}, {networks} worth {draws:.1f} draws of the label")
        short.append(f"p = {p:.2g} for {name}, worth {draws:.0f} draws")
    if not smallest[True]:
        raise Missing("There are no independent networks among the posteriors")
    if not smallest[False]:
        raise Missing("There is no chain among the posteriors")
    pass_test = min(smallest[True]) > SIGNIFICANT
    chains_fail = max(smallest[False]) < SIGNIFICANT
    return Finding(
        FAILS if not pass_test else HOLDS if chains_fail else UNDECIDED if few else PARTLY,
        f"{'; '.join(sentences)}, in the layer with the fewest. Shuffling the units of each "
        "network makes any sampler pass, so this tests whether a sampler changes the order of "
        "units, not how well it samples functions.",
        f"by which unit holds the largest weight, {', '.join(short)}",
    )


# ---- Section 5.2


@claim(
    "Units change their order while they are trained, less and less towards the end.",
    source="Section 5.2",
    criterion="holds if Kendall's τ of orders by norm is below 0.9 from start to end, and at least "
    "0.9 over the last epoch; in part if one of both",
    kinds=("symmetry_order",),
)
def order_settles(results: Results) -> Finding:
    summary = results.json("symmetry_order", "summary.json")
    whole, last = summary["norm_start_to_end"], summary["norm_step"]["last"]
    moves = ", ".join(
        f"by {method} {number(summary[f'not_by_{method}_start_to_end'], 1)} from start to end and "
        f"{number(summary[f'not_by_{method}_step']['last'], 1)} in the last epoch"
        for method in ("activation", "weight")
    )
    return Finding(
        (FAILS, PARTLY, HOLDS)[(whole < 0.9) + (last >= 0.9)],
        f"τ by norm is {number(whole, 2)} from start to end and {number(last, 3)} over the last "
        f"epoch; by the largest weight {number(summary['largest_start_to_end'], 2)} and "
        f"{number(summary['largest_step']['last'], 3)}. Transpositions of rebasin per layer: "
        f"{moves}.",
    )


# ---- where both papers meet


@claim(
    "Removing scales as well as the order of units makes a Gaussian describe networks better.",
    source="ours; the paper, and Xiao et al. (2023)",
    criterion="holds if for every posterior q_r agrees better with the networks without scales "
    "than with them, by one of both normal forms, by 3 standard errors; in part if for one; no "
    f"verdict if a gain that is not as clear may be {SLIGHT} or more",
    kinds=("symmetry_compact",),
    ours=True,
    in_short={
        HOLDS: "A Gaussian per weight describes networks better without scales",
        PARTLY: "A Gaussian per weight describes some networks better without scales",
        FAILS: "A Gaussian per weight describes networks no better without scales",
    },
)
def scales_matter(results: Results) -> Finding:
    better, gains = [], []
    for name, result in results.json("symmetry_compact", "compact.json").items():
        cells = {scales: each["q_r"]["agreement"] for scales, each in result["scales"].items()}
        before = np.array(cells.pop("as they are"))
        best = max(cells, key=lambda scales: np.mean(cells[scales]))
        gain = np.array(cells[best]) - before  # of repeats with the same noise
        error = gain.std(ddof=1) / len(gain) ** 0.5
        is_slight = is_below(gain.mean(), SLIGHT, error)
        better.append(gain.mean() > 3 * error or (False if is_slight else None))
        change = f"{number(gain.mean(), 3, '+')} ± {error:.3f}"
        gains.append(f"{name}: {before.mean():.3f} as it is, {change} with {best}")
    return Finding(
        decide(better, all_or_some),
        f"Agreement of q_r's draws with the networks: {'; '.join(gains)}.",
        f"by agreement of its draws, {'; '.join(gains)}",
    )
