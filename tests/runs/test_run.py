"""Run directories: whole files, resuming, refusing, and what is said of errors."""

import json
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from utils.runs import run as runs
from utils.runs.compute import MatmulMeasurement
from utils.runs.files import save_json
from utils.runs.lookup import PastRun, run_directory
from utils.runs.run import already_finished, begin, open_run
from utils.runs.script import Finished, Stopped
from utils.settings.config import Config, option
from utils.settings.errors import UserError

import pytest
import torch

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class ToyConfig(Config):
    step_size: float = option(0.1, "")
    num_runs: int = option(1, "", may_grow=True)


@pytest.fixture
def config(tmp_path):
    return ToyConfig(out_dir=str(tmp_path), wandb="disabled")


def records(run) -> list[dict]:
    return [json.loads(line) for line in run.path("metrics.jsonl").read_text().splitlines()]


def die(run) -> None:
    """Let go of a run as the kernel does for a process that was killed."""
    run._lock.close()


def test_a_finished_run_has_all_its_files(config):
    run = open_run(config, "toy", CPU)
    assert run.directory == Path(config.out_dir) / "default" / "toy-MNIST-paper"
    run.log(epoch=1, loss=0.5)
    run.save_array("samples.npy", torch.ones(2, 3))
    run.save_checkpoint({"epoch": 1}, weights=torch.ones(3))
    run.finish({"accuracy": 0.9})
    names = {path.name for path in run.directory.iterdir()}
    expected = {"config.yaml", "meta.json", "metrics.jsonl", "samples.npy", "summary.json", "DONE"}
    assert names == expected | {".lock"}
    assert records(run) == [{"epoch": 1, "loss": 0.5}]
    assert json.loads(run.path("summary.json").read_text()) == {"accuracy": 0.9}
    meta = json.loads(run.path("meta.json").read_text())
    assert {"sessions", "seconds", "core_seconds", "peak_memory", "matmul"} <= set(meta)
    assert {"command", "git_commit", "versions", "host", "threads"} <= set(meta["sessions"][0])


def test_core_seconds_are_those_of_all_sessions_ranks_and_parts(config, monkeypatch):
    clock = iter([100.0, 103.0, 7.0, 7.0, 9.0])  # begun, written; begun, written, finished
    monkeypatch.setattr("utils.runs.run.time.process_time", lambda: next(clock))
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = open_run(config, "toy", CPU)
    assert PastRun(run.directory).core_seconds == 2 * 3
    part = run.directory / "mode-000"
    part.mkdir()
    assert PastRun(run.directory).core_seconds is None  # what the part took is not known yet
    run._lock.close()
    run = open_run(replace(config, resume=True), "toy", CPU)
    run.record_parts(core_seconds=40.0)
    run.finish({})
    assert PastRun(run.directory).core_seconds == 2 * (3 + 2) + 40


def test_names_of_run_and_batch_are_in_the_path(config):
    named = replace(config, run_name="again", run_batch_name="monday", dataset="KMNIST")
    directory = run_directory(named, "HMC")
    assert directory == Path(config.out_dir) / "monday" / "HMC-KMNIST-paper-again"


def test_resume_tells_the_counters_that_its_caller_names(config, capsys):
    run = open_run(config, "toy", CPU)
    run.save_checkpoint({"round": 2, "epoch": 5, "first_mode": 7})
    die(run)
    run = open_run(replace(config, resume=True), "toy", CPU)
    run.load_checkpoint("round", "epoch", "groups")
    assert capsys.readouterr().out == f"Resuming {run.directory} after round 2, epoch 5\n"


