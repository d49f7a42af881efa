"""Sets of networks that get more networks, or another choice of them, after they were begun."""

import dataclasses
import gc
import json

from utils.driver import reopening, run_method
from utils.methods.registry import METHODS
from utils.networks.mlp import MLP
from utils.posteriors.block_gaussian import BlockGaussian, WeightBlock
from utils.posteriors.dropout import DropoutMasks
from utils.posteriors.files import move_posterior, open_posterior
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRank
from utils.posteriors.named_samples import save_named_samples
from utils.posteriors.samples import Points
from utils.runs.locks import claimed
from utils.runs.run import Run
from utils.settings.config import reopening_fields
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch
import yaml

pytestmark = pytest.mark.usefixtures("few_test_images")
TOY = (
    "train", "--method", "sgd", "--config_name", "quick", "--hidden_sizes", "6",
    "--num_train", "200", "--num_epochs", "2", "--stack_size", "2",
)  # fmt: skip


@pytest.fixture
def networks(script, tmp_path):
    """Run a command, and return its weights and what it printed."""

    def make(count: int, name: str, *options) -> tuple[list[bytes], str]:
        done = script(*TOY, "--num_modes", count, "--run_name", name, *options)
        assert done.returncode == 0, done.stderr
        return weights_in(tmp_path / "default" / f"sgd-MNIST-quick-{name}"), done.stdout

    return make


def weights_in(directory) -> list[bytes]:
    return [weights.numpy().tobytes() for weights in open_posterior(directory, fewest=0)]


@pytest.fixture
def five(networks):
    return networks(5, "five")[0]


def test_a_larger_set_has_the_bytes_of_one_made_at_once(networks, five, tmp_path):
    """From a group of one that grows, over a whole group, to several with a part at the end."""
    for count in (1, 2, 3, 5):
        grown, _ = networks(count, "grown", "--resume")
        assert len(grown) == count
    assert grown == five
    names = [
        {str(path.relative_to(run)) for path in run.rglob("*") if path.name != ".lock"}
        for run in (tmp_path / "default").iterdir()
    ]
    assert names[0] == names[1]
    config = tmp_path / "default" / "sgd-MNIST-quick-grown" / "config.yaml"
    assert yaml.safe_load(config.read_text())["num_modes"] == 5


def test_only_networks_that_were_not_there_are_trained(networks, five, monkeypatch, tmp_path):
    networks(3, "grown")
    directory, trained = tmp_path / "default" / "sgd-MNIST-quick-grown", []
    posterior = type(METHODS["sgd"]).posterior

    def count(self, problem, state, config):
        trained.extend(state.modes.tolist())
        return posterior(self, problem, state, config)

    monkeypatch.setattr(type(METHODS["sgd"]), "posterior", count)
    records = (directory / "metrics.jsonl").read_text()
    grown, printed = networks(5, "grown", "--resume")
    assert grown == five
    assert trained == [2, 3, 4]  # 2 was the last group, and is now beside 3
    assert "after groups 1" in printed
    assert (directory / "metrics.jsonl").read_text().startswith(records)


@pytest.mark.parametrize("stops", [1, 3])
def test_an_unfinished_set_gets_larger(stops, script, networks, five, monkeypatch, tmp_path):
    """Stopped in the first group, whose state is kept, or in the last, which gets larger."""
    monkeypatch.setattr(run_method, "LEAST_CHECKPOINT_SECONDS", 0)
    steps, stop_if_asked = [], Run.stop_if_asked

    def stop(self):
        steps.append(1)
        self.stop_requested = len(steps) == stops
        stop_if_asked(self)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "stop_if_asked", stop)
        stopped = script(*TOY, "--num_modes", 3, "--run_name", "grown")
    assert stopped.returncode == 130
    gc.collect()
    grown, printed = networks(5, "grown", "--resume")
    assert grown == five
    assert ("epoch 1" in printed) == (stops == 1)


@pytest.mark.parametrize("step", ["save_yaml", "move_posterior"])
def test_killed_while_it_gets_larger_it_can_be_resumed_either_way(
    step, script, networks, monkeypatch, tmp_path
):
    """With the larger number, or with the one that it was begun with."""
    count = 2 if step == "move_posterior" else 3
    before, _ = networks(count, "a")
    networks(count, "b")
    after, _ = networks(5, "c")

    def killed(*arguments):
        raise KeyboardInterrupt

    for name in ("a", "b"):
        with monkeypatch.context() as patch:
            patch.setattr(reopening, step, killed)
            done = script(*TOY, "--num_modes", 5, "--run_name", name, "--resume")
        assert done.returncode == 130
        gc.collect()
    assert networks(count, "a", "--resume")[0] == before
    assert networks(5, "b", "--resume")[0] == after


def test_a_smaller_set_is_refused(networks, script):
    networks(3, "grown")
    done = script(*TOY, "--num_modes", 2, "--run_name", "grown", "--resume")
    assert done.returncode == 2
    assert "num_modes was 3 and is 2" in done.stderr
    done = script(*TOY, "--num_modes", 5, "--run_name", "grown")
    assert done.returncode == 2
    assert "give --resume to go on with it" in done.stderr


def test_a_shared_run_gets_larger_when_nobody_works_with_the_smaller_one(
    networks, five, monkeypatch, tmp_path
):
    networks(3, "grown")
    directory = tmp_path / "default" / "sgd-MNIST-quick-grown"
    holder = claimed(directory)
    holder.__enter__()
    monkeypatch.setattr("time.sleep", lambda seconds: holder.__exit__(None, None, None))
    grown, printed = networks(5, "grown", "--share")
    assert "Waiting for other processes" in printed
    assert grown == five


