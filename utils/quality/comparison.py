"""Compare the rows of the table with both references, and average over modes."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from utils.evaluation.metrics import closeness
from utils.networks.network import Network
from utils.networks.predictions import mean_probabilities
from utils.quality.calibration import calibrated_errors, equal_width, reliability
from utils.quality.forecasts import Forecast, ImageSets, forecast, linearised_forecast, parts_of
from utils.quality.modes import SampleSet
from utils.quality.references import Halves, Reference, fit_reference, mean_squares
from utils.quality.rows import ONE, LinearisedSet, Row
from utils.quality.scores import part_errors, quality_errors, quality_scores
from utils.runs.seeding import generator

import numpy as np
import torch
from torch import Tensor

LEAST_SAMPLES = 4  # for distances
HISTOGRAM_BINS = 40


class Standard(NamedTuple):
    """What every set of samples is compared with."""

    network: Network
    images: ImageSets
    references: list[Reference]
    truths: dict[str, Tensor]  # average predictions by reference
    num_bootstraps: int
    seed: int


def fit_references(
    network: Network, images: ImageSets, halves: dict[str, Halves], anchor: Tensor,
    num_inputs: int, num_permutations: int, num_bootstraps: int, seed: int,
) -> Standard:  # fmt: skip
    """Fit every reference to its first half, and predict with all that is not in the second."""
    references, truths = [], {}
    for name, half in halves.items():
        references.append(fit_reference(
            name, network, half.first, anchor, images, num_inputs, num_permutations, seed
        ))  # fmt: skip
        known = (weights.to(images.inside.device) for weights in half.known)
        truths[name] = mean_probabilities(network, known, images.inside)
    return Standard(network, images, references, truths, num_bootstraps, seed)


def compare_row(row: Row, standard: Standard, keep: Callable[[str, Callable], dict]) -> dict:
    """Return a row's results: those of its set, or means over its sets with their errors.

    `keep(name, compute)` returns what an earlier session has computed under this name.
    """
    alone = row.modes != ONE  # errors of a mean are those between its sets
    results = [
        keep(row.name_of(number), lambda s=samples: compare(s, standard, errors=alone))
        for number, samples in enumerate(row.sets)
    ]
    if alone:
        return row.about | results[0]
    points = [{name: each[name] for name in ("scores", "beside", "distances")} for each in results]
    return row.about | averaged(results) | {"points": points}


def compare(samples: SampleSet | LinearisedSet, standard: Standard, errors: bool = True) -> dict:
    """Return all that is measured of a set of samples, or of linearised modes."""
    if isinstance(samples, LinearisedSet):
        return compare_linearised(samples, standard, errors)
    started = time.process_time()
    weights = samples.weights()
    sampled = time.process_time()
    parts = parts_of(len(samples), len(samples.modes))
    prediction = forecast(standard.network, weights, parts, standard.images)
    predicted = time.process_time()
    return of_predictions(prediction, samples.name, standard, errors) | {
        "distances": {
            reference.name: reference.distances(weights, samples.blocks, standard.network)
            for reference in standard.references
            if len(samples) >= LEAST_SAMPLES
        },
        "mean_squares": mean_squares(standard.network, weights),
        "sampling_seconds": sampled - started,
        "prediction_seconds": predicted - sampled,
    }


def compare_linearised(samples: LinearisedSet, standard: Standard, errors: bool) -> dict:
    """Return the same of linearised modes, which have no samples to measure distances of."""
    started = time.process_time()
    prediction = linearised_forecast(samples.modes, standard.images)
    predicted = time.process_time()
    return of_predictions(prediction, samples.name, standard, errors) | {
        "distances": {},
        "sampling_seconds": 0.0,
        "prediction_seconds": predicted - started,
    }


def of_predictions(prediction: Forecast, name: str, standard: Standard, errors: bool) -> dict:
    """Return scores, closeness to the references' predictions, and what diagrams show."""
    count, seed, truths = standard.num_bootstraps, standard.seed, standard.truths
    result = {
        "scores": quality_scores(prediction),
        "beside": {each: closeness(prediction.average, truth) for each, truth in truths.items()},
        **curves(prediction, seed),
    }
    if errors:
        result["errors"] = quality_errors(prediction, count, seed, name)
        result["beside_errors"] = {
            each: part_errors(
                prediction, lambda f, t=truth: closeness(f.average, t), count, seed, name
            )
            for each, truth in truths.items()
        }
    return result


def curves(prediction: Forecast, seed: int) -> dict:
    """Return the reliability diagram, and histograms of confidence in and out of distribution."""
    bins = reliability(prediction.average, prediction.labels)
    null = calibrated_errors(prediction.average, generator(seed, "calibrated"))
    outside = prediction.outside.parts.mean(0)
    return {
        "reliability": {name: each.tolist() for name, each in bins._asdict().items()},
        "calibrated_ece": [null.mean().item(), null.quantile(0.95).item()],
        "confidence": {
            side: histogram(average).tolist()
            for side, average in (("inside", prediction.average), ("outside", outside))
        },
    }


def histogram(average: Tensor) -> Tensor:
    """Return the shares of images by their largest probability."""
    counts = torch.histc(average.max(-1).values.float().cpu(), HISTOGRAM_BINS, 0, 1)
    return counts / counts.sum()


# ---- means over modes


def averaged(results: Sequence[dict]) -> dict:
    """Return means over modes, with standard errors from their differences; curves likewise."""
    scores, beside = ([each[part] for each in results] for part in ("scores", "beside"))
    seconds = ({name: each[name] for name in each if name.endswith("_seconds")} for each in results)
    return {
        "scores": over(mean_of, scores),
        "errors": over(error_of, scores),
        "beside": over(mean_of, beside),
        "beside_errors": over(error_of, beside),
        "distances": {
            reference: {
                space: averaged_distance([each["distances"][reference][space] for each in results])
                for space in spaces
            }
            for reference, spaces in results[0]["distances"].items()
        },
        "confidence": over(
            lambda shares: np.mean(shares, 0).tolist(), [each["confidence"] for each in results]
        ),
        "reliability": pooled([each["reliability"] for each in results]),
        **over(mean_of, list(seconds)),
    }


def over(combine: Callable[[list], float | list], trees: list) -> dict:
    """Combine what several dictionaries with the same keys have in the same place."""
    if not isinstance(trees[0], dict):
        return combine(trees)
    return {name: over(combine, [tree[name] for tree in trees]) for name in trees[0]}


def averaged_distance(distances: list[dict]) -> dict:
    values = [each["value"] for each in distances]
    return {"value": mean_of(values), "error": error_of(values)}


def mean_of(values: list) -> float:
    """Return the mean of numbers; NaN is read back from JSON as None."""
    return float(np.mean([np.nan if value is None else value for value in values]))


def error_of(values: list) -> float:
    values = [np.nan if value is None else value for value in values]
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def pooled(diagrams: list[dict]) -> dict:
    """Return a reliability diagram of all points of several, bin by bin."""
    joined = {name: np.concatenate([each[name] for each in diagrams]) for name in diagrams[0]}
    place = equal_width(torch.from_numpy(joined["confidence"])).numpy()
    sizes = np.bincount(place, joined["sizes"])
    used = sizes > 0
    means = {
        name: (np.bincount(place, joined["sizes"] * joined[name])[used] / sizes[used]).tolist()
        for name in ("confidence", "accuracy")
    }
    return {"sizes": sizes[used].tolist()} | means
