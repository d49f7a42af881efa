"""Speed of rebasin and of losses along a line, beside the straightforward way and the limit.

    python benchmarks/matching.py [--data_dir DIR] [--repeats N] [--num_images N]

The straightforward way loads images with a DataLoader, evaluates each network of the line from
the start, and fills the matrix of similarities in a double loop. The limit is the time of the
matrix products that matching cannot do without, plus the assignment. All are measured in turn,
the fastest of several repeats counts, and the table goes to benchmarks/results.json.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from utils.barrier import Path as Line  # noqa: E402
from utils.barrier import score  # noqa: E402
from utils.compute import choose_matmul  # noqa: E402
from utils.data import load_dataset  # noqa: E402
from utils.matching import ActivationMatcher, WeightMatcher  # noqa: E402
from utils.mlp import Network, hidden_activations, initial_weights, logits  # noqa: E402
from utils.predict import CHUNK_ROWS  # noqa: E402
from utils.runs import save_json  # noqa: E402
from utils.seeding import generator  # noqa: E402

LAMBDAS = [k / 10 for k in range(11)]
LOOPED_UNITS = 16  # of the reference's 512: the double loop is timed on these and scaled up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default=ROOT / "data")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num_images", type=int, help="of the training images; default: all")
    options = parser.parse_args()
    matmul = choose_matmul(torch.device("cpu"))
    data = load_dataset("MNIST", options.data_dir, options.num_images)
    network = Network()
    pair = [initial_weights(network, generator(0, "benchmark", k)) for k in (0, 1)]
    ways = {
        **matching_ways(network, *pair, data.train_images),
        **weight_ways(network, *pair),
        **line_ways(network, *pair, data),
    }
    seconds = fastest(ways, options.repeats)
    seconds["activation: straightforward"] += seconds.pop("activation: double loop, a part") * (
        network.sizes[1] / LOOPED_UNITS
    )
    limit = seconds["activation: matrix products"] + seconds["activation: assignment"]
    results = {
        "network": network.sizes,
        "images": len(data.train_images),
        "threads": torch.get_num_threads(),
        "matmul": matmul,
        "seconds": seconds,
        "ratios": {
            "activation matching, ours / limit": seconds["activation: ours"] / limit,
            **speedups(seconds),
        },
        "minutes for 1,000 networks": 1000 * seconds["activation: ours"] / 60,
    }
    write(results)
    for name, value in (seconds | results["ratios"]).items():
        print(f"{name:50} {value:10.4f}")
    print(f"1,000 networks by activation: {results['minutes for 1,000 networks']:.1f} minutes")


def matching_ways(network: Network, first: Tensor, second: Tensor, images: Tensor) -> dict:
    """Aligning one network to a reference by activation; the reference's are there already."""
    matcher = ActivationMatcher(network, first, images)
    (weight, _), _ = network.layers(second)
    hidden = torch.empty(min(CHUNK_ROWS, len(images)), network.sizes[1])
    similarity = torch.empty(network.sizes[1], network.sizes[1])
    reference = through_loader(network, first, images)
    real = (reference @ through_loader(network, second, images).T).double().numpy()

    def products():
        for rows in images.split(CHUNK_ROWS):
            values = torch.mm(rows, weight.T, out=hidden[: len(rows)])
            torch.mm(values.T, values, out=similarity)

    def double_loop():
        for a in reference[:LOOPED_UNITS]:
            for b in reference:
                torch.dot(a, b).item()

    def straightforward():
        through_loader(network, second, images)
        linear_sum_assignment(real, maximize=True)

    return {
        "activation: ours": lambda: matcher(second),
        "activation: matrix products": products,
        "activation: assignment": lambda: linear_sum_assignment(real, maximize=True),
        "activation: straightforward": straightforward,
        "activation: double loop, a part": double_loop,
    }


def through_loader(network: Network, weights: Tensor, images: Tensor) -> Tensor:
    """Hidden activations [units, images]."""
    loader = DataLoader(TensorDataset(images), batch_size=64)
    chunks = [hidden_activations(network, weights, rows)[0] for (rows,) in loader]
    return torch.cat(chunks).T.contiguous()


def weight_ways(network: Network, first: Tensor, second: Tensor) -> dict:
    matcher = WeightMatcher(network, first)
    (w1, b1), (w2, _) = network.layers(first)
    (v1, c1), (v2, _) = network.layers(second)
    a, b = torch.cat([w1, b1[:, None], w2.T], 1), torch.cat([v1, c1[:, None], v2.T], 1)

    def straightforward():
        similarity = torch.tensor([[torch.dot(x, y).item() for y in b] for x in a])
        linear_sum_assignment(similarity.numpy(), maximize=True)

    return {"weight: ours": lambda: matcher(second), "weight: straightforward": straightforward}


def line_ways(network: Network, first: Tensor, second: Tensor, data) -> dict:
    """Loss and error at eleven λ on the training images."""
    images, labels = data.train_images, data.train_labels

    def straightforward():
        for at in LAMBDAS:
            weights = torch.lerp(first, second, at)
            loss, wrong = 0.0, 0
            for rows, answers in DataLoader(TensorDataset(images, labels), batch_size=64):
                outputs = logits(network, weights, rows)
                nll = torch.nn.functional.cross_entropy(outputs, answers, reduction="sum")
                loss += nll.item()
                wrong += (outputs.argmax(-1) != answers).sum().item()

    line = Line(network, first, second, LAMBDAS)
    return {
        "line of 11: ours": lambda: score(line, images, labels),
        "line of 11: straightforward": straightforward,
    }


def fastest(ways: dict[str, Callable], repeats: int) -> dict[str, float]:
    """Seconds of each, the least of several, measured in turn so that all see the same machine."""
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def speedups(seconds: dict[str, float]) -> dict[str, float]:
    tasks = ("activation", "weight", "line of 11")
    return {
        f"{task}, straightforward / ours": seconds[f"{task}: straightforward"]
        / seconds[f"{task}: ours"]
        for task in tasks
    }


def write(results: dict) -> None:
    """Put the results beside those of the other benchmarks."""
    path = ROOT / "benchmarks" / "results.json"
    others = json.loads(path.read_text()) if path.exists() else {}
    save_json(path, others | {"matching": results})


if __name__ == "__main__":
    main()
