"""MNIST_Ensemble.py and MNIST_VI.py end to end, as a user runs them, at toy size."""

import json
import signal
import time

import numpy as np
import pytest
import torch

from utils.data import load_dataset
from utils.mlp import Network, logits
from utils.seeding import generator
from utils.vi import GaussianPosterior

TOY = ["--config_name", "quick", "--hidden_sizes", "16", "--num_train", "1000"]
# script: (kind of its run, file and array that it leaves)
SCRIPTS = {"MNIST_Ensemble": ("ensemble", "samples.npy"), "MNIST_VI": ("VI", "posterior.npz")}


def result(directory, file) -> np.ndarray:
    loaded = np.load(directory / file)
    return loaded if isinstance(loaded, np.ndarray) else np.stack([loaded["mean"], loaded["std"]])


def records(directory) -> list[dict]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def network_of(directory) -> Network:
    network = Network.load(directory / "network.json")
    assert network == Network((784, 16, 10))
    return network


def accuracy_of(network, vectors, data) -> float:
    """Test accuracy of the average prediction, with none of the project's averaging."""
    probabilities = [logits(network, v, data.test_images).softmax(-1) for v in vectors]
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
    data = load_dataset("MNIST", data_dir)
    assert summary["test_accuracy"] == pytest.approx(accuracy_of(network, samples, data), abs=2e-4)
    for k, share in enumerate(summary["member_test_accuracy"]):
        assert share == pytest.approx(accuracy_of(network, samples[k : k + 1], data), abs=2e-4)
    assert summary["test_accuracy"] > 0.75  # 1,000 images teach that much; chance is 0.1
    losses = [r["train_loss_0"] for r in records(directory) if "train_loss_0" in r]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2
    for line in ("Estimate:", f"ensemble     {100 * summary['test_accuracy']:11.2f} %"):
        assert line in done.stdout


def test_vi_leaves_what_it_says(script, tmp_path, data_dir):
    done = script("MNIST_VI", *TOY, "--num_epochs", 40, "--num_draws", 7, "--seed", 3)
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "VI-MNIST-quick"
    mean, std = torch.from_numpy(result(directory, "posterior.npz"))
    network = network_of(directory)
    assert mean.shape == std.shape == (network.num_weights,)
    assert std.min() > 0
    summary = json.loads((directory / "summary.json").read_text())
    data = load_dataset("MNIST", data_dir)
    draws = GaussianPosterior(mean, std).draw(7, generator(3, "predictive_draws"))
    assert summary["test_accuracy"] == pytest.approx(accuracy_of(network, draws, data), abs=2e-4)
    assert summary["mean_test_accuracy"] == pytest.approx(
        accuracy_of(network, [mean], data), abs=2e-4
    )
    history = records(directory)
    assert [record["epoch"] for record in history] == list(range(1, 41))
    assert all(r["elbo"] == pytest.approx(-r["nll"] - r["kl"]) for r in history)
    assert history[-1]["elbo"] > history[0]["elbo"]


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_resumes_to_the_same_bits(name, how, script, started_script, tmp_path):
    kind, file = SCRIPTS[name]
    arguments = [name, *TOY, "--num_epochs", 60]
    directory = tmp_path / "default" / f"{kind}-MNIST-quick-stopped"
    process = started_script(*arguments, "--run_name", "stopped")
    deadline = time.monotonic() + 60
    while not (directory / "checkpoint.npz").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
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
        (["--out_dir", "pyproject.toml/runs"], "Cannot write to pyproject.toml"),
        (["--num_train", "60001"], "num_train is 60001, but MNIST has 60000"),
    ],
)
def test_mistakes_end_with_a_sentence(name, arguments, sentence, script):
    done = script(name, *TOY, *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


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


def test_a_sweep_makes_a_run_of_each_point(script, tmp_path):
    sweep = tmp_path / "sizes.yaml"
    sweep.write_text("num_train: 300\nnum_epochs: 1\nsweep:\n  hidden_sizes: [[4], [8]]\n")
    done = script("MNIST_VI", "--config", sweep)
    assert done.returncode == 0, done.stderr
    runs = sorted(path.name for path in (tmp_path / "default").iterdir())
    assert runs == ["VI-MNIST-sizes-hidden_sizes=[4]", "VI-MNIST-sizes-hidden_sizes=[8]"]