def test_modes_of_other_methods_can_be_added(script, tmp_path):
    def mode_files(count, name) -> dict[str, bytes]:
        done = script(
            "train", "--method", "swag", *TOY[3:9], "--num_epochs", 4, "--num_pretrain_epochs", 2,
            "--rank", 2, "--num_modes", count, "--run_name", name, "--resume",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        run = tmp_path / "default" / f"SWAG-MNIST-quick-{name}"
        return {path.name: path.read_bytes() for path in run.glob("mode-*/*") if path.is_file()}

    assert mode_files(1, "grown") == {}
    grown = mode_files(2, "grown")
    assert {"low_rank.npz", "posterior.json", "network.json"} <= grown.keys()
    assert grown == mode_files(2, "once")


def posteriors():
    network = MLP((3, 2, 2))
    d = network.num_weights
    ones, rows = torch.ones(d), torch.rand(4, d)
    block = WeightBlock(torch.arange(d)[None], torch.eye(1), torch.eye(d), ones[None])
    return {
        "points": Points(rows, network, {"modes": torch.arange(4)}, is_chain=True),
        "gaussian": Gaussian(ones, ones, network),
        "low rank": LowRank(ones, rows, network=network),
        "dropout": DropoutMasks(ones, {name: 0.5 for name in network.groups}, network),
        "blocks": BlockGaussian(ones, [block], network),
    }


@pytest.mark.parametrize("name", [*posteriors(), "named"])
def test_a_posterior_moves_with_all_of_its_files(name, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    if name == "named":
        network = MLP((3, 2, 2))
        rows = torch.rand(4, network.num_weights)
        save_named_samples(source, network, rows, 4, torch.float16)
    else:
        posteriors()[name].save(source)
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    move_posterior(source, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == files
    assert [path.name for path in source.iterdir()] == ["network.json"]


# ---- networks that have learnt nothing


def test_failed_networks_are_marked_and_chosen_anew(networks, script, tmp_path):
    every, _ = networks(5, "chosen")
    directory = tmp_path / "default" / "sgd-MNIST-quick-chosen"
    samples = sorted(directory.glob("mode-*/samples.npy"))
    written = [path.stat().st_mtime_ns for path in samples]
    accuracies = np.concatenate(
        [np.load(path.with_name("members.npz"))["test_accuracies"] for path in samples]
    )
    least = float(np.sort(accuracies)[-2])
    good = [weights for weights, share in zip(every, accuracies, strict=True) if share >= least]
    assert 0 < len(good) < 5

    chosen, printed = networks(5, "chosen", "--min_accuracy", least, "--resume")
    assert chosen == good
    failed = 5 - len(good)
    assert f"{failed} less accurate than {least} and left out" in printed
    fresh, _ = networks(5, "fresh", "--min_accuracy", least)
    assert fresh == good
    for path in directory.glob("mode-*/members.npz"):
        other = directory.with_name("sgd-MNIST-quick-fresh") / path.relative_to(directory)
        assert path.read_bytes() == other.read_bytes()
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["networks"], summary["failed"]) == (len(good), failed)
    assert yaml.safe_load((directory / "config.yaml").read_text())["min_accuracy"] == least
    numbers = open_posterior(directory).known("modes")
    assert numbers.tolist() == np.flatnonzero(accuracies >= least).tolist()

    hopeless = script(
        *TOY, "--num_modes", 5, "--run_name", "chosen", "--min_accuracy", 0.999, "--resume"
    )
    assert hopeless.returncode == 2
    assert "No network of 5 is as accurate as 0.999" in hopeless.stderr
    gc.collect()
    again, _ = networks(5, "chosen", "--min_accuracy", 0, "--resume")
    assert again == every
    assert [path.stat().st_mtime_ns for path in samples] == written


def test_a_single_stack_is_chosen_from_as_well(networks, script, tmp_path):
    every, _ = networks(2, "pair", "--stack_size", 4)
    path = tmp_path / "default" / "sgd-MNIST-quick-pair" / "members.npz"
    accuracies = np.load(path)["test_accuracies"]
    assert accuracies[0] != accuracies[1]
    options = ("--stack_size", 4, "--resume", "--min_accuracy", float(accuracies.max()))
    assert networks(2, "pair", *options)[0] == [every[accuracies.argmax()]]
    assert len(np.load(path.with_name("samples.npy"))) == 2


def test_vectors_and_marks_have_to_be_as_many(networks, tmp_path):
    directory = tmp_path / "set"
    directory.mkdir()
    network = MLP((3, 2, 2))
    members = {"kept": torch.tensor([True, False, True])}
    rows = torch.rand(3, network.num_weights)
    Points(rows, network, members).save(directory)
    assert torch.equal(torch.stack(list(open_posterior(directory))), rows[[0, 2]])
    np.savez(directory / "members.npz", kept=[True])
    with pytest.raises(UserError, match=r"marks 1 weight vectors, but .* has 3"):
        open_posterior(directory)
    np.savez(directory / "members.npz", kept=[False] * 3)
    with pytest.raises(UserError, match="all 3 were left out"):
        open_posterior(directory)


def test_a_set_begun_without_a_least_accuracy_goes_on_with_one():
    config = METHODS["sgd"].Config(min_accuracy=0.15)
    recorded = dataclasses.asdict(config) | {"min_accuracy": 0.0}
    assert reopening_fields(config, recorded) == ["min_accuracy"]
    assert reopening_fields(config, dataclasses.asdict(config)) == []
