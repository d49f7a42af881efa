"""MNIST_Ensemble.py and MNIST_VI.py end to end, as a user runs them, at toy size."""

import json
import runpy
import signal

from tests.conftest import wait_for
from tests.methods.test_training import train_with_torch
from tests.methods.test_vi import fit_with_torch
from utils.data.datasets import load_pixels
from utils.methods.training import TrainingSettings
from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.networks.registry import load_network
from utils.posteriors.gaussian import Gaussian
from utils.runs.seeding import generator
from utils.settings.config import load_config

import numpy as np
import pytest
import torch

TOY = ["--config_name", "quick", "--hidden_sizes", "16", "--num_train", "1000"]
# script: (kind of its run, file and array that it leaves)
SCRIPTS = {"MNIST_Ensemble": ("ensemble", "samples.npy"), "MNIST_VI": ("VI", "posterior.npz")}


def result(directory, file) -> np.ndarray:
    loaded = np.load(directory / file)
    return loaded if isinstance(loaded, np.ndarray) else np.stack([loaded["mean"], loaded["std"]])


def records(directory) -> list[dict]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def network_of(directory) -> Network:
    network = load_network(directory / "network.json")
    assert network == MLP((784, 16, 10))
    return network


def accuracy_of(network, vectors, data) -> float:
    """Test accuracy of the average prediction, with none of the project's averaging."""
    probabilities = [network.outputs(v, data.test_images).softmax(-1) for v in vectors]
    hits = torch.stack(probabilities).double().mean(0).argmax(-1) == data.test_labels
    return hits.double().mean().item()


def test_ensemble_leaves_what_it_says(script, tmp_path, data_dir):
    done = script("MNIST_Ensemble", *TOY, "--num_members", 3, "--num_epochs", 5)
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "ensemble-MNIST-quick"
    samples = torch.from_numpy(np.load(directory / "samples.npy"))
    network = network_of(directory)
    assert samples.shape == (3, network.num_weights)
    assert samples.dtype == torch.float32
    summary = json.loads((directory / "summary.json").read_text())
    data = load_pixels("MNIST", data_dir)
    assert summary["test_accuracy"] == pytest.approx(accuracy_of(network, samples, data), abs=2e-4)
    for k, share in enumerate(summary["member_test_accuracy"]):
        assert share == pytest.approx(accuracy_of(network, samples[k : k + 1], data), abs=2e-4)
    assert summary["test_accuracy"] > 0.75  # 1,000 images teach that much; chance is 0.1
    losses = [r["train_loss_0"] for r in records(directory) if "train_loss_0" in r]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2
    assert f"{100 * summary['test_accuracy']:.2f} %" in done.stdout


def test_vi_leaves_what_it_says(script, tmp_path, data_dir):
    done = script("MNIST_VI", *TOY, "--num_epochs", 40, "--num_draws", 7, "--seed", 3)
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "VI-MNIST-quick"
    mean, std = torch.from_numpy(result(directory, "posterior.npz"))
    network = network_of(directory)
    assert mean.shape == std.shape == (network.num_weights,)
    assert std.min() > 0
    summary = json.loads((directory / "summary.json").read_text())
    data = load_pixels("MNIST", data_dir)
    draws = Gaussian(mean, std).draw(7, generator(3, "predictive_draws"))
    assert summary["test_accuracy"] == pytest.approx(accuracy_of(network, draws, data), abs=2e-4)
    assert summary["mean_test_accuracy"] == pytest.approx(
        accuracy_of(network, [mean], data), abs=2e-4
    )
    history = records(directory)
    assert [record["epoch"] for record in history] == list(range(1, 41))
    assert all(r["elbo"] == pytest.approx(-r["nll"] - r["kl"]) for r in history)
    assert history[-1]["elbo"] > history[0]["elbo"]


