"""reproduce.py: scripts in order, what is left, one artefact alone, going on after failures."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import reproduce
from papers import COMPACT, RESNET, SYMMETRY
from papers.tasks import arguments_of, config_of, find_results
from tests.conftest import REPOSITORY
from utils.runs.files import read_mapping
from utils.runs.lookup import identify, run_directory
from utils.runs.script import STOPPED_BY_USER
from utils.settings import config as config_module
from utils.settings.errors import UserError

import pytest
import torch
import yaml


class Calls:
    """Stand-ins for the scripts: each leaves a finished run, or fails."""

    def __init__(self):
        self.made, self.failing, self.environments = [], set(), []

    def leave(self, step, arguments, seconds=60.0, finished=True):
        config = config_of(step, arguments)
        directory = run_directory(config, step.kind)
        if "--overwrite" in arguments:
            shutil.rmtree(directory)
        directory.mkdir(parents=True, exist_ok=True)
        before = read_mapping(directory / "meta.json", json.loads)
        session = {
            "command": f"python {step.script}.py --resume", "git_commit": "0123456789",
            "git_uncommitted_changes": False, "python": "3.11", "versions": {"torch": "2"},
            "processor": "a CPU", "device": "cpu", "threads": 2,
        }  # fmt: skip
        meta = {
            "wandb_id": before.get("wandb_id", os.urandom(6).hex()),
            "seconds": before.get("seconds", 0) + seconds,
            "inputs": {kind: identify(path) for kind, path in inputs_of(step, config).items()},
            "peak_memory": 1e9, "matmul": "default", "sessions": [session],
        }  # fmt: skip
        (directory / "config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(config)))
        (directory / "meta.json").write_text(json.dumps(meta))
        (directory / "DONE").unlink(missing_ok=True)
        if finished:
            (directory / "DONE").touch()

    def process(self, command):
        script = command[1].rsplit("/", 1)[-1].removesuffix(".py")
        step = next(
            step
            for step in reproduce.STEPS
            if step.script == script and set(step.arguments) <= set(command)
        )
        self.made.append([script, *command[2:]])
        code = 2 if script in self.failing else 0
        self.leave(step, command[2:], finished=code == 0)
        return code

    def stand_in(self, monkeypatch):
        """Let these be called when a process is to be started."""
        calls = self

        class Process:
            def __init__(self, command, **options):
                calls.environments.append(options.get("env"))
                self.code = calls.process(command)

            def wait(self):
                return self.code

            def terminate(self):
                self.code = -signal.SIGTERM

        monkeypatch.setattr(subprocess, "Popen", Process)


@pytest.fixture
def calls(monkeypatch):
    """Let one paper's scripts be called."""
    made = Calls()
    made.stand_in(monkeypatch)
    monkeypatch.setattr(reproduce, "PAPERS", (COMPACT,))
    return made


@pytest.fixture
def both(calls, monkeypatch):
    monkeypatch.setattr(reproduce, "PAPERS", (COMPACT, SYMMETRY))


@pytest.fixture
def options(monkeypatch, tmp_path):
    def read(*arguments):
        places = ["--out_dir", str(tmp_path / "runs")]
        monkeypatch.setattr(sys, "argv", ["reproduce.py", *places, *arguments])
        return reproduce.read_options()

    return read


@pytest.fixture
def call(options):
    def run(*arguments):
        options(*arguments)
        reproduce.main()

    return run


@pytest.fixture
def refused(call, capsys):
    """What is said where it ends with an error."""

    def run(*arguments) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            call(*arguments)
        assert ended.value.code == 2
        return capsys.readouterr().err

    return run


def inputs_of(step, config) -> dict[str, Path]:
    """Return the runs that a script is given, by kind; symmetry_mass.py takes several."""
    given = {kind: getattr(config, name) for name, kind in step.inputs}
    paths = {
        kind: Path(path[0] if isinstance(path, list) else path) for kind, path in given.items()
    }
    named = (text.split("=") for text in (config.posteriors if step.posteriors else ()))
    return paths | {kind: Path(path) for kind, path in named}


