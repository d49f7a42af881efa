"""Rank correlations with intervals and tests that respect what is independent of what.

Pairs of n networks are not n (n − 1) / 2 observations: networks are permuted (the Mantel test) and
left out (the jackknife). Scores of methods are permuted within groups of rows.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from utils.quality.references import HMC_SAMPLES, INDEPENDENT

import numpy as np
from scipy.stats import norm, rankdata

CONFIDENCE = 0.95
PERMUTATIONS = 10  # for each resampling: p has to be small where many correlations are tested


class Correlation(NamedTuple):
    """Spearman's ρ with its interval at CONFIDENCE and p value."""

    rho: float
    low: float
    high: float
    p: float


def _pearson(first: np.ndarray, second: np.ndarray) -> float:
    """Return Pearson's correlation; NaN if one side is constant."""
    first, second = first - first.mean(), second - second.mean()
    scale = math.sqrt((first @ first) * (second @ second))
    return float(first @ second) / scale if scale > 0 else float("nan")


def partial_spearman(first, second, groups: Sequence) -> float:
    """Return the correlation of ranks within groups."""
    return _pearson(*(ranks_within(each, groups) for each in (first, second)))


def ranks_within(values, groups: Sequence) -> np.ndarray:
    """Return ranks within each group, from −½ to ½, so that groups do not differ on average."""
    values, groups = np.asarray(values), np.asarray(groups)
    ranks = np.empty(len(values))
    for group in np.unique(groups):
        place = groups == group
        ranks[place] = rankdata(values[place]) / (place.sum() + 1) - 0.5
    return ranks


def grouped_correlation(
    first, second, groups: Sequence, clusters: Sequence, random: np.random.Generator,
    draws: int = 2000,
) -> Correlation:  # fmt: skip
    """Correlate ranks within groups; resample clusters for the interval, permute them for p.

    Rows of a cluster depend on each other, so clusters are permuted, in the same way in all groups.
    Rows stay in their group, so differences between groups cannot make a correlation.
    """
    first, second, groups = map(np.asarray, (first, second, groups))
    rho = partial_spearman(first, second, groups)
    if math.isnan(rho):
        return Correlation(rho, rho, rho, rho)
    numbers = np.unique(np.asarray(clusters), return_inverse=True)[1]
    low, high = cluster_interval(
        lambda rows: partial_spearman(first[rows], second[rows], groups[rows]),
        clusters, random, draws,
    )  # fmt: skip
    p = permuted_clusters(first, second, groups, numbers, random, PERMUTATIONS * draws)
    return Correlation(rho, low, high, p)


def permuted_clusters(
    first: np.ndarray, second: np.ndarray, groups: np.ndarray, numbers: np.ndarray,
    random: np.random.Generator, draws: int,
) -> float:  # fmt: skip
    """Return p of the correlation of ranks within groups; clusters move alike in all groups."""
    ranks = [ranks_within(each, groups) for each in (first, second)]  # 0 on average, in each group
    keys = random.random((draws, numbers.max() + 1))
    shuffled = np.empty((draws, len(first)))
    for group in np.unique(groups):
        place = np.flatnonzero(groups == group)
        place = place[numbers[place].argsort()]  # clusters in the same order in every group
        shuffled[:, place] = ranks[1][place[keys[:, numbers[place]].argsort(1)]]
    products, observed = shuffled @ ranks[0], ranks[1] @ ranks[0]
    beyond = (np.abs(products) >= abs(observed) - 1e-12).sum()
    return float((1 + beyond) / (1 + draws))


class Tau(NamedTuple):
    """Kendall's τ with its interval at CONFIDENCE."""

    tau: float
    low: float
    high: float


def grouped_kendall(
    first, second, groups: Sequence, clusters: Sequence, random: np.random.Generator,
    draws: int = 2000,
) -> Tau:  # fmt: skip
    """Compare two orders of the same rows, by pairs of a group; resample clusters."""
    first, second, groups = map(np.asarray, (first, second, groups))
    low, high = cluster_interval(
        lambda rows: kendall_within(first[rows], second[rows], groups[rows]),
        clusters, random, draws,
    )  # fmt: skip
    return Tau(kendall_within(first, second, groups), low, high)


