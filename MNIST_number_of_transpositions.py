"""Does training keep the permutation between two networks that started as permuted copies?

The paper's Figure 3, left three panels: NoT, weight distance and loss barrier of such pairs after
training, each against the NoT of the permutation that was planted at initialisation. The barrier
is that at the midpoint, λ = ½.

    python MNIST_number_of_transpositions.py                        the paper's settings
    python MNIST_number_of_transpositions.py --config_name quick    a minute's worth of the same
    python MNIST_number_of_transpositions.py --config_name bands    five such: mean and ±1σ bands
    python MNIST_number_of_transpositions.py --num_runs 5 --resume  the same after a single run

All pairs of a run train side by side. Leaves in its run directory transpositions.jsonl (a record
for every run, pair and stage; see `measure_pair`), the figure, and metrics.jsonl (per epoch:
training loss). A stopped run goes on at its last epoch.
"""

from dataclasses import dataclass

from papers.compact import permutation_figures
from papers.compact.planted_pairs import STAGES, make_pair, measure_pair, summary_of_pairs
from utils.data.datasets import Dataset
from utils.methods.method import tensors_of
from utils.methods.shared_settings import PermutationConfig
from utils.methods.training import (
    TrainingSettings,
    TrainingState,
    settings_of,
    start_training,
    train,
)
from utils.networks.network import Network
from utils.networks.registry import network_and_data
from utils.rebasin.paths import repair_note
from utils.report.tables import Table, number
from utils.runs.files import UNREADABLE, read_records, save_records
from utils.runs.progress import check_space, progress_bar
from utils.runs.run import Run, begin, open_run
from utils.runs.script import run_script
from utils.settings.config import option
from utils.settings.errors import UserError

import torch
from torch import Tensor

KIND = "transpositions"  # of its runs: what their directories begin with


@dataclass(frozen=True, kw_only=True)
class TranspositionsConfig(PermutationConfig):
    num_perm_exps: int = option(50, "pairs, of NoT evenly spaced from 1 to its most", minimum=1)
    num_runs: int = option(
        1, "repetitions of it all, for the bands of the figure; --resume adds more", minimum=1,
        may_grow=True,
    )  # fmt: skip
    by_activation: bool = option(True, "find NoT by activation, or by weight")


def main(config: TranspositionsConfig) -> None:
    device = begin(config, KIND)
    network, data = network_and_data(config, device)
    settings = settings_of(config)
    run = open_run(config, KIND, device)
    number, state = resume_pairs(run, network, settings)
    records = load_records(run, number)
    size = state.weights.nbytes
    check_space(run.directory, memory_bytes=3 * size, disk_bytes=6 * size)
    with run.graceful_stop():
        for repetition in range(number, config.num_runs):
            if repetition > number:
                state = start_pairs(run, network, settings, repetition)
            state = train_pairs(run, network, data, settings, repetition, state)
            records += measure_pairs(run, network, data, repetition, state.weights)
            save_records(run.path("transpositions.jsonl"), records)
    permutation_figures.transpositions.save(run)
    report(run, records)
    if network.has_buffers:
        print(repair_note(len(data.train_labels)))


def resume_pairs(
    run: Run, network: Network, settings: TrainingSettings
) -> tuple[int, TrainingState]:
    """Return the number of the repetition that is under way, and its pairs' state."""
    shape = (2 * run.config.num_perm_exps, network.num_weights)
    saved = run.load_checkpoint("run", "epoch", weights=shape, momentum=shape)
    if saved:
        counters, tensors = saved
        return counters["run"], TrainingState(**tensors, epoch=counters["epoch"])
    number = run.finished_config.get("num_runs", 0)
    return number, start_pairs(run, network, settings, number)


def start_pairs(
    run: Run, network: Network, settings: TrainingSettings, number: int
) -> TrainingState:
    """Return all pairs of a repetition before training: first network, its copy, and so on."""
    count = run.config.num_perm_exps
    pairs = [make_pair(network, run.config.seed, number, k, count) for k in range(count)]
    weights = [weights for pair in pairs for weights in (pair.first, pair.second)]
    return start_training(torch.stack(weights).to(run.device), settings)


def train_pairs(
    run: Run, network: Network, data: Dataset, settings: TrainingSettings, number: int, state:
    TrainingState,
) -> TrainingState:  # fmt: skip
    config = run.config
    members = len(state.weights)
    streams = [(number, k // 2, k % 2) for k in range(members)]  # repetition, pair, copy
    done, total = members * state.epoch, members * config.num_epochs
    title = f"run {number + 1} of {config.num_runs}"
    with progress_bar(total, title, initial=done, unit="network epoch") as bar:
        while state.epoch < config.num_epochs:
            state, losses = train(
                network, state, data.train_images, data.train_labels, settings,
                seed=config.seed, num_epochs=1, streams=streams,
                on_epoch=lambda member, epoch, loss: bar.update(),
            )  # fmt: skip
            epoch = number * config.num_epochs + state.epoch
            run.log(epoch=epoch, train_loss=losses.mean().item())
            run.save_checkpoint({"run": number, "epoch": state.epoch}, **tensors_of(state))
    return state


def measure_pairs(
    run: Run, network: Network, data: Dataset, number: int, weights: Tensor
) -> list[dict]:
    """Return the records of all pairs of a repetition, trained to `weights` [2 pairs, d]."""
    config, records = run.config, []
    count, matching = config.num_perm_exps, "activation" if config.by_activation else "weight"
    with progress_bar(count, "measuring", unit="pair") as bar:
        for k in range(count):
            run.stop_if_asked()
            pair = make_pair(network, config.seed, number, k, count)
            measured = measure_pair(network, data, pair, weights[2 * k : 2 * k + 2], matching)
            records += [{"run": number, "pair": k} | record for record in measured]
            bar.update()
    return records


def load_records(run: Run, number: int) -> list[dict]:
    """Return the records of earlier repetitions, which are not measured again."""
    path = run.path("transpositions.jsonl")
    try:
        found = read_records(path) if number else []
        records = [record for record in found if record["run"] < number]
    except UNREADABLE:
        records = []
    if len(records) != number * run.config.num_perm_exps * len(STAGES):
        raise UserError(f"{path} is damaged: start again with --overwrite.")
    return records


def report(run: Run, records: list[dict]) -> None:
    """Print how NoT after training, and the barrier, follow the NoT that was planted."""
    summary = {
        stage: summary_of_pairs([record for record in records if record["stage"] == stage])
        for stage in STAGES
    }
    run.log_records("transpositions", [{"stage": stage} | summary[stage] for stage in STAGES])
    run.finish(summary)
    heads = ["", "mean NoT", "|NoT − expected|", "mean test barrier at λ = ½"]
    cells = [
        [stage, " + ".join(f"{mean:.1f}" for mean in found["mean_found_per_layer"]),
         f"{found['mean_change']:.1f}", f"{found['mean_test_loss_barrier']:.4f}"]
        for stage, found in summary.items()
    ]  # fmt: skip
    note = "Expected is the NoT planted, and 0 where that is undone."
    Table(heads, cells, "Pairs that start as permuted copies", note).print()
    correlation = summary["trained"]["rank_correlation_planted_barrier"]
    print(f"Rank correlation of planted NoT and barrier after training: {number(correlation, 3)}")
    print(f"Saved in {run.directory}")


CONFIG = TranspositionsConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