def test_ensemble_is_what_a_plain_loop_gives(script, tmp_path, data_dir):
    """MAP under the prior N(0, 1), each member from its own start and in its own order."""
    done = script(
        "MNIST_Ensemble", *TOY, "--num_train", 250, "--num_members", 2, "--num_epochs", 3,
        "--seed", 5, "--learning_rate", 0.01,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    samples = torch.from_numpy(np.load(tmp_path / "default/ensemble-MNIST-quick/samples.npy"))
    data = load_pixels("MNIST", data_dir, num_train=250)
    network = MLP((784, 16, 10))
    settings = TrainingSettings("Adam", 0.01, batch_size=100, prior_precision=1.0)
    starts = [network.initial_weights(generator(5, "initial_weights", k)) for k in (0, 1)]
    for k, start in enumerate(starts):
        expected, _ = train_with_torch(
            network, start, settings, k, 3, data.train_images, data.train_labels, seed=5
        )
        torch.testing.assert_close(samples[k].double(), expected, atol=1e-5, rtol=0)
    assert (starts[0] != starts[1]).float().mean() > 0.99


def test_vi_is_what_a_plain_loop_gives(script, tmp_path, data_dir):
    """Posterior, NLL, KL and ELBO, from the settings on the command line."""
    done = script(
        "MNIST_VI", *TOY, "--num_train", 250, "--num_epochs", 2, "--seed", 5,
        "--learning_rate", 0.01, "--initial_std", 0.2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "VI-MNIST-quick"
    data = load_pixels("MNIST", data_dir, num_train=250)
    network = MLP((784, 16, 10))
    start = network.initial_weights(generator(5, "initial_mean"))
    mean, log_std, nll = fit_with_torch(
        network, start, 0.2, data.train_images, data.train_labels, 0.01, 100, seed=5, num_epochs=2
    )
    ours = torch.from_numpy(result(directory, "posterior.npz")).double()
    torch.testing.assert_close(ours[0], mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours[1], log_std.exp(), atol=1e-5, rtol=0)
    prior = torch.distributions.Normal(0.0, 1.0)
    q = torch.distributions.Normal(mean, log_std.exp())
    kl = torch.distributions.kl_divergence(q, prior).sum().item()
    last = records(directory)[-1]
    assert last["nll"] == pytest.approx(250 * nll, rel=1e-4)
    assert last["kl"] == pytest.approx(kl, rel=1e-4)
    assert last["elbo"] == pytest.approx(-250 * nll - kl, rel=1e-4)


def test_the_papers_settings_are_the_default():
    """As printed in the paper; every value that decides the result."""
    common = {"hidden_sizes": [512], "learning_rate": 0.001, "batch_size": 100, "num_epochs": 50}
    papers = {
        "MNIST_Ensemble": {"num_members": 5, "optimizer": "Adam", "prior_std": 1.0},
        "MNIST_VI": {"initial_std": 0.05, "num_draws": 100},
    }
    for name, own in papers.items():
        module = runpy.run_path(f"{name}.py")
        config = load_config(module["METHOD"].Config, name, [])
        expected = common | own | {"activation": "relu", "num_train": None}
        assert {key: getattr(config, key) for key in expected} == expected


def test_ctrl_c_saves_what_was_done_since_the_last_checkpoint(script, started_script, tmp_path):
    arguments = ["MNIST_VI", *TOY, "--num_epochs", 500, "--run_name", "stopped"]
    process = started_script(*arguments)
    directory = tmp_path / "default" / "VI-MNIST-quick-stopped"
    wait_for(directory / "checkpoint.npz", process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    with np.load(directory / "checkpoint.npz") as checkpoint:
        header = json.loads(bytes(checkpoint["header"].tolist()))
    assert header["counters"]["epoch"] == records(directory)[-1]["epoch"]
    assert process.returncode == 130


LONG = {"MNIST_Ensemble": 100, "MNIST_VI": 600}  # epochs that outlast the first checkpoint


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_resumes_to_the_same_bits(name, how, script, started_script, tmp_path):
    kind, file = SCRIPTS[name]
    arguments = [name, *TOY, "--num_epochs", LONG[name]]
    directory = tmp_path / "default" / f"{kind}-MNIST-quick-stopped"
    process = started_script(*arguments, "--run_name", "stopped")
    wait_for(directory / "checkpoint.npz", process)
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert process.returncode == 130
        (advice,) = [line for line in said.splitlines() if line.startswith("Stopped. Go on with:")]
        assert f"{name}.py" in advice
        assert advice.endswith("--resume")
    assert not (directory / "DONE").exists()
    resumed = script(*arguments, "--run_name", "stopped", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "Resuming" in resumed.stdout
    whole = script(*arguments, "--run_name", "whole")
    assert whole.returncode == 0, whole.stderr
    expected = tmp_path / "default" / f"{kind}-MNIST-quick-whole"
    assert np.array_equal(result(directory, file), result(expected, file))
    assert records(directory) == records(expected)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config_name", "nope"], "There is no config 'nope'"),
        (["--lerning_rate", "1"], "the nearest there is: --learning_rate"),
        (["--num_epochs", "-3"], "--num_epochs must be at least 1, got -3"),
        (["--dataset", "MNISTT"], "Unknown data set 'MNISTT'"),
        (["--out_dir", "pyproject.toml/runs"], "Cannot use pyproject.toml"),
        (["--num_train", "60001"], "num_train is 60001, but MNIST has 60000"),
    ],
)
def test_mistakes_end_with_a_sentence(name, arguments, sentence, script):
    done = script(name, *TOY, *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "kind"), [("MNIST_HMC", "HMC"), *((name, SCRIPTS[name][0]) for name in SCRIPTS)]
)
def test_a_mistake_costs_no_earlier_run_and_begins_none(name, kind, script, tmp_path):
    mistake = name, "--config_name", "quick", "--num_train", 60001
    assert script(*mistake).returncode == 2
    assert not (tmp_path / "default").exists()
    earlier = tmp_path / "default" / f"{kind}-MNIST-quick"
    earlier.mkdir(parents=True)
    for file in ("config.yaml", "samples.npy", "DONE"):
        (earlier / file).write_text("seed: 0")
    assert script(*mistake, "--overwrite").returncode == 2
    assert {file.name for file in earlier.iterdir()} == {"config.yaml", "samples.npy", "DONE"}


def test_same_seed_same_weights_other_seed_others(script, tmp_path):
    for run_name, seed in (("a", 1), ("b", 1), ("c", 2)):
        done = script(
            "MNIST_Ensemble", *TOY, "--num_epochs", 1, "--run_name", run_name, "--seed", seed
        )
        assert done.returncode == 0, done.stderr
    a, b, c = (
        np.load(tmp_path / "default" / f"ensemble-MNIST-quick-{name}" / "samples.npy")
        for name in "abc"
    )
    assert np.array_equal(a, b)
    assert not np.isin(a[:, :100], c[:, :100]).any()
