"""HMC's predictions on test images as a gold standard, in a file, and scores of others beside them.

A file NAME.npz holds

    log_probabilities    [parts, N, classes], float16: of the average predictions of every chain, or
                         of pieces of one
    sizes                [parts]: samples in each
    labels               [N], uint8: of the test images, in the order of the predictions
    about                JSON as bytes: posterior, sampler, checks, and the checksum of the labels

Rows are normalised before they are rounded, and again when they are read. Logarithms keep three
digits of the smallest probabilities, too, which the NLL depends on; the smallest float16 is 6e-8.

`published_predictions` are HMC's for CIFAR-10's test images (Izmailov et al. 2021), from
data/cifar10/probs.csv of the starter kit of the NeurIPS 2021 competition on approximate inference:
10,000 rows of 10 probabilities, of a ResNet-20 with filter response normalisation. Its rows follow
TensorFlow Datasets, which sorts test images by the MD5 of "test<number>".
"""

import gzip
import hashlib
import json
import urllib.request
from pathlib import Path
from typing import NamedTuple

from utils.evaluation.metrics import (
    MetricValues,
    Prediction,
    accuracy,
    add_errors,
    closeness,
    deviations,
    resample,
    scores,
)
from utils.evaluation.predictions import PartPredictions
from utils.runs.files import UNREADABLE, as_numpy, write_atomically
from utils.settings.errors import UserError, reason

import numpy as np
import torch
from torch import Tensor

SMALLEST_PROBABILITY = 1e-300  # probability
SUM_TOLERANCE = 0.01  # of the sum of a row; float16 is well within


class Gold(NamedTuple):
    predictions: PartPredictions
    labels: Tensor  # [N]
    about: dict

    @property
    def shape(self) -> tuple[int, int]:
        """The shape [N, classes] of predictions."""
        return tuple(self.predictions.parts.shape[1:])

    @property
    def name(self) -> str:
        return self.about["name"]


def checksum_of_labels(labels: Tensor) -> str:
    """Return the SHA-256 of labels as bytes: it tells data sets and their order."""
    return hashlib.sha256(as_numpy(labels).astype(np.uint8).tobytes()).hexdigest()


def normalised(probabilities: Tensor) -> Tensor:
    """Return rows that sum to 1, in float64."""
    probabilities = probabilities.double()
    return probabilities / probabilities.sum(-1, keepdim=True)


# ---- files


def save_gold(path: Path, predictions: PartPredictions, labels: Tensor, about: dict) -> None:
    """Write a gold file; `about` is extended by the checksum of the labels."""
    logarithms = as_numpy(normalised(predictions.parts).clamp(min=SMALLEST_PROBABILITY).log())
    about = about | {"labels_sha256": checksum_of_labels(labels)}
    arrays = {
        "log_probabilities": logarithms.astype(np.float16),
        "sizes": as_numpy(predictions.sizes),
        "labels": as_numpy(labels).astype(np.uint8),
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
    }
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))


def find_gold(given: str, folder: Path) -> Path:
    """Return the path of a gold file from its path or from its name in a folder."""
    named = folder / f"{given}.npz"
    if named.exists():
        return named
    if not Path(given).is_file():
        names = ", ".join(sorted(path.stem for path in folder.glob("*.npz"))) or "none"
        raise UserError(
            f"There is no gold standard {given!r}: give the path of a file, or one of {names}."
        )
    return Path(given)


def read_gold(path: Path) -> Gold:
    try:
        with np.load(path) as archive:
            about = json.loads(archive["about"].tobytes())
            names = ("log_probabilities", "sizes", "labels")
            logarithms, sizes, labels = (torch.from_numpy(archive[name]) for name in names)
        parts = logarithms.double().softmax(-1)
        gold = Gold(PartPredictions(parts, sizes), labels.long(), about)
        whole = gold.shape[0] == len(labels) and len(parts) == len(sizes) and about["name"]
    except UNREADABLE as error:
        raise UserError(f"Cannot read the gold standard {path}: {reason(error)}.") from None
    if not whole or checksum_of_labels(labels) != about.get("labels_sha256"):
        raise UserError(f"{path} is damaged: its labels are not those it was made with.")
    return gold


