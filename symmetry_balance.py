"""Why weight decay does not reach the minimum mass, and whether it would help if it did.

Weight decay pulls incoming and outgoing mass of a ReLU unit towards each other. Without gradient
noise, what is left of their difference after time t is the share

    exp(−2 · weight decay · ∫ learning rate dt / (1 − momentum))     t in steps

Networks are trained over a grid of weight decays, learning rates and momenta, and by Adam, to which
this does not apply. After every epoch the share, the mass and the minimum mass are measured. Each
SGD cell is also trained with an intervention: after every epoch all networks are scaled to their
minimum mass. Their accuracy, calibration and loss barriers are then compared.

    python symmetry_balance.py                         three networks on MNIST, 15 minutes
    python symmetry_balance.py --config_name quick     MLPs, seconds

A stopped run goes on with the next cell. A cell that diverges is recorded as such and left out of
what is shown. Leaves in its run directory cells.jsonl (a record for each cell of the grid; see
`measure_cell`), the figures balance.png and intervention.png with .pdf, and summary.json.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from papers.symmetry.paper import PAPER
from papers.symmetry.values import converged
from utils.data.datasets import Dataset, load_dataset
from utils.evaluation.metrics import accuracy, calibration_error, mean_nll
from utils.methods.training import Diverged, TrainingSettings, TrainingState, start_training, train
from utils.networks.mlp import MLP
from utils.networks.network import Network, initial_stack
from utils.networks.predictions import class_probabilities
from utils.networks.registry import ARCHITECTURES, NetworkConfig, inputs_for, network_for
from utils.rebasin.paths import Line, barrier, score
from utils.rebasin.rebase import rebase
from utils.rebasin.weight_matching import WeightMatcher
from utils.report.paper import conclude
from utils.runs.files import read_records, save_records
from utils.runs.progress import progress_bar
from utils.runs.run import Run, begin, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.settings.config import Config, option
from utils.settings.errors import UserError
from utils.symmetry.mass import (
    imbalance,
    mass,
    mass_along_orbit,
    minimum_mass,
    minimum_of,
    scalable_groups,
)

import torch
from torch import Tensor

KIND = "symmetry_balance"
HALFWAY = (0.0, 0.5, 1.0)
STEPS = torch.linspace(-2, 2, 21, dtype=torch.float64)  # along random directions in log λ
NUM_CURVES = 5
DIVERGED = 10  # times the NLL of guessing: overfitting does not come near it


@dataclass(frozen=True, kw_only=True)
class BalanceConfig(Config):
    networks: list[str] = option(
        ["mlp"], "architectures; all but an mlp take normalised images", choices=ARCHITECTURES
    )
    hidden_sizes: list[int] = option([64], "units of each hidden layer of an mlp", minimum=1)
    num_train: int | None = option(None, "training images to use, from the first on", minimum=1)
    num_networks: int = option(4, "networks in each cell, trained side by side", minimum=2)
    num_epochs: int = option(20, "passes over the training images", minimum=1)
    batch_size: int = option(64, "images per step", minimum=1)
    weight_decays: list[float] = option([1e-4, 1e-3], "weight decays of the grid", minimum=0)
    learning_rates: list[float] = option([0.01, 0.1], "learning rates of SGD", above=0)
    momenta: list[float] = option([0.0, 0.9], "momenta of SGD", minimum=0, below=1)
    adam_rates: list[float] = option([0.001], "learning rates of Adam", above=0)


class Cell(NamedTuple):
    network: str
    optimizer: str
    learning_rate: float
    momentum: float
    weight_decay: float
    projected: bool  # to minimum mass after every epoch


def main(config: BalanceConfig) -> None:
    device = begin(config, KIND)
    images = load_dataset(config.dataset, config.data_dir, config.num_train).to(device)
    networks = networks_of(config, images)
    run = open_run(config, KIND, device)
    records = train_grid(run, networks, images)
    summary = {"cells": [final_numbers(record) for record in records]}
    conclude(run, PAPER, summary, records=summary)


def networks_of(config: BalanceConfig, images: Dataset) -> dict[str, Network]:
    """Return the networks by name; those without scales are refused."""
    networks = {}
    for name in config.networks:
        normalise = name != MLP.name
        described = NetworkConfig(
            network=name, hidden_sizes=config.hidden_sizes, normalise=normalise
        )
        networks[name] = network_for(described, images)
        scalable_groups(networks[name])
    return networks


def cells_of(config: BalanceConfig) -> Iterator[Cell]:
    """Yield the cells of the grid, SGD's as they are and projected."""
    sgd = list(itertools.product(config.learning_rates, config.momenta, config.weight_decays))
    adam = list(itertools.product(config.adam_rates, config.weight_decays))
    for name in config.networks:
        for rate, momentum, decay in sgd:
            for projected in (False, True):
                yield Cell(name, "SGD", rate, momentum, decay, projected)
        for rate, decay in adam:
            yield Cell(name, "Adam", rate, 0.0, decay, projected=False)


def train_grid(run: Run, networks: dict[str, Network], images: Dataset) -> list[dict]:
    """Return the records of all cells; those that an interrupted run has left are kept."""
    path, cells = run.path("cells.jsonl"), list(cells_of(run.config))
    records = read_records(path) if path.exists() else []
    with run.graceful_stop(), progress_bar(len(cells), "grid", len(records), unit="cell") as bar:
        for cell in cells[len(records) :]:
            network = networks[cell.network]
            bar.set_postfix(network=network.name, optimizer=cell.optimizer, refresh=False)
            data = inputs_for(network, images)
            try:
                records.append(measure_cell(network, data, cell, run.config))
            except Diverged:
                records.append({**cell._asdict(), "diverged": True})
            save_records(path, records)
            bar.update()
            run.stop_if_asked()
    if all(record["projected"] for record in converged(records)):
        raise UserError(
            "Without projection, training diverged in all cells: lower --learning_rates and "
            "--adam_rates, and give --overwrite."
        )
    return records


