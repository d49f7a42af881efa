"""How exact HMC is at the settings of a finished run: three tests, each of what the others miss.

    python benchmarks/exactness.py RUN [--tests reversal start virial] [--replicates N]

reversal   trajectories there and back with listed and active forces, and with float64: how far the
           way back ends from the start, and ΔH there + ΔH back
start      weights drawn from the prior and labels drawn from their network are a draw from the
           joint distribution, so that these weights are a draw from the posterior of these labels.
           Transitions must not change the distribution of any function of them (Geweke 2004)
virial     E[θ · ∂(U/T)/∂θ] is the number of weights, in every layer

The numbers are added to benchmarks/exactness.json.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import harness
from utils.evaluation.diagnostics import ess_mean
from utils.methods.hmc.chains import transition
from utils.methods.hmc.leapfrog import WayBack, leapfrog, way_back
from utils.methods.hmc.mass import IDENTITY, MassMatrix
from utils.methods.hmc.method import HMC, HMCConfig, build_potential
from utils.methods.method import Problem, set_up
from utils.networks.network import Network
from utils.runs.files import save_json
from utils.runs.progress import progress_bar
from utils.runs.ranks import ALONE
from utils.runs.seeding import generator

import numpy as np
import torch
import yaml
from torch import Tensor

RESULTS = harness.ROOT / "benchmarks" / "exactness.json"
FORCES = {"listed": torch.float32, "active": torch.float32, "active in float64": torch.float64}


class FinishedRun:
    """The posterior of a run, its samples, and how its trajectories were made."""

    def __init__(self, directory: Path, data_dir: Path):
        stored = yaml.safe_load((directory / "config.yaml").read_text())
        names = {field.name for field in fields(HMCConfig)}
        settings = {name: value for name, value in stored.items() if name in names}
        self.config = HMCConfig(**settings | {"data_dir": str(data_dir), "device": "cpu"})
        self.problem = set_up(HMC(), self.config)
        self.samples = np.load(directory / "samples.npy", mmap_mode="r")
        trace = (directory / "trace.jsonl").read_text().splitlines()
        self.trace = [r for r in map(json.loads, trace) if not r["burnin"] and r["chain"] == 0]
        with np.load(directory / "checkpoint.npz") as checkpoint:
            factors = checkpoint.get("mass_factor")
        self.mass = IDENTITY if factors is None else MassMatrix(torch.from_numpy(factors[0]))

    def weights(self, number: int) -> Tensor:
        """Return a sample of the first chain, spread over them all."""
        count = len(self.samples) // self.config.num_chains
        return torch.from_numpy(self.samples[number % count].copy())

    def steps(self, number: int) -> tuple[float, int]:
        """Return the step size and number of steps of one of the run's trajectories."""
        record = self.trace[number % len(self.trace)]
        return record["step_size"], record["num_steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="directory of an HMC run that has its checkpoint")
    parser.add_argument("--tests", nargs="+", choices=TESTS, default=list(TESTS))
    parser.add_argument("--forces", nargs="+", choices=FORCES, default=list(FORCES))
    parser.add_argument("--trajectories", type=int, default=16, help="of each force")
    parser.add_argument("--replicates", type=int, default=100, help="exact starts")
    parser.add_argument("--transitions", type=int, default=1, help="from each exact start")
    parser.add_argument("--data_dir", default=harness.ROOT / "data")
    options = parser.parse_args()
    run = FinishedRun(options.run, options.data_dir)
    name = f"{run.problem.network}, {len(run.problem.data.train_labels)} images"
    for test in options.tests:
        found = TESTS[test](run, options)
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results.setdefault(name, {}).setdefault(test, {}).update(found)
        save_json(RESULTS, results)
        print(f"{test} of {name}:\n{json.dumps(found, indent=2)}")


def counted(count: int, title: str) -> Iterator[int]:
    """Yield the numbers below `count`, with a progress bar."""
    with progress_bar(count, title, unit="") as bar:
        for number in range(count):
            yield number
            bar.update()


# ---- there and back


def reversal(run: FinishedRun, options) -> dict:
    return {force: of_force(run, force, options.trajectories) for force in options.forces}


def of_force(run: FinishedRun, force: str, count: int) -> dict:
    """Return how trajectories from samples of the run come back with this force."""
    problem, kind = run.problem, FORCES[force]
    images = problem.data.train_images.to(kind)
    problem = problem._replace(data=replace(problem.data, train_images=images))
    target = build_potential(replace(run.config, force=force.split()[0]), problem, ALONE)
    factor = run.mass.factor
    mass = IDENTITY if factor is None else MassMatrix(factor.to(kind))
    backs, changes, violations, margins = [], [], [], []
    for number in counted(count, force):
        place = number * len(run.trace) // count
        start, (size, steps) = run.weights(place).to(kind), run.steps(place)
        momentum = torch.randn(start.shape, generator=generator(0, "exactness", number)).to(kind)
        path = leapfrog(target, start, momentum, size, steps, mass=mass)
        if math.isfinite(path.delta_energy):
            backs.append(way_back(target, start, path, size, steps, lambda: None, mass))
            changes.append(path.delta_energy)
            violations.append(path.violations)
            margins.append(path.lowest_margin)
    return summary_of(backs, changes, np.array(violations), min(margins))


def summary_of(backs: list[WayBack], changes: list[float], violations, margin: float) -> dict:
    gaps, misses = np.array([b.gap for b in backs]), np.array([b.miss for b in backs])
    there = np.minimum(1, np.exp(-np.array(changes)))
    back = np.minimum(1, np.exp(-(np.array(changes) - gaps)))
    return {
        "trajectories": len(backs),
        "rms_gap": rms(gaps),
        "largest_gap": float(np.abs(gaps).max()),
        "mean_difference_of_acceptance": float(np.abs(there - back).mean()),
        "rms_miss": rms(misses),
        "largest_miss": float(misses.max()),
        "not_returned": int(sum(not b.returned for b in backs)),
        "with_violations": int((violations > 0).sum()),
        "violations": int(violations.sum()),
        "lowest_margin": margin if math.isfinite(margin) else None,
        "rms_gap_with_violations": rms(gaps[violations > 0]),
        "rms_gap_without": rms(gaps[violations == 0]),
    }


def rms(values: np.ndarray) -> float | None:
    return float(np.sqrt(np.square(values).mean())) if len(values) else None


# ---- exact starts


def exact_start(run: FinishedRun, options) -> dict:
    """Return by how much transitions change functions of an exact draw, in standard errors."""
    problem, before, after, accepted = run.problem, [], [], []
    if problem.temperature != 1:
        raise SystemExit("Labels are drawn at temperature 1: give a run with that temperature.")
    for number in counted(options.replicates, "exact starts"):
        weights, labels = joint_draw(problem, number)
        drawn = problem._replace(data=replace(problem.data, train_labels=labels))
        target = build_potential(run.config, drawn, ALONE)
        before.append(functions_of(problem.network, weights, target.energy(weights).nll))
        for step in range(options.transitions):
            size, steps = run.steps(number * options.transitions + step)
            weights, record = transition(
                target, weights, size, steps, 0, "exactness", number, step, mass=run.mass
            )
            accepted.append(record.accepted)
        after.append(functions_of(problem.network, weights, record.nll))
    changes = np.array([list(a.values()) for a in after]) - [list(b.values()) for b in before]
    errors = changes.std(0, ddof=1) / math.sqrt(len(changes))
    spread = np.array([list(b.values()) for b in before]).std(0, ddof=1)
    return {
        "replicates": options.replicates,
        "transitions_of_each": options.transitions,
        "accepted": float(np.mean(accepted)),
        "functions": {
            name: {"z": float(z), "change_in_deviations": float(change), "its_error": float(error)}
            for name, z, change, error in zip(
                before[0], changes.mean(0) / errors, changes.mean(0) / spread, errors / spread,
                strict=True,
            )
        },
    }  # fmt: skip


def joint_draw(problem: Problem, number: int) -> tuple[Tensor, Tensor]:
    """Draw weights from the prior, and labels of all training images from their network."""
    random = generator(0, "exact_start", number)
    weights = problem.prior.draw(problem.network, random)
    images = problem.data.train_images.split(problem.network.chunk_rows)
    logits = torch.cat([problem.network.outputs(weights, chunk) for chunk in images])
    return weights, torch.multinomial(logits.softmax(-1), 1, generator=random).squeeze(1)


def functions_of(network: Network, weights: Tensor, nll: float) -> dict[str, float]:
    """Return the NLL and the squares and fourth powers of every slot's weights."""
    slots = {slot.name: slot.of(weights).double() for slot in network.slots}
    squares = {f"mean square of {name}": w.square().mean().item() for name, w in slots.items()}
    fourths = {f"mean 4th power of {name}": w.pow(4).mean().item() for name, w in slots.items()}
    return {"NLL": nll, **squares, **fourths}


# ---- virial


def virial(run: FinishedRun, options) -> dict:
    """Return the mean of θ · ∂(U/T)/∂θ per weight of every slot, which is 1 of the posterior."""
    target = build_potential(replace(run.config, force="dense"), run.problem, ALONE)
    count, slots = len(run.samples) // run.config.num_chains, run.problem.network.slots
    values = np.empty((len(slots), count))
    for number in counted(count, "virial"):
        weights = run.weights(number)
        products = weights.double() * target.energy(weights).gradient
        values[:, number] = [slot.of(products).mean().item() for slot in slots]
    errors = [row.std(ddof=1) / math.sqrt(ess_mean(row[None])) for row in values]
    return {
        slot.name: {"mean": float(row.mean()), "error": float(error)}
        for slot, row, error in zip(slots, values, errors, strict=True)
    }


TESTS = {"reversal": reversal, "start": exact_start, "virial": virial}

if __name__ == "__main__":
    main()
