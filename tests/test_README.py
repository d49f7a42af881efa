"""Every command in README.md and docs/ works as it stands, made small by arguments after it."""

import argparse
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from statistics import fmean

import reproduce
from papers.compact.tables import published_table1
from tests.conftest import (
    REPOSITORY,
    TOY,
    TOY_EVALUATION,
    TOY_PERMUTATIONS,
    TOY_POSTERIORS,
    run_all,
)
from tests.test_reproduce import Calls
from utils.runs import script as script_module
from utils.runs.script import settings_for

import pytest
import torch
from torch.distributed.run import get_args_parser

README = (REPOSITORY / "README.md").read_text()
RESULTS = (REPOSITORY / "docs" / "results.md").read_text()
PAGES = [README, *(page.read_text() for page in sorted((REPOSITORY / "docs").glob("*.md")))]
# Those after the command win; `--config` and `--config_name` exclude each other.
SMALL = {name: (*TOY[2:], *given) for name, given in (TOY_POSTERIORS | TOY_PERMUTATIONS).items()}
SMALL |= {"MNIST_eval": TOY_EVALUATION}
SMALL["MNIST_HMC"] += ("--num_samples", "3", "--checkpoint_seconds", "0")
SMALL["train"] = (*TOY[2:], "--num_epochs", "4", "--num_pretrain_epochs", "1", "--num_draws", "2")
PROGRAMS = ("python", "make", "torchrun", "wandb", "sbatch")


class Parsed(Exception):
    """The script has accepted its command line."""


