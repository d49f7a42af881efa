"""The script as a user runs it, at toy size: to the end, killed and resumed, and on two ranks."""

import gc
import json
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import MNIST_HMC
import utils.anchored
from tests.conftest import REPOSITORY, script_command
from utils import chain_record, progress
from utils.chain_record import ChainRecord, Pace
from utils.config import load_configs
from utils.data import load_dataset
from utils.hmc import leapfrog
from utils.metrics import accuracy, mean_nll
from utils.mlp import Network, logits
from utils.parallel import Ranks
from utils.posterior import Energy, Force
from utils.runs import Run
from utils.wandb_log import NoWandb

import numpy as np
import pytest
import torch

TOY = (
    "--config_name", "quick", "--hidden_sizes", "12", "--num_train", "600", "--num_burnin", "4",
    "--num_samples", "8", "--trajectory_length", "none", "--num_steps", "12",
    "--step_size", "0.003", "--anchored_epochs", "1",
)  # fmt: skip
WEIGHTS = 785 * 12 + 13 * 10


def records(directory: Path) -> list[dict]:
    """The trace, without how long things took."""
    lines = (directory / "trace.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def test_a_run_leaves_what_it_promises(script, tmp_path, data_dir):
    process = script("MNIST_HMC", *TOY, "--num_chains", 2, "--store_every", 2)
    assert process.returncode == 0, process.stderr
    run = tmp_path / "default" / "HMC-MNIST-quick"
    samples = np.load(run / "samples.npy", mmap_mode="r")
    assert samples.shape == (16, WEIGHTS)
    assert samples.dtype == np.float32
    assert json.loads((run / "network.json").read_text())["sizes"] == [784, 12, 10]
    chains = json.loads((run / "chains.json").read_text())
    assert chains == {"num_chains": 2, "samples_per_chain": 8, "stored_per_chain": 8}
    trace = records(run)
    assert [(r["iteration"], r["chain"]) for r in trace] == [
        (i, k) for i in range(1, 21) for k in range(2)
    ]
    assert sum(r["burnin"] for r in trace) == 8
    summary = json.loads((run / "summary.json").read_text())
    diagnostics = json.loads((run / "diagnostics.json").read_text())
    assert 0.3 < summary["test_accuracy"] < 0.95
    assert summary["divergences"] == 0
    assert "diverged" not in process.stdout
    assert diagnostics["groups"].keys() == {
        "test_log_likelihood", "train_nll", "mean_squared_weight", "probability", "weights",
        "output_layer",
    }  # fmt: skip
    data, network = load_dataset("MNIST", data_dir), Network.load(run / "network.json")
    outputs = logits(network, torch.from_numpy(np.array(samples)), data.test_images)
    average = outputs.softmax(-1).double().mean(0)
    assert summary["test_accuracy"] == accuracy(average, data.test_labels)
    assert summary["test_nll"] == pytest.approx(mean_nll(average, data.test_labels), rel=1e-5)
    seconds = json.loads((run / "meta.json").read_text())["seconds"]
    assert 0 < summary["sampling_seconds"] <= seconds + 0.1  # of which seconds has one digit
    assert diagnostics["hours"] == summary["sampling_seconds"] / 3600
    kept = [r for r in trace if r["chain"] == 1 and r["iteration"] in range(6, 21, 2)]
    measured = np.load(run / "quantities.npy")
    np.testing.assert_array_equal(measured[8:, 1], [r["nll"] for r in kept])
    for sample, record in zip(samples[8:], kept, strict=True):
        energy = record["nll"] + 0.5 * np.square(sample.astype(float)).sum()
        assert record["potential"] == pytest.approx(energy, abs=1e-6)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum("rhat_weights" in record for record in metrics) == 1  # at the end: stock costs time
    assert "Estimate" in process.stdout
    assert "after burn-in it is told again" in process.stdout
    assert "Burn-in is over; sampling: " in process.stdout + process.stderr
    assert "R-hat" in process.stdout


def test_stock_is_taken_while_chains_run(script, tmp_path, monkeypatch):
    monkeypatch.setattr(chain_record, "SECONDS_BETWEEN_STOCKTAKINGS", 0)
    monkeypatch.setattr(chain_record.Run, "save_figure", lambda *arguments: None)  # seconds each
    process = script("MNIST_HMC", *TOY, "--num_samples", 20)
    assert process.returncode == 0, process.stderr
    metrics = tmp_path / "default" / "HMC-MNIST-quick" / "metrics.jsonl"
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    found = [r["iteration"] - 4 for r in records if "rhat_weights" in r]
    assert found == [8, 10, 12, 14, 16, 18, 20]


def test_steps_so_large_that_they_diverge_are_rejected(script, tmp_path):
    process = script("MNIST_HMC", *TOY, "--step_size", 10, "--no-adapt_step_size")
    assert process.returncode == 0, process.stderr
    run = tmp_path / "default" / "HMC-MNIST-quick"
    assert all(r["divergent"] and not r["accepted"] for r in records(run))
    assert json.loads((run / "summary.json").read_text())["divergences"] == 8
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [m["divergent"] for m in metrics if "divergent" in m] == [1.0] * 12
    told = "8 of 8 trajectories after burn-in diverged"
    assert told in process.stdout
    assert "a smaller --step_size than 10" in process.stdout
    assert "R-hat" not in process.stdout  # there is none to tell
    samples = np.load(run / "samples.npy")
    assert (samples == samples[0]).all()
    assert samples.any()


@pytest.mark.parametrize("each", [0, 1])
def test_violations_are_summed_up_and_told_when_many(script, tmp_path, monkeypatch, each):
    """One per transition, of 12 steps or so, is far more than one in 100 steps."""
    monkeypatch.setattr(Force, "counts", lambda self: (600.0, each))
    process = script("MNIST_HMC", *TOY, "--num_chains", 2)
    assert process.returncode == 0, process.stderr
    summary = json.loads((tmp_path / "default/HMC-MNIST-quick/summary.json").read_text())
    assert summary["violations"] == 24 * each
    told = f"overlooked points 24 times in {summary['leapfrog_steps']} steps"
    assert (told in process.stdout) == (each == 1)
    assert ("raise --safe_margin from 18, or give --force active" in process.stdout) == (each == 1)


@pytest.mark.parametrize("start", ["anchored", "initialisation"])
def test_where_chains_start(script, tmp_path, start):
    """Before it moves an anchored chain fits the data with weights of the prior's size."""
    arguments = ("--start", start, "--hidden_sizes", 64, "--anchored_epochs", 100)
    stay = ("--num_burnin", 0, "--no-adapt_step_size", "--num_steps", 1, "--step_size", 1e-9)
    process = script("MNIST_HMC", *TOY, *arguments, *stay)
    assert process.returncode == 0, process.stderr
    run = tmp_path / "default" / "HMC-MNIST-quick"
    mean_square = np.square(np.load(run / "samples.npy")[0]).mean()
    nll = records(run)[0]["nll"]
    if start == "anchored":
        assert 0.9 < mean_square < 1.3
        assert nll < 50
    else:
        assert mean_square < 0.01
        assert nll == pytest.approx(600 * np.log(10), rel=0.05)


def wait_for_records(path: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_text().count("\n") < count:
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.01)


def stored(directory: Path) -> int:
    return json.loads((directory / "chains.json").read_text())["stored_per_chain"]


def test_killed_and_resumed_equals_uninterrupted(script, started_script, tmp_path):
    arguments = (*TOY, "--num_samples", 60, "--checkpoint_seconds", 0, "--matmul", "default")
    whole = script("MNIST_HMC", *arguments, "--run_name", "whole")
    assert whole.returncode == 0, whole.stderr
    directory = tmp_path / "default" / "HMC-MNIST-quick-whole"
    killed = tmp_path / "default" / "HMC-MNIST-quick-killed"
    for count, more in ((3, ()), (20, ("--resume",))):
        process = started_script("MNIST_HMC", *arguments, "--run_name", "killed", *more)
        wait_for_records(killed / "trace.jsonl", count)
        process.kill()
        process.wait()
        assert not (killed / "DONE").exists()
        assert max(0, count - 5) <= stored(killed) <= max(0, len(records(killed)) - 4)
    resume = (*arguments, "--run_name", "killed", "--resume")
    made = 4 + stored(killed) + 8
    process = started_script("MNIST_HMC", *resume, "--checkpoint_seconds", 1000)
    wait_for_records(killed / "metrics.jsonl", made)
    process.kill()
    process.wait()
    assert np.load(killed / "samples.npy")[: made - 4].any(axis=1).all()
    assert stored(killed) < made - 9  # several more samples are there than the checkpoint knows
    (killed / "samples.npy").rename(tmp_path / "elsewhere.npy")
    refused = script("MNIST_HMC", *resume)
    assert refused.returncode == 2
    assert "samples.npy is missing or damaged" in refused.stderr
    (tmp_path / "elsewhere.npy").rename(killed / "samples.npy")
    resumed = script("MNIST_HMC", *resume)
    assert resumed.returncode == 0, resumed.stderr
    for name in ("samples.npy", "quantities.npy"):
        assert (killed / name).read_bytes() == (directory / name).read_bytes()
    assert records(killed) == records(directory)
    summaries = [json.loads((d / "summary.json").read_text()) for d in (killed, directory)]
    assert summaries[0]["test_nll"] == summaries[1]["test_nll"]


def test_ctrl_c_stops_within_a_trajectory(started_script, tmp_path):
    process = started_script("MNIST_HMC", *TOY, "--num_steps", 1000000, "--step_size", 1e-5)
    directory = tmp_path / "default" / "HMC-MNIST-quick"
    deadline = time.monotonic() + 60
    while not (directory / "trace.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Go on with" in errors


# ---- what is said of time

FIXED = (*TOY, "--no-grow_trajectories", "--jitter", 0)  # 12 steps per transition


class Clock:
    """Stands in for the module `time` where what is timed moves it."""

    now = 0.0

    def __call__(self):
        return self.now

    monotonic = perf_counter = __call__


class TimedTarget:
    """5 s for an energy, 2 s for a force, and half a minute more for the first of them."""

    def __init__(self, clock):
        self._clock, self._first = clock, 30.0

    def energy(self, weights):
        self._clock.now += 5
        return Energy(0.0, 0.0, torch.zeros_like(weights))

    def trajectory(self, weights):
        return self.energy(weights), self

    def __call__(self, weights):
        self._clock.now += 2 + self._first
        self._first = 0.0
        return torch.zeros_like(weights)

    def counts(self):
        return 0.0, 0


def test_the_pace_is_that_of_any_number_of_steps(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(MNIST_HMC, "time", clock)
    target, weights = TimedTarget(clock), torch.zeros(3)
    pace = MNIST_HMC.measure_pace(target, weights, 0.1)
    for num_steps in (1, 70):
        began = clock.now
        leapfrog(target, weights, torch.ones(3), 0.1, num_steps)
        assert pace.seconds(num_steps, 1) == pytest.approx(clock.now - began)


@pytest.mark.parametrize(
    ("sharing", "ranks", "at_a_time"), [("data", 2, 1), ("chains", 1, 1), ("chains", 2, 1.5)]
)
def test_three_chains_side_by_side(sharing, ranks, at_a_time):
    config = MNIST_HMC.HMCConfig(hidden_sizes=[4], num_chains=3, parallel=sharing)
    found = MNIST_HMC.chains_side_by_side(config, Ranks(0, ranks))
    assert found == at_a_time
    assert Pace(2.0, 5.0, found).seconds(300, 30) == pytest.approx(750 / at_a_time)


@pytest.fixture
def clock(monkeypatch):
    """It says that a step takes 1 s, in transition 4 of them 2 s, and a score 6 s."""
    clock, steps, on_step, score = Clock(), [], ChainRecord.on_step, ChainRecord._score

    def step(self, *arguments):
        steps.append(1)
        clock.now += 2 if 36 < len(steps) <= 48 else 1
        on_step(self, *arguments)

    def slow_score(self, *arguments):
        clock.now += 6
        return score(self, *arguments)

    monkeypatch.setattr(chain_record, "time", clock)
    monkeypatch.setattr(ChainRecord, "on_step", step)
    monkeypatch.setattr(ChainRecord, "_score", slow_score)
    return clock


@pytest.fixture
def stopped_script(script, monkeypatch):
    """Run the script, ask it to stop in some step, and let go of its lock as a process does."""

    def run(in_step, *arguments):
        on_step, steps = ChainRecord.on_step, []

        def step(self, *arguments):
            steps.append(1)
            self.run.stop_requested = len(steps) == in_step
            on_step(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(ChainRecord, "on_step", step)
            stopped = script(*arguments)
        assert stopped.returncode == 130
        gc.collect()
        return stopped

    return run


def test_after_burnin_the_time_left_is_judged_from_several_transitions(script, clock):
    process = script("MNIST_HMC", *FIXED)
    assert process.returncode == 0, process.stderr
    # 18 s, 18 s, 18 s and 30 s; there are twice as many to come
    assert "sampling: 2 min 48 s" in process.stdout + process.stderr


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_estimate_has_all_that_transitions_take(
    script, stopped_script, clock, tmp_path, monkeypatch, elsewhere
):
    announce, pace = ChainRecord.announce, Pace(step=2.0, transition=5.0)
    monkeypatch.setattr(
        ChainRecord, "announce", lambda self, chains, measured: announce(self, chains, pace)
    )
    monkeypatch.setattr(ChainRecord, "_measure_score", lambda *arguments: 3.0)
    arguments = (*FIXED, "--checkpoint_seconds", 1000)
    stopped = stopped_script(6 * 12 + 5, "MNIST_HMC", *arguments)
    assert "Estimate: 6 min 24 s" in stopped.stdout  # 12 transitions of 12 · 2 + 5 + 3 s
    meta = tmp_path / "default" / "HMC-MNIST-quick" / "meta.json"
    if elsewhere:
        meta.write_text(meta.read_text().replace('"host": "', '"host": "not-'))
    resumed = script("MNIST_HMC", *arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    # 6 transitions; those made so far took 5 · 18 + 30 s, whatever is measured here
    expected = "3 min 12 s" if elsewhere else "2 min 0 s"
    assert f"Estimate: {expected}" in resumed.stdout


# ---- stopping


def test_a_stop_saves_all_transitions_that_were_finished(
    script, stopped_script, tmp_path, monkeypatch
):
    """Also those since the last checkpoint, of which there is none yet here."""
    arguments = (*FIXED, "--checkpoint_seconds", 1000, "--run_name")
    whole = script("MNIST_HMC", *arguments, "whole")
    assert whole.returncode == 0, whole.stderr
    closed = []
    monkeypatch.setattr(NoWandb, "close", lambda self: closed.append(1))
    stopped_script(6 * 12 + 5, "MNIST_HMC", *arguments, "stopped")
    assert closed == [1]
    run = tmp_path / "default" / "HMC-MNIST-quick-stopped"
    before = (run / "trace.jsonl").read_text()
    assert len(before.splitlines()) == 6
    assert json.loads((run / "chains.json").read_text())["stored_per_chain"] == 2
    resumed = script("MNIST_HMC", *arguments, "stopped", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "after iteration 6" in resumed.stdout
    assert (run / "trace.jsonl").read_text().startswith(before)  # with its times: made once
    expected = tmp_path / "default" / "HMC-MNIST-quick-whole" / "samples.npy"
    assert (run / "samples.npy").read_bytes() == expected.read_bytes()


@pytest.mark.parametrize(
    ("num_chains", "force", "finished", "under_way"),
    [(1, "listed", (6, 0), 5), (3, "dense", (5, 1), 0), (3, "listed", (5, 2), 11)],
)
def test_killed_within_a_trajectory_it_goes_on_from_there(
    script, tmp_path, monkeypatch, num_chains, force, finished, under_way
):
    """From the step that the last checkpoint has, and to the same bits."""
    sizes = ("--hidden_sizes", 64, "--anchored_epochs", 60, "--step_size", 0.001)
    arguments = (
        *FIXED, *sizes, "--num_chains", num_chains, "--force", force, "--safe_margin", 8,
        "--run_name",
    )  # fmt: skip
    script("MNIST_HMC", *arguments, "whole", "--checkpoint_seconds", 1000)
    iterations, others = finished
    killed_in = 12 * (num_chains * iterations + others) + under_way
    made, on_step = [], ChainRecord.on_step

    def step(self, chains, flight):
        assert len(made) < killed_in or resumed, "as kill -9 would"
        made.append((chains.iteration, len(chains.ahead), flight.step))
        on_step(self, chains, flight)

    monkeypatch.setattr(ChainRecord, "on_step", step)
    resumed = False
    with pytest.raises(AssertionError, match="as kill -9 would"):
        script("MNIST_HMC", *arguments, "killed", "--checkpoint_seconds", 0)
    gc.collect()
    last, resumed = made[-1], True
    made.clear()
    ended = script("MNIST_HMC", *arguments, "killed", "--resume", "--checkpoint_seconds", 1000)
    assert ended.returncode == 0, ended.stderr
    assert made[0] == last
    killed, whole = (tmp_path / f"default/HMC-MNIST-quick-{name}" for name in ("killed", "whole"))
    for name in ("samples.npy", "quantities.npy"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert records(killed) == records(whole)
    if force == "listed":
        assert np.mean([r["list_rows"] for r in records(whole)]) < 400  # of 600 images


def test_checkpoints_are_as_far_apart_as_was_asked(script, clock, monkeypatch):
    """Whatever a transition of all chains takes: here two minutes, 72 steps and 36 scores."""
    times, checkpoint = [], ChainRecord._checkpoint

    def note(self, *arguments):
        times.append(clock.now)
        checkpoint(self, *arguments)

    monkeypatch.setattr(ChainRecord, "_checkpoint", note)
    ended = script(
        "MNIST_HMC", *FIXED, "--num_chains", 6, "--num_samples", 1, "--checkpoint_seconds", 15
    )
    assert ended.returncode == 0, ended.stderr
    assert len(times) > 20
    assert max(np.diff([0, *times])) <= 15 + 6 + 2  # a score or a step may come between


# ---- memory and disk


def test_a_full_disk_is_noticed_before_the_start_is_trained(script, monkeypatch):
    monkeypatch.setattr(progress.shutil, "disk_usage", lambda path: SimpleNamespace(free=1e6))
    monkeypatch.setattr(utils.anchored, "anchored_maps", lambda *arguments: pytest.fail("trains"))
    process = script("MNIST_HMC", *TOY)
    assert process.returncode == 2
    assert "MB of disk, but only 1 MB are free" in process.stderr


def test_a_run_that_filled_the_disk_goes_on_with_room_for_another_checkpoint(
    script, stopped_script, tmp_path, monkeypatch
):
    stopped_script(6 * 12 + 5, "MNIST_HMC", *FIXED)
    size = (tmp_path / "default/HMC-MNIST-quick/checkpoint.npz").stat().st_size
    free = SimpleNamespace(free=1.1 * size)
    monkeypatch.setattr(progress.shutil, "disk_usage", lambda path: free)
    resumed = script("MNIST_HMC", *FIXED, "--resume")
    assert resumed.returncode == 0, resumed.stderr


def test_the_disk_that_is_announced_is_what_is_used(script, tmp_path, monkeypatch):
    """Two checkpoints included: a new one is complete before the old one goes."""
    directory, most, checkpoint = tmp_path / "default/HMC-MNIST-quick", [0], Run.save_checkpoint

    def measure(self, *arguments, **arrays):
        checkpoint(self, *arguments, **arrays)
        sizes = [path.stat().st_size for path in directory.iterdir()]
        most[0] = max(most[0], sum(sizes) + (directory / "checkpoint.npz").stat().st_size)

    monkeypatch.setattr(Run, "save_checkpoint", measure)
    arguments = ("--num_steps", 2, "--num_samples", 60, "--hidden_sizes", 32)
    process = script("MNIST_HMC", *FIXED, *arguments, "--checkpoint_seconds", 0.1)
    assert process.returncode == 0, process.stderr
    announced = float(re.search(r"memory, (\d+) MB of disk", process.stdout)[1])
    assert announced == pytest.approx(most[0] / 1e6, rel=0.2)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells its memory there")
def test_memory_does_not_grow_with_the_samples(script, monkeypatch):
    """80 of them would be 130 MB."""
    resident, add = [], ChainRecord.add

    def measure(self, *arguments):
        add(self, *arguments)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident.append(pages * resource.getpagesize())

    monkeypatch.setattr(ChainRecord, "add", measure)
    same = torch.full((10_000, 10), 0.1)
    monkeypatch.setattr(chain_record, "class_probabilities", lambda *arguments: same)  # faster
    arguments = ("--hidden_sizes", 512, "--num_samples", 100, "--num_steps", 1)
    process = script("MNIST_HMC", *FIXED, *arguments, "--step_size", 1e-3)
    assert process.returncode == 0, process.stderr
    assert resident[-1] - resident[20] < 40e6


@pytest.mark.parametrize("setting", ["jitter", "target_acceptance"])
def test_shares_are_below_one(script, setting):
    process = script("MNIST_HMC", "--config_name", "quick", f"--{setting}", 80)
    assert process.returncode == 2
    assert f"--{setting} must be less than 1, got 80" in process.stderr


def test_length_and_steps_exclude_each_other(script):
    process = script("MNIST_HMC", "--config_name", "quick", "--num_steps", 5)
    assert process.returncode == 2
    assert "either num_steps or a trajectory_length" in process.stderr


@pytest.mark.parametrize(
    ("step_size", "length", "sentence"),
    [
        (1e39, 1, "--step_size of 1e+39 is beyond float32"),
        (1e-320, 1, "is beyond float32"),
        (1e-12, 1e9, "more than 10,000,000 leapfrog steps"),
    ],
)
def test_steps_that_no_one_can_make_are_refused(script, step_size, length, sentence):
    given = ("--step_size", step_size, "--trajectory_length", length)
    process = script("MNIST_HMC", "--config_name", "quick", *given)
    assert process.returncode == 2
    assert sentence in process.stderr


@pytest.mark.parametrize("step_size", [1e30, 1e-30])
def test_the_largest_and_the_smallest_step_are_steps(script, step_size):
    process = script("MNIST_HMC", *TOY, "--step_size", step_size)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # the paper's settings; of its 10,000 samples the first 100 are the burn-in
        ("test3.2", dict(
            seed=123, hidden_sizes=[512], step_size=0.001, num_steps=500, num_burnin=100,
            num_samples=9900, start="initialisation", jitter=0.0, adapt_step_size=False,
            grow_trajectories=False,
        )),
        ("laptop", dict(
            hidden_sizes=[512], trajectory_length=pytest.approx(math.pi / 2, abs=1e-5),
            num_steps=None, num_samples=250, start="anchored", jitter=0.1,
        )),
        ("quick", dict(hidden_sizes=[64], num_train=3000, start="anchored")),
    ],
)  # fmt: skip
def test_settings_are_those_that_were_promised(name, expected):
    (config,) = load_configs(MNIST_HMC.HMCConfig, "MNIST_HMC", ["--config_name", name])
    assert {field: getattr(config, field) for field in expected} == expected
    everything = {"dataset": "MNIST", "num_chains": 1, "store_every": 1}
    everything |= {} if name == "quick" else {"num_train": None}
    assert {field: getattr(config, field) for field in everything} == everything
    config.hmc_settings()


def test_a_step_size_needs_burnin_to_be_adapted_in(script):
    process = script("MNIST_HMC", *TOY, "--num_burnin", 0)
    assert process.returncode == 2
    assert "adapted in burn-in, and this run has none" in process.stderr


# ---- several processes


def rank_environment(rank: int, port: int) -> dict:
    return os.environ | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def start_ranks(command: list[str]) -> list[subprocess.Popen]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        subprocess.Popen(
            command, env=rank_environment(rank, port), cwd=REPOSITORY, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip


def torchrun(tmp_path, data_dir, *arguments) -> subprocess.CompletedProcess:
    script = script_command(tmp_path, data_dir, "MNIST_HMC", *arguments)[1:]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, "--nproc-per-node", "2", *script],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_sharded_data_give_the_same_chain(script, tmp_path, data_dir):
    arguments = (
        *TOY, "--hidden_sizes", 64, "--anchored_epochs", 100, "--force", "listed",
        "--safe_margin", 10, "--num_burnin", 2, "--num_steps", 30, "--step_size", 0.001,
    )  # fmt: skip
    alone = script("MNIST_HMC", *arguments, "--run_name", "alone")
    assert alone.returncode == 0, alone.stderr
    both = torchrun(tmp_path, data_dir, *arguments, "--run_name", "both", "--parallel", "data")
    assert both.returncode == 0, both.stderr
    runs = [tmp_path / "default" / f"HMC-MNIST-quick-{name}" for name in ("alone", "both")]
    one, two = (np.load(run / "samples.npy") for run in runs)
    np.testing.assert_allclose(one, two, rtol=0, atol=2e-3)
    for first, second in zip(*(records(run) for run in runs), strict=True):
        assert first["accepted"] == second["accepted"]
        assert first["delta_energy"] == pytest.approx(second["delta_energy"], abs=0.02)
    rows = [np.mean([r["list_rows"] for r in records(run)]) for run in runs]
    assert rows[1] == pytest.approx(rows[0], rel=0.1)
    assert rows[0] < 400  # of 600 images


def test_chains_on_ranks_are_the_chains_of_one_process(script, tmp_path, data_dir):
    arguments = (*TOY, "--num_burnin", 2, "--num_chains", 3)
    alone = script("MNIST_HMC", *arguments, "--run_name", "alone")
    assert alone.returncode == 0, alone.stderr
    both = torchrun(tmp_path, data_dir, *arguments, "--run_name", "both", "--parallel", "chains")
    assert both.returncode == 0, both.stderr
    runs = [tmp_path / "default" / f"HMC-MNIST-quick-{name}" for name in ("alone", "both")]
    one, two = (np.load(run / "samples.npy") for run in runs)
    np.testing.assert_allclose(one, two, rtol=0, atol=2e-3)
    assert np.abs(one[:8] - one[8:16]).max() > 1
    steps = json.loads((runs[1] / "summary.json").read_text())["leapfrog_steps"]
    *_, (made, planned) = re.findall(r"(\d+)/(\d+) \[", both.stderr)
    assert int(made) == steps == pytest.approx(int(planned), rel=0.1)


@pytest.mark.parametrize("sharing", ["data", "chains"])
def test_ranks_go_on_where_one_process_was_stopped(
    script, stopped_script, tmp_path, data_dir, sharing
):
    """In the fifth step of the third chain's sixth transition, which they make anew."""
    arguments = (*FIXED, "--num_chains", 4, "--num_samples", 3, "--run_name")
    alone = script("MNIST_HMC", *arguments, "alone")
    assert alone.returncode == 0, alone.stderr
    stopped_script(12 * (4 * 5 + 2) + 5, "MNIST_HMC", *arguments, "both")
    more = ("both", "--parallel", sharing, "--resume")
    both = torchrun(tmp_path, data_dir, *arguments, *more)
    assert both.returncode == 0, both.stderr
    runs = [tmp_path / "default" / f"HMC-MNIST-quick-{name}" for name in ("alone", "both")]
    one, two = (np.load(run / "samples.npy") for run in runs)
    np.testing.assert_allclose(one, two, rtol=0, atol=2e-3)
    before, after = (records(run) for run in runs)
    assert after[:22] == before[:22]
    assert [(r["iteration"], r["chain"]) for r in after] == [
        (r["iteration"], r["chain"]) for r in before
    ]


def test_a_dead_rank_ends_the_other_and_one_rank_can_go_on(script, tmp_path, data_dir):
    """From the last transition that was finished, long after the last checkpoint."""
    arguments = (*TOY, "--num_samples", 40, "--checkpoint_seconds", 1000, "--parallel", "data")
    command = script_command(tmp_path, data_dir, "MNIST_HMC", *arguments)
    ranks = start_ranks(command)
    directory = tmp_path / "default" / "HMC-MNIST-quick"
    try:
        wait_for_records(directory / "metrics.jsonl", 6)
        ranks[1].kill()
        _, errors = ranks[0].communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[0].returncode == 2
    assert "Another rank of this run has ended" in errors
    assert "Traceback" not in errors
    before = records(directory)
    resumed = script("MNIST_HMC", *arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "this is the only process" in resumed.stdout
    after = records(directory)
    assert len(before) >= 6
    assert f"after iteration {len(before)}" in resumed.stdout
    assert after[: len(before)] == before
    assert len(after) == 44


def test_ctrl_c_of_ranks_is_a_stop_and_no_death(tmp_path, data_dir):
    arguments = (*TOY, "--num_steps", 1000000, "--step_size", 1e-5, "--parallel", "data")
    ranks = start_ranks(script_command(tmp_path, data_dir, "MNIST_HMC", *arguments))
    trace = tmp_path / "default" / "HMC-MNIST-quick" / "trace.jsonl"
    try:
        deadline = time.monotonic() + 120
        while not trace.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)
        ranks[1].send_signal(signal.SIGSTOP)  # so that the first waits for it when it hears
        time.sleep(0.5)
        ranks[0].send_signal(signal.SIGINT)
        ranks[1].kill()
        _, errors = ranks[0].communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[0].returncode == 130
    assert "Go on with: torchrun" in errors
    assert "Another rank" not in errors


def test_several_processes_need_to_know_what_to_share(tmp_path, data_dir):
    ranks = start_ranks(script_command(tmp_path, data_dir, "MNIST_HMC", *TOY))
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2]
    assert all("--parallel data" in error for error in errors)