def test_resume_goes_on_from_the_checkpoint_and_drops_later_records(config):
    run = open_run(config, "toy", CPU)
    run.log(epoch=1)
    run.save_checkpoint({"epoch": 1}, weights=torch.arange(3.0))
    run.log(epoch=2)
    die(run)
    run = open_run(replace(config, resume=True), "toy", CPU)
    counters, tensors = run.load_checkpoint(weights=(3,))
    assert counters == {"epoch": 1}
    assert torch.equal(tensors["weights"], torch.arange(3.0))
    run.log(epoch=2)
    assert records(run) == [{"epoch": 1}, {"epoch": 2}]
    run.finish({})
    assert len(json.loads(run.path("meta.json").read_text())["sessions"]) == 2


def test_a_run_may_end_right_after_it_was_resumed_time_and_again(config):
    run = open_run(config, "toy", CPU)
    run.log(epoch=1)
    run.save_checkpoint({"epoch": 1})
    run.log(epoch=2)
    for _ in range(3):
        die(run)
        run = open_run(replace(config, resume=True), "toy", CPU)
        assert run.load_checkpoint()[0] == {"epoch": 1}
        run.save_checkpoint({"epoch": 1})
    assert records(run) == [{"epoch": 1}]


def test_resume_before_the_first_checkpoint_starts_with_empty_records(config):
    run = open_run(config, "toy", CPU)
    run.log(epoch=1)
    die(run)
    run = open_run(replace(config, resume=True), "toy", CPU)
    assert run.load_checkpoint(weights=(3,)) is None
    assert records(run) == []


def test_resume_without_an_earlier_run_starts_one(config):
    run = open_run(replace(config, resume=True), "toy", CPU)
    assert run.load_checkpoint() is None


def test_resume_of_a_finished_run_has_nothing_to_do(config, capsys):
    open_run(config, "toy", CPU).finish({})
    assert open_run(replace(config, resume=True), "toy", CPU).finished
    assert "finished already" in capsys.readouterr().out


def test_a_finished_run_goes_on_if_more_of_it_is_asked_for(config):
    run = open_run(config, "toy", CPU)
    run.log(epoch=1)
    run.finish({})
    with pytest.raises(UserError, match="holds a finished run: give --resume to go on with it"):
        open_run(replace(config, num_runs=2), "toy", CPU)
    run = open_run(replace(config, resume=True, num_runs=2), "toy", CPU)
    assert (run.finished, run.finished_config["num_runs"]) == (False, 1)
    assert run.load_checkpoint() is None
    run.log(epoch=2)
    assert run.path("DONE").exists()  # until there is something to go on with
    run.save_checkpoint({"epoch": 2})
    assert not run.path("DONE").exists()
    assert records(run) == [{"epoch": 1}, {"epoch": 2}]
    die(run)
    with pytest.raises(UserError, match=r"\(num_runs was 2 and is 1\)"):
        open_run(replace(config, resume=True), "toy", CPU)
    run = open_run(replace(config, resume=True, num_runs=2), "toy", CPU)
    assert run.load_checkpoint()[0] == {"epoch": 2}


@pytest.fixture
def _put_matmul_back():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


SPEEDS = {"default": 1.0, "onednn": 2.0}


@pytest.mark.usefixtures("_put_matmul_back")
def test_a_resumed_run_keeps_the_matmul_it_was_begun_with(config, monkeypatch):
    measured = {name: MatmulMeasurement(gflops, 0.0) for name, gflops in SPEEDS.items()}
    monkeypatch.setattr(runs.compute, "measure_matmuls", lambda: measured)
    run = open_run(replace(config, matmul="auto"), "toy", CPU)
    die(run)
    for asked in ("auto", "default"):
        torch.set_float32_matmul_precision("highest")
        run = open_run(replace(config, resume=True, matmul=asked), "toy", CPU)
        assert run.meta["matmul"] == "onednn"
        assert torch.get_float32_matmul_precision() == "medium"
        die(run)


def test_a_runs_record_says_what_it_is(config):
    run = open_run(config, "toy", CPU, num_train=300)
    run.save_json("network.json", {"sizes": [4, 3, 2]})
    run.save_checkpoint({"epoch": 1})
    run = PastRun(run.directory)
    assert run.meta["kind"] == "toy"
    assert run.meta["network"] == {"sizes": [4, 3, 2]}
    assert run.meta["data"] == {"name": "MNIST", "num_train": 300}


