"""What wandb is told, read back from offline runs."""

import json
from dataclasses import dataclass, replace

from tests.offline_runs import read_offline_run
from utils.networks.mlp import MLP
from utils.runs import wandb_run
from utils.runs.run import open_run
from utils.settings.config import Config, option
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class ToyConfig(Config):
    step_size: float = option(0.1, "")


@pytest.fixture
def config(tmp_path):
    return ToyConfig(out_dir=str(tmp_path), wandb="offline", run_batch_name="monday", seed=5)


def test_an_offline_run_holds_what_it_should(config, capsys):
    run = open_run(config, "toy", torch.device("cpu"))
    run.log(epoch=1, loss=2.5, accuracy=0.5)
    run.log(epoch=2, loss=1.5, accuracy=0.75)
    run.log_records("scores", [{"network": "a", "accuracy": 0.5}])
    run.save_figure("curve", Figure())
    run.save_array("samples.npy", np.ones((2, 3)))
    same_names = {"scores": {"a": 0.5}, "curve": 3}  # as tables and figures have
    run.finish({"test_accuracy": 0.875, **same_names})
    told = read_offline_run(run.directory)
    assert f"wandb sync '{told.directory}'" in capsys.readouterr().out
    assert (told.start.run_group, told.start.job_type) == ("monday", "toy")
    assert told.start.display_name == run.directory.name
    assert told.start.run_id == run.meta["wandb_id"]
    assert (told.config["seed"], told.config["step_size"]) == (5, 0.1)
    logged = [(row["epoch"], row["loss"], row["accuracy"]) for row in told.rows if "loss" in row]
    assert logged == [(1, 2.5, 0.5), (2, 1.5, 0.75)]
    assert told.axes == {"loss": "epoch", "accuracy": "epoch"}
    assert told.table("scores") == (["network", "accuracy"], [["a", 0.5]])
    assert told.images["curve"].read_bytes() == run.path("curve.png").read_bytes()
    assert told.summary["test_accuracy"] == 0.875
    assert {name: told.summary[name] for name in same_names} == same_names
    assert "weights" not in told.artifacts
    assert "samples.npy" not in told.files


def test_samples_go_to_wandb_if_they_are_asked_for(config, capsys):
    run = open_run(replace(config, wandb_samples=True), "toy", torch.device("cpu"))
    run.save_array("samples.npy", np.ones((2, 3)))
    MLP((2, 1)).save(run.path("network.json"))
    run.save_array("quantities.npy", np.ones(3))
    run.finish({})
    told = read_offline_run(run.directory)
    assert sorted(told.artifacts["weights"]) == ["network.json", "samples.npy"]
    assert "no weights" not in capsys.readouterr().out


def test_samples_that_cannot_go_to_wandb_are_said_to_stay(config, capsys):
    config = replace(config, wandb_samples=True)
    open_run(config, "toy", torch.device("cpu")).finish({})
    assert "leaves no weights that could go to wandb" in capsys.readouterr().out
    with pytest.raises(UserError, match="--wandb_samples needs wandb"):
        open_run(replace(config, wandb="disabled", run_name="b"), "toy", torch.device("cpu"))


def test_the_last_session_of_a_resumed_offline_run_holds_the_whole_run(config):
    """For of several sessions of a run `wandb sync` keeps the last."""
    run = open_run(config, "toy", torch.device("cpu"))
    run.log(epoch=1, loss=2.5)
    run.save_checkpoint({"epoch": 1})
    run.log(epoch=2, loss=9.0)  # after the checkpoint: is logged again
    run._wandb.close()
    run._lock.close()
    resumed = open_run(replace(config, resume=True), "toy", torch.device("cpu"))
    resumed.load_checkpoint()
    resumed.log(epoch=2, loss=1.5)
    resumed.finish({})
    first, last = (read_offline_run(run.directory, session) for session in (0, 1))
    assert [row["loss"] for row in first.rows] == [2.5, 9.0]
    assert [(row["epoch"], row["loss"]) for row in last.rows] == [(1, 2.5), (2, 1.5)]
    assert last.axes == {"loss": "epoch"}
    assert first.start.run_id == last.start.run_id
    assert (first.exit_code, last.exit_code) == (130, 0)


def test_metrics_are_complete_without_wandb(tmp_path):
    config = ToyConfig(out_dir=str(tmp_path), wandb="disabled")
    run = open_run(config, "toy", torch.device("cpu"))
    run.log(epoch=1, loss=2.5)
    run.log_records("scores", [{"network": "a"}])
    run.finish({})
    assert json.loads(run.path("metrics.jsonl").read_text()) == {"epoch": 1, "loss": 2.5}
    assert not run.path("wandb").exists()


def test_logged_in_is_known_from_environment_or_netrc(tmp_path, monkeypatch):
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not wandb_run.logged_in()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password 0123")
    assert wandb_run.logged_in()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not wandb_run.logged_in()
    monkeypatch.setenv("WANDB_API_KEY", "0123")
    assert wandb_run.logged_in()


@pytest.fixture
def _server_that_does_not_answer(monkeypatch):
    """A user who is logged in to a port on which nobody listens."""
    monkeypatch.setenv("WANDB_API_KEY", 40 * "0")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(wandb_run, "ANSWER_TIMEOUT", 1)


@pytest.mark.usefixtures("_server_that_does_not_answer")
def test_auto_says_that_it_goes_offline_where_wandb_does_not_answer(tmp_path, capfd):
    config = ToyConfig()
    mode = wandb_run.choose_mode(config)
    run = wandb_run.start(config, "toy", tmp_path, "abcdef", mode)
    run.log({"epoch": 1, "loss": 2.5})
    run.close()
    assert "logging offline instead" in capfd.readouterr().err
    assert len(read_offline_run(tmp_path).rows) == 1


@pytest.mark.usefixtures("_server_that_does_not_answer")
def test_online_where_wandb_does_not_answer_is_an_error(tmp_path):
    with pytest.raises(UserError, match="--wandb offline"):
        wandb_run.start(ToyConfig(wandb="online"), "toy", tmp_path, "abcdef", "online")


def test_nothing_is_logged_to_wandb_without_being_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert wandb_run.choose_mode(ToyConfig()) == "disabled"
    assert wandb_run.choose_mode(ToyConfig(wandb="offline")) == "offline"
    with pytest.raises(UserError, match="--wandb_samples needs wandb"):
        wandb_run.choose_mode(ToyConfig(wandb_samples=True))
    monkeypatch.setenv("WANDB_API_KEY", "0123")
    assert wandb_run.choose_mode(ToyConfig()) == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert wandb_run.choose_mode(ToyConfig()) == "offline"
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    with pytest.raises(UserError, match="WANDB_MODE is 'sometimes'; it must be one of online"):
        wandb_run.choose_mode(ToyConfig())
