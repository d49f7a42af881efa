"""What wandb is told: an offline run, read back from the file that `wandb sync` would send."""

import json
import struct
import time
from dataclasses import dataclass

from utils import wandb_log
from utils.config import Config, UserError, option
from utils.runs import open_run

import pytest
import torch
from wandb.proto.wandb_internal_pb2 import Record


@dataclass(frozen=True, kw_only=True)
class ToyConfig(Config):
    step_size: float = option(0.1, "")


def read_records(path) -> list[Record]:
    """Records of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    content, position, parts, records = path.read_bytes(), 7, b"", []
    while position + 7 <= len(content):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(parts))
            parts = b""
    return records


def complete_records(directory) -> list[Record]:
    """The records of a run; wandb's service may write on for a moment after the run's end."""
    (file,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        records = read_records(file)
        if any(r.WhichOneof("record_type") == "exit" for r in records):
            return records
        time.sleep(0.05)
    raise AssertionError(f"{file} was not completed")


@pytest.fixture
def offline_run(tmp_path, capsys):
    config = ToyConfig(out_dir=str(tmp_path), wandb="offline", run_batch_name="monday", seed=5)
    run = open_run(config, "toy", torch.device("cpu"))
    run.log(epoch=1, loss=2.5, accuracy=0.5)
    run.log(epoch=2, loss=1.5, accuracy=0.75)
    run.log_table("scores", ["network", "accuracy"], [["a", 0.5]])
    run.finish({"test_accuracy": 0.875})
    assert f"wandb sync '{run.directory}'" in capsys.readouterr().out
    return run


def test_an_offline_run_holds_what_it_should(offline_run):
    records = complete_records(offline_run.directory)
    (start,) = [r.run for r in records if r.WhichOneof("record_type") == "run"]
    assert (start.run_group, start.job_type) == ("monday", "toy")
    assert start.display_name == offline_run.directory.name
    config = {item.key: json.loads(item.value_json) for item in start.config.update}
    assert config["seed"] == 5
    assert config["step_size"] == 0.1

    rows = [
        {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json)
         for item in r.history.item}
        for r in records if r.WhichOneof("record_type") == "history"
    ]  # fmt: skip
    assert [(r["epoch"], r["loss"], r["accuracy"]) for r in rows if "loss" in r] == [
        (1, 2.5, 0.5),
        (2, 1.5, 0.75),
    ]
    assert any("scores" in row for row in rows)
    axes = {r.metric.name: r.metric.step_metric for r in records if r.HasField("metric")}
    assert axes["loss"] == axes["accuracy"] == "epoch"
    summary = {
        item.key: json.loads(item.value_json)
        for r in records if r.HasField("summary") for item in r.summary.update
    }  # fmt: skip
    assert summary["test_accuracy"] == 0.875


def test_metrics_are_complete_without_wandb(tmp_path):
    config = ToyConfig(out_dir=str(tmp_path), wandb="disabled")
    run = open_run(config, "toy", torch.device("cpu"))
    run.log(epoch=1, loss=2.5)
    run.log_table("scores", ["network"], [["a"]])
    run.finish({})
    assert json.loads(run.path("metrics.jsonl").read_text()) == {"epoch": 1, "loss": 2.5}
    assert not run.path("wandb").exists()


def test_logged_in_is_known_from_environment_or_netrc(tmp_path, monkeypatch):
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not wandb_log.logged_in()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password 0123")
    assert wandb_log.logged_in()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not wandb_log.logged_in()
    monkeypatch.setenv("WANDB_API_KEY", "0123")
    assert wandb_log.logged_in()


@pytest.fixture
def _server_that_does_not_answer(monkeypatch):
    """A user who is logged in to a port on which nobody listens."""
    monkeypatch.setenv("WANDB_API_KEY", 40 * "0")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(wandb_log, "ANSWER_TIMEOUT", 3)


@pytest.mark.usefixtures("_server_that_does_not_answer")
def test_auto_says_that_it_goes_offline_where_wandb_does_not_answer(tmp_path, capfd):
    run = wandb_log.start(ToyConfig(), "toy", tmp_path, "abcdef")
    run.log({"epoch": 1, "loss": 2.5})
    run.close()
    assert "logging offline instead" in capfd.readouterr().err
    rows = [r for r in complete_records(tmp_path) if r.WhichOneof("record_type") == "history"]
    assert len(rows) == 1


@pytest.mark.usefixtures("_server_that_does_not_answer")
def test_online_where_wandb_does_not_answer_is_an_error(tmp_path):
    with pytest.raises(UserError, match="--wandb offline"):
        wandb_log.start(ToyConfig(wandb="online"), "toy", tmp_path, "abcdef")


def test_an_impossible_mode_in_the_environment_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    with pytest.raises(UserError, match="WANDB_MODE is 'sometimes'; it must be one of online"):
        wandb_log.start(ToyConfig(), "toy", tmp_path, "abcdef")
