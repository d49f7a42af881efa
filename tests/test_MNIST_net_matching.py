"""MNIST_net_matching.py end to end at toy size."""

import json

from MNIST_net_matching import NetMatchingConfig, main
from papers.compact.independent_pair import ALIGNMENTS
from utils.data.datasets import load_pixels
from utils.networks.mlp import MLP
from utils.networks.registry import load_network
from utils.rebasin.assignment import Matching
from utils.rebasin.many_to_one import most_similar
from utils.rebasin.response_matching import ActivationMatcher
from utils.rebasin.weight_matching import WeightMatcher
from utils.runs.run import Run
from utils.runs.script import Stopped
from utils.settings.config import load_config
from utils.settings.errors import UserError
from utils.symmetry.permutation import num_transpositions

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


@pytest.mark.figures
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
    assert set(summary) == {*ALIGNMENTS, "undecided"}
    assert "that no image activates: " in done.stdout


def test_a_line_without_a_network_between_its_ends_has_no_barrier_to_measure(script):
    done = script("MNIST_net_matching", "--num_fractions", 2)
    assert done.returncode == 2
    assert "--num_fractions must be at least 3, got 2." in done.stderr


class Direct:
    """Everything about the pair that a run leaves, computed one network at a time."""

    def __init__(self, directory, data_dir):
        self.network = load_network(directory / "network.json")
        self.first, second = torch.from_numpy(np.load(directory / "samples.npy"))
        data = load_pixels("MNIST", data_dir, 1000)
        self.matchers = [
            ActivationMatcher(self.network, self.first, data.train_images),
            WeightMatcher(self.network, self.first),
        ]
        self.found = [matcher(second) for matcher in self.matchers]
        moved = [found.transformation.apply(second) for found in self.found]
        self.selection = most_similar(self.matchers[0], second)
        self.ends = [second, *moved, self.selection.apply(second)]  # in the order of ALIGNMENTS
        self.fractions = np.linspace(0, 1, FRACTIONS)
        scored = {
            f"{part}_{kind}": values
            for part, images, labels in (
                ("train", data.train_images, data.train_labels),
                ("test", data.test_images, data.test_labels),
            )
            for kind, values in self.scores(images, labels).items()
        }
        self.scored = scored  # each [alignment, λ]
        self.barriers = {
            name: (values - np.outer(values[:, 0], 1 - self.fractions)
                   - np.outer(values[:, -1], self.fractions)).max(1)
            for name, values in scored.items()
        }  # fmt: skip

    def line(self, alignment: int) -> list[torch.Tensor]:
        return [(1 - at) * self.first + at * self.ends[alignment] for at in self.fractions.tolist()]

    def scores(self, images, labels) -> dict[str, np.ndarray]:
        found = []
        for weights in (weights for k in range(4) for weights in self.line(k)):
            outputs = self.network.outputs(weights, images)
            loss = torch.nn.functional.cross_entropy(outputs.double(), labels).item()
            found.append((loss, (outputs.argmax(-1) != labels).double().mean().item()))
        loss, error = np.array(found).reshape(4, FRACTIONS, 2).transpose(2, 0, 1)
        return {"loss": loss, "error": error}

    def distance(self, alignment: int) -> np.ndarray:
        """[λ, tensor]"""
        rows = []
        for weights in self.line(alignment):
            gap = (weights - self.first).double()
            tensors = [part for layer in self.network.layers(gap) for part in layer]
            rows.append([tensor.norm().item() for tensor in (*tensors, gap)])
        return np.array(rows)


@pytest.fixture(params=[True, False], ids=["by activation", "by weight"])
def direct(request, run, data_dir):
    """A run's directory, and what its networks have when they are looked at one by one."""
    directory = run("shallow", by_activation=request.param)
    direct = Direct(directory, data_dir)
    direct.directory, direct.method = directory, 0 if request.param else 1
    # what would not be told apart could be mixed up
    assert len({tuple(end.tolist()) for end in direct.ends}) == 4
    return direct


@pytest.mark.parametrize(
    ("given", "meant"),
    [("lerning_rate", "learning_rate"), ("data_set", "dataset"), ("epochs", "num_epochs")],
)  # fmt: skip
def test_the_nearest_setting_is_one_that_may_be_meant(given, meant):
    with pytest.raises(UserError, match=f"--{given}; the nearest there is: --{meant}."):
        load_config(NetMatchingConfig, "MNIST_net_matching", [f"--{given}"])


def transpositions(matching: Matching) -> list[int]:
    """NoT of every layer."""
    perms = map(matching.transformation.permutation, matching.transformation.network.groups)
    return [num_transpositions(perm) for perm in perms]


def test_results_are_those_of_the_networks_it_leaves(direct):
    results = load_results(direct.directory)
    for name, values in direct.scored.items():
        # of an image on the border of two classes rounding may make an error
        np.testing.assert_allclose(
            results[name][-1], values, rtol=1e-5, atol=1e-3 * ("error" in name)
        )
    for k in range(4):
        np.testing.assert_allclose(
            results["distance"][-1, k], direct.distance(k), rtol=1e-4, atol=1e-6
        )
    per_layer = [transpositions(found) for found in direct.found]
    assert results["alignment_transpositions"][-1].tolist() == per_layer
    assert results["lost"][-1].tolist() == list(direct.selection.lost().values())
    matcher = direct.matchers[direct.method]
    for k, alignment in enumerate((0, 1 + direct.method)):
        along = [transpositions(matcher(w)) for w in direct.line(alignment)]
        assert results["transpositions"][-1, k].tolist() == along


