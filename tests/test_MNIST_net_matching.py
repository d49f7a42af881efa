"""MNIST_net_matching.py end to end at toy size."""

import json

from MNIST_net_matching import NetMatchingConfig, main
from utils.data import load_dataset
from utils.matching import ActivationMatcher
from utils.mlp import Network, hidden_activations, logits
from utils.permutation import num_transpositions
from utils.runs import Run, Stopped

import numpy as np
import pytest
import torch

EPOCHS, FRACTIONS = 4, 5
TOY = dict(
    config_name="quick", hidden_sizes=[16], num_train=1000, num_epochs=EPOCHS,
    learning_rate=0.03, num_fractions=FRACTIONS, seed=12, device="cpu", matmul="default",
    wandb="disabled",
)  # fmt: skip


@pytest.fixture
def run(tmp_path, data_dir):
    """Run the script's main in this process; returns its run directory."""

    def call(run_name: str, **settings):
        main(
            NetMatchingConfig(
                **(TOY | settings), run_name=run_name, out_dir=str(tmp_path), data_dir=str(data_dir)
            )
        )
        return tmp_path / "default" / f"net_matching-MNIST-quick-{run_name}"

    return call


def load_results(directory) -> dict[str, np.ndarray]:
    with np.load(directory / "training_dynamics.npz") as archive:
        return dict(archive)


def test_the_command_of_the_paper_runs(script, tmp_path):
    done = script(
        "MNIST_net_matching", "--seed", 12, "--optimizer", "SGD", "--num_epochs", 1,
        "--by_activation", "--hidden_sizes", 8, "--num_train", 500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "net_matching-MNIST-paper"
    assert (directory / "DONE").exists()
    for name in ("loss_along_line.png", "barriers.png", "along_line.pdf"):
        assert (directory / name).stat().st_size > 5000
    summary = json.loads((directory / "summary.json").read_text())
    assert set(summary) == {"as is", "by activation", "by weight", "undecided"}
    assert "that no image activates: " in done.stdout


def test_a_line_without_a_network_between_its_ends_has_no_barrier_to_measure(script):
    done = script("MNIST_net_matching", "--num_fractions", 2)
    assert done.returncode == 2
    assert "--num_fractions must be at least 3, got 2." in done.stderr


def test_results_are_those_of_the_networks_it_leaves(run, data_dir):
    directory = run("shallow")
    results = load_results(directory)
    assert results["train_loss"].shape == (EPOCHS + 1, 3, FRACTIONS)
    assert results["distance"].shape == (EPOCHS + 1, 3, FRACTIONS, 5)
    assert results["transpositions"].shape == (EPOCHS + 1, 2, FRACTIONS, 1)
    network = Network.load(directory / "network.json")
    first, second = torch.from_numpy(np.load(directory / "samples.npy"))
    data = load_dataset("MNIST", data_dir, 1000)
    for k, weights in ((0, first), (FRACTIONS // 2, (first + second) / 2), (-1, second)):
        outputs = logits(network, weights, data.test_images)
        loss = torch.nn.functional.cross_entropy(outputs, data.test_labels).item()
        wrong = (outputs.argmax(-1) != data.test_labels).double().mean().item()
        assert results["test_loss"][-1, 0, k] == pytest.approx(loss, rel=1e-5)
        assert results["test_error"][-1, 0, k] == pytest.approx(wrong, abs=2e-4)
    distance = (first - second).norm().item()
    assert results["distance"][-1, 0, -1, -1] == pytest.approx(distance, rel=1e-5)
    found = ActivationMatcher(network, first, data.train_images)(second).permutation
    assert results["alignment_transpositions"][-1, 0, 0] == num_transpositions(found)
    assert results["transpositions"][-1, 0, -1, 0] == num_transpositions(found)


def test_units_that_the_images_leave_open_are_in_the_summary(run, data_dir):
    directory = run("dead", activation="relu", learning_rate=1.0, num_epochs=1)
    data = load_dataset("MNIST", data_dir, 1000)
    network = Network.load(directory / "network.json")
    first, second = torch.from_numpy(np.load(directory / "samples.npy"))
    dead, reference_dead = (
        int((hidden_activations(network, weights, data.train_images)[0].amax(0) == 0).sum())
        for weights in (second, first)
    )
    undecided = json.loads((directory / "summary.json").read_text())["undecided"]
    assert (undecided["dead"], undecided["reference_dead"]) == (dead, reference_dead)
    assert dead != reference_dead
    assert dead > 0


def test_what_must_hold_of_any_pair(run):
    results = load_results(run("any"))
    # rebasin does not change the networks at the ends
    for name in ("train_loss", "test_loss", "train_error", "test_error"):
        ends = results[name][:, :, [0, -1]]
        np.testing.assert_allclose(ends, np.broadcast_to(ends[:, :1], ends.shape), atol=2e-4)
    # by weight is by least distance, and what has been rebased needs no more moves
    total = results["distance"][:, :, -1, -1]
    assert (total[:, 2] <= total[:, :2].min(1) + 1e-6).all()
    assert (results["transpositions"][:, 1] == 0).all()
    assert (results["transpositions"][:, 0, 0] == 0).all()
    # the pair learns, and rebasin lowers the barrier
    assert results["test_loss"][-1, 0, 0] < results["test_loss"][0, 0, 0] / 2
    middle = results["train_loss"][-1, :, FRACTIONS // 2]
    assert middle[1:].max() < middle[0]


@pytest.mark.parametrize("by", ["yaml", "command line"])
def test_without_hidden_units_there_is_nothing_to_do(script, tmp_path, by):
    settings = tmp_path / "linear.yaml"
    settings.write_text("hidden_sizes: []\n")
    given = ("--config", settings) if by == "yaml" else ("--hidden_sizes", "[]")
    done = script("MNIST_net_matching", *given)
    assert done.returncode == 2
    assert "hidden_sizes must have at least one hidden layer" in done.stderr
    assert "Traceback" not in done.stderr


def test_several_hidden_layers_by_weight(run):
    results = load_results(run("deep", hidden_sizes=[12, 9], by_activation=False, num_epochs=1))
    assert results["transpositions"].shape == (2, 2, FRACTIONS, 2)
    assert results["rebased"] == 2
    assert (results["transpositions"][:, 1, 0] == 0).all()
    by_weight = results["alignment_transpositions"][:, 1]
    assert np.array_equal(results["transpositions"][:, 0, -1], by_weight)
    assert results["alignment_transpositions"].shape == (2, 2, 2)
    assert (results["alignment_transpositions"] <= [11, 8]).all()


def test_a_stopped_run_resumes_to_the_same_results(run, monkeypatch):
    save = Run.save_checkpoint

    def stop_after_epoch_2(self, counters, **arrays):
        self.stop_requested = counters["epoch"] == 2
        try:
            save(self, counters, **arrays)
        except Stopped:
            self._lock.close()  # as the end of the process would
            raise

    with monkeypatch.context() as patched:
        patched.setattr(Run, "save_checkpoint", stop_after_epoch_2)
        with pytest.raises(Stopped):
            run("stopped")
    resumed, whole = run("stopped", resume=True), run("whole")
    first, second = load_results(resumed), load_results(whole)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    records = (resumed / "metrics.jsonl").read_text()
    assert records == (whole / "metrics.jsonl").read_text()
    assert [json.loads(line)["epoch"] for line in records.splitlines()] == list(range(EPOCHS + 1))
