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
`measure_cell` in papers/symmetry/balance.py), the figures balance.png and intervention.png with
.pdf, and summary.json.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from papers.symmetry.balance import GridCell, converged, final_numbers, measure_cell
from papers.symmetry.paper import PAPER
from utils.data.datasets import Dataset, load_dataset
from utils.methods.training import Diverged
from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.networks.registry import ARCHITECTURES, NetworkConfig, inputs_for, network_for
from utils.report.paper import conclude
from utils.runs.files import read_records, save_records
from utils.runs.progress import progress_bar
from utils.runs.run import Run, begin, open_run
from utils.runs.script import run_script
from utils.settings.config import Config, option
from utils.settings.errors import UserError
from utils.symmetry.mass import scalable_groups

KIND = "symmetry_balance"


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


def cells_of(config: BalanceConfig) -> Iterator[GridCell]:
    """Yield the cells of the grid, SGD's as they are and projected."""
    sgd = list(itertools.product(config.learning_rates, config.momenta, config.weight_decays))
    adam = list(itertools.product(config.adam_rates, config.weight_decays))
    for name in config.networks:
        for rate, momentum, decay in sgd:
            for projected in (False, True):
                yield GridCell(name, "SGD", rate, momentum, decay, projected)
        for rate, decay in adam:
            yield GridCell(name, "Adam", rate, 0.0, decay, projected=False)


def train_grid(run: Run, networks: dict[str, Network], images: Dataset) -> list[dict]:
    """Return the records of all cells; those that an interrupted run has left are kept."""
    path, cells = run.path("cells.jsonl"), list(cells_of(run.config))
    records = read_records(path) if path.exists() else []
    shared = ("num_networks", "num_epochs", "batch_size", "seed")
    training = {name: getattr(run.config, name) for name in shared}
    with run.graceful_stop(), progress_bar(len(cells), "grid", len(records), unit="cell") as bar:
        for cell in cells[len(records) :]:
            network = networks[cell.network]
            bar.set_postfix(network=network.name, optimizer=cell.optimizer, refresh=False)
            data = inputs_for(network, images)
            try:
                records.append(measure_cell(network, data, cell, **training))
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


CONFIG = BalanceConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
