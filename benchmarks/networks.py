"""Speed of training many networks, beside the usual loop, which trains one after the other.

    python benchmarks/networks.py [--data_dir DIR] [--repeats N] [--stack K]

The usual loop is DataLoader, torch.nn, autograd and torch.optim, with all threads. Its data set
takes the steps of torchvision's MNIST with RandomCrop, ToTensor and Normalize, image by image;
torchvision itself is not needed. Ours trains stacks of networks in a process of one thread for each
core, as train.py does with --jobs. Both use the recipes of configs/train/. Then gradients alone are
timed, on one thread.
"""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import harness
from tests.networks import torch_modules
from utils.data.batches import Batches
from utils.data.datasets import Dataset, load_dataset
from utils.methods.training import TrainingSettings, start_training, train
from utils.networks.registry import conv_network
from utils.runs.seeding import generator

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

EPOCH_IMAGES = 60_000  # of MNIST; timed on part of them, and scaled up
USUAL_IMAGES = OUR_IMAGES = 128 * 50
STACK = 8  # networks that a process trains side by side
OPTUNET_EPOCHS = 60
# Network: its module, recipe, padding of crops, and how many times as fast as usual it should be.
GOALS = {
    "optunet": (torch_modules.OptuNet, TrainingSettings("SGD", 0.04, 64, 0.0, 12.0), 4, 20),
    "lenet": (
        lambda: torch_modules.LeNet(1, 4),
        TrainingSettings("SGD", 0.05, 128, 0.9, 30.0, nesterov=True),
        0,
        4,
    ),
}
ROWS = 64
MODULES = {
    "optunet": ((1, 28, 28), torch_modules.OptuNet),
    "lenet": ((1, 28, 28), lambda: torch_modules.LeNet(1, 4)),
    "lenet ": ((3, 32, 32), lambda: torch_modules.LeNet(3, 5)),
    "resnet8_frn": ((3, 32, 32), lambda: torch_modules.frn_resnet(1, 8)),
    "resnet20_frn": ((3, 32, 32), lambda: torch_modules.frn_resnet(3, 16)),
    "resnet18": ((3, 32, 32), lambda: torch_modules.resnet18(64)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default=harness.ROOT / "data")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--stack", type=int, default=8)
    options = parser.parse_args()
    for name in GOALS:
        bench_training(name, options)
    torch.set_num_threads(1)
    for name, (shape, module) in MODULES.items():
        bench(name.strip(), shape, module, options)


# ---- training


def bench_training(name: str, options: argparse.Namespace) -> None:
    """Time an epoch of the usual loop, and one of a stack in a process on every core."""
    make_module, settings, padding, goal = GOALS[name]
    data = load_dataset("MNIST", options.data_dir)
    cores = torch.get_num_threads()
    loader = usual_loader(data, settings.batch_size, padding)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, context, begin, (name, str(options.data_dir))) as pool:
        stacked = f"ours, {cores} processes with stacks of {STACK}"
        ways = {
            "usual loop": lambda: usual_loop(make_module(), loader, settings),
            stacked: lambda: list(pool.map(train_stack, range(cores))),
        }
        seconds = harness.fastest(ways, options.repeats)
    seconds["usual loop"] *= EPOCH_IMAGES / USUAL_IMAGES
    seconds[stacked] *= EPOCH_IMAGES / OUR_IMAGES / (cores * STACK)
    ratio = seconds["usual loop"] / seconds[stacked]
    notes = [f"{ratio:.1f} times as many network-epochs per hour; at least {goal} is the aim."]
    if name == "optunet":
        per_hour = 3600 / (OPTUNET_EPOCHS * seconds[stacked])
        notes.append(
            f"{per_hour:.0f} networks per hour with the published recipe of {OPTUNET_EPOCHS} "
            "epochs; at least 240 is the aim."
        )
    harness.record(
        f"Training {name} on MNIST, batches of {settings.batch_size}", "network-epoch", seconds,
        "usual loop", notes,
    )  # fmt: skip