# ---- predictions of others


def open_predictions(path: Path, gold: Gold, array: str | None = None) -> Tensor:
    """Read probabilities [N, classes] in the order of the gold standard's labels.

    The file is an .npy, or an .npz with one array of that shape, or one of the name `array`. Labels
    in the .npz, if there are any, have to be those of the gold standard.
    """
    arrays = _read_arrays(path)
    labels = arrays.pop("labels", None)
    chosen = _choose(arrays, path, gold, array)
    if labels is not None:
        _check_labels(labels, gold, path)
    return _checked(torch.from_numpy(chosen.astype(np.float64)), path)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        content = np.load(path)
        if isinstance(content, np.ndarray):
            return {"": content}
        with content:
            return {name: content[name] for name in content.files}
    except UNREADABLE as error:
        raise UserError(f"Cannot read the predictions {path}: {reason(error)}.") from None


def _choose(arrays: dict, path: Path, gold: Gold, array: str | None) -> np.ndarray:
    points, classes = gold.shape
    wanted = (
        f"probabilities [{points}, {classes}], a row for each test image of {gold.about['dataset']}"
    )
    shapes = {name: list(each.shape) for name, each in arrays.items()}
    if array is not None:
        if array not in arrays:
            raise UserError(f"{path} has no array {array!r}, but: {', '.join(arrays) or 'none'}.")
        arrays = {array: arrays[array]}
    fitting = [each for each in arrays.values() if each.shape == (points, classes)]
    if len(fitting) == 1 and fitting[0].dtype.kind != "f":
        raise UserError(
            f"{path} must have {wanted}, in floating point; its array is of {fitting[0].dtype}."
        )
    if len(fitting) == 1:
        return fitting[0]
    if len(fitting) > 1:
        names = ", ".join(name for name, shape in shapes.items() if shape == [points, classes])
        raise UserError(
            f"{path} has several arrays of predictions: give --array and one of {names}."
        )
    listed = ", ".join(f"{name} {shape}".strip() for name, shape in shapes.items()) or "none"
    raise UserError(f"{path} must have {wanted}; it has {listed}.")


def _check_labels(labels: np.ndarray, gold: Gold, path: Path) -> None:
    ours = as_numpy(gold.labels)
    if labels.shape == ours.shape and np.array_equal(labels, ours):
        return
    same = labels.shape == ours.shape and np.array_equal(np.sort(labels), np.sort(ours))
    what = "the labels in another order" if same else "other labels"
    raise UserError(
        f"{path} has {what} than the test images of {gold.about['dataset']}: predictions must be "
        "in the order of the gold standard's labels."
    )


def _checked(probabilities: Tensor, path: Path) -> Tensor:
    """Return normalised rows; refuse what are no probabilities."""
    sums = probabilities.sum(1)
    if not probabilities.isfinite().all():
        raise UserError(f"{path} has predictions that are NaN or infinite.")
    if probabilities.min() < 0 or (sums - 1).abs().max() > SUM_TOLERANCE:
        raise UserError(
            f"{path} has rows that are no probabilities (smallest entry "
            f"{probabilities.min():.3g}, sums from {sums.min():.3g} to {sums.max():.3g}): give the "
            "softmax of logits, averaged over the posterior."
        )
    return normalised(probabilities)


# ---- scores


class Scored(NamedTuple):
    """Scores of predictions beside a gold standard, with their standard errors."""

    values: MetricValues
    errors: MetricValues
    impossible: int = 0  # test images whose label has probability 0


