"""A wandb agent calls a script: wandb's own agent, with no server behind it, at toy size."""

import os
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.offline_runs import read_offline_run

import numpy as np
import pytest
from wandb.wandb_agent import Agent

ARGUMENTS = {
    "config_name": "quick", "hidden_sizes": [6, 5], "num_train": 200, "num_epochs": 1,
    "num_draws": 2, "matmul": "default", "initial_std": 0.1, "learning_rate": 1e-05,
    "wandb_samples": False,
}  # fmt: skip


@pytest.fixture
def agent_run(tmp_path, monkeypatch):
    """Let an agent run MNIST_VI.py as its sweep's server would tell it to, and wait for the end."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    for name, value in (
        ("DIR", str(tmp_path)), ("MODE", "offline"), ("SWEEP_ID", "s1"), ("PROJECT", "mine"),
        ("RUN_ID", ""), ("SWEEP_PARAM_PATH", ""),
    ):  # fmt: skip
        monkeypatch.setenv(f"WANDB_{name}", value)

    def run(run_id: str, **arguments) -> int:
        agent = Agent(api=None, queue=None)
        given = ARGUMENTS | {"out_dir": str(tmp_path), "data_dir": "data"} | arguments
        values = {name: {"value": value} for name, value in given.items()}
        command = {"type": "run", "run_id": run_id, "program": "MNIST_VI.py", "args": values}
        answer = agent._process_command(command)
        assert "exception" not in answer, answer
        return agent._run_processes[run_id].wait(timeout=120)

    return run


def test_runs_of_an_agent_join_its_sweep_and_keep_apart(agent_run, tmp_path):
    assert agent_run("r1") == 0
    assert agent_run("r2", initial_std=0.2, run_batch_name="monday") == 0
    first = tmp_path / "sweep-s1" / "VI-MNIST-quick-r1"
    second = tmp_path / "monday" / "VI-MNIST-quick-r2"
    told = read_offline_run(first)
    assert (told.start.run_id, told.start.sweep_id, told.start.project) == ("r1", "s1", "mine")
    assert (told.start.run_group, told.start.job_type) == ("sweep-s1", "VI")
    assert told.config["hidden_sizes"] == [6, 5]
    assert told.config["learning_rate"] == 1e-05
    assert set(told.axes.values()) == {"epoch"}
    assert told.summary["test_accuracy"] > 0
    assert read_offline_run(second).start.run_group == "monday"
    stds = [np.load(directory / "posterior.npz")["std"].mean() for directory in (first, second)]
    assert stds == pytest.approx([0.1, 0.2], rel=0.01)
