"""Speed of training the paper's network by SGD at batch 64, beside the usual PyTorch loop.

    python benchmarks/training.py [--data_dir DIR]

The usual loop is DataLoader, ToTensor, torch.nn, autograd and torch.optim; a second one has its
images in memory already, to tell apart what is won by data and what by arithmetic. The limit is
the time of the matrix products alone at the best rate measured on this machine.
"""

import argparse

import harness
from utils.data.datasets import load_pixels
from utils.data.download import import_torchvision
from utils.methods.training import TrainingSettings, start_training, train
from utils.networks.mlp import MLP
from utils.runs.compute import choose_matmul, measure_matmuls
from utils.runs.seeding import generator

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset

NETWORK = MLP((784, 512, 10))
SETTINGS = TrainingSettings("SGD", learning_rate=1e-3, batch_size=64, momentum=0.9)
NUM_IMAGES = 64 * 200  # timed on part of an epoch, and scaled up to the whole
EPOCH_IMAGES = 60_000
STACK = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default=harness.ROOT / "data")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    choose_matmul(torch.device("cpu"))
    data = load_pixels("MNIST", options.data_dir)
    images, labels = data.train_images[:NUM_IMAGES], data.train_labels[:NUM_IMAGES]
    loader = usual_loader(options.data_dir)
    ways = {
        "usual loop": lambda: usual_loop(loader),
        "usual loop, images in memory": lambda: usual_loop(memory_batches(images, labels)),
        f"ours, a stack of {STACK}": lambda: ours(images, labels, STACK),
        "ours, one network": lambda: ours(images, labels, 1),
    }
    seconds = harness.fastest(ways, options.repeats)
    seconds[f"ours, a stack of {STACK}"] /= STACK
    seconds = {name: s * EPOCH_IMAGES / NUM_IMAGES for name, s in seconds.items()}
    seconds["limit: matrix products alone"] = matmul_limit()
    share = seconds["limit: matrix products alone"] / seconds[f"ours, a stack of {STACK}"]
    harness.record(
        "Training 784-512-10 by SGD, batch 64", "network-epoch", seconds, "usual loop",
        [f"The stack runs at {100 * share:.0f} % of the machine's matrix-product limit."],
    )  # fmt: skip


def usual_loader(data_dir) -> DataLoader:
    torchvision = import_torchvision()
    transform = torchvision.transforms.ToTensor()
    dataset = torchvision.datasets.MNIST(data_dir, transform=transform)
    return DataLoader(Subset(dataset, range(NUM_IMAGES)), batch_size=64, shuffle=True)


def memory_batches(images, labels):
    for batch in torch.randperm(len(images)).split(64):
        yield images[batch], labels[batch]


def usual_loop(batches) -> None:
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


def ours(images, labels, count: int) -> None:
    weights = [NETWORK.initial_weights(generator(0, "benchmark", k)) for k in range(count)]
    state = start_training(torch.stack(weights), SETTINGS)
    train(NETWORK, state, images, labels, SETTINGS, seed=0, num_epochs=1)


def matmul_limit() -> float:
    """Seconds of an epoch's products: forward, weight gradients, and the hidden layer's error."""
    (hidden, inputs), (classes, _) = NETWORK.shapes
    operations = 2 * EPOCH_IMAGES * (2 * hidden * inputs + 3 * classes * hidden)
    return operations / (1e9 * max(m.gflops for m in measure_matmuls(rows=2000).values()))


if __name__ == "__main__":
    main()
