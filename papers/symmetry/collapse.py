"""How alike networks are in what they predict, in and out of distribution: all pairs compared."""

from collections.abc import Iterable
from typing import NamedTuple

from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.quality.diversity import pairs_of, pairwise_disagreement, pairwise_mutual_information
from utils.quality.forecasts import ImageSets
from utils.runs.progress import progress_bar

import numpy as np
import torch
from torch import Tensor

SIDES = ("inside", "outside")  # of the distribution that networks are trained on


class Pairs(NamedTuple):
    """What is compared of all pairs of networks, [n, n] by side."""

    information: dict[str, Tensor]
    disagreement: dict[str, Tensor]
    halves: dict[str, tuple[Tensor, Tensor]]  # information on every other image


def compare_pairs(network: Network, weights: Tensor, images: ImageSets) -> Pairs:
    information, different, halves = {}, {}, {}
    for side in SIDES:
        predictions = predict_all(network, weights, getattr(images, side))
        with progress_bar(2 * len(weights), f"pairs {side}", unit="network") as bar:
            both = [
                pairwise_mutual_information(predictions[:, first::2], bar.update)
                for first in (0, 1)
            ]
        sizes = [predictions[0, first::2].shape[0] for first in (0, 1)]
        total = sum(size * half for size, half in zip(sizes, both, strict=True))
        information[side], halves[side] = total / sum(sizes), tuple(both)
        different[side] = pairwise_disagreement(predictions)
    return Pairs(information, different, halves)


def predict_all(network: Network, weights: Iterable[Tensor], inputs: Tensor) -> Tensor:
    """Return predictions [n, N, classes] in float32, on the CPU."""
    rows = [class_probabilities(network, each.to(inputs.device), inputs) for each in weights]
    return torch.stack([row.float().cpu() for row in rows])


def variation(pairs: Pairs, side: str) -> dict:
    """Return how pairs vary, and how much of it is due to the finite number of images.

    Two halves of the images share what is particular to a pair, and nothing else, so their
    covariance over pairs is the variance for infinitely many images.
    """
    values = pairs_of(pairs.information[side]).numpy()
    halves = np.stack([pairs_of(each).numpy() for each in pairs.halves[side]])
    covariance = np.cov(halves)
    own = max(0.0, float(covariance[0, 1]))
    return {
        "mean": float(values.mean()),
        "deviation": float(values.std()),
        "relative_deviation": float(values.std() / values.mean()),
        "relative_deviation_without_image_noise": own**0.5 / float(values.mean()),
        "quantiles": np.quantile(values, [0, 0.01, 0.05, 0.5, 0.95, 0.99, 1]).tolist(),
        "disagreement": float(pairs_of(pairs.disagreement[side]).mean()),
    }


def each_pair(predictions: Tensor, compare) -> np.ndarray:
    """Return what `compare` says of each of the pairs [pairs, 2, N, classes]."""
    return np.array([float(compare(pair)[0, 1]) for pair in predictions])


def means_of_groups(results: dict) -> dict[str, dict[str, float]]:
    """Return the means over pairs, by kind of pair and quantity."""
    means = {}
    for name, values in results.items():
        prefix = name.partition("inside" if "inside" in name else "outside")[0]
        group = means.setdefault(prefix.rstrip("_") or "independent", {})
        group[name.removeprefix(prefix)] = float(values.mean())
    return means
