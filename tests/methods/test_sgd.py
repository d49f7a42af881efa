"""Independent networks: recipes beside torch.optim, stacks, processes, and what a kill costs."""

import dataclasses
import json
import math
import re
import signal
import time

from tests.conftest import run_all
from utils.data.batches import Batches
from utils.methods.method import set_up
from utils.methods.registry import METHODS
from utils.methods.training import TrainingSettings, start_training, train
from utils.networks.mlp import MLP
from utils.networks.registry import conv_network
from utils.posteriors.files import open_posterior
from utils.runs.locks import claimed
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

MLP_NET = MLP((20, 9, 3))
LENET = conv_network("lenet", (1, 16, 16), 3, width=3)
TOY = (
    "--method", "sgd", "--config_name", "quick", "--hidden_sizes", "8", "--num_train", "300",
    "--num_epochs", "3", "--num_modes", "5", "--stack_size", "2", "--num_draws", "3",
)  # fmt: skip
LONG = (*TOY, "--num_epochs", "40")


@pytest.fixture(scope="module")
def made_alone(tmp_path_factory, data_dir):
    """The weights of a run that one process has made."""
    out_dir = tmp_path_factory.mktemp("alone")
    run_all(out_dir, data_dir, {"train": LONG})
    return weights_in(out_dir / "default" / "sgd-MNIST-quick")


def points(shape, count: int = 70) -> tuple[torch.Tensor, torch.Tensor]:
    random = generator(1, "points")
    images = torch.rand(count, *shape, generator=random)
    return images, torch.randint(3, (count,), generator=random)


def test_nesterov_and_steps_are_those_of_torch_optim():
    settings = TrainingSettings(
        "SGD", 0.2, 10, momentum=0.8, prior_precision=0.7, nesterov=True, schedule="step",
        milestones=(1, 2), gamma=0.5,
    )  # fmt: skip
    images, labels = points((20,))
    start = MLP_NET.initial_weights(generator(0)).double()
    state, _ = train(
        MLP_NET, start_training(start[None], settings), images.double(), labels, settings,
        seed=3, num_epochs=3,
    )  # fmt: skip
    weights = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([weights], 0.2, momentum=0.8, nesterov=True, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.5)
    for epoch in range(3):
        order = torch.randperm(70, generator=generator(3, "data_order", 0, epoch))
        for batch in order.split(10):
            optimizer.zero_grad()
            F.cross_entropy(
                MLP_NET.outputs(weights, images[batch].double()), labels[batch]
            ).backward()
            optimizer.step()
        schedule.step()
    torch.testing.assert_close(state.weights[0], weights.detach())


def test_the_cosine_falls_from_the_rate_to_zero():
    settings = TrainingSettings("SGD", 0.4, 10, schedule="cosine", num_epochs=4)
    rates = [settings.learning_rate_at(epoch) for epoch in range(5)]
    np.testing.assert_allclose(rates, [0.4, 0.2 + 0.2 * 0.5**0.5, 0.2, 0.2 - 0.2 * 0.5**0.5, 0],
                               atol=1e-12)  # fmt: skip


@pytest.mark.parametrize(("network", "optimizer"), [
    (LENET, "SGD"), (LENET, "Adam"), (conv_network("optunet", (1, 18, 18), 3), "SGD"),
    (conv_network("resnet8_frn", (1, 16, 16), 3, width=2), "SGD"),
])  # fmt: skip
def test_a_member_of_a_stack_is_the_network_trained_alone(network, optimizer):
    """With crops and flips of its own, after 100 steps, to 1e-5."""
    settings = TrainingSettings(optimizer, 0.01, 7, prior_precision=1.0)
    shape = network.input_shape
    images, labels = points(shape)
    batches = Batches(images, labels, shape, padding=2, flips=True)
    starts = torch.stack([network.initial_weights(generator(2, k)) for k in range(3)])

    def trained(members: list[int]) -> torch.Tensor:
        state, _ = train(
            network, start_training(starts[members], settings), images, labels, settings, seed=0,
            num_epochs=10, streams=[("sgd", k) for k in members], batches=batches,
        )  # fmt: skip
        return state.weights

    together = trained([0, 1, 2])
    for k in range(3):
        torch.testing.assert_close(together[k], trained([k])[0], rtol=0, atol=1e-5)
    assert (together[0] - together[1]).abs().max() > 0.01