class Images(torch.utils.data.Dataset):
    """Images as a data set gives them to a DataLoader: as pictures, cropped and normalised."""

    def __init__(self, data: Dataset, padding: int):
        self._images, self._labels = data.train_images[:USUAL_IMAGES, 0], data.train_labels
        self._mean, self._std = data.normalisation("published")
        self._padding = padding

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, position: int):
        picture = Image.fromarray(self._images[position].numpy())
        if self._padding:
            size = picture.size
            picture = ImageOps.expand(picture, border=self._padding, fill=0)
            top, left = (int(torch.randint(2 * self._padding + 1, (1,))) for _ in size)
            picture = picture.crop((left, top, left + size[0], top + size[1]))
        pixels = torch.from_numpy(np.array(picture, np.uint8, copy=True))
        pixels = pixels.view(picture.size[1], picture.size[0], 1).permute(2, 0, 1).contiguous()
        image = pixels.to(torch.float32).div(255)
        mean, std = (torch.as_tensor(each).view(-1, 1, 1) for each in (self._mean, self._std))
        return image.clone().sub_(mean).div_(std), int(self._labels[position])


def usual_loader(data: Dataset, batch_size: int, padding: int) -> DataLoader:
    return DataLoader(Images(data, padding), batch_size=batch_size, shuffle=True)


def usual_loop(model: torch.nn.Module, loader: DataLoader, settings: TrainingSettings) -> None:
    optimizer = torch.optim.SGD(
        model.parameters(), settings.learning_rate, settings.momentum,
        weight_decay=settings.prior_precision / EPOCH_IMAGES, nesterov=settings.nesterov,
    )  # fmt: skip
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


ours = {}  # what a process of the pool keeps


def begin(name: str, data_dir: str) -> None:
    """Set up a process of one thread, and train once to warm it up."""
    torch.set_num_threads(1)
    _, settings, padding, _ = GOALS[name]
    data = load_dataset("MNIST", data_dir)
    network = conv_network(name, (1, 28, 28), normalise=True)
    normalisation = data.normalisation("published")
    images, labels = data.train_images[:OUR_IMAGES], data.train_labels[:OUR_IMAGES]
    inputs = data.inputs(network.input_shape, normalisation).train_images[:OUR_IMAGES]
    batches = None
    if padding:
        batches = Batches(images, labels, network.input_shape, normalisation, padding=padding)
    ours.update(
        network=network, settings=settings, inputs=inputs, labels=labels, batches=batches
    )  # fmt: skip
    train_stack(0)


def train_stack(number: int) -> None:
    network, settings = ours["network"], ours["settings"]
    modes = range(number * STACK, (number + 1) * STACK)
    weights = [network.initial_weights(generator(0, "benchmark", mode)) for mode in modes]
    train(
        network, start_training(torch.stack(weights), settings), ours["inputs"], ours["labels"],
        settings, seed=0, num_epochs=1, batches=ours["batches"],
    )  # fmt: skip


# ---- gradients


def bench(name: str, shape: tuple[int, ...], make_module, options: argparse.Namespace) -> None:
    """Time the gradients of a stack, each network on its own batch."""
    stack = options.stack if shape == (1, 28, 28) else 1
    network = conv_network(name, shape)
    random = generator(0, "benchmark", name)
    weights = torch.stack([network.initial_weights(random) for _ in range(stack)])
    gradient = torch.empty_like(weights)
    images = torch.rand(stack, ROWS, *shape, generator=random)
    labels = torch.randint(10, (stack, ROWS), generator=random)
    find = network.gradient(weights, gradient, ROWS)
    modules = [make_module() for _ in range(stack)]

    def torch_nn():
        for module, batch, answers in zip(modules, images, labels, strict=True):
            module.zero_grad()
            F.cross_entropy(module(batch), answers).backward()

    ways = {
        "torch.nn, one network at a time": torch_nn,
        "ours": lambda: find(images, labels, scale=1 / ROWS, keep=0),
    }
    seconds = harness.fastest(ways, options.repeats)
    count = stack * ROWS
    note = (
        f"Ours takes {1e6 * seconds['ours'] / count:.1f} µs per network and image, on one thread."
    )
    size = " × ".join(map(str, shape))
    title = f"Gradient of {name} on images of {size}, {stack} at a time, batches of {ROWS}"
    harness.record(title, "step", seconds, "torch.nn, one network at a time", [note])


if __name__ == "__main__":
    main()
