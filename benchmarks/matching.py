"""Speed of rebasin and of losses along a line, beside the straightforward way and the limit.

    python benchmarks/matching.py [--data_dir DIR] [--repeats N] [--num_images N]

The straightforward way loads images with a DataLoader, evaluates each network of a line from the
start, and fills the matrix of similarities in a double loop. The limit is the time of the matrix
products that matching by activation cannot do without, plus the assignment.
"""

import argparse

import harness
from utils.data.datasets import Dataset, load_pixels
from utils.networks.mlp import MLP
from utils.rebasin.paths import Line, score
from utils.rebasin.response_matching import ActivationMatcher
from utils.rebasin.weight_matching import WeightMatcher
from utils.runs.compute import choose_matmul
from utils.runs.seeding import generator

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

NETWORK = MLP((784, 512, 10))
LAMBDAS = [k / 10 for k in range(11)]
UNITS = NETWORK.sizes[1]
LOOPED_UNITS = 16  # of the reference: the double loop is timed on these and scaled up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default=harness.ROOT / "data")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num_images", type=int, help="of the training images; default: all")
    options = parser.parse_args()
    choose_matmul(torch.device("cpu"))
    data = load_pixels("MNIST", options.data_dir, options.num_images)
    pair = [NETWORK.initial_weights(generator(0, "benchmark", k)) for k in (0, 1)]
    bench_activation(*pair, data.train_images, options.repeats)
    bench_weight(*pair, options.repeats)
    bench_line(*pair, data, options.repeats)


def bench_activation(first: Tensor, second: Tensor, images: Tensor, repeats: int) -> None:
    """Align one network to a reference whose activations are there already."""
    matcher = ActivationMatcher(NETWORK, first, images)
    reference = activations_through_loader(first, images)
    other = activations_through_loader(second, images)
    similarity = (reference @ other.T).numpy()
    seconds = harness.fastest(
        {
            "DataLoader and double loop": lambda: activations_through_loader(second, images),
            "ours": lambda: matcher(second),
            "matrix products": lambda: products_alone(second, images),
            "assignment": lambda: linear_sum_assignment(similarity, maximize=True),
            "loop": lambda: double_loop(reference[:LOOPED_UNITS], other),
        },
        repeats,
    )
    loop, assignment = seconds.pop("loop"), seconds.pop("assignment")
    seconds["DataLoader and double loop"] += loop * UNITS / LOOPED_UNITS + assignment
    limit = seconds.pop("matrix products") + assignment
    seconds["limit: matrix products and assignment"] = limit
    harness.record(
        f"Rebasin by activation, 784-512-10, {len(images):,} images", "network", seconds,
        "DataLoader and double loop",
        [
            f"Ours takes {seconds['ours'] / limit:.2f} times the limit.",
            f"1,000 networks: {1000 * seconds['ours'] / 60:.1f} minutes.",
            f"The double loop is timed on {LOOPED_UNITS} of {UNITS} units and scaled up.",
        ],
    )  # fmt: skip


def activations_through_loader(weights: Tensor, images: Tensor) -> Tensor:
    """Hidden activations [units, images]."""
    loader = DataLoader(TensorDataset(images), batch_size=64)
    chunks = [NETWORK.activations(weights, rows)["h1"] for (rows,) in loader]
    return torch.cat(chunks).T.contiguous()


def double_loop(first: Tensor, second: Tensor) -> list[list[float]]:
    return [[torch.dot(a, b).item() for b in second] for a in first]


def products_alone(weights: Tensor, images: Tensor) -> None:
    """Forward and similarity products of as many numbers, chunk by chunk, into fixed buffers."""
    (weight, _), _ = NETWORK.layers(weights)
    hidden, similarity = torch.empty(NETWORK.chunk_rows, UNITS), torch.empty(UNITS, UNITS)
    for rows in images.split(NETWORK.chunk_rows):
        values = torch.mm(rows, weight.T, out=hidden[: len(rows)])
        torch.mm(values.T, values, out=similarity)


def bench_weight(first: Tensor, second: Tensor, repeats: int) -> None:
    """Align one network by its incoming, bias and outgoing weights."""
    matcher = WeightMatcher(NETWORK, first)
    units = [unit_vectors(weights) for weights in (first, second)]
    ways = {
        "double loop": lambda: linear_sum_assignment(double_loop(*units), maximize=True),
        "ours": lambda: matcher(second),
    }
    seconds = harness.fastest(ways, repeats)
    harness.record("Rebasin by weight, 784-512-10", "network", seconds, "double loop", [])


def unit_vectors(weights: Tensor) -> Tensor:
    """All weights of each hidden unit [units, 784 + 1 + 10]."""
    (incoming, bias), (outgoing, _) = NETWORK.layers(weights)
    return torch.cat([incoming, bias[:, None], outgoing.T], 1)


def bench_line(first: Tensor, second: Tensor, data: Dataset, repeats: int) -> None:
    """Loss and error on the training images of eleven networks between two."""
    line = Line(NETWORK, first, second, LAMBDAS)
    ways = {
        "DataLoader, one network at a time": lambda: score_one_by_one(line, data),
        "ours": lambda: score(line, data.train_images, data.train_labels),
    }
    seconds = harness.fastest(ways, repeats)
    title = f"Losses at 11 points of a line, 784-512-10, {len(data.train_images):,} images"
    harness.record(title, "line", seconds, "DataLoader, one network at a time", [])


def score_one_by_one(line: Line, data: Dataset) -> list[tuple[float, float]]:
    dataset = TensorDataset(data.train_images, data.train_labels)
    scores = []
    for weights in line.weights:
        loss, wrong = 0.0, 0
        for rows, answers in DataLoader(dataset, batch_size=64):
            outputs = NETWORK.outputs(weights, rows)
            loss += torch.nn.functional.cross_entropy(outputs, answers, reduction="sum").item()
            wrong += (outputs.argmax(-1) != answers).sum().item()
        scores.append((loss / len(dataset), wrong / len(dataset)))
    return scores


if __name__ == "__main__":
    main()