def commands() -> list[str]:
    """Return the lines of fenced blocks without a language, and what stands in backticks."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.M | re.S)
        lines = [line for language, block in blocks if not language for line in block.splitlines()]
        inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S))
        found += [line.split("  #")[0].strip() for line in (*lines, *inline)]
    words = (line.split() for line in dict.fromkeys(found))
    return [" ".join(line) for line in words if len(line) > 1 and line[0] in PROGRAMS]


def commands_of(*programs: str) -> list[str]:
    return [line for line in commands() if line.startswith(programs)]


def file_of(command: str) -> str:
    return command.split()[1]


PYTHON = commands_of("python ")
TORCHRUN = commands_of("torchrun ")
# Run here; other scripts, and those without arguments, are run by tests of their own.
RUN = [
    line
    for line in PYTHON
    if file_of(line)[:-3] in SMALL and len(line.split()) > 2
    if file_of(line) != "train.py" or "--method swag" in line
    # See test_MNIST_net_matching and test_MNIST_HMC_stops.
    if not any(network in line for network in ("lenet", "optunet"))
]


@pytest.fixture
def as_user(tmp_path, evaluated, data_dir, monkeypatch):
    """A working directory after `make reproduce`: finished toy runs in runs/quick."""
    for batch in ("quick", "default"):
        runs = tmp_path / "runs" / batch
        runs.mkdir(parents=True)
        for run in (evaluated / "default").iterdir():
            (runs / run.name).symlink_to(run)
    chain = evaluated / "default" / "HMC-MNIST-quick"
    for place in ("mine", "runs/default/HMC-MNIST-laptop-control"):
        (tmp_path / place).symlink_to(chain)
    (tmp_path / "data").symlink_to(data_dir)
    (tmp_path / "my.yaml").write_text("num_epochs: 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture(scope="session")
def trained_swag(tmp_path_factory, data_dir):
    """A run directory of SWAG on the network and images of the toy runs."""
    out_dir = tmp_path_factory.mktemp("swag")
    arguments = ("--method", "swag", "--config_name", "quick", *SMALL["train"])
    run_all(out_dir, data_dir, {"train": arguments})
    return out_dir / "default" / "SWAG-MNIST-quick"


@pytest.fixture
def swag(as_user, trained_swag):
    (as_user / "runs" / "quick" / "SWAG-MNIST-quick").symlink_to(trained_swag)


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


@pytest.mark.parametrize("command", PYTHON)
def test_settings_exist(command, as_user, monkeypatch):
    """The script reads its whole command line, and is stopped there."""
    _, file, *arguments = shlex.split(command)

    def stop_after(parse):
        def parse_and_stop(*given, **named):
            parse(*given, **named)
            raise Parsed

        return parse_and_stop

    if "\n    run_script(" in (REPOSITORY / file).read_text():
        monkeypatch.setattr(script_module, "load_config", stop_after(script_module.load_config))
    else:
        parser = argparse.ArgumentParser
        monkeypatch.setattr(parser, "parse_args", stop_after(parser.parse_args))
    monkeypatch.setattr(sys, "path", list(sys.path))  # examples add to it
    monkeypatch.setattr(sys, "argv", [file, *arguments])
    with pytest.raises(Parsed):
        runpy.run_path(str(REPOSITORY / file), run_name="__main__")


@pytest.mark.parametrize("command", RUN)
def test_scripts(command, as_user, swag, monkeypatch, capsys):
    _, file, *arguments = shlex.split(command)
    script = file.removesuffix(".py")
    monkeypatch.setattr(sys, "argv", [file, *small(script, arguments)])
    runpy.run_path(str(REPOSITORY / file), run_name="__main__")
    assert "Saved in" in capsys.readouterr().out


PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.M | re.S)
BLOCKS = [code for page in PAGES for code in PYTHON_BLOCK.findall(page)]
OWN = ("nets: your modules", "--out_dir of examples/own_networks.py")  # see test_own_networks
COMPLETE = [code for code in BLOCKS if not any(words in code for words in OWN)]


@pytest.mark.parametrize("number", range(len(COMPLETE)))
def test_lines_of_python_run(number, as_user):
    names = {}
    exec(COMPLETE[number], names)
    if "reversed_order" in names:
        assert (names["probabilities"].sum(1) - 1).abs().max() < 1e-9
        assert not names["reversed_order"].mean.equal(names["q_r"].mean)
        assert names["reversed_order"].std.sort()[0].equal(names["q_r"].std.sort()[0])


@pytest.mark.parametrize("command", commands_of("make"))
def test_make_targets(command):
    """What make would do; CI does the targets themselves."""
    words = shlex.split(command)
    done = subprocess.run([words[0], "-n", *words[1:]], cwd=REPOSITORY, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", commands_of("python reproduce.py"))
def test_reproduce(command, tmp_path, monkeypatch, capsys):
    """Its plan and its report; the scripts that it would call are called above."""
    monkeypatch.chdir(tmp_path)
    Calls().stand_in(monkeypatch)
    monkeypatch.setattr(sys, "argv", shlex.split(command)[1:])
    preset = re.search(r"--preset (\w+)|$", command)[1] or "quick"
    if preset == "paper":  # some of its steps need a GPU
        monkeypatch.setattr(reproduce, "choose_device", lambda name: torch.device("cuda"))
    reproduce.main()
    assert f"The report: runs/{preset}/report" in capsys.readouterr().out


@pytest.mark.parametrize("command", TORCHRUN)
def test_torchrun_reads_its_command_line(command, as_user):
    """The SLURM script below is run; this is about flags, of torchrun and the script."""
    launcher = get_args_parser().parse_args(shlex.split(command)[1:])
    settings_for(REPOSITORY / launcher.training_script, launcher.training_script_args)


def slurm_script(program: str) -> str:
    page = (REPOSITORY / "docs" / "scaling_out.md").read_text()
    (script,) = [
        text for text in re.findall(r"^```bash\n(#!.*?)^```", page, flags=re.M | re.S)
        if program in text
    ]  # fmt: skip
    return script


def test_the_slurm_array(as_user):
    """Two tasks of it share a toy run."""
    toy = "--hidden_sizes 8 --num_train 200 --num_epochs 2 --num_modes 3 --stack_size 1"
    common = "--config_name quick --wandb disabled --data_dir data"
    script = slurm_script("train.py").replace("--config_name optunet --num_modes 1000", common)
    (as_user / "networks.sh").write_text(f"{script.strip()} {toy}\n")
    (as_user / "bin").mkdir()
    program = as_user / "bin" / "python"
    program.write_text(f'#!/bin/bash\nexec "{sys.executable}" "{REPOSITORY}/$1" "${{@:2}}"\n')
    program.chmod(0o755)
    slurm = {"SLURM_CPUS_PER_TASK": "1", "PATH": f"{program.parent}:{os.environ['PATH']}"}
    tasks = [
        subprocess.Popen(
            ["bash", "networks.sh"], env=os.environ | slurm, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [task.communicate(timeout=300)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0]
    assert "".join(said).count("Saved in") == 1
    assert (as_user / "runs" / "default" / "sgd-MNIST-quick" / "DONE").exists()


def test_the_slurm_script(as_user):
    """With stand-ins for SLURM's two programs; torchrun and the script are real, on two nodes."""
    script = slurm_script("MNIST_HMC.py").replace(":29400", f":{29400 + os.getpid() % 1000}")
    script = script.replace("--nproc-per-node 2", "--nproc-per-node 1")
    script = script.replace("MNIST_HMC.py", shlex.quote(str(REPOSITORY / "MNIST_HMC.py")))
    added = shlex.join(small("MNIST_HMC", []))
    (as_user / "hmc.sh").write_text(script.replace("--resume", f"--resume {added}"))
    programs = as_user / "bin"
    programs.mkdir()
    stand_ins = {
        "srun": '"$@" & first=$!; "$@" && wait $first',
        "scontrol": "echo localhost",
        "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
    }
    for name, body in stand_ins.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost"}
    slurm["PATH"] = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "hmc.sh"], env=os.environ | slurm, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Saved in") == 1


