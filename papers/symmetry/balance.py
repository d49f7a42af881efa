"""A cell of symmetry_balance.py's grid: networks trained alike, their masses after every epoch and
their scores at the end; and which cells count.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from utils.data.datasets import Dataset
from utils.evaluation.metrics import accuracy, calibration_error, mean_nll
from utils.methods.training import Diverged, TrainingSettings, TrainingState, start_training, train
from utils.networks.network import Network, initial_stack
from utils.networks.predictions import class_probabilities
from utils.rebasin.paths import Line, barrier, score
from utils.rebasin.rebase import rebase
from utils.rebasin.weight_matching import WeightMatcher
from utils.runs.seeding import generator
from utils.symmetry.mass import imbalance, mass, mass_along_orbit, minimum_mass, minimum_of

import torch
from torch import Tensor

HALFWAY = (0.0, 0.5, 1.0)
ORBIT_STEPS = torch.linspace(-2, 2, 21, dtype=torch.float64)  # along random directions in log λ
NUM_CURVES = 5
DIVERGED = 10  # times the NLL of guessing: overfitting does not come near it


class GridCell(NamedTuple):
    network: str
    optimizer: str
    learning_rate: float
    momentum: float
    weight_decay: float
    projected: bool  # to minimum mass after every epoch


def measure_cell(
    network: Network,
    data: Dataset,
    cell: GridCell,
    *,
    num_networks: int,
    num_epochs: int,
    batch_size: int,
    seed: int,
) -> dict:
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
        cell.optimizer, cell.learning_rate, batch_size, cell.momentum,
        prior_precision=cell.weight_decay * len(data.train_labels),
    )  # fmt: skip
    device = data.train_labels.device
    starts = initial_stack(network, seed, range(num_networks), device)
    state = start_training(starts, settings)
    start = imbalance(network, state.weights)
    profiles = [profile(network, state.weights, start)]
    for _ in range(num_epochs):
        state, _ = train(
            network, state, data.train_images, data.train_labels, settings,
            seed=seed, num_epochs=1,
        )  # fmt: skip
        if not state.weights.isfinite().all():
            raise Diverged("Training diverged: its weights are no numbers.")
        if cell.projected:
            state = project(network, state)
        profiles.append(profile(network, state.weights, start))
    steps = -(-len(data.train_labels) // batch_size)
    rate = cell.weight_decay * cell.learning_rate / (1 - cell.momentum)
    return {
        **cell._asdict(),
        "decay_time": [rate * steps * epoch for epoch in range(num_epochs + 1)],
        **{name: [each[name] for each in profiles] for name in profiles[0]},
        **final_scores(network, data, state.weights),
        "second_difference": second_differences(network, state.weights, seed).tolist(),
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
    curves = mass_along_orbit(
        network, weights, ORBIT_STEPS, NUM_CURVES, generator(seed, "directions")
    )
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
    numbers = {name: record[name] for name in GridCell._fields}
    numbers["decay_time"] = record["decay_time"][-1]
    ends = {name: record[name][-1] for name in ("share_left", "mass", "minimum", "excess")}
    ends |= {name: record[name] for name in ("accuracy", "nll", "calibration_error", "barrier")}
    numbers |= {name: sum(values) / len(values) for name, values in ends.items()}
    numbers["second_difference"] = min(record["second_difference"])
    return numbers


# ---- of many cells, those that count


def converged(cells: list[dict]) -> list[dict]:
    """Return the cells that did not diverge."""
    return [cell for cell in cells if not cell.get("diverged")]


def pairs(cells: list[dict]) -> list[tuple[dict, dict]]:
    """Return SGD's cells as usual and with projection; neither of a pair diverged."""
    usual, projected = (
        [c for c in cells if c["optimizer"] == "SGD" and c["projected"] == is_projected]
        for is_projected in (False, True)
    )
    return [pair for pair in zip(usual, projected, strict=True) if len(converged(pair)) == 2]


def remark(cells: list[dict]) -> str:
    """Say how many cells diverged; nothing if none did."""
    count = len(cells) - len(converged(cells))
    return f" Training diverged in {count} of {len(cells)} cells, which are left out." * (count > 0)


def training_of(cell: dict) -> tuple:
    """Return what a cell has in common with the same training by another weight decay."""
    return cell["network"], cell["optimizer"], cell["learning_rate"], cell["momentum"]
