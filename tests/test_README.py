"""Every command in README.md works as it stands there, made small by arguments put after it."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys

import reproduce
from MNIST_eval import EvalConfig
from papers.compact.tables import published_table1
from tests.conftest import (
    REPOSITORY,
    TOY,
    TOY_EVALUATION,
    TOY_PERMUTATIONS,
    TOY_POSTERIORS,
)
from tests.test_reproduce import Calls

import pytest

README = (REPOSITORY / "README.md").read_text()
# Those after the command win; `--config` and `--config_name` exclude each other.
SMALL = {name: (*TOY[2:], *given) for name, given in (TOY_POSTERIORS | TOY_PERMUTATIONS).items()}
SMALL |= {"MNIST_eval": TOY_EVALUATION, "MNIST_eval_pruning": ()}
SMALL["MNIST_HMC"] += ("--num_samples", "3", "--checkpoint_seconds", "0")


def commands() -> list[str]:
    """The lines of fenced blocks without a language, without their comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.M | re.S)
    lines = [
        line.split("  #")[0].strip()
        for language, block in blocks
        if not language
        for line in block.splitlines()
    ]
    return [line for line in lines if re.match(r"(python|make|torchrun|wandb|sbatch) ", line)]


def commands_of(*programs: str) -> list[str]:
    return [line for line in commands() if line.startswith(programs)]


SCRIPTS = [line for line in commands_of("python MNIST_")]
TORCHRUN = commands_of("torchrun")


