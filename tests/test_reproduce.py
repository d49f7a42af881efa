"""reproduce.py: scripts in order, results beside the paper's, going on after failures."""

import json
import subprocess
import sys

import reproduce
from tests.conftest import REPOSITORY

import pytest


@pytest.fixture
def called(monkeypatch, tmp_path):
    """Let reproduce.py call a stand-in for each script, which leaves a summary or fails."""
    calls, failing = [], set()

    class Process:
        def __init__(self, command):
            script = command[1].rsplit("/", 1)[-1].removesuffix(".py")
            calls.append([script, *command[2:]])
            self.code = 2 if script in failing else 0
            step = next(step for step in reproduce.STEPS if step.script == script)
            directory = tmp_path / "quick" / f"{step.kind}-MNIST-quick"
            if self.code == 0:
                directory.mkdir(parents=True)
                scores = {"test_accuracy": 0.9123, "mean_test_accuracy": 0.8}
                (directory / "summary.json").write_text(json.dumps(scores))

        def wait(self):
            return self.code

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "--out_dir", str(tmp_path)])
    return calls, failing


def test_every_script_is_called_and_compared(called, capsys):
    calls, _ = called
    reproduce.main()
    assert [call[0] for call in calls] == [step.script for step in reproduce.STEPS]
    assert all({"--resume", "--run_batch_name"} < set(call) for call in calls)
    printed = capsys.readouterr().out
    assert "ensemble, average of members     91.23 %   98.66 %" in printed
    assert "VI, network at the mean          80.00 %   98.04 %" in printed


def test_a_failure_is_reported_and_does_not_stop_the_rest(called, capsys):
    calls, failing = called
    failing.add("MNIST_Ensemble")
    with pytest.raises(SystemExit, match="Failed, see above: MNIST_Ensemble"):
        reproduce.main()
    assert len(calls) == len(reproduce.STEPS)
    assert "ensemble, average of members     not run   98.66 %" in capsys.readouterr().out


def test_every_step_has_a_config_for_every_preset():
    for step in reproduce.STEPS:
        assert (REPOSITORY / f"{step.script}.py").exists()
        for preset in reproduce.PRESETS:
            assert (REPOSITORY / "configs" / step.script / f"{step.configs[preset]}.yaml").exists()


def test_ctrl_c_stops_after_the_script_that_got_it_whatever_its_exit_code(
    called, monkeypatch, capsys
):
    calls, _ = called
    answers = iter([KeyboardInterrupt, 1])

    def wait(process):
        answer = next(answers)
        if answer is KeyboardInterrupt:
            raise answer
        return answer

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(SystemExit) as ended:
        reproduce.main()
    assert ended.value.code == 130
    assert len(calls) == 1
    assert "Run the same command again to go on" in capsys.readouterr().err
