"""Chains killed, stopped and resumed; full disks; and memory."""

import gc
import json
import os
import resource
import signal
import time
from pathlib import Path
from types import SimpleNamespace

from tests.toy_chains import FIXED, TOY, records, stored, wait_for_records
from utils.methods.hmc import anchored
from utils.methods.hmc import record as record_module
from utils.methods.hmc.record import ChainRecord
from utils.runs import progress
from utils.runs.run import Run
from utils.runs.wandb_run import NoWandb

import numpy as np
import pytest
import torch


def test_killed_and_resumed_equals_uninterrupted(script, started_script, tmp_path):
    arguments = (*TOY, "--num_samples", 60, "--checkpoint_seconds", 0, "--matmul", "default")
    whole = script("MNIST_HMC", *arguments, "--run_name", "whole")
    assert whole.returncode == 0, whole.stderr
    directory = tmp_path / "default" / "HMC-MNIST-quick-whole"
    killed = tmp_path / "default" / "HMC-MNIST-quick-killed"
    for count, more in ((3, ()), (50, ("--resume",))):
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


def test_extended_chains_equal_the_longer_run(script, stopped_script, tmp_path):
    """More samples, then more chains, with a stop on the way."""
    arguments = ("MNIST_HMC", *TOY)
    longer = ("--num_samples", 11, "--num_chains", 3)
    whole = script(*arguments, *longer, "--run_name", "whole")
    assert whole.returncode == 0, whole.stderr
    extended = (*arguments, "--run_name", "extended")
    for given in ((), ("--num_samples", 11, "--resume")):
        done = script(*extended, *given)
        assert done.returncode == 0, done.stderr
    stopped_script(30, *extended, *longer, "--resume")
    refused = script(*extended, "--resume")
    assert refused.returncode == 2
    assert "num_samples was 11 and is 8" in refused.stderr
    done = script(*extended, *longer, "--resume")
    assert done.returncode == 0, done.stderr
    directories = [tmp_path / "default" / f"HMC-MNIST-quick-{n}" for n in ("whole", "extended")]
    for name in ("samples.npy", "quantities.npy", "chains.json"):
        first, second = ((each / name).read_bytes() for each in directories)
        assert first == second
    first, second = (records(each) for each in directories)
    assert sorted(first, key=str) == sorted(second, key=str)
    summaries = [json.loads((each / "summary.json").read_text()) for each in directories]
    for name in ("test_nll", "test_accuracy", "leapfrog_steps"):
        assert summaries[0][name] == summaries[1][name]
    again = script(*extended, *longer, "--resume")
    assert "nothing to do" in again.stdout


