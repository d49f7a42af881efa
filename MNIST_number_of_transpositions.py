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

import math
from dataclasses import dataclass

from papers.compact import permutation_figures
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
from utils.rebasin.matching import make_matcher
from utils.rebasin.paths import Line, barrier, repair_note, score, tensor_distances, tensor_names
from utils.rebasin.rebase import move
from utils.report.tables import Table, number
from utils.runs.files import UNREADABLE, read_records, save_records
from utils.runs.progress import check_space, progress_bar
from utils.runs.run import Run, begin, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.settings.config import option
from utils.settings.errors import UserError
from utils.symmetry.counts import chance_transpositions
from utils.symmetry.permutation import random_permutation
from utils.symmetry.transformation import Transformation

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

KIND = "transpositions"  # of its runs: what their directories begin with
HALFWAY = (0.0, 0.5, 1.0)
STAGES = ("initial", "trained", "undone")  # that every pair is measured at


@dataclass(frozen=True, kw_only=True)
class TranspositionsConfig(PermutationConfig):
    num_perm_exps: int = option(50, "pairs, of NoT evenly spaced from 1 to its most", minimum=1)
    num_runs: int = option(
        1, "repetitions of it all, for the bands of the figure; --resume adds more", minimum=1,
        may_grow=True,
    )  # fmt: skip
    by_activation: bool = option(True, "find NoT by activation, or by weight")


@dataclass(frozen=True)
class Pair:
    """A network before training, and the permutation that makes its copy."""

    first: Tensor  # [d]
    second: Tensor  # [d]
    planted: Transformation


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
    pairs = [make_pair(run.config, network, number, k) for k in range(run.config.num_perm_exps)]
    weights = [weights for pair in pairs for weights in (pair.first, pair.second)]
    return start_training(torch.stack(weights).to(run.device), settings)


def make_pair(config: TranspositionsConfig, network: Network, number: int, k: int) -> Pair:
    """Return a pair. Each set of units has its own permutation of its own NoT."""
    first = network.initial_weights(generator(config.seed, "initial_weights", number, k))
    random = generator(config.seed, "planted_permutation", number, k)
    planted = Transformation(network)
    for name in network.groups:
        *parents, size = network.units(name)
        wanted = wanted_transpositions(size, config.num_perm_exps)[k]
        rows = [random_permutation(size, wanted, random) for _ in range(math.prod(parents))]
        planted.permutations[name] = torch.stack(rows).reshape(*parents, size)
    return Pair(first, planted.apply(first), planted)


def wanted_transpositions(size: int, count: int) -> list[int]:
    """Return `count` values of NoT, evenly spaced from 1 to the most that `size` units can have."""
    return np.linspace(min(1, size - 1), size - 1, count).round().astype(int).tolist()


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
    with progress_bar(config.num_perm_exps, "measuring", unit="pair") as bar:
        for k in range(config.num_perm_exps):
            run.stop_if_asked()
            pair = make_pair(config, network, number, k)
            measured = measure_pair(network, data, config, pair, weights[2 * k : 2 * k + 2])
            records += [{"run": number, "pair": k} | record for record in measured]
            bar.update()
    return records


def measure_pair(
    network: Network, data: Dataset, config: TranspositionsConfig, pair: Pair, trained: Tensor
) -> list[dict]:
    """Measure a pair at initialisation, trained, and trained with the planted permutation undone.

    planted, found       NoT per hidden layer: of the permutation planted, and of the rebasin
    distance             of the two networks, per tensor and in total
    {train,test}_{loss,error}[_barrier]
                         at the midpoint, and what that has over the mean of the two networks'
    """
    undone = move(trained[1], pair.planted.inverse())
    stages = {
        "initial": (pair.first.to(trained), pair.second.to(trained)),
        "trained": (trained[0], trained[1]),
        "undone": (trained[0], undone),
    }
    method = "activation" if config.by_activation else "weight"
    before, after = (
        make_matcher(method, network, stages[stage][0], data.train_images)
        for stage in ("initial", "trained")
    )
    matchers = {"initial": before, "trained": after, "undone": after}
    names = tensor_names(network)
    return [
        {
            "stage": stage,
            "hidden_sizes": network.set_sizes,
            "random_transpositions": chance_transpositions(network).mean,
            "planted": list(pair.planted.transpositions().values()),
            "found": list(matchers[stage](ends[1]).transformation.transpositions().values()),
            "distance": dict(zip(names, tensor_distances(network, *ends).tolist(), strict=True)),
            **midpoint("train", network, *ends, data),
            **midpoint("test", network, *ends, data),
        }
        for stage, ends in stages.items()
    ]


def midpoint(
    part: str, network: Network, first: Tensor, second: Tensor, data: Dataset
) -> dict[str, float]:
    scores = score(Line(network, first, second, HALFWAY), *data.part(part), data.train_images)
    return {
        f"{part}_loss": scores.loss[1].item(),
        f"{part}_error": scores.error[1].item(),
        f"{part}_loss_barrier": barrier(scores.loss, HALFWAY)[1].item(),
        f"{part}_error_barrier": barrier(scores.error, HALFWAY)[1].item(),
    }


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
        stage: summary_of([record for record in records if record["stage"] == stage])
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


def summary_of(records: list[dict]) -> dict:
    """Return averages and rank correlations over all pairs and runs at one stage."""
    found, planted = (
        np.array([record[name] for record in records]) for name in ("found", "planted")
    )  # [record, layer]
    expected = 0 * planted if records[0]["stage"] == "undone" else planted
    change = np.abs(found.sum(1) - expected.sum(1))
    heights = np.array([record["test_loss_barrier"] for record in records])
    total = planted.sum(1)
    return {
        "mean_found": found.sum(1).mean(),
        "mean_found_per_layer": found.mean(0).tolist(),
        "mean_change": change.mean(),
        "mean_change_per_layer": np.abs(found - expected).mean(0).tolist(),
        "max_change": change.max(),
        "mean_test_loss_barrier": heights.mean(),
        "least_planted": total.min(),
        "test_loss_barrier_at_least_planted": heights[total == total.min()].mean(),
        "most_planted": total.max(),
        "test_loss_barrier_at_most_planted": heights[total == total.max()].mean(),
        "rank_correlation_planted_found": rank_correlation(total, found.sum(1)),
        "rank_correlation_planted_barrier": rank_correlation(total, heights),
    }


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's ρ; NaN if one of the two does not vary."""
    varies = np.ptp(first) > 0 and np.ptp(second) > 0
    return float(spearmanr(first, second).statistic) if varies else float("nan")


CONFIG = TranspositionsConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