def scripts(calls) -> list[str]:
    return [made[0] for made in calls.made]


def step_of(kind: str):
    return next(step for step in reproduce.STEPS if step.kind == kind)


def test_every_script_is_called_and_the_report_written(calls, call, tmp_path, capsys):
    call()
    assert scripts(calls) == [step.script for step in COMPACT.steps]
    assert all({"--resume", "--run_batch_name"} < set(made) for made in calls.made)
    printed = capsys.readouterr().out
    count = len(COMPACT.steps)
    assert f"[{count} of {count}] MNIST_eval_pruning" in printed
    assert printed.endswith(f"The report: {tmp_path / 'runs/quick/report/report.html'}\n")
    assert (tmp_path / "runs/quick/report/report.html").exists()


def test_the_report_goes_elsewhere_on_request(calls, call, tmp_path):
    call("--results_dir", str(tmp_path / "results"))
    assert (tmp_path / "results/quick/report.html").exists()
    assert not (tmp_path / "runs/quick/report").exists()


def test_what_is_finished_is_not_run_again(calls, call, capsys):
    call()
    calls.made.clear()
    call()
    assert calls.made == []
    assert capsys.readouterr().out.count("finished before") == len(COMPACT.steps)


def test_time_left_follows_the_pace_of_what_is_finished(calls, call, options, capsys):
    """The ensemble took five times as long as planned, so everything will; HMC is half done."""
    planned = {step.kind: step.plans["quick"].seconds for step in COMPACT.steps}
    given = options()
    results = find_results(COMPACT, given.out_dir, "quick", "MNIST")
    for kind, share, finished in (("ensemble", 5, True), ("HMC", 2.5, False)):
        arguments = arguments_of(step_of(kind), results, {"out_dir": given.out_dir})
        calls.leave(step_of(kind), arguments, share * planned[kind], finished)
    call("--only", "VI", "ensemble", "HMC")
    printed = capsys.readouterr().out
    rest = reproduce.duration(5 * planned["VI"] + 2.5 * planned["HMC"])
    assert (
        f"[2 of 3] MNIST_VI: about {reproduce.duration(5 * planned['VI'])}; to the end {rest}"
        in (printed)
    )
    plan = printed.split("in total")[0]
    found = dict(re.findall(r"^(\w+) +(\S.*?)(?:  |$)", plan, flags=re.M))
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
    ],
)  # fmt: skip
def test_one_artefact_is_made_with_what_it_needs(calls, call, artefact, made):
    call("--only", artefact)
    assert scripts(calls) == made


def test_a_failure_stops_only_what_needs_it(calls, call, capsys):
    calls.failing.add("MNIST_VI")
    with pytest.raises(SystemExit):
        call()
    assert scripts(calls) == [
        "MNIST_Ensemble", "MNIST_VI", "MNIST_net_matching", "MNIST_number_of_transpositions",
        "MNIST_HMC",
    ]  # fmt: skip
    told = capsys.readouterr().err
    assert "MNIST_eval: left out, because it needs VI" in told
    assert "failed, see above: MNIST_VI, MNIST_eval, MNIST_eval_pruning" in told


def test_what_all_scripts_share_is_handed_on(calls, call):
    given = ["--dataset", "KMNIST", "--data_dir", "there", "--device", "cpu", "--wandb", "disabled"]
    call(*given)
    for made in calls.made:
        for option, value in zip(given[::2], given[1::2], strict=True):
            assert f"{option} {value} " in " ".join(made) + " "


def test_the_evaluation_reads_the_runs_of_the_report(calls, call, tmp_path):
    call()
    made = {script: arguments for script, *arguments in calls.made}
    batch = tmp_path / "runs" / "quick"
    for script, option, name in (
        ("MNIST_eval", "--hmc", "HMC-MNIST-quick"),
        ("MNIST_eval", "--ensemble", "ensemble-MNIST-quick"),
        ("MNIST_eval", "--vi", "VI-MNIST-quick"),
        ("MNIST_eval_pruning", "--eval", "eval-MNIST-quick"),
    ):
        assert made[script][made[script].index(option) + 1] == str(batch / name)