def kendall_within(first: np.ndarray, second: np.ndarray, groups: np.ndarray) -> float:
    """Return Kendall's τ-b of the pairs of rows that are of one group."""
    together = groups[:, None] == groups
    signs = [np.sign(each[:, None] - each) * together for each in (first, second)]
    untied = math.sqrt(math.prod(np.square(each).sum() for each in signs))
    return float((signs[0] * signs[1]).sum() / untied) if untied else float("nan")


def cluster_interval(
    statistic: Callable[[np.ndarray], float], clusters: Sequence, random: np.random.Generator,
    draws: int,
) -> tuple[float, float]:  # fmt: skip
    """Return a statistic's bootstrap interval at CONFIDENCE, from resampled clusters of rows."""
    numbers = np.unique(np.asarray(clusters), return_inverse=True)[1]
    members = [np.flatnonzero(numbers == each) for each in range(numbers.max() + 1)]
    resampled = []
    for _ in range(draws):
        chosen = random.integers(len(members), size=len(members))
        resampled.append(statistic(np.concatenate([members[each] for each in chosen])))
    low, high = np.nanquantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


# ---- matrices of all pairs of networks


def pair_correlation(
    first: np.ndarray, second: np.ndarray, random: np.random.Generator, draws: int = 200
) -> Correlation:
    """Correlate the ranks of two symmetric matrices [n, n] over pairs of networks.

    The interval is the jackknife's over networks, of Fisher's z; p is the Mantel test's.
    """
    pairs = np.triu_indices(len(first), 1)
    ranks = [_symmetric(rankdata(each[pairs]), pairs, len(first)) for each in (first, second)]
    rho = _of_pairs(*ranks)
    error = _jackknife_error(*ranks)
    margin = norm.ppf((1 + CONFIDENCE) / 2) * error
    z = math.atanh(np.clip(rho, -1 + 1e-12, 1 - 1e-12))
    beyond = 0
    for _ in range(draws):
        order = random.permutation(len(first))
        beyond += abs(_of_pairs(ranks[0], ranks[1][np.ix_(order, order)])) >= abs(rho) - 1e-12
    p = (1 + beyond) / (1 + draws)
    return Correlation(rho, math.tanh(z - margin), math.tanh(z + margin), p)


def _symmetric(values: np.ndarray, pairs: tuple, size: int) -> np.ndarray:
    """Return a matrix of the values, shifted to mean 0, with a diagonal of 0."""
    matrix = np.zeros((size, size))
    matrix[pairs] = values - values.mean()
    return matrix + matrix.T


def _of_pairs(first: np.ndarray, second: np.ndarray) -> float:
    """Return Pearson's correlation of matrices of mean 0 with a diagonal of 0."""
    with np.errstate(invalid="ignore"):  # NaN if all pairs are equal
        return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))


def _jackknife_error(first: np.ndarray, second: np.ndarray) -> float:
    """Return the standard error of atanh ρ, leaving out each network with all its pairs.

    All sums over the remaining pairs are the whole sums without a row and a column.
    """
    size = len(first)
    remaining = (size - 1) * (size - 2)

    def without_each(matrix: np.ndarray) -> np.ndarray:
        return matrix.sum() - 2 * matrix.sum(1)

    means = [without_each(each) / remaining for each in (first, second)]
    covariance = without_each(first * second) / remaining - means[0] * means[1]
    variances = [
        without_each(each**2) / remaining - mean**2
        for each, mean in zip((first, second), means, strict=True)
    ]
    with np.errstate(invalid="ignore", divide="ignore"):  # all that is left may be equal
        rho = covariance / np.sqrt(variances[0] * variances[1])
    z = np.arctanh(np.clip(rho, -1 + 1e-12, 1 - 1e-12))
    return float(np.sqrt((size - 1) * z.var()))


# ---- rows of the table: distances with scores, the orders by two references

LEAST_CLUSTERS = 5  # intervals come from resampling them, and of fewer they are too short
AVERAGES = "total_variation"  # of averaged predictions; all other measures are distances