@pytest.fixture
def as_user(tmp_path, evaluated, data_dir, monkeypatch):
    """A working directory with finished toy runs in runs/default, under the configs' own names."""
    runs = tmp_path / "runs" / "default"
    runs.mkdir(parents=True)
    for run in (evaluated / "default").iterdir():
        (runs / run.name).symlink_to(run)
    (runs / "HMC-MNIST-laptop").symlink_to(evaluated / "default" / "HMC-MNIST-quick")
    (tmp_path / "mine").symlink_to(evaluated / "default" / "HMC-MNIST-quick")
    (tmp_path / "data").symlink_to(data_dir)
    (tmp_path / "my.yaml").write_text("num_epochs: 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def small(script: str, arguments: list[str]) -> list[str]:
    """The arguments, and after them what makes the run small and keeps it in this directory."""
    wandb = "offline" if "--wandb_samples" in arguments else "disabled"
    places = ["--run_name", "readme", "--wandb", wandb, "--matmul", "default"]
    if "--data_dir" in arguments:
        places += ["--data_dir", "data"]
    if "FashionMNIST" in arguments:
        places += ["--dataset", "MNIST"]  # what is there without a network
    given = list(SMALL[script])
    for name in ("--hidden_sizes", "--num_chains"):  # what the command is about stays
        if name in arguments and name in given:
            at = given.index(name)
            del given[at : at + 2]
    if "--hidden_sizes" in arguments:
        arguments = ["8" if word == "512" else word for word in arguments]
    return [*arguments, *given, *places]


@pytest.mark.parametrize("command", SCRIPTS)
def test_scripts(command, as_user, monkeypatch, capsys):
    _, file, *arguments = shlex.split(command)
    script = file.removesuffix(".py")
    monkeypatch.setattr(sys, "argv", [file, *small(script, arguments)])
    runpy.run_path(str(REPOSITORY / file), run_name="__main__")
    assert "Saved in" in capsys.readouterr().out


def test_lines_that_draw_from_an_evaluation(as_user):
    (code,) = re.findall(r"^```python\n([^`]*load_compact[^`]*)^```", README, flags=re.M)
    where = as_user / "runs/default" / f"eval-MNIST-{EvalConfig().config_name}"
    where.symlink_to("eval-MNIST-quick")
    names = {}
    exec(code, names)
    assert len(names["networks"]) == 10
    assert not names["reversed_order"].mean.equal(names["q_r"].mean)
    assert names["reversed_order"].std.sort()[0].equal(names["q_r"].std.sort()[0])


@pytest.mark.parametrize("command", commands_of("make"))
def test_make_targets(command):
    """What make would do; CI does the targets themselves."""
    words = shlex.split(command)
    done = subprocess.run([words[0], "-n", *words[1:]], cwd=REPOSITORY, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", commands_of("python reproduce.py"))
def test_reproduce(command, as_user, monkeypatch, capsys):
    """Its plan and its report; the scripts that it would call are called above."""

    Calls().stand_in(monkeypatch)
    monkeypatch.setattr(sys, "argv", shlex.split(command)[1:])
    reproduce.main()
    assert "The report: runs/quick/report" in capsys.readouterr().out


def run_ranks(command: str, cwd) -> subprocess.Popen:
    words = shlex.split(command)
    at = words.index("MNIST_HMC.py")
    words[at] = str(REPOSITORY / words[at])
    launcher = [sys.executable, "-m", "torch.distributed.run", *words[1:at]]
    arguments = small("MNIST_HMC", words[at + 1 :])
    return subprocess.Popen([*launcher, *words[at : at + 1], *arguments], cwd=cwd, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


@pytest.mark.parametrize("command", TORCHRUN)
def test_torchrun(command, as_user):
    """On one node as it stands; of several nodes each is a launcher on this machine."""
    nodes = 2 if "--nnodes 2" in command else 1
    command = command.replace("--nproc-per-node 8", "--nproc-per-node 1")
    command = command.replace("first-node:29400", f"localhost:{29400 + os.getpid() % 1000}")
    launched = [run_ranks(command, as_user) for _ in range(nodes)]
    outputs = [process.communicate(timeout=300) for process in launched]
    assert all(process.returncode == 0 for process in launched), outputs
    assert sum("Saved in" in output for output, _ in outputs) == 1


def test_the_slurm_script(as_user):
    """With stand-ins for SLURM's two programs; torchrun and the script are real."""
    (script,) = re.findall(r"^```bash\n(#!.*?)^```", README, flags=re.M | re.S)
    script = script.replace("--nproc-per-node 2", "--nproc-per-node 1")
    script = script.replace("MNIST_HMC.py", shlex.quote(str(REPOSITORY / "MNIST_HMC.py")))
    added = shlex.join(small("MNIST_HMC", []))
    (as_user / "hmc.sh").write_text(script.replace("--resume", f"--resume {added}"))
    programs = as_user / "bin"
    programs.mkdir()
    stand_ins = {
        "srun": 'exec "$@"',
        "scontrol": "echo localhost",
        "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
    }
    for name, body in stand_ins.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost"}
    slurm["PATH"] = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "hmc.sh"], env=os.environ | slurm, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Saved in" in done.stdout


def test_nothing_in_readme_is_left_out():
    """Every command is of a kind that some test here, or the one named, runs."""
    assert len(commands()) > 25
    assert len(TORCHRUN) == 3
    elsewhere = ("python sweep.py", "wandb ", "python examples/")  # test_sweep, test_own_networks
    kinds = ("python MNIST_", "python reproduce.py", "make ", "torchrun ", *elsewhere)
    assert [line for line in commands() if not line.startswith(kinds)] == []
    mentioned = set(re.findall(r"`python (\w+)\.py`", README))
    assert mentioned <= {step.script for step in reproduce.STEPS}


TABLE1 = {
    "HMC, average of its samples: test accuracy (%)": ("hmc_sample", "sample_accuracy"),
    "networks drawn from q_d: agreement with HMC": ("hmc_direct", "agreement"),
    "networks drawn from q_r: agreement with HMC": ("hmc_rebased", "agreement"),
    "networks drawn from q_r: TV to HMC": ("hmc_rebased", "total_variation"),
    "networks drawn from q_r: test accuracy (%)": ("hmc_rebased", "sample_accuracy"),
    "the one network at μ_d: test accuracy (%)": ("hmc_direct", "mean_accuracy"),
    "the one network at μ_r: test accuracy (%)": ("hmc_rebased", "mean_accuracy"),
    "deep ensemble of 5: test accuracy (%)": ("ensemble_sample", "sample_accuracy"),
    "deep ensemble of 5: agreement with HMC": ("ensemble_sample", "agreement"),
    "its q_d: test accuracy (%)": ("ensemble_direct", "sample_accuracy"),
    "its q_r: test accuracy (%)": ("ensemble_rebased", "sample_accuracy"),
    "variational inference: test accuracy (%)": ("vi", "sample_accuracy"),
    "variational inference: agreement with HMC": ("vi", "agreement"),
    "the one network at its mean: test accuracy (%)": ("vi", "mean_accuracy"),
}  # a line of README each: column and row of the table


def laptop_numbers() -> dict:
    return json.loads((REPOSITORY / "results" / "laptop" / "numbers.json").read_text())


def table1_lines(numbers: dict) -> list[str]:
    lines = []
    for label, (column, row) in TABLE1.items():
        factor, digits = (100, 2) if row.endswith("accuracy") else (1, 3)
        paper, ours, error = (
            f"{factor * source[column][row]:.{digits}f}"
            for source in (published_table1("MNIST"), numbers["table1"], numbers["table1_errors"])
        )
        lines.append(f"| {label} | {paper} | {ours} ± {error} |")
    return lines


def barrier_lines(numbers: dict) -> list[str]:
    found = numbers["runs"]["net_matching"]["summary"]
    lines = []
    for alignment, label in (
        ("as is", "as it is"),
        ("by activation", "rebased by activation"),
        ("by weight", "rebased by weight"),
    ):
        numbers = found[alignment]
        loss, error = numbers["test_loss_barrier"], 100 * numbers["test_error_barrier"]
        transpositions = numbers["transpositions"] or "–"
        lines.append(f"| {label} | {loss:.3f} | {error:.2f} | {transpositions} |")
    return lines


@pytest.mark.parametrize("lines", [table1_lines, barrier_lines])
def test_numbers_are_those_of_the_committed_report(lines):
    for line in lines(laptop_numbers()):
        assert f"\n{line}\n" in README


SENTENCES = {
    ("transpositions", "trained"): (
        "differs by {mean_change:.1f} on average, by",
        "on average, by {max_change} at most |",
        "from {test_loss_barrier_at_least_planted:.3f} nats at NoT {least_planted} to",
        "to {test_loss_barrier_at_most_planted:.3f} at {most_planted}; rank",
        "; rank correlation {rank_correlation_planted_barrier:.3f} |",
    ),
    ("transpositions", "undone"): (
        "planted permutation undone | near zero | {mean_test_loss_barrier:.3f} nats on average |",
    ),
    ("net_matching", "by activation", "over_epochs"): (
        "NoT of that rebasin is {least_transpositions} to {most_transpositions} at every epoch",
        "(the largest left is {largest_test_loss_barrier:.2f} nats, after the",
    ),
}  # what README says of a run, where in its summary its numbers are


def said_of(numbers: dict) -> list[str]:
    """The sentences with these numbers in them."""
    said = []
    for (kind, *path), sentences in SENTENCES.items():
        found = numbers["runs"][kind]["summary"]
        for name in path:
            found = found[name]
        said += [sentence.format(**found).replace("-0.000", "0.000") for sentence in sentences]
    return said


def test_sentences_are_those_of_the_committed_report():
    numbers, readme = laptop_numbers(), " ".join(README.split())
    for sentence in said_of(numbers):
        assert sentence in readme
    rebased = numbers["runs"]["net_matching"]["summary"]["by activation"]
    assert rebased["over_epochs"]["epoch_of_largest"] == 1  # "after the first epoch"
