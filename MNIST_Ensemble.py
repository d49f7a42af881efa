"""Train a deep ensemble: independent networks, each at a mode (MAP) of the posterior.

The ensemble columns of the paper's Table 1 and Figures 4 and 5 start from it.

    python MNIST_Ensemble.py                        the paper's settings
    python MNIST_Ensemble.py --config_name quick    seconds: a smaller net, part of the data

Leaves in its run directory samples.npy [members, weights] with network.json, metrics.jsonl (per
epoch: losses, test accuracy of the ensemble), training.png and .pdf (the same drawn) and
summary.json (final test scores).
"""

from dataclasses import dataclass

from utils.data.datasets import Dataset, load_dataset
from utils.evaluation.metrics import accuracy, mean_nll
from utils.methods.training import (
    TrainingSettings,
    TrainingState,
    seconds_per_epoch,
    settings_of,
    start_training,
    train,
)
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities, mean_probabilities
from utils.networks.registry import network_for
from utils.report import figures
from utils.runs.compute import choose_device
from utils.runs.config import TrainingConfig, option
from utils.runs.progress import announce, progress_bar
from utils.runs.run import Run, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator

import torch
from torch import Tensor

KIND = "ensemble"  # of its runs: what their directories begin with
EPOCHS_PER_ROUND = 2  # with two epochs of each member to hand out, no core waits for long


@dataclass(frozen=True, kw_only=True)
class EnsembleConfig(TrainingConfig):
    num_members: int = option(5, "networks in the ensemble", minimum=1)
    optimizer: str = option("Adam", "of every member", choices=("SGD", "Adam"))
    batch_size: int = option(100, "images per step", minimum=1)
    prior_precision: float = option(
        1.0, "of the N(0, 1/precision) prior on every weight; 0: no prior", minimum=0
    )


def main(config: EnsembleConfig) -> None:
    device = choose_device(config.device)
    data = load_dataset(config.dataset, config.data_dir, config.num_train).to(device)
    network = network_for(config, data)
    settings = settings_of(config, config.prior_precision)
    run = open_run(config, KIND, device)
    if run.finished:
        return
    run.select_matmul()
    state = resume_or_start(run, network, settings)
    announce_work(run, network, data, settings, state)
    state = train_members(run, network, data, settings, state)
    network.save(run.path("network.json"))
    run.save_array("samples.npy", state.weights)
    report(run, score_members(network, data, state.weights))


def resume_or_start(run: Run, network: Network, settings: TrainingSettings) -> TrainingState:
    config = run.config
    shape = (config.num_members, network.num_weights)
    moments = {"momentum": shape} | ({"second_moment": shape} if config.optimizer == "Adam" else {})
    saved = run.load_checkpoint(weights=shape, **moments)
    if saved:
        counters, tensors = saved
        return TrainingState(**tensors, epoch=counters["epoch"])
    members = [
        network.initial_weights(generator(config.seed, "initial_weights", k))
        for k in range(config.num_members)
    ]
    return start_training(torch.stack(members).to(run.device), settings)


def announce_work(
    run: Run, network: Network, data: Dataset, settings: TrainingSettings, state: TrainingState
) -> None:
    config = run.config
    epochs = config.num_epochs - state.epoch
    seconds = epochs * seconds_per_epoch(
        network, data.train_images, data.train_labels, settings, config.num_members
    )
    one_copy = state.weights.nbytes
    announce(run.directory, seconds, more_memory=5 * one_copy, disk_bytes=7 * one_copy)


def train_members(
    run: Run, network: Network, data: Dataset, settings: TrainingSettings, state: TrainingState
) -> TrainingState:
    config = run.config
    done, total = config.num_members * state.epoch, config.num_members * config.num_epochs
    with run.graceful_stop(), progress_bar(total, "ensemble", initial=done) as bar:
        while state.epoch < config.num_epochs:
            first = state.epoch
            state, losses = train(
                network, state, data.train_images, data.train_labels, settings, seed=config.seed,
                num_epochs=min(EPOCHS_PER_ROUND, config.num_epochs - first),
                on_epoch=lambda member, epoch, loss: bar.update(),
            )  # fmt: skip
            for epoch, loss in enumerate(losses.tolist(), start=first + 1):
                run.log(epoch=epoch, **{f"train_loss_{k}": value for k, value in enumerate(loss)})
            probabilities = mean_probabilities(network, state.weights, data.test_images)
            test_accuracy = accuracy(probabilities, data.test_labels)
            run.log(
                epoch=state.epoch,
                test_accuracy=test_accuracy,
                test_nll=mean_nll(probabilities, data.test_labels),
            )
            bar.set_postfix(loss=f"{losses[-1].mean():.4f}", test_acc=f"{test_accuracy:.4f}")
            run.save_checkpoint({"epoch": state.epoch}, **state.tensors())
    return state


def score_members(network: Network, data: Dataset, weights: Tensor) -> dict:
    probabilities = mean_probabilities(network, weights, data.test_images)
    members = [class_probabilities(network, member, data.test_images) for member in weights]
    return {
        "test_accuracy": accuracy(probabilities, data.test_labels),
        "test_nll": mean_nll(probabilities, data.test_labels),
        "member_test_accuracy": [accuracy(p, data.test_labels) for p in members],
        "member_test_nll": [mean_nll(p, data.test_labels) for p in members],
        "mean_squared_weight": weights.double().square().mean().item(),
    }


def report(run: Run, scores: dict) -> None:
    rows = [["ensemble", scores["test_accuracy"], scores["test_nll"]]]
    members = zip(scores["member_test_accuracy"], scores["member_test_nll"], strict=True)
    rows += [[f"member {k}", *pair] for k, pair in enumerate(members)]
    run.save_figure("training", figures.ensemble_training(run.path("metrics.jsonl")))
    run.log_table("test_scores", ["network", "test accuracy", "test NLL"], rows)
    run.finish(scores)
    print(f"\n{'':12} test accuracy   test NLL")
    for name, share, nll in rows:
        print(f"{name:12} {100 * share:11.2f} %   {nll:8.4f}")
    print(f"Saved in {run.directory}")


if __name__ == "__main__":
    run_script(main, EnsembleConfig, __file__, __doc__)