def test_other_data_have_a_report_of_their_own(calls, call, tmp_path, capsys):
    call()
    capsys.readouterr()
    before = (tmp_path / "runs/quick/report/report.html").read_bytes()
    call("--dataset", "FashionMNIST")
    assert "The times are for MNIST" in capsys.readouterr().out
    assert (tmp_path / "runs/quick/report/report.html").read_bytes() == before
    assert (tmp_path / "runs/quick/report-FashionMNIST/report.html").exists()


def test_papers_share_runs_and_a_report(calls, call, monkeypatch, tmp_path, capsys):
    """A second paper is one more entry of PAPERS; what both need is run once."""
    second = dataclasses.replace(
        COMPACT, name="second", heading="Second", steps=(step_of("VI"),),
        artefacts={"figure9": ("VI",)}, claims=(), sections=(), cautions=(), numbers={},
    )  # fmt: skip
    monkeypatch.setattr(reproduce, "PAPERS", (COMPACT, second))
    call("--paper", "compact", "second", "--only", "VI", "ensemble")
    assert scripts(calls) == ["MNIST_Ensemble", "MNIST_VI"]
    assert "[2 of 2] MNIST_VI" in capsys.readouterr().out
    report = (tmp_path / "runs/quick/report/report.html").read_text()
    assert ">Compact posterior of a Bayesian neural network: " in report
    assert ">Second: " in report


def test_a_report_shows_papers_that_have_runs_of_their_own(calls, both, call, tmp_path):
    report = tmp_path / "runs/quick/report/report.html"

    def shown() -> list[str]:
        return re.findall(r"<h1 id=(\w+)-top>", report.read_text())

    call("--only", "HMC")  # which both need
    assert shown() == ["compact"]
    call("--paper", "symmetry", "--only", "figure1")
    assert shown() == ["symmetry"]
    call("--only", "figure2")  # the first paper's, as both have one
    assert shown() == ["compact", "symmetry"]
    assert scripts(calls) == ["MNIST_HMC", "symmetry_toy", "MNIST_net_matching"]


def test_all_papers_are_run(calls, both, call, tmp_path, capsys):
    call("--only", "table1")
    made_before = len(calls.made)
    call("--paper", "symmetry", "--dataset", "FashionMNIST")
    # In the quick preset networks and chain of Table 1 are those of the other figures.
    runs = {(step.prefix or step.kind, step.plans["quick"].config): step for step in SYMMETRY.steps}
    steps = runs.values()
    assert scripts(calls)[made_before:] == [step.script for step in steps]
    arguments = {script: " ".join(words) for script, *words in calls.made[made_before:]}
    assert "--dataset gaussians " in arguments["symmetry_toy"]
    assert "--dataset FashionMNIST " in arguments["symmetry_mass"]
    batch = tmp_path / "runs" / "quick"
    networks, chain = batch / "sgd-FashionMNIST-networks_quick", batch / "HMC-FashionMNIST-quick"
    assert arguments["symmetry_marginals"].endswith(f"--posteriors sgd={networks} chain={chain}")
    assert (batch / "report-FashionMNIST" / "report.html").exists()
    call("--results_dir", str(tmp_path / "results"))
    assert (tmp_path / "results" / "quick" / "report.html").exists()
    assert scripts(calls).count("symmetry_toy") == 1  # it has data of its own
    assert scripts(calls).count("MNIST_Ensemble") == 2  # of two data sets, for both papers
    capsys.readouterr()
    call()
    finished = len(COMPACT.steps) + len(steps) - 2  # which both papers have
    assert capsys.readouterr().out.count("finished before") == finished
    numbers = json.loads((tmp_path / "results/quick/numbers.json").read_text())
    assert len(numbers["runs"]) == finished  # also where papers have runs of one kind