def test_no_command_is_left_out():
    """Every command is of a kind that some test here, or test_readme_sweeps, runs."""
    assert len(commands()) > 45
    assert len(TORCHRUN) == 6
    assert set(commands_of("sbatch")) == {"sbatch hmc.sh", "sbatch networks.sh"}
    assert {line.split()[1] for line in commands_of("wandb")} <= {"sweep", "sync"}
    assert {step.script for step in reproduce.STEPS} <= {file_of(c)[:-3] for c in PYTHON}


def test_links_lead_somewhere():
    for page in [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_tree_has_every_package():
    tree = README.split("## Layout")[1]
    for folder in ("utils", "papers"):
        for package in (REPOSITORY / folder).glob("*/__init__.py"):
            assert f"\n  {package.parent.name}/ " in tree


def test_every_page_is_linked():
    for page in (REPOSITORY / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in README


TABLE1 = {
    "HMC, average of its samples: test accuracy (%)": ("hmc_sample", "sample_accuracy"),
    "networks drawn from q_d: agreement with HMC": ("hmc_direct", "agreement"),
    "networks drawn from q_r: agreement with HMC": ("hmc_rebased", "agreement"),
    "networks drawn from q_r: TV to HMC": ("hmc_rebased", "total_variation"),
    "networks drawn from q_r: test accuracy (%)": ("hmc_rebased", "sample_accuracy"),
    "networks drawn from q_r: NLL (nats)": ("hmc_rebased", "nll"),
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
        sources = (published_table1("MNIST"), numbers["table1"], numbers["table1_errors"])
        paper, ours, error = (
            f"{factor * source[column][row]:.{digits}f}" if row in source[column] else "–"
            for source in sources
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
        assert f"\n{line}\n" in README + RESULTS


def mass_lines(numbers: dict) -> list[str]:
    found, (lower, upper) = numbers["masses"], numbers["masses"]["clusters"]
    most = found["excess_quantiles"]
    modes = " and ".join(f"{100 * mode:.0f}" for mode in found["excess_modes"])
    return [
        f"150 → 113 | {lower['mass']:.0f} → {lower['minimum']:.0f} |",
        f"200 → 175 | {upper['mass']:.0f} → {upper['minimum']:.0f} |",
        f"1 to 58 | {100 * most[0]:.0f} to {100 * most[-1]:.0f} |",
        f"near 10 and 30 | {modes} |",
        f"ours ({found['networks']} networks)",
    ]


def sentences_on_quality(numbers: dict) -> list[str]:
    inside, outside, rho = (numbers["diversity"][n] for n in ("inside", "outside", "correlation"))
    (several,) = [c for c in numbers["claims"] if c["claim"].startswith("Posteriors with several m")
                  and "better" in c["claim"]]  # fmt: skip
    cases, better, worse = re.findall(
        r"of (\d+) scores in \d+ rows? (\d+) are clearly better and (\d+)", several["in_short"]
    )[0]
    gained = [100 * mean_gain(numbers["posteriors"], score) for score in ("accuracy", "aupr_in")]
    differ = [100 * spread_of_several(numbers["posteriors"], s) for s in ("accuracy", "aupr_in")]
    return [
        "beat one by {:.1f} points of accuracy and {:.1f} of AUPR on average".format(*gained),
        "differ by less: by at most {:.1f} and {:.1f} points".format(*differ),
        f"several modes are better than one in {better} of {cases} scores and worse in {worse}",
        f"information of {inside['mean']:.3f} nats on test images and {outside['mean']:.3f} on",
        f"(ρ = {rho['rho']:.2f}, {rho['low']:.2f} to {rho['high']:.2f})",
    ]


def mean_gain(rows: list[dict], score: str) -> float:
    """Return how much several modes gain beyond one, of methods with as many samples of both."""
    ones = {row["name"]: row for row in rows if row["modes"] == "one" and row["samples"] != 1}
    return fmean(
        row["scores"][score] - ones[row["name"]]["scores"][score]
        for row in rows
        if row["modes"] != "one" and row["samples"] == ones.get(row["name"], {}).get("samples", 0)
    )


def spread_of_several(rows: list[dict], score: str) -> float:
    """Return how much methods with several modes differ, plain networks included."""
    values = [
        row["scores"][score] for row in rows if row["modes"] != "one" and row["name"] != "hmc"
    ]
    return max(values) - min(values)


def sentences_on_posteriors(numbers: dict) -> list[str]:
    """Return what README advises about paper B, with the numbers of the report."""
    rows = {(row["name"], row["num_modes"]): row for row in numbers["posteriors"]}
    hmc, networks = rows["hmc", 10], rows["networks", 100]
    chain = numbers["runs"]["chain"]["summary"]["diagnostics"]
    counted = ("test_log_likelihood", "train_nll", "probability", "invariants")
    compact = numbers["gaussians"]["HMC"]["scales"]
    agreement = {name: fmean(each["q_r"]["agreement"]) for name, each in compact.items()}
    settings = numbers["runs"]["symmetry_compact"]["config"]
    power = numbers["runs"]["symmetry_table"]["summary"]["power"]["networks"]
    weights = (power[space]["means + 0.1 sd"] for space in ("weights", "canonical", "rebased"))
    assert all(share < 0.5 for share in weights)  # "in over half of the trials"
    orders, others = (
        json.loads((REPOSITORY / "results" / name / "correlations.json").read_text())["orders"]
        for name in ("optunet-1k", "mlp-MNIST")
    )
    units = orders["units"]
    hours = sum(run["seconds"] for run in numbers["runs"].values()) / 3600
    steps = [step for step in reproduce.STEPS if "laptop" in step.plans]
    plans = {step.kind: step.plans["laptop"].seconds for step in steps}  # papers share some
    planned = sum(plans.values()) / 3600
    apart, none = (hmc["distances"]["hmc"][space]["value"] for space in ("weights", "rebased"))
    return [
        f"R-hat at most {max(chain[name]['largest_rhat'] for name in counted):.3f});",
        f"(MMD² {apart:.2f}); without symmetries there is no difference (−{-none:.3f})",
        f"matched by {settings['matching']} and with {settings['num_draws']} draws, agreement of "
        f"q_r with HMC is {agreement['minimum mass']:.2f} without scales instead of "
        f"{agreement['as they are']:.2f}.",
        f"by a total variation of {networks['beside']['hmc']['total_variation']:.3f}, a hundred "
        f"samples of another chain by {hmc['beside']['hmc']['total_variation']:.3f}",
        f"as HMC does (τ = {orders['total_variation']['tau']:.2f}), less so by predictions of "
        f"single samples (τ = {orders['inside']['tau']:.2f}), and by sets of hidden units not "
        f"reliably (τ = {units['tau']:.2f}, −{-units['low']:.2f} to {units['high']:.2f}).",
        f"nearly reversed (τ = −{-others['units']['tau']:.2f})",
        f"took {hours:.0f} hours together instead of {planned:.1f}",
    ]


def test_numbers_of_paper_b_are_those_of_the_committed_report():
    report = REPOSITORY / "results" / "laptop" / "numbers.json"
    numbers, page = json.loads(report.read_text()), " ".join(README.split())
    for sentences in (mass_lines, sentences_on_quality, sentences_on_posteriors):
        for line in sentences(numbers):
            assert line in page


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
}  # what the pages say about a run, by where its numbers are in its summary


def sentences_about(numbers: dict) -> list[str]:
    """Return the sentences with these numbers in them."""
    sentences = []
    for (kind, *path), templates in SENTENCES.items():
        found = numbers["runs"][kind]["summary"]
        for name in path:
            found = found[name]
        filled = (template.format(**found) for template in templates)
        sentences += [sentence.replace("-0.000", "0.000") for sentence in filled]
    return sentences + advice(numbers["table1"])


def advice(table: dict) -> list[str]:
    """Return what README advises about q_d and q_r, with the numbers of Table 1."""
    direct, rebased, samples = (table[f"hmc_{name}"] for name in ("direct", "rebased", "sample"))
    return [
        f"rises from {direct['agreement']:.2f} to {rebased['agreement']:.2f}",
        f"{100 * rebased['sample_accuracy']:.1f} % accurate with an NLL of {rebased['nll']:.2f};",
        f"samples are {100 * samples['sample_accuracy']:.1f} % accurate with {samples['nll']:.2f}.",
        f"the expected calibration error {rebased['ece']:.2f}",
    ]


def test_sentences_are_those_of_the_committed_report():
    numbers, pages = laptop_numbers(), " ".join((README + RESULTS).split())
    for sentence in sentences_about(numbers):
        assert sentence in pages
    rebased = numbers["runs"]["net_matching"]["summary"]["by activation"]
    assert rebased["over_epochs"]["epoch_of_largest"] == 1  # "after the first epoch"
