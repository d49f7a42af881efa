"""reproduce.py: scripts in order, what is left, one artefact alone, going on after failures."""

import json
import re
import subprocess
import sys

import reproduce
from tests.conftest import REPOSITORY

import pytest


class Calls:
    """Stand-ins for the scripts: each leaves a finished run, or fails."""

    def __init__(self, out_dir):
        self.out_dir, self.made, self.failing = out_dir, [], set()

    def leave(self, step, preset="quick", dataset="MNIST", seconds=60.0, finished=True):
        name = f"{step.kind}-{dataset}-{step.plans[preset].config}"
        directory = self.out_dir / preset / name
        directory.mkdir(parents=True, exist_ok=True)
        session = {
            "command": f"python {step.script}.py --resume", "git_commit": "0123456789",
            "git_uncommitted_changes": False, "python": "3.11", "versions": {"torch": "2"},
            "processor": "a CPU", "device": "cpu", "threads": 2,
        }  # fmt: skip
        meta = {"seconds": seconds, "peak_memory": 1e9, "matmul": "default", "sessions": [session]}
        (directory / "meta.json").write_text(json.dumps(meta))
        (directory / "config.yaml").write_text("seed: 0\n")
        if finished:
            (directory / "DONE").touch()

    def process(self, command):
        script = command[1].rsplit("/", 1)[-1].removesuffix(".py")
        step = next(step for step in reproduce.STEPS if step.script == script)
        self.made.append([script, *command[2:]])
        code = 2 if script in self.failing else 0
        preset, dataset = (
            command[command.index(name) + 1] for name in ("--run_batch_name", "--dataset")
        )
        self.leave(step, preset, dataset, finished=code == 0)
        return code

    def stand_in(self, monkeypatch):
        """Let these be called when a process is to be started."""
        calls = self

        class Process:
            def __init__(self, command):
                self.code = calls.process(command)

            def wait(self):
                return self.code

        monkeypatch.setattr(subprocess, "Popen", Process)


@pytest.fixture
def calls(monkeypatch, tmp_path):
    made = Calls(tmp_path / "runs")
    made.stand_in(monkeypatch)
    return made


@pytest.fixture
def call(monkeypatch, tmp_path):
    def run(*arguments):
        places = ["--out_dir", str(tmp_path / "runs"), "--results_dir", str(tmp_path / "results")]
        monkeypatch.setattr(sys, "argv", ["reproduce.py", *places, *arguments])
        reproduce.main()

    return run


def scripts(calls) -> list[str]:
    return [made[0] for made in calls.made]


def step_of(kind: str):
    return next(step for step in reproduce.STEPS if step.kind == kind)


def test_every_script_is_called_and_the_report_written(calls, call, tmp_path, capsys):
    call()
    assert scripts(calls) == [step.script for step in reproduce.STEPS]
    assert all({"--resume", "--run_batch_name"} < set(made) for made in calls.made)
    printed = capsys.readouterr().out
    count = len(reproduce.STEPS)
    assert f"[{count} of {count}] MNIST_eval_pruning" in printed
    assert printed.endswith(f"The report: {tmp_path / 'results/quick/report.html'}\n")
    assert (tmp_path / "results/quick/report.html").exists()


def test_what_is_finished_is_not_run_again(calls, call, capsys):
    call()
    calls.made.clear()
    call()
    assert calls.made == []
    assert capsys.readouterr().out.count("finished before") == len(reproduce.STEPS)


def test_time_left_follows_the_pace_of_what_is_finished(calls, call, capsys):
    """The ensemble took five times as long as planned, so everything will; HMC is half done."""
    planned = {step.kind: step.plans["quick"].seconds for step in reproduce.STEPS}
    calls.leave(step_of("ensemble"), seconds=5 * planned["ensemble"])
    calls.leave(step_of("HMC"), seconds=2.5 * planned["HMC"], finished=False)
    call("--only", "VI", "ensemble", "HMC")
    plan = capsys.readouterr().out.split("in total")[0]
    found = dict(re.findall(r"^(\w+) +(.+?)  ", plan, flags=re.M))
    assert reproduce.duration(5 * planned["VI"]) in found["MNIST_VI"]
    assert reproduce.duration(2.5 * planned["HMC"]) in found["MNIST_HMC"]
    assert "MNIST_Ensemble                              0 s  finished" in plan
    assert "begun" in plan


@pytest.mark.parametrize(
    ("artefact", "made"),
    [
        ("figure2", ["MNIST_net_matching"]),
        ("figure3", ["MNIST_net_matching", "MNIST_number_of_transpositions"]),
        ("table1", ["MNIST_Ensemble", "MNIST_VI", "MNIST_HMC", "MNIST_eval"]),
        ("figure5",
         ["MNIST_Ensemble", "MNIST_VI", "MNIST_HMC", "MNIST_eval", "MNIST_eval_pruning"]),
        ("report", []),
    ],
)  # fmt: skip
def test_one_artefact_is_made_with_what_it_needs(calls, call, artefact, made):
    call("--only", artefact)
    assert scripts(calls) == made


def test_a_failure_stops_only_what_needs_it(calls, call, capsys):
    calls.failing.add("MNIST_VI")
    with pytest.raises(SystemExit, match="MNIST_VI, MNIST_eval, MNIST_eval_pruning"):
        call()
    assert scripts(calls) == [
        "MNIST_Ensemble", "MNIST_VI", "MNIST_net_matching", "MNIST_number_of_transpositions",
        "MNIST_HMC",
    ]  # fmt: skip
    assert "MNIST_eval: left out, for it needs VI" in capsys.readouterr().err


def test_every_step_has_a_config_for_every_preset():
    for step in reproduce.STEPS:
        assert (REPOSITORY / f"{step.script}.py").exists()
        for preset in reproduce.PRESETS:
            config = step.plans[preset].config
            assert (REPOSITORY / "configs" / step.script / f"{config}.yaml").exists()


def test_ctrl_c_stops_after_the_script_that_got_it_whatever_its_exit_code(
    calls, call, monkeypatch, capsys
):
    answers = iter([KeyboardInterrupt, 1])

    def wait(process):
        answer = next(answers)
        if answer is KeyboardInterrupt:
            raise answer
        return answer

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(SystemExit) as ended:
        call()
    assert ended.value.code == 130
    assert len(calls.made) == 1
    assert "Run the same command again to go on" in capsys.readouterr().err
