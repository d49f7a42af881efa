"""Fit a mean-field Gaussian posterior by variational inference.

The VI column of the paper's Table 1, and VI's μ and σ of Figures 4 and 5.

    python MNIST_VI.py                        the paper's settings
    python MNIST_VI.py --config_name quick    seconds: a smaller net, part of the data

Leaves in its run directory posterior.npz (mean, std) with network.json, metrics.jsonl (per epoch:
NLL of the training images along the epoch, KL to the prior at its end, ELBO = −NLL − KL, test
accuracy of the mean network), training.png and .pdf (the same drawn) and summary.json (final test
scores).
"""

import time
from dataclasses import dataclass

from utils.data.datasets import Dataset, load_dataset
from utils.evaluation.metrics import accuracy, mean_nll
from utils.methods.vi import VIState, kl_to_standard_normal, start_vi, train_vi_epoch
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities, mean_probabilities
from utils.networks.registry import network_for
from utils.report import figures
from utils.runs.compute import choose_device
from utils.runs.config import NetworkConfig, option
from utils.runs.progress import announce, progress_bar
from utils.runs.run import Run, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator

KIND = "VI"  # of its runs: what their directories begin with


@dataclass(frozen=True, kw_only=True)
class VIConfig(NetworkConfig):
    initial_std: float = option(0.05, "standard deviation of every weight at the start", above=0)
    learning_rate: float = option(1e-3, "step size of Adam", above=0)
    batch_size: int = option(100, "images per step", minimum=1)
    num_epochs: int = option(50, "passes over the training images", minimum=1)
    num_draws: int = option(100, "weight samples that the predictions average over", minimum=1)


def main(config: VIConfig) -> None:
    device = choose_device(config.device)
    data = load_dataset(config.dataset, config.data_dir, config.num_train).to(device)
    network = network_for(config, data)
    run = open_run(config, KIND, device)
    if run.finished:
        return
    run.select_matmul()
    state = resume_or_start(run, network)
    announce_work(run, network, data, state)
    state = fit(run, network, data, state)
    network.save(run.path("network.json"))
    run.save_arrays("posterior.npz", mean=state.posterior.mean, std=state.posterior.std)
    report(run, score(network, data, state, config))


def resume_or_start(run: Run, network: Network) -> VIState:
    shape = (2, network.num_weights)
    saved = run.load_checkpoint(parameters=shape, momentum=shape, second_moment=shape)
    if saved:
        counters, tensors = saved
        return VIState(**tensors, epoch=counters["epoch"])
    mean = network.initial_weights(generator(run.config.seed, "initial_mean"))
    return start_vi(mean.to(run.device), run.config.initial_std)


def train_epoch(network: Network, data: Dataset, state: VIState, config: VIConfig, points=None):
    return train_vi_epoch(
        network, state, data.train_images[:points], data.train_labels[:points],
        learning_rate=config.learning_rate, batch_size=config.batch_size, seed=config.seed,
    )  # fmt: skip


def announce_work(run: Run, network: Network, data: Dataset, state: VIState) -> None:
    config = run.config
    points = min(len(data.train_images), 40 * config.batch_size)
    start = time.perf_counter()
    train_epoch(network, data, state, config, points)
    seconds_per_epoch = (time.perf_counter() - start) * len(data.train_images) / points
    parameters = state.parameters.nbytes
    announce(
        run.directory,
        seconds_per_epoch * (config.num_epochs - state.epoch),
        more_memory=5 * parameters,
        disk_bytes=4 * parameters,
    )


def fit(run: Run, network: Network, data: Dataset, state: VIState) -> VIState:
    config = run.config
    with run.graceful_stop(), progress_bar(config.num_epochs, "VI", initial=state.epoch) as bar:
        while state.epoch < config.num_epochs:
            state, train_nll = train_epoch(network, data, state, config)
            nll = train_nll * len(data.train_images)
            kl = kl_to_standard_normal(*state.parameters)
            probabilities = class_probabilities(network, state.posterior.mean, data.test_images)
            test_accuracy = accuracy(probabilities, data.test_labels)
            run.log(epoch=state.epoch, nll=nll, kl=kl, elbo=-nll - kl, test_accuracy=test_accuracy)
            bar.set_postfix(elbo=f"{-nll - kl:.0f}", test_acc=f"{test_accuracy:.4f}", refresh=False)
            bar.update()
            run.save_checkpoint({"epoch": state.epoch}, **state.tensors())
    return state


def score(network: Network, data: Dataset, state: VIState, config: VIConfig) -> dict:
    posterior = state.posterior
    draws = posterior.draw(config.num_draws, generator(config.seed, "predictive_draws"))
    averaged = mean_probabilities(network, draws, data.test_images)
    mean_network = class_probabilities(network, posterior.mean, data.test_images)
    return {
        "test_accuracy": accuracy(averaged, data.test_labels),
        "test_nll": mean_nll(averaged, data.test_labels),
        "mean_test_accuracy": accuracy(mean_network, data.test_labels),
        "mean_test_nll": mean_nll(mean_network, data.test_labels),
        "kl": kl_to_standard_normal(*state.parameters),
        "average_std": posterior.std.mean().item(),
    }


def report(run: Run, scores: dict) -> None:
    rows = [
        [f"q, {run.config.num_draws} draws", scores["test_accuracy"], scores["test_nll"]],
        ["μ", scores["mean_test_accuracy"], scores["mean_test_nll"]],
    ]
    run.save_figure("training", figures.vi_training(run.path("metrics.jsonl")))
    run.log_table("test_scores", ["network", "test accuracy", "test NLL"], rows)
    run.finish(scores)
    print(f"\n{'':14} test accuracy   test NLL")
    for name, share, nll in rows:
        print(f"{name:14} {100 * share:11.2f} %   {nll:8.4f}")
    print(f"KL to the prior {scores['kl']:.0f} nats, average σ {scores['average_std']:.3f}")
    print(f"Saved in {run.directory}")


if __name__ == "__main__":
    run_script(main, VIConfig, __file__, __doc__)