# ---- one cell


def measure_cell(network: Network, data: Dataset, cell: Cell, config: BalanceConfig) -> dict:
    """Train the networks of a cell; return its settings, profiles over epochs and final scores.

    A cell has diverged if a weight or loss is not finite, or the final NLL is more than DIVERGED
    times that of guessing.

    decay_time [epochs + 1]: weight decay · Σ learning rate / (1 − momentum), over steps
    share_left, mass, minimum, excess [epochs + 1, networks]: see `profile`
    accuracy, nll, calibration_error [networks]; barrier [pairs]: at the middle of the line between
        networks 0 and 1, 2 and 3, …, after matching by weight
    second_difference [networks]: the smallest of log m along random lines in log λ; positive if the
        mass is strictly convex
    """
    settings = TrainingSettings(
        cell.optimizer, cell.learning_rate, config.batch_size, cell.momentum,
        prior_precision=cell.weight_decay * len(data.train_labels),
    )  # fmt: skip
    device = data.train_labels.device
    starts = initial_stack(network, config.seed, range(config.num_networks), device)
    state = start_training(starts, settings)
    start = imbalance(network, state.weights)
    profiles = [profile(network, state.weights, start)]
    for _ in range(config.num_epochs):
        state, _ = train(
            network, state, data.train_images, data.train_labels, settings,
            seed=config.seed, num_epochs=1,
        )  # fmt: skip
        if not state.weights.isfinite().all():
            raise Diverged("Training diverged: its weights are no numbers.")
        if cell.projected:
            state = project(network, state)
        profiles.append(profile(network, state.weights, start))
    steps = -(-len(data.train_labels) // config.batch_size)
    rate = cell.weight_decay * cell.learning_rate / (1 - cell.momentum)
    return {
        **cell._asdict(),
        "decay_time": [rate * steps * epoch for epoch in range(config.num_epochs + 1)],
        **{name: [each[name] for each in profiles] for name in profiles[0]},
        **final_scores(network, data, state.weights),
        "second_difference": second_differences(network, state.weights, config.seed).tolist(),
    }


def profile(network: Network, weights: Tensor, start: Tensor) -> dict[str, list[float]]:
    """Return, for each network, the share of the initial imbalance that is left, and masses.

    The share is the projection ⟨now, start⟩ / ‖start‖² of incoming minus outgoing mass over units,
    biases included: the quantity that gradient flow conserves.
    """
    share = (imbalance(network, weights) * start).sum(-1) / start.square().sum(-1)
    total, lowest = mass(network, weights), minimum_of(network, weights)
    values = {"share_left": share, "mass": total, "minimum": lowest, "excess": total / lowest - 1}
    return {name: value.tolist() for name, value in values.items()}


def second_differences(network: Network, weights: Tensor, seed: int) -> Tensor:
    """Return the smallest second difference [K] of log m on random lines through the networks."""
    curves = mass_along_orbit(network, weights, STEPS, NUM_CURVES, generator(seed, "directions"))
    return curves.log().diff(n=2).amin((0, -1))


def project(network: Network, state: TrainingState) -> TrainingState:
    """Scale networks to their minimum mass, and their momentum as gradients change with that.

    Here biases count, as weight decay pulls on them, too, and it is with them that the imbalance is
    0 at the minimum. Masses that are reported leave them out, as the paper does, so the excess of
    projected networks is small but not 0.
    """
    scaling = minimum_mass(network, state.weights, biases=True)
    inverse = replace(scaling, log_scales={n: -each for n, each in scaling.log_scales.items()})
    weights, momentum = scaling.apply(state.weights), inverse.apply(state.momentum)
    return state._replace(weights=weights, momentum=momentum)


def final_scores(network: Network, data: Dataset, weights: Tensor) -> dict[str, list[float]]:
    metrics = {"accuracy": accuracy, "nll": mean_nll, "calibration_error": calibration_error}
    predicted = [class_probabilities(network, each, data.test_images) for each in weights]
    scores = {
        name: [metric(probabilities, data.test_labels) for probabilities in predicted]
        for name, metric in metrics.items()
    }
    highest = DIVERGED * math.log(network.num_classes)
    if not all(nll <= highest for nll in scores["nll"]):
        raise Diverged("Training diverged: networks predict far worse than by guessing.")
    pairs = zip(weights[::2], weights[1::2], strict=False)
    return scores | {"barrier": [matched_barrier(network, data, *pair) for pair in pairs]}


def matched_barrier(network: Network, data: Dataset, first: Tensor, second: Tensor) -> float:
    """Return the test loss barrier half-way to the second network, rebased to the first."""
    rebased = rebase(network, second, WeightMatcher(network, first)).weights
    line = Line(network, first, rebased, HALFWAY)
    losses = score(line, data.test_images, data.test_labels, data.train_images).loss
    return barrier(losses, HALFWAY)[1].item()


def final_numbers(record: dict) -> dict:
    """Return a cell's settings, and means over its networks at the end of training."""
    if record.get("diverged"):
        return record
    numbers = {name: record[name] for name in Cell._fields}
    numbers["decay_time"] = record["decay_time"][-1]
    ends = {name: record[name][-1] for name in ("share_left", "mass", "minimum", "excess")}
    ends |= {name: record[name] for name in ("accuracy", "nll", "calibration_error", "barrier")}
    numbers |= {name: sum(values) / len(values) for name, values in ends.items()}
    numbers["second_difference"] = min(record["second_difference"])
    return numbers


CONFIG = BalanceConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
