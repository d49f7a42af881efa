"""How biased are SGLD and SGHMC, on a posterior that HMC samples exactly?

Both leave out the accept step and take gradients of minibatches (see utils/methods/langevin.py).
Chains of each begin at samples of HMC and run at several step sizes. They are compared with HMC in
their predictions, in functionals of the weights that do not depend on the order of units, and in
second moments of the weights of pixels that the data use. (Weights of dead pixels tell nothing: no
noise of minibatches reaches them.)

    python sampler_bias.py --hmc runs/default/HMC-MNIST-tiny
    python sampler_bias.py --hmc DIRECTORY --config_name paper       784-64-10 on 3,000 images
    python sampler_bias.py --hmc DIRECTORY --methods sghmc --sghmc_rates 0.01 0.02

Leaves in its run directory cells.jsonl (a record for each method and step size, with all numbers),
the figure sampler_bias.png and .pdf, and summary.json. If it is stopped, `--resume` keeps the cells
that are done.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from papers.compact import hmc_figures
from utils.data.datasets import load_dataset
from utils.evaluation.diagnostics import bias
from utils.evaluation.evaluate import (
    Candidate,
    check_data,
    open_candidate,
    prior_in,
    temperature_of,
)
from utils.evaluation.inexact_chains import (
    ComparedQuantities,
    MeasuredChains,
    beside_exact,
    measure_chains,
)
from utils.evaluation.metrics import (
    closeness,
    scores,
)
from utils.methods.langevin import ChainState, run_epoch
from utils.methods.method import Problem
from utils.methods.registry import METHODS
from utils.networks.registry import inputs_for
from utils.posteriors.posterior import is_set
from utils.runs.files import read_records, save_records
from utils.runs.lookup import NEWEST, identify, locate
from utils.runs.progress import progress_bar
from utils.runs.run import Run, begin, open_run
from utils.runs.script import run_script
from utils.settings.config import Config, option
from utils.settings.errors import UserError

import numpy as np
import torch
from torch import Tensor

KIND = "sampler_bias"
SAMPLERS = ("sgld", "sghmc")
MIN_SAMPLES = 8  # of each chain


@dataclass(frozen=True, kw_only=True)
class BiasConfig(Config):
    config_name: str = option("quick", "named settings: configs/sampler_bias/NAME.yaml")
    hmc: str = option(NEWEST, "run of HMC; newest: the batch's finished one", changeable=True)
    methods: list[str] = option(list(SAMPLERS), "samplers to compare", choices=SAMPLERS)
    sgld_rates: list[float] = option([0.02], "step sizes of SGLD, as --learning_rate", above=0)
    sghmc_rates: list[float] = option([0.002], "step sizes of SGHMC", above=0)
    momentum: float = option(0.9, "momentum of SGHMC", minimum=0, below=1)
    batch_size: int = option(100, "images per step", minimum=1)
    num_chains: int = option(4, "chains, each from a sample of HMC", minimum=2)
    num_burnin: int = option(100, "epochs before samples are collected", minimum=0)
    num_samples: int = option(100, "samples of each chain", minimum=MIN_SAMPLES)
    store_every: int = option(5, "epochs from one sample to the next", minimum=1)
    num_hmc: int = option(1000, "samples of HMC to compare with, at most", minimum=MIN_SAMPLES)
    num_bootstraps: int = option(200, "resamplings behind errors of predictions", minimum=2)


class Cell(NamedTuple):
    method: str
    rate: float


def main(config: BiasConfig) -> None:
    path = locate(config, config.hmc, "HMC", "MNIST_HMC.py")
    if path is None:
        raise UserError("A run of HMC is needed: give --hmc PATH, or newest.")
    inputs = {"HMC": identify(path)}
    device = begin(config, KIND, inputs)
    candidate = open_candidate("hmc", "HMC", path, most=config.num_hmc)
    num_train = candidate.run.data.get("num_train")
    network = candidate.posterior.network
    check_exact(candidate)
    data = load_dataset(config.dataset, config.data_dir, num_train)
    check_data(candidate, data)
    data = inputs_for(network, data).to(device)
    prior = prior_in(candidate, len(data.train_labels), device)
    problem = Problem(network, data, prior, device, None, temperature_of(candidate))
    run = open_run(config, KIND, device, inputs, num_train=num_train)
    cells = run_cells(run, problem, candidate.posterior)
    run.save_figure("sampler_bias", hmc_figures.sampler_bias(run.path("cells.jsonl")))
    run.log_records("cells", cells)
    run.finish({"cells": cells})
    hmc_figures.bias_table(cells).print()
    print(f"Saved in {run.directory}")


def check_exact(candidate: Candidate) -> None:
    """Refuse a distribution, and chains too short for an effective sample size."""
    posterior, path = candidate.posterior, candidate.run.path
    if not is_set(posterior):
        raise UserError(f"{path} has a {candidate}, but no samples: give a run of HMC to --hmc.")
    if len(posterior) // posterior.num_chains < MIN_SAMPLES:
        raise UserError(
            f"Of {path} {candidate} are used, but at least {MIN_SAMPLES} of each chain are needed: "
            "give a longer run to --hmc, or a larger --num_hmc."
        )


# ---- all cells


def cells_of(config: BiasConfig) -> Iterator[Cell]:
    rates = {"sgld": config.sgld_rates, "sghmc": config.sghmc_rates}
    for method in config.methods:
        yield from (Cell(method, rate) for rate in sorted(rates[method]))


def run_cells(run: Run, problem: Problem, hmc) -> list[dict]:
    """Return the records of HMC and all cells; those that an earlier session has left are kept."""
    config, path = run.config, run.path("cells.jsonl")
    records = read_records(path) if path.exists() else []
    cells = list(cells_of(config))
    quantities = ComparedQuantities(problem.network, problem.data)
    exact = measure_chains(quantities, hmc, hmc.num_chains)
    with run.graceful_stop():
        if not records:
            records = [record_of_hmc(exact, problem, quantities)]
            save_records(path, records)
        for cell in cells[len(records) - 1 :]:
            records.append(compare(cell, run, problem, quantities, exact, hmc))
            save_records(path, records)
            run.log(cell=len(records) - 1, total_variation=records[-1].get("total_variation"))
            run.stop_if_asked()
    return records


def compare(cell: Cell, run: Run, problem: Problem, quantities, exact: MeasuredChains, hmc) -> dict:
    """Run the chains of a cell, and return how they differ from HMC."""
    record = {"method": cell.method, "rate": cell.rate}
    try:
        samples, heat = sample(cell, run, problem, hmc)
        measured = measure_chains(quantities, samples, run.config.num_chains)
    except UserError:  # weights or losses became infinite
        return record | {"diverged": True}
    biases = bias(measured.quantities, exact.quantities)
    labels = problem.data.test_labels
    return record | {
        "diverged": False,
        "temperature": heat,
        **beside_exact(measured, exact, labels, run.config.num_bootstraps, run.config.seed),
        "shift": quantities.shifts(biases),
        "second_moments": quantities.second_moments(biases, exact),
        "quantities": {
            name: {"difference": d, "error": e, "std": s}
            for name, d, e, s in zip(quantities.names, *map(np.ndarray.tolist, biases), strict=True)
        },
    }


def record_of_hmc(exact: MeasuredChains, problem: Problem, quantities) -> dict:
    """Return HMC's own scores, and how far its halves are from each other."""
    predictions, labels = exact.predictions, problem.data.test_labels
    own = scores(predictions.compared(predictions, labels))
    return {
        "method": "hmc",
        "halves": closeness(*predictions.halves()),
        "nll": own["nll"], "accuracy": own["sample_accuracy"],
        "means": dict(zip(quantities.names, exact.quantities.mean((0, 1)).tolist(), strict=True)),
    }  # fmt: skip


