"""Train two networks and measure the loss barrier between them, before and after rebasin.

The paper's Figure 2 and the right panel of its Figure 3.

    python MNIST_net_matching.py                        the paper's settings
    python MNIST_net_matching.py --config_name quick    a minute's worth of the same

Before the first epoch and after each, the second network W_1 is taken as it is, rebased to the
first by activation, and rebased by weight; then the networks on the line from W_0 to it are scored
and matched to W_0. A fourth line leads to the units of W_1 that respond most like those of W_0,
many to one. They are no permutation, so this end computes something else than W_1. The barrier is
the largest over λ, both ends included. Leaves in its run directory training_dynamics.npz (see
`measure`), its figures, metrics.jsonl (per epoch: losses, barriers, NoT), and the two trained
networks as samples.npy with network.json.
"""

from dataclasses import dataclass, replace

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
from utils.networks.network import Network, initial_stack
from utils.networks.registry import network_and_data
from utils.rebasin.assignment import Matching
from utils.rebasin.many_to_one import most_similar
from utils.rebasin.paths import Line, barrier, repair_note, score, tensor_distances, tensor_names
from utils.rebasin.rebase import rebase
from utils.rebasin.response_matching import ActivationMatcher
from utils.rebasin.weight_matching import WeightMatcher
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
ALIGNMENTS = ("as is", "by activation", "by weight", "many to one")  # of W_1
MANY_TO_ONE = 3
UNDECIDED_UNITS = ("dead", "reference_dead", "tied", "reference_tied")  # as in `Matching`
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
            store(run, results, state, measure(network, data, state.weights, config))
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
    untrained = measure(network, data, state.weights, config)
    room = config.num_epochs + 1
    results = {name: torch.zeros(room, *value.shape).to(value) for name, value in untrained.items()}
    store(run, results, state, untrained)
    return state, results


def measure(
    network: Network, data: Dataset, pair: Tensor, config: NetMatchingConfig
) -> dict[str, Tensor]:
    """Return what training_dynamics.npz holds of one checkpoint.

    train_loss, train_error, test_loss, test_error [alignment, λ]
    distance [alignment, λ, tensor]: ‖W_λ − W_0‖ per tensor and in total
    transpositions [alignment, λ, layer]: NoT of W_λ against W_0; the alignments as is and rebased
    alignment_transpositions [method, layer]: NoT of the rebasin by activation and by weight
    lost [layer]: units of W_1 that matching many to one leaves out
    undecided [4]: hidden units of W_1 and of W_0 that no image activates, and those of W_1 and of
        W_0 that respond just as another one of the same network
    """
    first, second = pair
    matchers = [ActivationMatcher(network, first, data.train_images), WeightMatcher(network, first)]
    rebased = [rebase(network, second, matcher) for matcher in matchers]
    found = [moved.matching for moved in rebased]
    selection = most_similar(matchers[0], second)
    ends = torch.stack([second, *(moved.weights for moved in rebased), selection.apply(second)])
    line = Line(network, first, ends, lambdas(config))
    distances = torch.stack([tensor_distances(network, first, end) for end in ends])
    chosen = 0 if config.by_activation else 1
    along, matcher = replace(line, second=ends[[0, 1 + chosen]]), matchers[chosen]
    if isinstance(matcher, ActivationMatcher):  # all at once, for they share most of the work
        matched = matcher.match_all(along)
    else:
        matched = [matcher(weights) for weights in along.weights]
    return {
        **score_line("train", line, data),
        **score_line("test", line, data),
        # W_λ − W_0 = λ (W_1 − W_0)
        "distance": torch.tensor(lambdas(config)).to(distances)[:, None] * distances[:, None],
        "transpositions": count_transpositions(matched).unflatten(0, (2, -1)),
        "alignment_transpositions": count_transpositions(found),
        "lost": torch.tensor(list(selection.lost().values())),
        "undecided": torch.tensor([getattr(found[0], name) for name in UNDECIDED_UNITS]),
    }


def score_line(part: str, line: Line, data: Dataset) -> dict[str, Tensor]:
    """Return loss and error [alignment, λ]."""
    scores = score(line, *data.part(part), data.train_images)
    shape = (len(line.second), len(line.fractions))
    return {f"{part}_loss": scores.loss.view(shape), f"{part}_error": scores.error.view(shape)}


def count_transpositions(matchings: list[Matching]) -> Tensor:
    """Return NoT [matching, layer]."""
    return torch.tensor(
        [list(matching.transformation.transpositions().values()) for matching in matchings]
    )


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
    summary = {name: summary_of(run, results, k) for k, name in enumerate(ALIGNMENTS)}
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


def what_is_lost(results: dict[str, Tensor]) -> str:
    """Say what matching many to one does to W_1 itself."""
    (loss, new_loss), (error, new_error) = (
        results[f"test_{kind}"][-1, [0, MANY_TO_ONE], -1].tolist() for kind in ("loss", "error")
    )
    lost = " + ".join(map(str, results["lost"][-1].tolist()))
    return (
        f"Many to one, W_1 loses {lost} units: its test loss goes from {loss:.4f} to "
        f"{new_loss:.4f} nats, its error from {100 * error:.2f} to {100 * new_error:.2f} %"
    )


def summary_of(run: Run, results: dict[str, Tensor], alignment: int) -> dict:
    """Return an alignment's largest barriers over λ and its NoT, after training and over epochs."""
    heights = {
        f"{name}_barrier": barrier(results[name][:, alignment], lambdas(run.config)).amax(-1)
        for name in ("train_loss", "test_loss", "test_error")
    }
    test_height = heights["test_loss_barrier"]
    trained = {name: height[-1].item() for name, height in heights.items()}
    over_epochs = {
        "largest_test_loss_barrier": test_height.max().item(),
        "epoch_of_largest": test_height.argmax().item(),
    }
    if alignment == MANY_TO_ONE:  # no permutation
        ends = {f"end_test_{kind}": results[f"test_{kind}"][-1, alignment, -1].item()
                for kind in ("loss", "error")}  # fmt: skip
        lost = results["lost"][-1].tolist()
        return {**trained, **ends, "lost": lost, "over_epochs": over_epochs}
    found = results["alignment_transpositions"]  # [epoch, method, layer]; as it is, none is moved
    layers = found[:, alignment - 1] if alignment else torch.zeros_like(found[:, 0])
    total = layers.sum(-1)
    return {
        **trained,
        "transpositions": total[-1].item(),
        "transpositions_per_layer": layers[-1].tolist(),
        "over_epochs": {
            "least_transpositions": total.min().item(),
            "most_transpositions": total.max().item(),
            **over_epochs,
        },
    }


CONFIG = NetMatchingConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
