"""Published predictions of HMC for CIFAR-10's test images (Izmailov et al. 2021).

The file is data/cifar10/probs.csv of the starter kit of the NeurIPS 2021 competition on approximate
inference: 10,000 rows of 10 probabilities, of a ResNet-20 with filter response normalisation. Its
rows follow TensorFlow Datasets, which sorts test images by the MD5 of "test<number>".
"""

import gzip
import hashlib
import urllib.request
from pathlib import Path

from utils.evaluation.metrics import accuracy
from utils.runs.errors import UserError, reason
from utils.runs.files import UNREADABLE, write_atomically

import numpy as np
import torch
from torch import Tensor

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
