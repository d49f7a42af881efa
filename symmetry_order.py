"""How often do hidden units change their order while a network is trained?

Section 5.2 of Laurent et al. (2024). Units are sorted by a key; Kendall's τ of the orders at two
times is 1 if no pair of units has changed places and −1 if all have. The number of transpositions
that rebasin finds between two times (NoT, the measure of Xiao et al. 2023) says whether units have
taken each other's roles: by activation what they do on images, by weight which weights they have.
Snapshots are taken ten times in the first epoch and after each epoch.

    python symmetry_order.py                        MLPs on MNIST, minutes
    python symmetry_order.py --network lenet        another network
    python symmetry_order.py --config_name quick    seconds

Leaves in its run directory order.npz, the figure order.png and .pdf, and summary.json.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from papers.symmetry.paper import PAPER
from utils.data.datasets import Dataset
from utils.methods.shared_settings import PermutationConfig
from utils.methods.training import TrainingState, settings_of, start_training, train
from utils.networks.network import Network, initial_stack
from utils.networks.registry import network_and_data
from utils.rebasin.assignment import Matcher
from utils.rebasin.matching import make_matcher
from utils.report.paper import conclude
from utils.runs.progress import progress_bar
from utils.runs.run import begin, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.settings.config import option
from utils.settings.errors import UserError
from utils.symmetry.normal_forms import KEYS, unit_keys
from utils.symmetry.unit_order import order_correlation

import numpy as np
import torch
from torch import Tensor

KIND = "symmetry_order"
SNAPSHOTS = 10  # of the first epoch, with a snapshot after each
NOT_BY = ("activation", "weight")  # how the transpositions are found
MEASURES = (*KEYS, *(f"not_by_{method}" for method in NOT_BY))


@dataclass(frozen=True, kw_only=True)
class OrderConfig(PermutationConfig):
    num_train: int | None = option(
        None, "how many training images to use, from the first on", minimum=SNAPSHOTS
    )
    num_networks: int = option(4, "networks, trained side by side", minimum=1)
    weight_decay: float = option(0.0, "weight decay", minimum=0)
    num_match_images: int = option(10_000, "training images to match by, at most", minimum=1)


def main(config: OrderConfig) -> None:
    device = begin(config, KIND)
    network, data = network_and_data(config, device)
    if not network.groups:
        raise UserError(f"The network {network} has no hidden units to order.")
    if max(network.set_sizes) < 2:
        raise UserError(
            f"The network {network} has one unit in each layer, so there is no order: a layer "
            "needs at least two."
        )
    run = open_run(config, KIND, device)
    network.save(run.path("network.json"))
    snapshots = list(train_with_snapshots(network, data, config))
    epochs = [epoch for epoch, _ in snapshots]
    weights = torch.stack([each for _, each in snapshots]).cpu()  # [snapshot, network, d]
    images, results = data.train_images[: config.num_match_images].cpu(), {}
    for method in NOT_BY:
        results |= transpositions(network, weights, method, images)
    for key in KEYS:
        results |= order_correlations(network, weights, key)
    run.save_arrays("order.npz", epochs=epochs, groups=list(network.groups), **results)
    summary = summary_of(epochs, results)
    records = {"measures": {name: summary[f"{name}_step"] for name in MEASURES}}
    conclude(run, PAPER, summary, records=records)


# ---- training


def train_with_snapshots(
    network: Network, data: Dataset, config: OrderConfig
) -> Iterator[tuple[float, Tensor]]:
    """Yield the time in epochs and the weights [networks, d]."""
    images, labels, device = data.train_images, data.train_labels, data.train_labels.device
    starts = initial_stack(network, config.seed, range(config.num_networks), device)
    state = start_training(starts, settings_of(config))
    yield 0.0, state.weights
    shuffled = torch.randperm(len(labels), generator=generator(config.seed, "parts")).to(device)
    with progress_bar(config.num_epochs, "networks") as bar:
        for number, part in enumerate(shuffled.tensor_split(SNAPSHOTS), start=1):
            state = train_on(network, state, images[part], labels[part], config)
            yield number / SNAPSHOTS, state.weights
        bar.update()
        state = state._replace(epoch=1)
        while state.epoch < config.num_epochs:
            state = train_on(network, state, images, labels, config)
            bar.update()
            yield float(state.epoch), state.weights


def train_on(
    network: Network, state: TrainingState, images: Tensor, labels: Tensor, config: OrderConfig
) -> TrainingState:
    """Return the state after one pass over some images, with the same weight decay per step."""
    settings = settings_of(config, prior_precision=config.weight_decay * len(labels))
    state, _ = train(network, state, images, labels, settings, seed=config.seed, num_epochs=1)
    return state


# ---- what is measured


def order_correlations(network: Network, weights: Tensor, key: str) -> dict[str, np.ndarray]:
    """Return τ [snapshots − 1, networks, groups] between neighbours, and to the end."""
    keys = [unit_keys(network, weights, name, key) for name in network.groups]
    last = len(weights) - 1

    def correlation(first: int, second: int) -> list[list[float]]:
        return [
            [order_correlation(each[first, k], each[second, k]) for each in keys]
            for k in range(weights.shape[1])
        ]

    return {
        f"{key}_step": np.array([correlation(number, number + 1) for number in range(last)]),
        f"{key}_end": np.array([correlation(number, last) for number in range(last)]),
    }


def transpositions(
    network: Network, weights: Tensor, method: str, images: Tensor
) -> dict[str, np.ndarray]:
    """Return NoT [snapshots − 1, networks, groups] of neighbours' rebasin, and of the end's."""
    steps, ends = [], []
    with progress_bar(len(weights) - 1, f"NoT by {method}", unit="snapshot") as bar:
        for earlier, later in pairwise(weights):
            matchers = [make_matcher(method, network, each, images) for each in earlier]
            steps.append(_transpositions(matchers, later))
            ends.append(_transpositions(matchers, weights[-1]))
            bar.update()
    return {f"not_by_{method}_step": np.array(steps), f"not_by_{method}_end": np.array(ends)}


def _transpositions(matchers: list[Matcher], networks: Tensor) -> list[list[int]]:
    """Return NoT of the rebasin of each network, by group of units."""
    return [
        list(matcher(weights).transformation.transpositions().values())
        for matcher, weights in zip(matchers, networks, strict=True)
    ]


def summary_of(epochs: list[float], results: dict[str, np.ndarray]) -> dict:
    """Return means over networks and groups: in the first part of an epoch, and in the last epoch.

    An interval of one epoch has room for more changes than a tenth of one.
    """
    numbers = {"interval": {"first": epochs[1] - epochs[0], "last": epochs[-1] - epochs[-2]}}
    for name in MEASURES:
        values = np.nanmean(results[f"{name}_step"], axis=(1, 2))
        numbers[f"{name}_step"] = {"first": float(values[0]), "last": float(values[-1])}
        numbers[f"{name}_start_to_end"] = float(np.nanmean(results[f"{name}_end"][0]))
    return numbers


CONFIG = OrderConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