def test_augmented_images_stay_uint8_until_they_are_needed(data_dir):
    settings = {"network": "lenet", "normalise": True, "num_train": 30, "data_dir": str(data_dir)}
    plain, augmented = (
        set_up(METHODS["sgd"], METHODS["sgd"].Config(**settings, flips=flips))
        for flips in (False, True)
    )
    assert augmented.data.train_images.dtype == torch.uint8
    assert plain.train_inputs is plain.data.train_images
    assert torch.equal(augmented.train_inputs, plain.train_inputs)
    assert torch.equal(augmented.data.test_images, plain.data.test_images)


def wait_for(directory, pattern: str, process) -> None:
    """Wait until a process has left a file."""
    deadline = time.monotonic() + 90
    while not list(directory.glob(pattern)):
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(process.communicate()[1])
        time.sleep(0.02)


def weights_in(directory) -> list[np.ndarray]:
    return [np.load(path) for path in sorted(directory.glob("mode-*/samples.npy"))]


def test_any_number_of_processes_leaves_the_same_bytes(script, tmp_path):
    for jobs in (1, 2):
        done = script("train", *TOY, "--jobs", jobs, "--run_name", jobs)
        assert done.returncode == 0, done.stderr
    one, two = (tmp_path / "default" / f"sgd-MNIST-quick-{jobs}" for jobs in (1, 2))
    shapes = [each.shape[0] for each in weights_in(one)]
    assert shapes == [2, 2, 1]
    for first, second in zip(weights_in(one), weights_in(two), strict=True):
        assert first.tobytes() == second.tobytes()
    posterior = open_posterior(two)
    assert len(posterior) == 5
    draws = list(posterior.draw(5, generator(0)))
    assert len({tuple(w[:9].tolist()) for w in draws}) == 5
    members = [dict(np.load(path)) for path in sorted(two.glob("mode-*/members.npz"))]
    assert np.concatenate([each["modes"] for each in members]).tolist() == [0, 1, 2, 3, 4]
    meta, records = (
        [json.loads(path.read_text()) for path in two.glob(name)]
        for name in ("meta.json", "mode-*/record.json")
    )
    spent = sum(record["core_seconds"] for record in records)
    assert meta[0]["core_seconds_of_parts"] == pytest.approx(spent)


