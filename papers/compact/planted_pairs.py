"""Pairs of networks that start as permuted copies: NoT, distance and barrier before and after
training.
"""

import math
from dataclasses import dataclass

from utils.data.datasets import Dataset
from utils.networks.network import Network
from utils.rebasin.matching import make_matcher
from utils.rebasin.paths import Line, barrier, score, tensor_distances, tensor_names
from utils.rebasin.rebase import move
from utils.runs.seeding import generator
from utils.symmetry.counts import chance_transpositions
from utils.symmetry.permutation import random_permutation
from utils.symmetry.transformation import Transformation

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

MIDPOINT = (0.0, 0.5, 1.0)
STAGES = ("initial", "trained", "undone")  # that every pair is measured at


@dataclass(frozen=True)
class Pair:
    """A network before training, and the permutation that makes its copy."""

    first: Tensor  # [d]
    second: Tensor  # [d]
    planted: Transformation


def make_pair(network: Network, seed: int, number: int, k: int, count: int) -> Pair:
    """Return pair k of `count` in a repetition. Each set of units has a permutation of its own."""
    first = network.initial_weights(generator(seed, "initial_weights", number, k))
    random = generator(seed, "planted_permutation", number, k)
    planted = Transformation(network)
    for name in network.groups:
        *parents, size = network.units(name)
        wanted = wanted_transpositions(size, count)[k]
        rows = [random_permutation(size, wanted, random) for _ in range(math.prod(parents))]
        planted.permutations[name] = torch.stack(rows).reshape(*parents, size)
    return Pair(first, planted.apply(first), planted)


def wanted_transpositions(size: int, count: int) -> list[int]:
    """Return `count` values of NoT, evenly spaced from 1 to the most that `size` units can have."""
    return np.linspace(min(1, size - 1), size - 1, count).round().astype(int).tolist()


def measure_pair(
    network: Network, data: Dataset, pair: Pair, trained: Tensor, matching: str
) -> list[dict]:
    """Measure a pair at initialisation, trained, and trained with the planted permutation undone.

    planted, found       NoT per hidden layer: of the permutation planted, and of the rebasin
    distance             of the two networks, per tensor and in total
    {train,test}_{loss,error}[_barrier]
                         at the midpoint, and what that has over the mean of the two networks'
    """
    undone = move(trained[1], pair.planted.inverse())
    stages = {
        "initial": (pair.first.to(trained), pair.second.to(trained)),
        "trained": (trained[0], trained[1]),
        "undone": (trained[0], undone),
    }
    before, after = (
        make_matcher(matching, network, stages[stage][0], data.train_images)
        for stage in ("initial", "trained")
    )
    matchers = {"initial": before, "trained": after, "undone": after}
    names = tensor_names(network)
    return [
        {
            "stage": stage,
            "hidden_sizes": network.set_sizes,
            "random_transpositions": chance_transpositions(network).mean,
            "planted": list(pair.planted.transpositions().values()),
            "found": list(matchers[stage](ends[1]).transformation.transpositions().values()),
            "distance": dict(zip(names, tensor_distances(network, *ends).tolist(), strict=True)),
            **midpoint("train", network, *ends, data),
            **midpoint("test", network, *ends, data),
        }
        for stage, ends in stages.items()
    ]


def midpoint(
    part: str, network: Network, first: Tensor, second: Tensor, data: Dataset
) -> dict[str, float]:
    scores = score(Line(network, first, second, MIDPOINT), *data.part(part), data.train_images)
    return {
        f"{part}_loss": scores.loss[1].item(),
        f"{part}_error": scores.error[1].item(),
        f"{part}_loss_barrier": barrier(scores.loss, MIDPOINT)[1].item(),
        f"{part}_error_barrier": barrier(scores.error, MIDPOINT)[1].item(),
    }


def summary_of_pairs(records: list[dict]) -> dict:
    """Return averages and rank correlations over all pairs and runs at one stage."""
    found, planted = (
        np.array([record[name] for record in records]) for name in ("found", "planted")
    )  # [record, layer]
    expected = 0 * planted if records[0]["stage"] == "undone" else planted
    change = np.abs(found.sum(1) - expected.sum(1))
    heights = np.array([record["test_loss_barrier"] for record in records])
    total = planted.sum(1)
    return {
        "mean_found": found.sum(1).mean(),
        "mean_found_per_layer": found.mean(0).tolist(),
        "mean_change": change.mean(),
        "mean_change_per_layer": np.abs(found - expected).mean(0).tolist(),
        "max_change": change.max(),
        "mean_test_loss_barrier": heights.mean(),
        "least_planted": total.min(),
        "test_loss_barrier_at_least_planted": heights[total == total.min()].mean(),
        "most_planted": total.max(),
        "test_loss_barrier_at_most_planted": heights[total == total.max()].mean(),
        "rank_correlation_planted_found": rank_correlation(total, found.sum(1)),
        "rank_correlation_planted_barrier": rank_correlation(total, heights),
    }


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's ρ; NaN if one of the two does not vary."""
    varies = np.ptp(first) > 0 and np.ptp(second) > 0
    return float(spearmanr(first, second).statistic) if varies else float("nan")