def distances_and_scores(
    rows: Sequence[dict], measures: Sequence[str], scores: Sequence[str], draws: int, seed: int,
    reference: str = INDEPENDENT,
) -> dict[str, dict[str, dict]]:  # fmt: skip
    """Correlate distances to a reference with scores: over rows, and over modes of each method.

    Ranks are within rows of one mode, of several and so on, or within the modes of a method. Rows
    of the same modes are one cluster. The references are left out, since one of them is its own
    reference, and so that both references are compared by the same rows.
    """
    rows = methods_of(rows)
    points = [{"name": row["name"]} | point for row in rows for point in row.get("points", [])]
    sources, numbers = [row["source"] for row in rows], list(range(len(points)))
    return {
        over: dict(correlate(items, group, clusters, measures, scores, draws, seed, reference))
        for over, items, group, clusters in (
            ("rows", rows, "modes", sources), ("modes", points, "name", numbers)
        )
    }  # fmt: skip


def methods_of(rows: Sequence[dict]) -> list[dict]:
    """Return the rows that are not of a reference."""
    return [row for row in rows if row["name"] not in (INDEPENDENT, HMC_SAMPLES)]


def correlate(
    items: Sequence[dict], group: str, clusters: Sequence, measures: Sequence[str],
    scores: Sequence[str], draws: int, seed: int, reference: str = INDEPENDENT,
) -> Iterator[tuple[str, dict]]:  # fmt: skip
    """Yield the correlation of each distance with each score, of items that have distances.

    `least_p` is the smallest p value that so many permutations can give.
    """
    kept = [k for k, item in enumerate(items) if item["distances"].get(reference)]
    items, clusters = [items[k] for k in kept], [clusters[k] for k in kept]
    if len(set(clusters)) < LEAST_CLUSTERS:
        return
    groups = [item[group] for item in items]
    about = {"count": len(items), "least_p": 1 / (1 + PERMUTATIONS * draws)}
    for measure in measures:
        if measure not in items[0]["distances"][reference]:
            continue
        distances = [item["distances"][reference][measure]["value"] for item in items]
        for score in scores:
            values = [item["scores"][score] for item in items]
            correlation = grouped_correlation(
                distances, values, groups, clusters, np.random.default_rng(seed), draws
            )
            yield f"{measure}/{score}", correlation._asdict() | about


def orders_by_reference(
    rows: Sequence[dict], measures: Sequence[str], draws: int, seed: int
) -> dict[str, dict]:
    """Compare the orders of rows by their distance to the networks and to HMC, by each measure.

    The first measure is the total variation of averaged predictions. Each result is of all rows,
    and under "several" of those with several modes; None: of too few methods.
    """
    rows, orders = methods_of(rows), {}
    for measure in (AVERAGES, *measures):
        pairs = [(row, values) for row in rows if (values := _to_both(row, measure))]
        several = [(row, values) for row, values in pairs if row["modes"] != "one"]
        order = _order(pairs, draws, seed)
        if order:
            orders[measure] = order | {"several": _order(several, draws, seed)}
    return orders


def _to_both(row: dict, measure: str) -> tuple[float, float] | None:
    """Return a row's distances to the networks and to HMC, if both are known."""
    if measure == AVERAGES:
        found = [row["beside"].get(each, {}).get(measure) for each in (INDEPENDENT, HMC_SAMPLES)]
    else:
        cells = (row["distances"].get(each, {}) for each in (INDEPENDENT, HMC_SAMPLES))
        found = [cell.get(measure, {}).get("value") for cell in cells]
    return None if None in found else tuple(found)


def _order(pairs: Sequence[tuple[dict, tuple]], draws: int, seed: int) -> dict | None:
    """Compare the orders of rows by two distances.

    Pairs of rows count that both have one mode, or several, or as many as samples: that more modes
    are nearer to both references says nothing about these. Methods are resampled for the interval,
    each with all rows of its modes.
    """
    rows, sources = [row for row, _ in pairs], [row["source"] for row, _ in pairs]
    if len(set(sources)) < LEAST_CLUSTERS:
        return None
    first, second = zip(*(values for _, values in pairs), strict=True)
    groups, random = [row["modes"] for row in rows], np.random.default_rng(seed)
    order = grouped_kendall(first, second, groups, sources, random, draws)
    return order._asdict() | {"count": len(rows)}
