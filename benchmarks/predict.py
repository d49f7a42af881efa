"""Speed of predictions of many posterior samples, beside the usual way and the matrix products.

    python benchmarks/predict.py [--data_dir DIR] [--repeats N] [--num_samples N]

Samples are read from a samples.npy on disk, as the evaluation does, and their softmax outputs on
the 10,000 test images are averaged in float64. The usual way is a torch.nn module that the samples
are loaded into, on a DataLoader's batches. The limit is the time of the matrix products alone, in
chunks that stay in cache, into memory that is used again.
"""

import argparse
import tempfile
from pathlib import Path

import harness
from utils.data.datasets import load_pixels
from utils.networks.mlp import MLP
from utils.networks.predictions import mean_probabilities
from utils.posteriors.samples import Samples, open_samples
from utils.runs.compute import choose_matmul
from utils.runs.files import save_json
from utils.runs.seeding import generator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

NETWORK = MLP((784, 512, 10))
WANTED = 1000  # samples, in the paper's evaluation
MOST = 1.5  # times the matrix products, that predictions may take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default=harness.ROOT / "data")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num_samples", type=int, default=20, help="timed, and scaled to one")
    options = parser.parse_args()
    choose_matmul(torch.device("cpu"))
    images = load_pixels("MNIST", options.data_dir).test_images
    with tempfile.TemporaryDirectory() as directory:
        samples = make_samples(Path(directory), options.num_samples)
        weights = torch.stack(list(samples))
        seconds = harness.fastest(
            {
                "torch.nn and DataLoader": lambda: usual_way(weights, images),
                "ours": lambda: mean_probabilities(NETWORK, samples, images),
                "limit: matrix products alone": lambda: products_alone(weights, images),
            },
            options.repeats,
        )
    seconds = {name: total / options.num_samples for name, total in seconds.items()}
    ratio = seconds["ours"] / seconds["limit: matrix products alone"]
    harness.record(
        f"Predictions, 784-512-10, {len(images):,} images", "sample", seconds,
        "torch.nn and DataLoader",
        [
            f"Ours takes {ratio:.2f} times the matrix products; at most {MOST} is the aim.",
            f"{WANTED:,} samples: {WANTED * seconds['ours']:.0f} seconds.",
        ],
    )  # fmt: skip


def make_samples(directory: Path, count: int) -> Samples:
    drawn = [NETWORK.initial_weights(generator(0, "benchmark", k)) for k in range(count)]
    np.save(directory / "samples.npy", torch.stack(drawn).numpy())
    content = {"sizes": NETWORK.sizes, "activation": NETWORK.activation}
    save_json(directory / "network.json", content)
    return open_samples(directory)


@torch.no_grad()
def usual_way(samples: Tensor, images: Tensor) -> Tensor:
    inputs, hidden, classes = NETWORK.sizes
    model = torch.nn.Sequential(
        torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes)
    )
    total = torch.zeros(len(images), classes)
    for weights in samples:
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
        loader = DataLoader(images, batch_size=100)
        total += torch.cat([model(rows).softmax(-1) for rows in loader])
    return total / len(samples)


def products_alone(samples: Tensor, images: Tensor) -> None:
    hidden, outputs = (torch.empty(NETWORK.chunk_rows, size) for size in NETWORK.sizes[1:])
    for weights in samples:
        (first, _), (second, _) = NETWORK.layers(weights)
        for rows in images.split(NETWORK.chunk_rows):
            values = torch.mm(rows, first.T, out=hidden[: len(rows)])
            torch.mm(values, second.T, out=outputs[: len(rows)])


if __name__ == "__main__":
    main()