def test_records_and_summary_are_those_of_the_networks_it_leaves(direct):
    totals = [0, *(sum(transpositions(found)) for found in direct.found)]
    *_, last = (direct.directory / "metrics.jsonl").read_text().splitlines()
    height, close = direct.barriers["test_loss"], {"rel": 1e-4, "abs": 1e-5}
    assert json.loads(last) == {
        "epoch": EPOCHS,
        "test_loss": pytest.approx(direct.scored["test_loss"][0, 0], **close),
        "test_error": pytest.approx(direct.scored["test_error"][0, 0], abs=2e-4),
        "test_barrier_as_is": pytest.approx(height[0], **close),
        "test_barrier_by_activation": pytest.approx(height[1], **close),
        "test_barrier_by_weight": pytest.approx(height[2], **close),
        "test_barrier_many_to_one": pytest.approx(height[3], **close),
        "transpositions_by_activation": totals[1],
        "transpositions_by_weight": totals[2],
    }
    summary = json.loads((direct.directory / "summary.json").read_text())
    for k, name in enumerate(ALIGNMENTS):
        for kind in ("train_loss", "test_loss"):
            expected = pytest.approx(direct.barriers[kind][k], **close)
            assert summary[name][f"{kind}_barrier"] == expected
        expected = pytest.approx(direct.barriers["test_error"][k], abs=4e-4)
        assert summary[name]["test_error_barrier"] == expected
        if name == "many to one":
            assert summary[name]["lost"] == list(direct.selection.lost().values())
            end = direct.scored["test_loss"][k, -1]
            assert summary[name]["end_test_loss"] == pytest.approx(end, **close)
            continue
        assert summary[name]["transpositions"] == totals[k]
        assert summary[name]["transpositions_per_layer"] == [totals[k]]


def test_what_is_said_of_all_epochs_holds_for_them(run):
    directory = run("epochs")
    summary = json.loads((directory / "summary.json").read_text())
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for name in ("by activation", "by weight"):
        found = [r[f"transpositions_{name.replace(' ', '_')}"] for r in records]
        heights = [r[f"test_barrier_{name.replace(' ', '_')}"] for r in records]
        assert summary[name]["over_epochs"] == {
            "least_transpositions": min(found),
            "most_transpositions": max(found),
            "largest_test_loss_barrier": max(heights),
            "epoch_of_largest": heights.index(max(heights)),
        }
        assert min(found) < max(found)
    assert summary["as is"]["over_epochs"]["most_transpositions"] == 0


def test_units_that_respond_alike_are_in_the_summary(run, monkeypatch, capsys):
    """Units that begin as copies stay so: two of W_0, three of W_1."""
    drawn, initial_weights = [], MLP.initial_weights

    def with_copies(network, random):
        weights = initial_weights(network, random)
        (incoming, bias), (outgoing, _) = network.layers(weights)
        for tensor in (incoming, bias, outgoing.T):
            tensor[1 : 2 + len(drawn)] = tensor[0].clone()
        bias[: 2 + len(drawn)] = 1  # and live
        drawn.append(weights)
        return weights

    monkeypatch.setattr(MLP, "initial_weights", with_copies)
    directory = run("tied", num_epochs=1)
    undecided = json.loads((directory / "summary.json").read_text())["undecided"]
    assert (undecided["tied"], undecided["reference_tied"]) == (3, 2)
    assert "respond just as another one: 3 of W_1, 2 of W_0" in capsys.readouterr().out


def test_several_layers_are_told_one_by_one(run, capsys):
    directory = run("layers", hidden_sizes=[12, 9], num_epochs=1)
    found = load_results(directory)["alignment_transpositions"][-1]
    summary = json.loads((directory / "summary.json").read_text())
    printed = capsys.readouterr().out
    for name, layers in zip(("by activation", "by weight"), found.tolist(), strict=True):
        assert summary[name]["transpositions_per_layer"] == layers
        assert summary[name]["transpositions"] == sum(layers)
        (line,) = [line for line in printed.splitlines() if line.startswith(name)]
        assert line.endswith(f" {layers[0]} + {layers[1]}")
    assert "NoT of h1 + h2\n" in printed


def test_units_that_the_images_leave_open_are_in_the_summary(run, data_dir):
    directory = run("dead", activation="relu", learning_rate=1.0, num_epochs=1)
    data = load_pixels("MNIST", data_dir, 1000)
    network = load_network(directory / "network.json")
    first, second = torch.from_numpy(np.load(directory / "samples.npy"))
    dead, reference_dead = (
        int((network.activations(weights, data.train_images)["h1"].amax(0) == 0).sum())
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
        ends = results[name][:, :3, [0, -1]]
        np.testing.assert_allclose(ends, np.broadcast_to(ends[:, :1], ends.shape), atol=2e-4)
    # by weight is by least distance, and what has been rebased needs no more moves
    total = results["distance"][:, :, -1, -1]
    assert (total[:, 2] <= total[:, :2].min(1) + 1e-6).all()
    # every place takes a unit at least as similar as its own; some are then left out
    assert (results["lost"] >= 0).all()
    assert results["lost"].sum() > 0
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


def test_every_group_of_a_lenet_is_rebased(script, few_test_images, tmp_path):
    small = ("--num_train", 100, "--num_epochs", 1, "--num_fractions", 3)
    done = script("MNIST_net_matching", "--config_name", "lenet_quick", *small)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "default" / "net_matching-MNIST-lenet_quick"
    summary = json.loads((run / "summary.json").read_text())
    assert len(summary["by weight"]["transpositions_per_layer"]) == 4
    assert {f"{name}.pdf" for name in ("loss_along_line", "barriers", "along_line")} == {
        path.name for path in run.glob("*.pdf")
    }