def test_unknown_papers_and_artefacts_are_refused(calls, both, refused, options):
    with pytest.raises(UserError, match="choose from 'compact', 'symmetry'"):
        options("--paper", "third")
    assert "have no artefact 'figure9': choose from table1, " in refused("--only", "figure9")
    assert "symmetry has no artefact" in refused("--paper", "symmetry", "--only", "figure5")
    assert calls.made == []


def test_a_report_of_nothing_is_refused(calls, refused, tmp_path):
    assert "There are no runs to report in" in refused("--only", "report")
    assert not (tmp_path / "runs/quick/report").exists()


@pytest.fixture
def configs(monkeypatch, tmp_path):
    """The configs, to be changed."""
    copied = tmp_path / "configs"
    shutil.copytree(config_module.CONFIG_ROOT, copied)
    monkeypatch.setattr(config_module, "CONFIG_ROOT", copied)
    return copied


def test_what_was_run_with_other_settings_is_run_anew_when_told(
    calls, call, refused, configs, capsys
):
    call()
    calls.made.clear()
    with open(configs / "MNIST_VI" / "quick.yaml", "a") as file:
        file.write("seed: 7\n")
    told = refused()
    assert "VI-MNIST-quick: seed was 0 and is 7" in told
    assert "eval-MNIST-quick: made from the old VI-MNIST-quick" in told
    assert "eval_pruning-MNIST-quick: made from the old eval-MNIST-quick" in told
    assert re.search(r"redo them: python reproduce.py --out_dir \S+ --overwrite\. ", told)
    assert calls.made == []
    call("--only", "report")  # which runs nothing
    call("--overwrite")
    assert scripts(calls) == ["MNIST_VI", "MNIST_eval", "MNIST_eval_pruning"]
    assert all(made[1] == "--overwrite" for made in calls.made)
    call()
    assert len(calls.made) == 3


def test_what_was_made_of_other_runs_is_run_anew_when_told(calls, call, refused, tmp_path, capsys):
    call()
    calls.made.clear()
    meta = tmp_path / "runs/quick/ensemble-MNIST-quick/meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"wandb_id": "of another start"}))
    assert "(eval-MNIST-quick: ensemble is another one now; eval_pruning" in refused()
    call("--only", "report")
    report = tmp_path / "runs/quick/report/report.html"
    told = "eval-MNIST-quick was made from other runs than those beside it: ensemble is another one"
    assert told in capsys.readouterr().out
    assert told in report.read_text()
    call("--overwrite")
    assert scripts(calls) == ["MNIST_eval", "MNIST_eval_pruning"]
    assert told not in report.read_text()


def test_a_run_that_was_deleted_is_made_anew_with_what_was_made_of_it(
    calls, call, refused, tmp_path
):
    call()
    calls.made.clear()
    shutil.rmtree(tmp_path / "runs/quick/VI-MNIST-quick")
    assert "eval-MNIST-quick: made from a deleted VI-MNIST-quick; eval_pruning" in refused()
    assert calls.made == []
    call("--overwrite")
    assert [made[:2] for made in calls.made] == [
        ["MNIST_VI", "--resume"], ["MNIST_eval", "--overwrite"],
        ["MNIST_eval_pruning", "--overwrite"],
    ]  # fmt: skip


def test_after_a_failure_the_same_command_makes_anew_what_is_left(calls, call, refused, configs):
    call()
    calls.made.clear()
    (configs / "MNIST_VI" / "quick.yaml").open("a").write("seed: 7\n")
    calls.failing.add("MNIST_VI")
    told = refused("--overwrite")
    assert scripts(calls) == ["MNIST_VI"]
    assert "MNIST_eval: left out, because it needs VI" in told
    assert "MNIST_eval_pruning: left out, because it needs eval" in told  # which is of the old VI
    calls.failing.clear()
    calls.made.clear()
    assert "eval-MNIST-quick: made from an unfinished VI-MNIST-quick" in refused()
    call("--overwrite")
    assert [made[:2] for made in calls.made] == [
        ["MNIST_VI", "--resume"], ["MNIST_eval", "--overwrite"],
        ["MNIST_eval_pruning", "--overwrite"],
    ]  # fmt: skip