def test_a_run_of_an_earlier_version_goes_on(config):
    run = open_run(config, "toy", CPU)
    run.save_checkpoint({"epoch": 1})
    meta = json.loads(run.path("meta.json").read_text())
    for new in ("kind", "network", "data"):
        del meta[new]
    save_json(run.path("meta.json"), meta)
    die(run)
    run = open_run(replace(config, resume=True), "toy", CPU)
    assert run.load_checkpoint()[0] == {"epoch": 1}
    assert run.meta["kind"] == "toy"


def test_what_is_there_is_not_touched(config):
    run = open_run(config, "toy", CPU)
    die(run)
    with pytest.raises(UserError, match="holds a begun run: give --resume"):
        open_run(config, "toy", CPU)
    open_run(replace(config, resume=True), "toy", CPU).finish({})
    with pytest.raises(UserError, match="holds a finished run: give another --run_name, or --over"):
        open_run(config, "toy", CPU)


def test_a_run_of_other_settings_is_not_touched_and_they_are_named(config):
    run = open_run(config, "toy", CPU)
    other = replace(config, step_size=0.2, seed=7)
    with pytest.raises(UserError, match=r"begun run of other settings \(seed was 0 and is 7, st"):
        die(run) or open_run(other, "toy", CPU)
    open_run(replace(config, resume=True), "toy", CPU).finish({})
    with pytest.raises(UserError, match=r"finished run of other .*: give another --run_name"):
        open_run(other, "toy", CPU)


def test_what_is_finished_or_refused_is_known_before_the_data_are(config, capsys):
    assert not already_finished(config, "toy")
    open_run(config, "toy", CPU, {"HMC": {"run": "a"}}).finish({})
    resumed = replace(config, resume=True)
    with pytest.raises(UserError, match="holds a finished run"):
        already_finished(config, "toy")
    with pytest.raises(UserError, match="was begun with other runs"):
        already_finished(resumed, "toy", {"HMC": {"run": "b"}})
    capsys.readouterr()
    assert already_finished(resumed, "toy", {"HMC": {"run": "a"}})
    assert "finished already" in capsys.readouterr().out
    with pytest.raises(Finished):
        begin(resumed, "toy", {"HMC": {"run": "a"}})
    assert begin(replace(config, overwrite=True, device="cpu"), "toy") == CPU
    assert not already_finished(replace(resumed, num_runs=2), "toy", {"HMC": {"run": "a"}})
    assert not already_finished(replace(config, overwrite=True), "toy")


def test_overwrite_replaces_the_run(config):
    run = open_run(config, "toy", CPU)
    run.save_json("old.json", {})
    run.finish({})
    fresh = open_run(replace(config, overwrite=True), "toy", CPU)
    assert not fresh.finished
    assert not fresh.path("old.json").exists()


@pytest.mark.parametrize("way", [{}, {"resume": True}, {"overwrite": True}])
def test_what_no_run_has_made_is_spared(config, way):
    directory = run_directory(config, "toy")
    directory.mkdir(parents=True)
    (directory / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"has thesis\.tex, but no config\.yaml"):
        open_run(replace(config, **way), "toy", CPU)
    assert [path.name for path in directory.iterdir()] == ["thesis.tex"]


def test_overwriting_that_was_cut_off_can_go_on(config, monkeypatch):
    """What is left of the earlier run still is one's, by its config.yaml."""
    run = open_run(config, "toy", CPU)
    run.save_json("a.json", {})
    run.save_json("z.json", {})
    die(run)
    unlink, done = Path.unlink, []

    def cut_off(path, **settings):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(path)
        unlink(path, **settings)

    monkeypatch.setattr(Path, "unlink", cut_off)
    with pytest.raises(KeyboardInterrupt):
        open_run(replace(config, overwrite=True), "toy", CPU)
    monkeypatch.undo()
    assert not open_run(replace(config, overwrite=True), "toy", CPU).path("z.json").exists()


