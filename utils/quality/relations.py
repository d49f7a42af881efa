"""What the rows of the table have to do with each other: distances with scores, two references."""

from collections.abc import Iterator, Sequence

from utils.quality.correlation import Tau, grouped_correlation, kendall
from utils.quality.references import HMC, NETWORKS

import numpy as np

LEAST_CLUSTERS = 4  # intervals come from resampling them


def distances_and_scores(
    rows: Sequence[dict], measures: Sequence[str], scores: Sequence[str], draws: int, seed: int
) -> dict[str, dict[str, dict]]:
    """Correlate distances to the networks with scores: over rows, and over modes of each method.

    Ranks are within rows of one mode, of several and so on, or within the modes of a method. The
    networks themselves are left out, since they are their own reference, and HMC with them.
    """
    rows = [row for row in rows if row["name"] not in (NETWORKS, HMC)]
    points = [{"name": row["name"]} | point for row in rows for point in row.get("points", [])]
    names, numbers = [row["name"] for row in rows], range(len(points))
    return {
        over: dict(correlate(items, group, list(clusters), measures, scores, draws, seed))
        for over, items, group, clusters in (
            ("rows", rows, "modes", names), ("modes", points, "name", numbers)
        )
    }  # fmt: skip


def correlate(
    items: Sequence[dict], group: str, clusters: Sequence, measures: Sequence[str],
    scores: Sequence[str], draws: int, seed: int,
) -> Iterator[tuple[str, dict]]:  # fmt: skip
    """Yield the correlation of each distance with each score, of items that have distances."""
    kept = [k for k, item in enumerate(items) if item["distances"].get(NETWORKS)]
    items, clusters = [items[k] for k in kept], [clusters[k] for k in kept]
    if len(set(clusters)) < LEAST_CLUSTERS:
        return
    groups = [item[group] for item in items]
    for measure in measures:
        if measure not in items[0]["distances"][NETWORKS]:
            continue
        distances = [item["distances"][NETWORKS][measure]["value"] for item in items]
        for score in scores:
            values = [item["scores"][score] for item in items]
            correlation = grouped_correlation(
                distances, values, groups, clusters, np.random.default_rng(seed), draws
            )
            yield f"{measure}/{score}", correlation._asdict() | {"count": len(items)}


def order_by_reference(rows: Sequence[dict], draws: int, seed: int) -> Tau | None:
    """Compare the orders of rows by total variation to the networks and to HMC.

    The references are left out. Methods are resampled for the interval. None: there is no HMC, or
    there are too few methods.
    """
    rows = [row for row in rows if row["name"] not in (NETWORKS, HMC)]
    names = [row["name"] for row in rows]
    if len(set(names)) < LEAST_CLUSTERS or HMC not in rows[0]["beside"]:
        return None
    orders = [[row["beside"][each]["total_variation"] for row in rows] for each in (NETWORKS, HMC)]
    return kendall(*orders, names, np.random.default_rng(seed), draws)