def test_what_was_made_of_half_a_chain_is_made_anew_of_all(calls, call, refused, options):
    given = options()
    results = find_results(COMPACT, given.out_dir, "quick", "MNIST")
    for kind in ("HMC", "ensemble", "VI", "eval"):
        arguments = arguments_of(step_of(kind), results, {"out_dir": given.out_dir})
        calls.leave(step_of(kind), arguments, finished=kind != "HMC")
    assert "(eval-MNIST-quick: made from an unfinished HMC-MNIST-quick)" in refused()
    call("--only", "HMC")  # the chain goes on, and nothing is said to be made of it
    assert "(eval-MNIST-quick: HMC has gone on since)" in refused()
    call("--overwrite", "--only", "table1")
    assert [made[:2] for made in calls.made] == [
        ["MNIST_HMC", "--resume"], ["MNIST_eval", "--overwrite"],
    ]  # fmt: skip


def test_runs_are_the_same_wherever_they_lie(calls, call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    call("--out_dir", "runs")
    calls.made.clear()
    call("--out_dir", str(tmp_path / "runs"))
    (tmp_path / "runs").rename(tmp_path / "moved")
    call("--out_dir", "moved")
    assert calls.made == []


def test_what_can_be_added_to_is_gone_on_with(calls, call, configs, capsys):
    call("--only", "figure3")
    calls.made.clear()
    path = configs / "MNIST_number_of_transpositions" / "quick.yaml"
    path.write_text(path.read_text().replace("num_runs: 2", "num_runs: 5"))
    call("--only", "figure3")
    assert [made[:2] for made in calls.made] == [["MNIST_number_of_transpositions", "--resume"]]
    call("--only", "figure3")
    assert len(calls.made) == 1


def test_what_would_stop_a_later_step_is_found_before_the_first(calls, refused, configs, tmp_path):
    (tmp_path / "a_file").touch()
    for option in ("--out_dir", "--results_dir"):
        assert f"Give another {option}" in refused(option, str(tmp_path / "a_file"))
    assert "must be one of" in refused("--wandb", "maybe")
    assert "must be one of auto, cpu, cuda" in refused("--device", "gpu")
    (configs / "MNIST_eval_pruning" / "quick.yaml").write_text("kept_percnt: 3\n")
    assert "Unknown setting kept_percnt" in refused()
    (configs / "MNIST_eval_pruning" / "quick.yaml").write_text("sweep: {seed: [1, 2]}\n")
    assert "has a 'sweep', but a config describes one run" in refused()
    assert calls.made == []


def test_a_damaged_run_is_named(calls, call, refused, tmp_path):
    call()
    (tmp_path / "runs/quick/VI-MNIST-quick/config.yaml").write_text("{")
    assert "VI-MNIST-quick has a damaged config.yaml" in refused()


def test_resnets_are_refused_without_a_gpu(calls, refused, monkeypatch):
    monkeypatch.setattr(reproduce, "PAPERS", (COMPACT, SYMMETRY, RESNET))
    monkeypatch.setattr(reproduce, "choose_device", lambda name: torch.device("cpu"))
    said = refused("--preset", "paper")
    assert "train --method sgd, " in said
    assert "leave them out by --paper compact symmetry" in said
    assert "resnet has no quick preset" in refused("--paper", "resnet")
    assert calls.made == []


def test_resnets_are_trained_and_compared_on_a_gpu(calls, call, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(reproduce, "PAPERS", (COMPACT, SYMMETRY, RESNET))
    monkeypatch.setattr(reproduce, "STEPS", RESNET.steps)
    monkeypatch.setattr(reproduce, "choose_device", lambda name: torch.device("cuda"))
    call("--preset", "paper", "--paper", "resnet")
    assert scripts(calls) == [*["train"] * 5, "symmetry_diversity", "symmetry_table"]
    assert all("--dataset CIFAR100 " in " ".join(made) for made in calls.made)
    assert "--num_modes 100 --config_name resnet18" in " ".join(calls.made[0])
    batch = tmp_path / "runs" / "paper"
    assert f"--networks {batch}/sgd-CIFAR100-resnet18 " in " ".join(calls.made[-1])
    report = (batch / "report" / "report.html").read_text()
    assert re.findall(r"<h1 id=(\w+)-top>", report) == ["resnet"]
    capsys.readouterr()
    call("--preset", "paper", "--paper", "resnet")
    assert capsys.readouterr().out.count("finished before") == 7


def test_every_step_has_its_configs():
    assert reproduce.PRESETS == ("quick", "laptop", "paper")
    for step in reproduce.STEPS:
        assert (REPOSITORY / f"{step.script}.py").exists()
        for plan in step.plans.values():
            assert (REPOSITORY / "configs" / step.script / f"{plan.config}.yaml").exists()


def test_the_paper_preset_has_the_papers_bands():
    step = step_of("transpositions")
    single, bands = step.plans["laptop"], step.plans["paper"]
    assert bands.seconds == 5 * single.seconds
    folder = REPOSITORY / "configs" / step.script
    read = [yaml.safe_load((folder / f"{p.config}.yaml").read_text()) for p in (single, bands)]
    assert read[1] == read[0] | {"num_runs": 5}


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
    assert "Go on with: python reproduce.py --out_dir" in capsys.readouterr().err


def test_a_script_that_was_stopped_has_said_how_to_go_on(calls, call, monkeypatch, capsys):
    monkeypatch.setattr(calls, "process", lambda command: STOPPED_BY_USER)
    with pytest.raises(SystemExit) as ended:
        call()
    assert ended.value.code == 130
    assert "Go on with" not in capsys.readouterr().err
    environment = calls.environments[-1]
    assert environment["RESUME_COMMAND"].startswith("python reproduce.py --out_dir")


def test_sigterm_is_handed_on_and_stops_after_the_script(calls, call, monkeypatch, capsys):
    def wait(process):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        return process.code

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(SystemExit) as ended:
        call()
    assert ended.value.code == 130
    assert len(calls.made) == 1
    assert "Go on with" in capsys.readouterr().err


# ---- with real scripts


@pytest.fixture
def toy_copy(tmp_path):
    """The repository's code, in a place of its own, with a toy of a quick preset for VI."""
    for part in ("utils", "papers", "configs"):
        shutil.copytree(REPOSITORY / part, tmp_path / part, ignore=lambda *_: ["__pycache__"])
    for script in REPOSITORY.glob("*.py"):
        shutil.copy(script, tmp_path)
    config = tmp_path / "configs" / "MNIST_VI" / "quick.yaml"
    toy = {"hidden_sizes": [10], "num_train": 300, "num_epochs": 2, "num_draws": 2}
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | toy))
    return tmp_path


def test_a_real_run_its_repetition_and_their_report(toy_copy, data_dir):
    def reproduce_VI() -> str:
        command = [sys.executable, "reproduce.py", "--only", "VI", "--wandb", "disabled"]
        command += ["--data_dir", str(data_dir)]
        done = subprocess.run(command, cwd=toy_copy, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("The report: runs/quick/report/report.html\n")
        return done.stdout

    assert "Saved in runs/quick/VI-MNIST-quick" in reproduce_VI()
    left = toy_copy / "runs" / "quick" / "VI-MNIST-quick"
    written = (left / "meta.json").read_bytes()
    again = reproduce_VI()
    assert "[1 of 1] MNIST_VI: finished before" in again
    assert "Saved in" not in again
    assert (left / "meta.json").read_bytes() == written
    report = left.parent / "report"
    assert "num_train: 300" in (report / "report.html").read_text()
    numbers = json.loads((report / "numbers.json").read_text())
    assert numbers["runs"].keys() == {"VI"}
    summary = json.loads((left / "summary.json").read_text())
    assert numbers["runs"]["VI"]["summary"] == summary