def test_a_mass_goes_on_where_it_was(script, stopped_script, tmp_path):
    """Stopped within a window of burn-in, at the end of one, and while samples are stored."""
    arguments = (
        "MNIST_HMC", *TOY[4:], "--config_name", "quick_optunet", "--num_train", 60,
        "--num_burnin", 20, "--num_steps", 2, "--num_chains", 2, "--num_samples", 2,
    )  # fmt: skip
    whole = script(*arguments, "--run_name", "whole")
    assert whole.returncode == 0, whole.stderr
    for step, more in ((26, ()), (8, ("--resume",)), (20, ("--resume",))):
        stopped_script(step, *arguments, "--run_name", "stopped", *more)
    resumed = script(*arguments, "--run_name", "stopped", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    directories = [
        tmp_path / "default" / f"HMC-MNIST-quick_optunet-{n}" for n in ("whole", "stopped")
    ]
    first, second = ((each / "samples.npy").read_bytes() for each in directories)
    assert first == second
    assert records(directories[0]) == records(directories[1])
    sizes = {record["step_size"] for record in records(directories[0])}
    assert len(sizes) > 10


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


# ---- stopping


def test_a_stop_saves_all_transitions_that_were_finished(
    script, stopped_script, tmp_path, monkeypatch
):
    """Also those since the last checkpoint, of which there is none yet here."""
    arguments = (*FIXED, "--reversal_every", 0, "--checkpoint_seconds", 1000, "--run_name")
    whole = script("MNIST_HMC", *arguments, "whole")
    assert whole.returncode == 0, whole.stderr
    closed = []
    monkeypatch.setattr(NoWandb, "close", lambda self: closed.append(1), raising=False)
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


def test_killed_within_a_transition_the_chains_make_it_again(script, tmp_path, monkeypatch):
    """All of them, though some had finished theirs; and they get to the same bits."""
    sizes = ("--hidden_sizes", 64, "--anchored_epochs", 60, "--step_size", 0.001)
    arguments = (
        *FIXED, *sizes, "--num_chains", 3, "--force", "listed", "--safe_margin", 8,
        "--checkpoint_seconds", 0, "--reversal_every", 0, "--run_name",
    )  # fmt: skip
    whole = script("MNIST_HMC", *arguments, "whole")
    assert whole.returncode == 0, whole.stderr
    stop_if_asked = ChainRecord.stop_if_asked
    for resume, killed_in in (((), 3), (("--resume",), 12 * 3 * 5 + 12 + 11)):
        steps = []

        def step(self, steps=steps, killed_in=killed_in):
            assert len(steps) < killed_in, "as kill -9 would"
            steps.append(1)
            stop_if_asked(self)

        with monkeypatch.context() as patch:
            patch.setattr(ChainRecord, "stop_if_asked", step)
            with pytest.raises(AssertionError, match="as kill -9 would"):
                script("MNIST_HMC", *arguments, "killed", *resume)
        gc.collect()
        monkeypatch.setattr(anchored, "anchored_maps", lambda *arguments: pytest.fail("trains"))
    ended = script("MNIST_HMC", *arguments, "killed", "--resume")
    assert ended.returncode == 0, ended.stderr
    assert "after iteration 5" in ended.stdout
    killed, whole = (tmp_path / f"default/HMC-MNIST-quick-{name}" for name in ("killed", "whole"))
    for name in ("samples.npy", "quantities.npy"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert records(killed) == records(whole)
    assert np.mean([r["list_rows"] for r in records(whole)]) < 400  # of 600 images


def test_a_checkpoint_of_an_earlier_version_is_refused(script, stopped_script, tmp_path):
    stopped_script(6 * 12 + 5, "MNIST_HMC", *FIXED)
    checkpoint = tmp_path / "default" / "HMC-MNIST-quick" / "checkpoint.npz"
    with np.load(checkpoint) as archive:
        arrays = dict(archive)
    arrays["probability_sum"] = arrays.pop("probability_sums")[0]
    np.savez(checkpoint, **arrays)
    before = checkpoint.read_bytes()
    resumed = script("MNIST_HMC", *FIXED, "--resume")
    assert resumed.returncode == 2
    assert "made by another version of this program" in resumed.stderr
    assert checkpoint.read_bytes() == before


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
    assert left == [0] * 14  # at the start, after each of 12 transitions, and at the end


@pytest.mark.parametrize(("seconds", "expected"), [(0, 14), (1000, 2)])
def test_checkpoints_are_as_far_apart_as_was_asked(script, monkeypatch, seconds, expected):
    """There is one at the start and one at the end, and at most one after each transition."""
    checkpoints, save = [], Run.save_checkpoint

    def note(self, counters, **arrays):
        checkpoints.append(counters["iteration"])
        save(self, counters, **arrays)

    monkeypatch.setattr(Run, "save_checkpoint", note)
    ended = script("MNIST_HMC", *FIXED, "--checkpoint_seconds", seconds)
    assert ended.returncode == 0, ended.stderr
    assert checkpoints[:: expected - 1] == [0, 12]
    assert len(checkpoints) == expected


# ---- memory and disk


def test_a_full_disk_is_noticed_before_the_start_is_trained(script, monkeypatch):
    monkeypatch.setattr(progress.shutil, "disk_usage", lambda path: SimpleNamespace(free=1e6))
    monkeypatch.setattr(anchored, "anchored_maps", lambda *arguments: pytest.fail("trains"))
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


def test_the_disk_that_is_asked_for_is_what_is_used(script, tmp_path, monkeypatch):
    """Two checkpoints included: a new one is complete before the old one goes."""
    directory, most, checkpoint = tmp_path / "default/HMC-MNIST-quick", [0], Run.save_checkpoint

    def measure(self, *arguments, **arrays):
        checkpoint(self, *arguments, **arrays)
        sizes = [path.stat().st_size for path in directory.iterdir()]
        most[0] = max(most[0], sum(sizes) + (directory / "checkpoint.npz").stat().st_size)

    asked = []
    monkeypatch.setattr(
        record_module,
        "check_space",
        lambda directory, memory, disk, there: asked.append(disk - there),
    )
    monkeypatch.setattr(Run, "save_checkpoint", measure)
    arguments = ("--num_steps", 2, "--num_samples", 60, "--hidden_sizes", 32)
    process = script("MNIST_HMC", *FIXED, *arguments, "--checkpoint_seconds", 0.1)
    assert process.returncode == 0, process.stderr
    assert asked == [pytest.approx(most[0], rel=0.2)]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells its memory there")
def test_memory_does_not_grow_with_the_samples(script, monkeypatch):
    """80 of them would be 130 MB."""
    resident, add = [], ChainRecord.add

    def measure(self, *arguments):
        averages = add(self, *arguments)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident.append(pages * resource.getpagesize())
        return averages

    monkeypatch.setattr(ChainRecord, "add", measure)
    same = torch.full((10_000, 10), 0.1)
    monkeypatch.setattr(record_module, "class_probabilities", lambda *arguments: same)  # faster
    arguments = ("--hidden_sizes", 512, "--num_samples", 100, "--num_steps", 1)
    process = script("MNIST_HMC", *FIXED, *arguments, "--step_size", 1e-3)
    assert process.returncode == 0, process.stderr
    assert resident[-1] - resident[20] < 40e6
