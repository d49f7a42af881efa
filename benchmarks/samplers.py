"""Effective samples per second beside NUTS of numpyro and of blackjax, on two small posteriors.

    python benchmarks/samplers.py [--posteriors tiny quick] [--data_dir DIR]

`tiny` is 784-8-10 on 200 images (minutes), `quick` 784-64-10 on 3,000 (an hour, nearly all of it
NUTS). Each sampler runs alone on one processor; all start at anchored MAPs. Seconds are those of
sampling, without warm-up and compilation. Means of functions and of functionals of the weights are
compared with numpyro's.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import harness
from utils.data.datasets import Dataset, load_pixels
from utils.evaluation.diagnostics import FOLLOW_LABELS, Quantities, diagnose_all, ess_mean
from utils.methods.hmc.anchored import anchored_maps
from utils.methods.hmc.potential import STANDARD_NORMAL, Potential
from utils.networks.mlp import MLP
from utils.networks.predictions import class_probabilities
from utils.runs.seeding import generator

import numpy as np
import torch
from hmc import peers_python

OURS = "ours"
PEERS = {"numpyro": "numpyro, NUTS", "blackjax": "blackjax, NUTS"}
STANDARD = PEERS["numpyro"]  # whose means others are compared with
ANCHORED_EPOCHS = 8
PROCESSOR = 0  # on which each sampler runs


class Trial(NamedTuple):
    """A posterior of configs/MNIST_HMC/, and the transitions of each of its chains."""

    hidden: int
    num_train: int
    num_chains: int
    warmup: int
    samples: int
    our_warmup: int
    our_samples: int


TRIALS = {
    "tiny": Trial(8, 200, 2, warmup=500, samples=1000, our_warmup=100, our_samples=1500),
    "quick": Trial(64, 3000, 1, warmup=150, samples=150, our_warmup=30, our_samples=300),
}


class Chains(NamedTuple):
    samples: np.ndarray  # [chains, samples, d]
    steps: int  # while sampling, of all chains
    warmup_seconds: float
    seconds: float  # of sampling


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--posteriors", nargs="+", choices=TRIALS, default=list(TRIALS))
    parser.add_argument("--data_dir", type=Path, default=harness.ROOT / "data")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.posteriors:
        compare(name, TRIALS[name], options.data_dir.resolve())


def compare(name: str, trial: Trial, data_dir: Path) -> None:
    network = MLP((784, trial.hidden, 10))
    data = load_pixels("MNIST", data_dir, trial.num_train)
    with tempfile.TemporaryDirectory() as folder:
        problem = Path(folder) / "problem.npz"
        streams = [generator(0, "anchor", number) for number in range(trial.num_chains)]
        anchors = torch.stack([STANDARD_NORMAL.draw(network, stream) for stream in streams])
        np.savez(
            problem, images=data.train_images, labels=data.train_labels, sizes=network.sizes,
            starts=anchored_maps(network, data, anchors, 0, ANCHORED_EPOCHS),
        )  # fmt: skip
        chains = {title: run_peer(peer, problem, trial) for peer, title in PEERS.items()}
        chains[OURS] = run_ours(name, trial, data_dir, Path(folder))
    diagnostics = {title: diagnose(network, data, each) for title, each in chains.items()}
    seconds = {
        title: each.seconds / diagnostics[title]["quantities"]["test_log_likelihood"]["ess_bulk"]
        for title, each in chains.items()
    }
    harness.record(
        f"Samplers: 784-{trial.hidden}-10, {trial.num_train:,} images",
        "effective sample of the test log-likelihood", seconds, STANDARD,
        [describe(title, chains[title], diagnostics) for title in chains],
    )  # fmt: skip


# ---- chains, each on one processor


def run_alone(command: list) -> None:
    """Run a command on one processor and with one thread, as all samplers here."""
    subprocess.run(
        ["taskset", "--cpu-list", str(PROCESSOR), *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def run_peer(peer: str, problem: Path, trial: Trial) -> Chains:
    script, output = Path(__file__).with_name("samplers_nuts.py"), problem.with_name(f"{peer}.npz")
    print(f"{peer}: {trial.warmup} + {trial.samples} transitions of {trial.num_chains} chains")
    run_alone([peers_python(), script, problem, peer, trial.warmup, trial.samples, output])
    with np.load(output) as found:
        return Chains(
            found["samples"], int(found["steps"].sum()), float(found["warmup_seconds"]),
            float(found["sampling_seconds"]),
        )  # fmt: skip


def run_ours(name: str, trial: Trial, data_dir: Path, folder: Path) -> Chains:
    print(f"{OURS}: {trial.our_warmup} + {trial.our_samples} transitions")
    run_alone([
        sys.executable, harness.ROOT / "MNIST_HMC.py", "--config_name", name, "--num_chains",
        trial.num_chains, "--num_burnin", trial.our_warmup, "--num_samples", trial.our_samples,
        "--wandb", "disabled", "--data_dir", data_dir, "--out_dir", folder,
        "--run_batch_name", "bench",
    ])  # fmt: skip
    run = folder / "bench" / f"HMC-MNIST-{name}"
    trace = [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()]
    seconds = [
        sum(t["seconds"] for t in trace if t["burnin"] == burnin) for burnin in (True, False)
    ]
    samples = np.load(run / "samples.npy").reshape(trial.num_chains, trial.our_samples, -1)
    steps = sum(each["num_steps"] for each in trace if not each["burnin"])
    return Chains(samples, steps, *seconds)


# ---- what they are worth


def diagnose(network: MLP, data: Dataset, chains: Chains) -> dict:
    """Return the diagnostics of all quantities, computed in the same way for every sampler."""
    quantities = Quantities(network, data.test_labels, seed=0)
    potential = Potential(network, data.train_images, data.train_labels, "dense")
    draws = [
        quantities.measure(
            weights, class_probabilities(network, weights, data.test_images),
            potential.energy(weights).nll,
        )
        for weights in torch.from_numpy(chains.samples.reshape(-1, network.num_weights))
    ]  # fmt: skip
    draws = torch.stack(draws).reshape(*chains.samples.shape[:2], -1).numpy()
    diagnostics = diagnose_all(draws, quantities.names, chains.seconds / 3600)
    for number, each in enumerate(diagnostics["quantities"].values()):
        each["error"] = each["std"] / ess_mean(draws[:, :, number]) ** 0.5
    return diagnostics


def describe(title: str, chains: Chains, diagnostics: dict[str, dict]) -> str:
    """Say what a sampler's chains cost, what they are worth, and whether means agree."""
    groups = {
        group: numbers
        for group, numbers in diagnostics[title]["groups"].items()
        if numbers and group not in FOLLOW_LABELS
    }
    worth = ", ".join(
        f"{group.replace('_', ' ')} {numbers['median_ess_bulk'] / chains.seconds:.3g}"
        for group, numbers in groups.items()
    )
    rhat = max(numbers["largest_rhat"] for numbers in groups.values())
    count, num_chains = chains.samples.shape[1], len(chains.samples)
    text = (
        f"{title}: {num_chains} × {count} samples in {chains.seconds:.0f} s after "
        f"{chains.warmup_seconds:.0f} s of warm-up, {chains.steps / count / num_chains:.0f} steps "
        f"each, {1000 * chains.seconds / chains.steps:.3g} ms per step. Median bulk ESS per "
        f"second: {worth}. Largest R-hat {rhat:.3f}."
    )
    if title == STANDARD:
        return text
    scores = standard_scores(diagnostics[title]["quantities"], diagnostics[STANDARD]["quantities"])
    return (
        f"{text} Of {len(scores)} means {np.mean(np.abs(scores) < 1.96):.0%} are within 1.96 "
        f"standard errors of numpyro's; the largest difference is {np.abs(scores).max():.1f}."
    )


def standard_scores(ours: dict[str, dict], theirs: dict[str, dict]) -> np.ndarray:
    """Return the differences of means in standard errors, of quantities without labels of units."""
    names = [name for name in ours if name.split("/")[0] not in FOLLOW_LABELS]
    scores = [
        (ours[name]["mean"] - theirs[name]["mean"])
        / math.hypot(ours[name]["error"], theirs[name]["error"])
        for name in names
    ]
    return np.array([score for score in scores if np.isfinite(score)])


if __name__ == "__main__":
    main()
