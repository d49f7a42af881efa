"""Chains killed, stopped and resumed; what they are said to need; and full disks."""

import gc
import json
import os
import re
import resource
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import MNIST_HMC
import utils.methods.hmc.anchored
from tests.toy_chains import FIXED, TOY, records, stored, wait_for_records
from utils.methods.hmc import chain_record
from utils.methods.hmc.chain_record import ChainRecord, Pace
from utils.methods.hmc.hmc import leapfrog
from utils.methods.hmc.potential import Energy
from utils.runs import progress
from utils.runs.ranks import ALONE, Ranks
from utils.runs.run import Run
from utils.runs.wandb_log import NoWandb

import numpy as np
import pytest
import torch


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


class Clock:
    """Stands in for the module `time` where what is timed moves it."""

    now = 0.0

    def __call__(self):
        return self.now

    monotonic = perf_counter = __call__


class TimedTarget:
    """5 s for an energy, 2 s for a force, and half a minute more for the first of them."""

    def __init__(self, clock):
        self._clock, self._first, self.ranks = clock, 30.0, ALONE

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


@pytest.mark.parametrize(("affordable", "steps"), [(1e6, 400), (120, 60), (0, 20)])
def test_as_many_steps_are_measured_as_there_is_time_for(monkeypatch, affordable, steps):
    clock, asked, leapfrog = Clock(), [], MNIST_HMC.leapfrog

    def noted(target, weights, momentum, step_size, num_steps, **settings):
        asked.append(num_steps)
        return leapfrog(target, weights, momentum, step_size, num_steps, **settings)

    monkeypatch.setattr(MNIST_HMC, "time", clock)
    monkeypatch.setattr(MNIST_HMC, "leapfrog", noted)
    monkeypatch.setattr(MNIST_HMC, "MEASURING_SECONDS", affordable)
    MNIST_HMC.measure_pace(TimedTarget(clock), torch.zeros(3), 0.1)
    assert asked == [20, steps]  # of 2 s each


def test_the_pace_is_that_of_the_last_steps():
    quick, usual = np.arange(300.0), 300 + 2 * np.arange(100.0)
    assert MNIST_HMC.mean_step([*quick, *usual]) == 2


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


def test_what_a_checkpoint_counts_is_on_disk_before(script, monkeypatch):
    """Else a power failure could leave samples that are counted, and are zeros."""
    unsynced, left = set(), []
    write, sync, checkpoint = os.pwrite, os.fsync, Run.save_checkpoint

    def note_write(file, *arguments):
        unsynced.add(file)
        return write(file, *arguments)

    def note_sync(file):
        sync(file)
        unsynced.discard(file)

    def note_checkpoint(self, *arguments, **arrays):
        left.append(len(unsynced))
        checkpoint(self, *arguments, **arrays)

    monkeypatch.setattr(os, "pwrite", note_write)
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Run, "save_checkpoint", note_checkpoint)
    ended = script("MNIST_HMC", *FIXED, "--checkpoint_seconds", 0)
    assert ended.returncode == 0, ended.stderr
    assert len(left) > 100
    assert set(left) == {0}


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
    monkeypatch.setattr(
        utils.methods.hmc.anchored, "anchored_maps", lambda *arguments: pytest.fail("trains")
    )
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
