"""Train two networks and measure the loss barrier between them, before and after rebasin.

The paper's Figure 2 and the right panel of its Figure 3.

    python MNIST_net_matching.py                        the paper's settings
    python MNIST_net_matching.py --config_name quick    a minute's worth of the same

Before the first epoch and after each, the second network W_1 is taken as it is, rebased to the
first by activation, and rebased by weight; then the networks on the line from W_0 to it are scored
and matched to W_0. A fourth line leads to the units of W_1 that respond most like those of W_0,
many to one. They are no permutation, so this end computes something else than W_1. The barrier is
the largest over λ, both ends included. Leaves in its run directory training_dynamics.npz (see
`measure_line`), its figures, metrics.jsonl (per epoch: losses, barriers, NoT), and the two trained
networks as samples.npy with network.json.
"""

from dataclasses import dataclass

from papers.compact import permutation_figures
from papers.compact.independent_pair import (
    ALIGNMENTS,
    MANY_TO_ONE,
    UNDECIDED_UNITS,
    measure_line,
    summary_of_line,
    what_is_lost,
)
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
from utils.networks.network import Network, initial_stack
from utils.networks.registry import network_and_data
from utils.rebasin.paths import barrier, repair_note, tensor_names
from utils.report.tables import Table
from utils.runs.progress import check_space, progress_bar
from utils.runs.run import Run, begin, open_run
from utils.runs.script import run_script
from utils.settings.config import option
from utils.symmetry.counts import chance_transpositions
from utils.symmetry.permutation import expected_transpositions

import numpy as np
import torch
from torch import Tensor

KIND = "net_matching"  # of its runs: what their directories begin with
TRAINING_STATE = ("weights", "momentum", "second_moment")  # what a checkpoint holds besides results


@dataclass(frozen=True, kw_only=True)
class NetMatchingConfig(PermutationConfig):
    num_fractions: int = option(
        11, "networks on the line: both ends, and those between where a barrier is", minimum=3
    )
    by_activation: bool = option(True, "measure NoT along the line by activation, or by weight")


def main(config: NetMatchingConfig) -> None:
    device = begin(config, KIND)
    network, data = network_and_data(config, device)
    settings = settings_of(config)
    run = open_run(config, KIND, device)
    state, results = resume_pair(run, network, data, settings)
    with run.graceful_stop(), progress_bar(config.num_epochs, "net matching", state.epoch) as bar:
        while state.epoch < config.num_epochs:
            state, _ = train(
                network, state, data.train_images, data.train_labels, settings,
                seed=config.seed, num_epochs=1,
            )  # fmt: skip
            measured = measure_line(
                network, data, state.weights, lambdas(config), config.by_activation
            )
            store(run, results, state, measured)
            bar.update()
    network.save(run.path("network.json"))
    run.save_array("samples.npy", state.weights)
    save_results(run, network, results)
    if network.has_buffers:
        print(repair_note(len(data.train_labels)))


def resume_pair(
    run: Run, network: Network, data: Dataset, settings: TrainingSettings
) -> tuple[TrainingState, dict[str, Tensor]]:
    """Return the pair's state, and the results up to it, with room for those to come."""
    config = run.config
    shape = (2, network.num_weights)
    saved = run.load_checkpoint(
        "epoch", weights=shape, momentum=shape, lost=(config.num_epochs + 1, len(network.groups))
    )
    if saved:
        counters, arrays = saved
        tensors = {name: arrays.pop(name) for name in TRAINING_STATE if name in arrays}
        return TrainingState(**tensors, epoch=counters["epoch"]), arrays
    pair = initial_stack(network, config.seed, (0, 1), run.device)
    state = start_training(pair, settings)
    size = state.weights.nbytes
    check_space(run.directory, memory_bytes=size, disk_bytes=8 * size)
    untrained = measure_line(network, data, state.weights, lambdas(config), config.by_activation)
    room = config.num_epochs + 1
    results = {name: torch.zeros(room, *value.shape).to(value) for name, value in untrained.items()}
    store(run, results, state, untrained)
    return state, results


def lambdas(config: NetMatchingConfig) -> list[float]:
    return np.linspace(0, 1, config.num_fractions).tolist()


def store(
    run: Run, results: dict[str, Tensor], state: TrainingState, measured: dict[str, Tensor]
) -> None:
    """Enter a checkpoint's measurements, log the main ones, and save all there is to go on."""
    for name, value in measured.items():
        results[name][state.epoch] = value
    loss = barrier(measured["test_loss"], lambdas(run.config)).amax(-1)
    found = measured["alignment_transpositions"].sum(-1)
    run.log(
        epoch=state.epoch,
        test_loss=measured["test_loss"][0, 0].item(),
        test_error=measured["test_error"][0, 0].item(),
        test_barrier_as_is=loss[0].item(),
        test_barrier_by_activation=loss[1].item(),
        test_barrier_by_weight=loss[2].item(),
        test_barrier_many_to_one=loss[MANY_TO_ONE].item(),
        transpositions_by_activation=found[0].item(),
        transpositions_by_weight=found[1].item(),
    )
    run.save_checkpoint({"epoch": state.epoch}, **tensors_of(state), **results)


def save_results(run: Run, network: Network, results: dict[str, Tensor]) -> None:
    fractions = lambdas(run.config)
    run.save_arrays(
        "training_dynamics.npz",
        epochs=np.arange(run.config.num_epochs + 1),
        fractions=fractions,
        alignments=ALIGNMENTS,
        rebased=1 if run.config.by_activation else 2,  # the alignment that NoT is measured on
        hidden_sizes=network.set_sizes,
        random_transpositions=[
            expected_transpositions(*network.units(name)) for name in network.groups
        ],
        random_deviation=chance_transpositions(network).deviation,
        tensors=tensor_names(network),
        **results,
    )
    permutation_figures.loss_along_line.save(run)
    permutation_figures.barriers.save(run)
    permutation_figures.along_line.save(run)
    report(run, network, {name: value.cpu() for name, value in results.items()})


def report(run: Run, network: Network, results: dict[str, Tensor]) -> None:
    """Write the trained pair's barriers and NoT as the summary, and print them as a table."""
    fractions = lambdas(run.config)
    summary = {name: summary_of_line(results, k, fractions) for k, name in enumerate(ALIGNMENTS)}
    columns = ["train_loss_barrier", "test_loss_barrier", "test_error_barrier", "transpositions"]
    records = [
        {"alignment": name} | {column: summary[name].get(column) for column in columns}
        for name in ALIGNMENTS
    ]
    run.log_records("barriers", records)
    undecided = dict(zip(UNDECIDED_UNITS, results["undecided"][-1].tolist(), strict=True))
    run.finish(summary | {"undecided": undecided})
    heads = ["W_1", "train loss [nats]", "test loss [nats]", "test error [points]"]
    heads.append(f"NoT of {' + '.join(network.groups)}")
    cells = [
        [name, f"{train:.4f}", f"{test:.4f}", f"{100 * error:.2f}",
         " + ".join(map(str, summary[name].get("transpositions_per_layer", "–")))]
        for name, train, test, error, _ in map(dict.values, records)
    ]  # fmt: skip
    Table(heads, cells, "Largest barriers on the line from W_0 to W_1").print()
    print(what_is_lost(results))
    dead, reference_dead, tied, reference_tied = undecided.values()
    print(f"Hidden units that no image activates: {dead} of W_1, {reference_dead} of W_0")
    print(f"Hidden units that respond just as another one: {tied} of W_1, {reference_tied} of W_0")
    print(f"Saved in {run.directory}")


CONFIG = NetMatchingConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