def score_beside(predictions: PartPredictions, gold: Gold, replicates: int, seed: int) -> Scored:
    """Score predictions; errors are due to test images, HMC's samples, and the predictions' own.

    A single part has no error of its own: it is taken as given.
    """
    prediction = predictions.compared(gold.predictions, gold.labels)
    points = resample(len(gold.labels), replicates, seed, "points")
    origins = [deviations(lambda chosen: scores(prediction.at(chosen)), [points])]

    def of_truth(chosen: Tensor) -> MetricValues:
        truth = gold.predictions.average(chosen)
        return scores(Prediction(prediction.average, truth, gold.labels, prediction.mean_network))

    def of_own(chosen: Tensor) -> MetricValues:
        return scores(predictions.compared(gold.predictions, gold.labels, chosen))

    for parts, of_parts in ((gold.predictions.sizes, of_truth), (predictions.sizes, of_own)):
        if len(parts) > 1:
            choices = resample(len(parts), replicates, seed, "parts")
            origins.append(deviations(of_parts, [choices]))
    chosen = prediction.average.gather(1, gold.labels.unsqueeze(1))
    return Scored(scores(prediction), add_errors(*origins), (chosen == 0).sum().item())


def floor(gold: Gold) -> dict[str, float]:
    """Return agreement and TV between two halves of HMC's chains.

    All of HMC is about half as far from the exact posterior, in TV.
    """
    return closeness(*gold.predictions.halves())


def floor_text(gold: Gold) -> str:
    halves = floor(gold)
    count = len(gold.predictions.sizes)
    return (
        f"Between two halves of HMC ({count} parts): agreement {halves['agreement']:.4f}, TV "
        f"{halves['total_variation']:.4f}. All of HMC is about half as far (in TV) from the exact "
        "posterior, so smaller differences are not resolved."
    )


def looks_shuffled(values: MetricValues, gold: Gold) -> bool:
    """Return whether predictions agree with HMC hardly more often than by chance."""
    return values["agreement"] < 2 / gold.shape[1]


# ---- published predictions

ADDRESS = (
    "https://raw.githubusercontent.com/izmailovpavel/neurips_bdl_starter_kit/main/data/cifar10/"
    "probs.csv"
)
SHAPE = (10_000, 10)
ACCURACY = 0.9144  # in the order of the test images; in another one it would be 0.1
DOWNLOAD = "download"


def published_predictions(given: str, labels: Tensor, data_dir: str) -> Tensor:
    """Return the predictions [10000, 10] in the order of the test images with these labels.

    `given` is the path of probs.csv or probs.csv.gz, or DOWNLOAD.
    """
    path = fetch_predictions(data_dir) if given == DOWNLOAD else Path(given)
    probabilities = in_order(read_predictions(path))
    share = accuracy(probabilities, labels.cpu())
    if abs(share - ACCURACY) > 5e-5:
        raise UserError(
            f"{path} has an accuracy of {share:.4f} on these test images instead of {ACCURACY}: "
            "give the published file for CIFAR10."
        )
    return probabilities.to(labels.device)


def fetch_predictions(data_dir: str) -> Path:
    """Return the file in the data directory, downloaded if it is not there."""
    path = Path(data_dir) / "CIFAR10" / "hmc_probs.csv"
    if not path.exists():
        try:
            with urllib.request.urlopen(ADDRESS, timeout=20) as answer:
                content = answer.read()
        except OSError as error:
            raise UserError(
                f"Cannot download {ADDRESS}: {reason(error)}. Fetch it elsewhere and give its path."
            ) from None
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write(content))
    return path


def read_predictions(path: Path) -> np.ndarray:
    """Read a table of probabilities, compressed or not."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            lines = file.read().decode().replace(",", " ").splitlines()
        table = np.loadtxt(lines, ndmin=2)
    except UNREADABLE as error:
        raise UserError(f"Cannot read the predictions {path}: {reason(error)}.") from None
    if table.shape != SHAPE or not np.allclose(table.sum(1), 1, atol=1e-3) or table.min() < 0:
        raise UserError(
            f"{path} has an array of the shape {list(table.shape)}: it should have {SHAPE[0]} rows "
            f"of {SHAPE[1]} probabilities."
        )
    return table


def in_order(table: np.ndarray) -> Tensor:
    """Return the rows in the order of the test images."""
    names = [hashlib.md5(f"test{number}".encode()).hexdigest() for number in range(len(table))]
    ordered = np.empty_like(table)
    ordered[np.argsort(names)] = table
    return torch.from_numpy(ordered / ordered.sum(1, keepdims=True))
