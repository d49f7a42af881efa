"""Speed of HMC's leapfrog steps on two posteriors, beside peers and the machine's limit.

The posteriors are that of paper A's network on MNIST, and LeNet's on FashionMNIST.

    python benchmarks/hmc.py [--data_dir DIR] [--samples runs/BATCH] [--no-peers] [--no-scaling]

Effective samples per hour are ESS per sample of the finished runs in the batch that --samples is
of, times the samples per hour that are measured here: what else ran beside a chain does not count.
For the trajectory of the paper's chain, which takes days, from a start near its posterior:

    python MNIST_HMC.py --config_name test3.2 --run_name anchored \\
        --start anchored --num_burnin 20 --num_samples 80

The steps of paper A's network start from one state: the last of `--samples`, by default of the
laptop run if there is one, and otherwise one that a short burn-in reaches (minutes). The peers are
PyTorch's autograd over the whole batch, and blackjax on JAX in an environment of its own
(requirements-peers.txt). The limit is the time of the matrix products alone at the best rate
measured on this machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import harness
from utils.data.datasets import Dataset, load_dataset, load_pixels
from utils.methods.hmc.anchored import anchored_maps
from utils.methods.hmc.chains import transition
from utils.methods.hmc.leapfrog import kinetic_energy, leapfrog
from utils.methods.hmc.potential import STANDARD_NORMAL, Potential
from utils.networks.lenet import LeNet
from utils.networks.mlp import MLP
from utils.networks.mlp_gradients import CHUNK_ROWS
from utils.networks.network import Network
from utils.networks.registry import inputs_for
from utils.posteriors.prior import Prior
from utils.posteriors.samples import open_samples
from utils.report.figures import BLUE, ORANGE, panels, styled
from utils.runs.compute import CANDIDATES, choose_matmul
from utils.runs.seeding import generator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

NETWORK = MLP((784, 512, 10))
STEP_SIZE = 0.0012  # of the laptop config
LENET = LeNet(normalise=True)
LENET_PRIOR = Prior(0.1826)  # of configs/MNIST_HMC/lenet.yaml
LENET_STEP_SIZE = 0.0002
LENET_IMAGES = 10_000  # JAX takes 8 s for a step with so many
LENET_ENERGY_STEPS = 10
TRAJECTORIES = {"test3.2": (0.001, 500), "laptop": (STEP_SIZE, 1309)}  # of these configs
LAPTOP_SAMPLES = Path("HMC-MNIST-laptop", "samples.npy")  # in the folder of a batch of runs
PEERS = harness.ROOT / "build" / "peers"
DENSE_STEPS, LISTED_STEPS = 2, 20  # in each repeat
SETTLING_STEPS = 300  # until a neighbour list has the length that it has along a trajectory
ENERGY_STEPS = 100


def main() -> None:
    options = read_options()
    matmul = choose_matmul(torch.device("cpu"))
    data = load_pixels("MNIST", options.data_dir)
    state = stationary_state(data, options.samples)
    momentum = torch.randn(state.shape, generator=generator(0, "benchmark_momentum"))
    with tempfile.TemporaryDirectory() as folder:
        problem = Path(folder) / "problem.npz"
        np.savez(
            problem, images=data.train_images, labels=data.train_labels, weights=state,
            momentum=momentum, sizes=NETWORK.sizes, matmul=matmul, step_size=STEP_SIZE,
        )  # fmt: skip
        with Blackjax(problem) if options.peers else nullcontext() as peer:
            compare_steps(data, state, momentum, peer, options.repeats)
        compare_ranks(problem, options.repeats)
        compare_lenet_steps(problem, options)
    compare_trajectories(data, state, options.samples.parent.parent)
    if options.scaling:
        compare_sizes(data)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default=harness.ROOT / "data")
    parser.add_argument(
        "--samples", type=samples_path, default=harness.ROOT / "runs/default" / LAPTOP_SAMPLES,
        help="a samples.npy, or the folder of a batch with a laptop run",
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--scaling", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def samples_path(text: str) -> Path:
    path = Path(text)
    return path if path.suffix == ".npy" else path / LAPTOP_SAMPLES


def stationary_state(data: Dataset, samples: Path) -> Tensor:
    """Weights as the posterior has them [d]."""
    if samples.exists():
        return open_samples(samples)[-1]
    print(f"There is no {samples}: burning in for some minutes")
    return near_posterior(NETWORK, data, epochs=8, lengths=(0.1, 0.2, 0.4, 0.8))


def near_posterior(network: Network, data: Dataset, epochs: int, lengths: tuple) -> Tensor:
    """An anchored MAP, moved on by some trajectories."""
    anchor = STANDARD_NORMAL.draw(network, generator(0, "anchor"))
    (weights,) = anchored_maps(network, data, anchor[None], 0, epochs)
    target = Potential(network, data.train_images, data.train_labels)
    for number, length in enumerate(lengths):
        weights, _ = transition(
            target, weights, STEP_SIZE, round(length / STEP_SIZE), 0, "burn-in", number
        )
    return weights


class Walk:
    """Leapfrog steps of ours along one trajectory, a few at a time; its lists have settled."""

    def __init__(
        self, network, data, weights, momentum, force, prior=STANDARD_NORMAL, step_size=STEP_SIZE
    ):
        images, labels = data.train_images, data.train_labels
        self._target = Potential(network, images, labels, force, prior=prior)
        self._weights, self._momentum = weights.clone(), momentum.clone()
        self._step_size = step_size
        _, self._force = self._target.trajectory(weights)
        if force == "listed":
            self(SETTLING_STEPS)
        self._warm = self._force.num_calls, self._force.num_rows

    def __call__(self, count: int) -> None:
        for _ in range(count):
            self._weights.add_(self._momentum, alpha=self._step_size)
            self._momentum.add_(self._force(self._weights), alpha=-self._step_size)
            kinetic_energy(self._momentum)

    def rows(self) -> float:
        """Images looked at per step, since the lists have settled."""
        calls, rows = self._warm
        return (self._force.num_rows - rows) / (self._force.num_calls - calls)


class Autograd:
    """The same steps by autograd over the whole batch, with PyTorch's default matmul."""

    def __init__(
        self, data: Dataset, network: Network = NETWORK, prior: Prior = STANDARD_NORMAL,
        step_size: float = STEP_SIZE,
    ):  # fmt: skip
        self._images, self._labels = data.train_images, data.train_labels
        self._network, self._prior, self._step_size = network, prior, step_size

    def energy(self, weights: Tensor) -> tuple[float, Tensor]:
        weights = weights.detach().requires_grad_()
        outputs = self._network.outputs(weights, self._images)
        nll = F.cross_entropy(outputs, self._labels, reduction="none").double().sum()
        potential = nll + 0.5 * self._prior.precision * weights.double().square().sum()
        potential.backward()
        return potential.item(), weights.grad

    def steps(self, weights: Tensor, momentum: Tensor, count: int) -> float:
        """The change of H over so many steps."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(CANDIDATES["default"])
        potential, gradient = self.energy(weights)
        start = potential + kinetic_energy(momentum)
        for _ in range(count):
            momentum = momentum - 0.5 * self._step_size * gradient
            weights = weights + self._step_size * momentum
            potential, gradient = self.energy(weights)
            momentum = momentum - 0.5 * self._step_size * gradient
        torch.set_float32_matmul_precision(before)
        return potential + kinetic_energy(momentum) - start


class Blackjax:
    """blackjax's steps, in a process that waits while others are timed."""

    def __init__(self, problem: Path):
        script = Path(__file__).with_name("hmc_blackjax.py")
        self._process = subprocess.Popen(
            [peers_python(), script, problem], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        if self._process.stdout.readline() != "ready\n":
            sys.exit("blackjax did not start: see its message above, or give --no-peers.")

    def __enter__(self) -> "Blackjax":
        return self

    def __exit__(self, *_) -> None:
        """End the process, and so free its memory."""
        self._process.stdin.close()
        self._process.wait()

    def steps(self, count: int, step_size: float = STEP_SIZE) -> dict:
        self._process.stdin.write(f"{count} {step_size}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def peers_python() -> Path:
    """The Python of the peers' environment, which is made if need be."""
    python, installed = PEERS / "bin" / "python", PEERS / "installed"
    requirements = Path(__file__).with_name("requirements-peers.txt")
    if not (installed.exists() and installed.read_text() == requirements.read_text()):
        print("Installing blackjax, numpyro and JAX into build/peers")
        venv.create(PEERS, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", requirements], check=True)
        installed.write_text(requirements.read_text())
    return python


def compare_steps(data, state: Tensor, momentum: Tensor, peer, repeats: int) -> None:
    walks = {force: Walk(NETWORK, data, state, momentum, force) for force in FORCES}
    autograd = Autograd(data)
    ways = {
        "PyTorch autograd, whole batch": lambda: autograd.steps(state, momentum, DENSE_STEPS - 1),
        "blackjax, jitted JAX": lambda: peer.steps(DENSE_STEPS),
        "ours, dense": lambda: walks["dense"](DENSE_STEPS),
        "ours, active rows": lambda: walks["active"](DENSE_STEPS),
        "ours, neighbour list": lambda: walks["listed"](LISTED_STEPS),
        "limit: dense matrix products alone": dense_products(data, CHUNK_ROWS),
    }
    counts = {"ours, neighbour list": LISTED_STEPS, "limit: dense matrix products alone": 1}
    if peer is None:
        del ways["blackjax, jitted JAX"]
    seconds = harness.fastest(ways, repeats)
    seconds = {name: value / counts.get(name, DENSE_STEPS) for name, value in seconds.items()}
    share = seconds["limit: dense matrix products alone"] / seconds["ours, dense"]
    harness.record(
        "A leapfrog step of HMC, 784-512-10, 60,000 images", "step", seconds,
        "PyTorch autograd, whole batch",
        [
            f"Dense runs at {100 * share:.0f} % of the machine's matrix-product limit.",
            f"The neighbour list had {walks['listed'].rows():.0f} of 60,000 images on average.",
            energy_note(data, state, momentum, autograd, peer),
        ],
    )  # fmt: skip


FORCES = ("dense", "active", "listed")


def dense_products(data: Dataset, rows: int):
    """The matrix products of a dense gradient, with nothing between them, by the best kernel.

    Of the images only columns that are not always zero, as in ours, without a copy of the data.
    """
    width = 720
    inputs, hidden = data.train_images[:, :width].contiguous(), torch.rand(rows, 512)
    first, last, errors = torch.rand(512, width), torch.rand(10, 512), torch.rand(rows, 10)
    outputs, gradients = torch.empty(rows, 512), (torch.zeros(512, width), torch.zeros(10, 512))

    def multiply() -> None:
        for chunk in inputs.split(rows):
            torch.mm(chunk, first.T, out=outputs)
            torch.mm(hidden, last.T)
            torch.mm(errors, last, out=hidden)
            gradients[1].addmm_(errors.T, outputs)
            gradients[0].addmm_(hidden.T, chunk)

    return multiply


def energy_note(data, state, momentum, autograd: Autograd, peer) -> str:
    changes = {
        force: leapfrog(
            Potential(NETWORK, data.train_images, data.train_labels, force),
            state, momentum, STEP_SIZE, ENERGY_STEPS,
        ).delta_energy
        for force in FORCES
    }  # fmt: skip
    changes["autograd"] = autograd.steps(state, momentum, ENERGY_STEPS)
    if peer:
        changes["blackjax"] = peer.steps(ENERGY_STEPS)["change"]
    text = ", ".join(f"{name} {change:+.3f}" for name, change in changes.items())
    return f"ΔH over {ENERGY_STEPS} steps of size {STEP_SIZE}, the same momentum: {text}."


def compare_lenet_steps(problem: Path, options: argparse.Namespace) -> None:
    """The same for LeNet, from an anchored MAP; few of its margins are large enough for lists."""
    data = inputs_for(LENET, load_dataset("FashionMNIST", options.data_dir, LENET_IMAGES))
    anchor = LENET_PRIOR.draw(LENET, generator(0, "anchor"))
    (state,) = anchored_maps(LENET, data, anchor[None], 0, 2, LENET_PRIOR)
    momentum = torch.randn(state.shape, generator=generator(0, "benchmark_momentum"))
    np.savez(
        problem, images=data.train_images, labels=data.train_labels, weights=state,
        momentum=momentum, lenet=json.dumps([slot.shape for slot in LENET.slots]),
        prior_std=LENET_PRIOR.std,
    )  # fmt: skip
    setting = LENET_PRIOR, LENET_STEP_SIZE
    walks = {
        force: Walk(LENET, data, state, momentum, force, *setting) for force in ("dense", "listed")
    }
    autograd = Autograd(data, LENET, *setting)
    with Blackjax(problem) if options.peers else nullcontext() as peer:
        ways = {
            "PyTorch autograd, whole batch": lambda: autograd.steps(
                state, momentum, DENSE_STEPS - 1
            ),
            "blackjax, jitted JAX": lambda: peer.steps(DENSE_STEPS, LENET_STEP_SIZE),
            "ours, dense": lambda: walks["dense"](DENSE_STEPS),
            "ours, neighbour list": lambda: walks["listed"](DENSE_STEPS),
        }
        if peer is None:
            del ways["blackjax, jitted JAX"]
        seconds = harness.fastest(ways, options.repeats)
        walk = leapfrog(
            Potential(LENET, data.train_images, data.train_labels, "dense", prior=LENET_PRIOR),
            state, momentum, LENET_STEP_SIZE, LENET_ENERGY_STEPS,
        )  # fmt: skip
        changes = {
            "dense": walk.delta_energy,
            "autograd": autograd.steps(state, momentum, LENET_ENERGY_STEPS),
        }
        if peer:
            changes["blackjax"] = peer.steps(LENET_ENERGY_STEPS, LENET_STEP_SIZE)["change"]
    text = ", ".join(f"{name} {change:+.3f}" for name, change in changes.items())
    harness.record(
        f"A leapfrog step of HMC, LeNet, {LENET_IMAGES:,} images", "step",
        {name: value / DENSE_STEPS for name, value in seconds.items()},
        "PyTorch autograd, whole batch",
        [
            f"The neighbour list had {walks['listed'].rows():.0f} images on average.",
            f"ΔH over {LENET_ENERGY_STEPS} steps of size {LENET_STEP_SIZE}, one momentum: {text}.",
        ],
    )  # fmt: skip


def compare_ranks(problem: Path, repeats: int) -> None:
    """Two processes of one thread against one process of two."""
    script = str(Path(__file__).with_name("hmc_ranks.py"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    commands = {
        "one process, two threads": ([sys.executable, script, str(problem)], "2"),
        "two ranks, a thread each": (
            [*torchrun, "--nproc-per-node", "2", script, str(problem)], "1",
        ),
    }  # fmt: skip
    found = {name: [] for name in commands}
    for _ in range(repeats):
        for name, (command, threads) in commands.items():
            output = subprocess.run(
                command, env=os.environ | {"OMP_NUM_THREADS": threads},
                check=True, capture_output=True, text=True,
            ).stdout  # fmt: skip
            found[name].append(json.loads(output.splitlines()[-1]))
    for force in ("dense", "listed"):
        harness.record(
            f"Ranks: a {force} leapfrog step", "step",
            {name: min(times[force] for times in measured) for name, measured in found.items()},
            "one process, two threads", [],
        )  # fmt: skip


def compare_trajectories(data: Dataset, state: Tensor, batch: Path) -> None:
    """A whole transition of each config, energies and all; and what they are worth."""
    target = Potential(NETWORK, data.train_images, data.train_labels)
    ways = {
        f"{name}: {num_steps} steps of {step_size}": partial(
            transition, target, state, step_size, num_steps, 0
        )
        for name, (step_size, num_steps) in TRAJECTORIES.items()
    }
    seconds = harness.fastest(ways, repeats=2)
    notes = [
        effective_note(batch, name, 3600 / duration)
        for name, duration in zip(TRAJECTORIES, seconds.values(), strict=True)
    ]
    harness.record("A sample", "sample", seconds, next(iter(ways)), notes)


def effective_note(batch: Path, name: str, samples_per_hour: float) -> str:
    """Effective samples per hour, were a finished run of this config made at the pace found here.

    Of several it is the newest.
    """
    pace = f"{name}: {samples_per_hour:.0f} samples per hour"
    ended = list(batch.glob(f"HMC-MNIST-{name}*/DONE"))
    if not ended:
        return f"{pace}; effective samples per hour not measured: there is no finished run."
    run = max(ended, key=lambda path: path.stat().st_mtime).parent
    diagnostics = json.loads((run / "diagnostics.json").read_text())
    stored = diagnostics["chains"] * diagnostics["draws_per_chain"]
    found = ", ".join(
        f"{group} {numbers['median_ess_bulk'] / stored * samples_per_hour:.0f} "
        f"(R-hat up to {float(numbers['largest_rhat'] or 'inf'):.2f})"
        for group, numbers in diagnostics["groups"].items()
        if numbers
    )
    return (
        f"{pace}; times the median ESS per sample among the {stored} of the finished run "
        f"{run.name} these are effective samples per hour: {found}."
    )


def compare_sizes(data: Dataset) -> None:
    """Cost against the number of images and against the width, as a table and a figure."""
    seconds = {}
    for count in (6_000, 15_000, 30_000, 60_000):
        part = Dataset(
            data.name, data.train_images[:count], data.train_labels[:count],
            data.test_images, data.test_labels,
        )  # fmt: skip
        seconds |= seconds_of_size(NETWORK, part, f"{count} images")
    for width in (64, 128, 256, 1024):
        seconds |= seconds_of_size(MLP((784, width, 10)), data, f"width {width}")
    note = "After short burn-ins: lists may still be longer or shorter than at stationarity."
    harness.record("A leapfrog step against size", "step", seconds, "60000 images, dense", [note])
    draw_sizes(seconds)


def seconds_of_size(network: Network, data: Dataset, name: str) -> dict[str, float]:
    start = time.perf_counter()
    state = near_posterior(network, data, epochs=4, lengths=(0.03, 0.06))
    momentum = torch.randn(state.shape, generator=generator(0, "benchmark_momentum"))
    walks = {force: Walk(network, data, state, momentum, force) for force in ("dense", "listed")}
    found = harness.fastest(
        {"dense": lambda: walks["dense"](1), "listed": lambda: walks["listed"](10)}, repeats=4
    )
    print(f"{name}: measured in {time.perf_counter() - start:.0f} s")
    return {f"{name}, dense": found["dense"], f"{name}, listed": found["listed"] / 10}


@styled
def draw_sizes(seconds: dict[str, float]) -> None:
    figure, (axes,) = panels(1, 2, width=3.8)
    sizes = {
        "training images": [(n, f"{n} images") for n in (6_000, 15_000, 30_000, 60_000)],
        "hidden units": [
            (n, "60000 images" if n == 512 else f"width {n}") for n in (64, 128, 256, 512, 1024)
        ],
    }
    looks = {"dense": {"color": ORANGE, "marker": "o"}, "listed": {"color": BLUE, "marker": "s"}}
    for axis, (label, points) in zip(axes, sizes.items(), strict=True):
        numbers = [number for number, _ in points]
        for force, look in looks.items():
            values = [seconds[f"{name}, {force}"] for _, name in points]
            axis.loglog(numbers, values, label=f"{force} force", **look)
        axis.set_xticks(numbers, [f"{number:,}" for number in numbers])
        axis.minorticks_off()
        axis.set(
            xlabel=label,
            ylabel="seconds per leapfrog step",
            ylim=(0.7 * min(seconds.values()), 2 * max(seconds.values())),
        )
    axes[0].legend()
    figure.savefig(Path(__file__).with_name("hmc_sizes.png"))


if __name__ == "__main__":
    main()
