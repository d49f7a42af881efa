"""Speed of the gradients of stacks of networks, beside torch.nn, one network after the other.

    python benchmarks/networks.py [--repeats N] [--stack K]

Both run on one thread, as training does with one process for each core.
"""

import argparse

import harness
from tests.networks import torch_modules
from utils.networks.registry import conv_network
from utils.runs.seeding import generator

import torch
import torch.nn.functional as F

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
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--stack", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, (shape, module) in MODULES.items():
        bench(name.strip(), shape, module, options)


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