def test_resume_with_a_changed_config_names_the_fields(config):
    die(open_run(config, "toy", CPU))
    changed = replace(config, resume=True, step_size=0.2, data_dir="elsewhere")
    with pytest.raises(UserError, match=r"\(step_size was 0.1 and is 0.2\)"):
        open_run(changed, "toy", CPU)


def test_a_second_process_is_kept_out(config):
    run = open_run(config, "toy", CPU)
    with pytest.raises(UserError, match="Another process is working in"):
        open_run(replace(config, resume=True), "toy", CPU)
    assert not run.finished


def test_a_checkpoint_of_another_network_is_refused(config):
    run = open_run(config, "toy", CPU)
    run.save_checkpoint({"epoch": 1}, weights=torch.ones(5))
    with pytest.raises(UserError, match=r"another network: weights has the shape \(5,\)"):
        run.load_checkpoint(weights=(7,))


def test_a_damaged_checkpoint_is_said_to_be_so(config):
    run = open_run(config, "toy", CPU)
    run.save_checkpoint({"epoch": 1}, weights=torch.ones(500))
    whole = run.path("checkpoint.npz").read_bytes()
    for damaged in (whole[:300], b"", b"PK" + b"\0" * 300):
        run.path("checkpoint.npz").write_bytes(damaged)
        with pytest.raises(UserError, match=r"is damaged .*--overwrite"):
            run.load_checkpoint(weights=(500,))


@pytest.mark.parametrize("name", ["meta.json", "config.yaml"])
@pytest.mark.parametrize("content", ["", "{", "a: [", "7"])
def test_damaged_files_of_a_run_are_said_to_be_so(config, name, content):
    run = open_run(config, "toy", CPU)
    die(run)
    run.path(name).write_text(content)
    with pytest.raises(UserError, match=rf"{name} is damaged: move .* away and run it again"):
        open_run(replace(config, resume=True), "toy", CPU)


def test_records_that_were_cut_off_are_noticed(config):
    run = open_run(config, "toy", CPU)
    run.log(epoch=1)
    run.save_checkpoint({"epoch": 1})
    run.path("metrics.jsonl").write_text("{")
    with pytest.raises(UserError, match=r"metrics.jsonl is missing or damaged"):
        run.load_checkpoint()


def test_what_a_killed_process_left_half_written_is_removed(config):
    run = open_run(config, "toy", CPU)
    die(run)
    run.path(".checkpoint.npz.4711.tmp").write_bytes(b"half")
    open_run(replace(config, resume=True), "toy", CPU)
    assert not run.path(".checkpoint.npz.4711.tmp").exists()


@pytest.mark.parametrize(
    "what", ["device", "processor", "threads", "processes", "versions", "compiler"]
)
def test_a_resumed_run_tells_what_is_other_than_before(config, capsys, what):
    run = open_run(config, "toy", CPU)
    meta = json.loads(run.path("meta.json").read_text())
    die(run)
    meta["sessions"][0][what] = 99
    save_json(run.path("meta.json"), meta)
    other = next(name for name in runs.compute.CANDIDATES if name != meta["matmul"])
    open_run(replace(config, resume=True, matmul=other), "toy", CPU)
    printed = capsys.readouterr().out
    assert f"Resuming with other {what}: equal to rounding, not to the bit." in printed
    assert f"The run was begun with matmul {meta['matmul']} and keeps it." in printed


def test_stopping_saves_first_and_ctrl_c_after_that_stops_at_once(config, capsys):
    run, before = open_run(config, "toy", CPU), signal.getsignal(signal.SIGINT)
    with run.graceful_stop():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert run.stop_requested
        with pytest.raises(Stopped):
            run.save_checkpoint({"epoch": 3})
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert run.load_checkpoint()[0] == {"epoch": 3}
    assert signal.getsignal(signal.SIGINT) is before