def test_killed_it_loses_only_the_networks_under_way(script, started_script, made_alone, tmp_path):
    arguments = ("train", *LONG, "--jobs", 2)
    process = started_script(*arguments, "--run_name", "killed")
    directory = tmp_path / "default" / "sgd-MNIST-quick-killed"
    wait_for(directory, "mode-*/posterior.json", process)
    ready = [path.with_name("samples.npy") for path in directory.glob("mode-*/posterior.json")]
    written = {path: path.stat().st_mtime for path in ready}
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (directory / "DONE").exists()
    resumed = script(*arguments, "--run_name", "killed", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert all(path.stat().st_mtime == before for path, before in written.items())
    for ours, theirs in zip(weights_in(directory), made_alone, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_processes_that_share_a_run_leave_the_bytes_of_one(
    script, started_script, made_alone, tmp_path
):
    """Though one of them is killed, and another one comes late."""
    pair = [started_script("train", *LONG, "--share") for _ in range(2)]
    directory = tmp_path / "default" / "sgd-MNIST-quick"
    wait_for(directory, "mode-*/posterior.json", pair[0])
    pair[0].send_signal(signal.SIGKILL)
    said = pair[1].communicate(timeout=120)
    assert pair[1].returncode == 0, said
    late = script("train", *LONG, "--share")
    assert late.returncode == 0, late.stderr
    assert (directory / "DONE").exists()
    for ours, theirs in zip(weights_in(directory), made_alone, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [record["group"] for record in records] == [0, 1, 2]
    assert all(record["epoch"] == 40 for record in records)


def begun_run(out_dir, **settings):
    """Return the directory of a run that another process has begun with these settings."""
    directory = out_dir / "default" / "sgd-MNIST-quick"
    directory.mkdir(parents=True)
    toy = {"method": "sgd", "config_name": "quick", "hidden_sizes": [8], "num_train": 300,
           "num_epochs": 3, "num_modes": 5, "stack_size": 2, "num_draws": 3}  # fmt: skip
    (directory / "config.yaml").write_text(yaml.safe_dump(toy | settings))
    return directory


def test_a_shared_run_is_finished_when_all_groups_are_ready(
    script, made_alone, monkeypatch, tmp_path
):
    """As under torchrun, which sets WORLD_SIZE. Another process, this one, has a group."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    directory = begun_run(tmp_path, num_epochs=40)
    (directory / "mode-001").mkdir()
    with claimed(directory / "mode-001"):
        done = script("train", *LONG)
    assert done.returncode == 0, done.stderr
    assert "Other processes make the last 1 group;" in done.stdout
    assert len(weights_in(directory)) == 2
    assert not (directory / "DONE").exists()
    done = script("train", *LONG)
    assert done.returncode == 0, done.stderr
    assert (directory / "DONE").exists()
    for ours, theirs in zip(weights_in(directory), made_alone, strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(
    ("arguments", "recorded", "sentence"),
    [
        (("--overwrite",), {}, "would delete what other processes"),
        (("--matmul", "auto"), {}, "may choose another kernel on every machine"),
        (("--stack_size", 5), {"stack_size": 5}, "one group, which a process makes alone"),
        (("--seed", 5), {}, "other settings .seed was 0 and is 5"),
    ],
)
def test_what_a_shared_run_refuses(arguments, recorded, sentence, script, tmp_path):
    directory = begun_run(tmp_path, **recorded)
    done = script("train", *TOY, "--share", *arguments)
    assert done.returncode == 2
    assert re.search(sentence, done.stderr), done.stderr
    assert not list(directory.glob("mode-*"))


def test_one_process_goes_on_where_several_were_stopped(script, started_script, tmp_path):
    arguments = ("train", *TOY, "--num_epochs", 40, "--run_name", "stopped")
    process = started_script(*arguments, "--jobs", 2)
    directory = tmp_path / "default" / "sgd-MNIST-quick-stopped"
    wait_for(directory, "checkpoint.npz", process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (directory / "DONE").exists()
    resumed = script(*arguments, "--jobs", 1, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert sum(map(len, weights_in(directory))) == 5


def test_failed_networks_are_counted_and_left_out(script, tmp_path):
    done = script("train", *TOY, "--min_accuracy", 0.05)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "default" / "sgd-MNIST-quick" / "summary.json").read_text())
    assert summary["networks"] + summary["failed"] == 5
    for resume in ((), ("--resume",)):  # which repeats the error: the run is not finished
        hopeless = script("train", *TOY, "--min_accuracy", 0.999, "--run_name", "hopeless", *resume)
        assert hopeless.returncode == 2
        assert "No network of 5 is as accurate as 0.999" in hopeless.stderr
        assert not (tmp_path / "default" / "sgd-MNIST-quick-hopeless" / "DONE").exists()


def test_a_network_that_diverges_is_left_out_and_does_not_end_the_run(data_dir, tmp_path):
    """It would do so again after --resume, and keep all others from being finished."""
    sgd = METHODS["sgd"]
    config = sgd.Config(
        network="lenet", width=2, num_train=30, num_epochs=1, num_modes=3, data_dir=str(data_dir)
    )
    problem = set_up(sgd, config)
    start = sgd.init(problem, config, range(3))
    expected, _ = sgd.step(problem, start, config)
    start.weights[1] = math.nan
    state, [record] = sgd.step(problem, start, config)
    assert torch.equal(state.weights[::2], expected.weights[::2])
    assert math.isfinite(record["train_loss"])
    sgd.posterior(problem, state, config).save(tmp_path)
    for least in (0.0, 0.01):
        sgd.choose([tmp_path], dataclasses.replace(config, min_accuracy=least))
        assert open_posterior(tmp_path, fewest=0).known("modes").tolist() == [0, 2]
    start.weights.fill_(math.nan)
    with pytest.raises(UserError, match="diverged in epoch 1"):
        sgd.step(problem, start, config)