# ---- chains


def sample(cell: Cell, run: Run, problem: Problem, hmc) -> tuple[Tensor, float]:
    """Return samples [chains · samples, d] and the temperature of the velocities."""
    config, method = run.config, METHODS[cell.method]
    settings = {"momentum": config.momentum} if cell.method == "sghmc" else {}
    chain_config = method.Config(
        learning_rate=cell.rate, batch_size=config.batch_size, seed=config.seed,
        num_epochs=config.num_burnin + config.num_samples * config.store_every,
        num_burnin=config.num_burnin, store_every=config.store_every,
        temperature=problem.temperature, **settings,
    )  # fmt: skip
    chains, heats = [], []
    title = f"{method.title}, {cell.rate:g}"
    total = config.num_chains * chain_config.num_epochs
    with progress_bar(total, title, unit="epoch") as bar:
        for number in range(config.num_chains):
            start = hmc[number * len(hmc) // config.num_chains].to(problem.device)
            for state, heat in epochs(problem, chain_config, method.stream(number), start):
                if chain_config.collects(state.epoch):
                    chains.append(state.weights[0])
                    heats.append(heat)
                bar.update()
                if run.stop_requested:
                    run.stop_if_asked()
    return torch.stack(chains), float(np.mean(heats))


def epochs(problem: Problem, config, stream, start: Tensor) -> Iterator[tuple[ChainState, float]]:
    """Yield the state after each epoch, and the temperature of its velocities."""
    weights = start[None].clone()
    nothing = weights.new_empty(0, weights.shape[1])
    state = ChainState(torch.tensor([0]), weights, torch.zeros_like(weights), nothing)
    while state.epoch < config.num_epochs:
        state, loss, heat = run_epoch(problem, state, config, stream)
        if not state.weights.isfinite().all() or not loss.isfinite():
            raise UserError(f"The chain diverged in epoch {state.epoch}.")
        yield state, heat


CONFIG = BiasConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
