"""What the tests share: the repository's data directory, and scripts run as a user runs them."""

import dataclasses
import gc
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from utils.data import datasets
from utils.data.datasets import load_dataset
from utils.methods import method
from utils.methods.hmc.record import ChainRecord

import pytest
import yaml
from matplotlib.figure import Figure
from PIL import Image

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The data directory, with MNIST in it."""
    folder = REPOSITORY / "data"
    load_dataset("MNIST", folder)
    return folder


@pytest.fixture(autouse=True)
def _blank_figures(request, monkeypatch):
    """Save blanks for figures unless a test is marked `figures`: drawing takes long."""
    if "figures" not in request.keywords:
        monkeypatch.setattr(Figure, "savefig", save_blank)


def save_blank(figure: Figure, file, format: str | None = None) -> None:
    Image.new("RGB", (8, 8)).save(file, format)


class Ended(NamedTuple):
    """How a script ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run_here(monkeypatch, capfd):
    """Run a script, the first of these words, to its end in this process, which is faster."""

    def run(words: Iterable) -> Ended:
        command = [str(word) for word in words]
        monkeypatch.setattr(sys, "argv", command)
        capfd.readouterr()
        code = 0
        try:
            runpy.run_path(command[0], run_name="__main__")
        except SystemExit as ended:
            code = ended.code or 0
        said = capfd.readouterr()
        if isinstance(code, str):  # as Python ends a process: the text goes to stderr
            return Ended(1, said.out, said.err + code)
        return Ended(code, *said)

    return run


@pytest.fixture
def script(tmp_path, data_dir, run_here):
    """Run `python <name>.py` with settings for tests."""
    return lambda name, *words: run_here(script_command(tmp_path, data_dir, name, *words)[1:])


@pytest.fixture
def few_test_images(monkeypatch):
    """Scripts that run in this process load 100 test images only."""

    def load(*arguments, **named):
        data = load_dataset(*arguments, **named)
        few = {"test_images": data.test_images[:100], "test_labels": data.test_labels[:100]}
        return dataclasses.replace(data, **few)

    for module in (datasets, method):
        monkeypatch.setattr(module, "load_dataset", load)


@pytest.fixture
def started_script(tmp_path, data_dir):
    """Start a script without waiting for it; whatever still runs is killed after the test."""
    processes = []

    def start(name: str, *arguments) -> subprocess.Popen:
        command = script_command(tmp_path, data_dir, name, *arguments)
        processes.append(
            subprocess.Popen(
                command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


TOY = ("--config_name", "quick", "--hidden_sizes", "10", "--num_train", "300")
# Runs of the smallest size that Table 1 and pruning can be made from.
TOY_POSTERIORS = {
    "MNIST_HMC": (
        "--num_chains", "2", "--num_samples", "8", "--num_burnin", "3", "--num_steps", "15",
        "--trajectory_length", "none", "--step_size", "0.003", "--anchored_epochs", "1",
        "--wandb", "offline",
    ),
    "MNIST_Ensemble": ("--num_members", "3", "--num_epochs", "5"),
    "MNIST_VI": ("--num_epochs", "5", "--num_draws", "2"),
}  # fmt: skip
TOY_PERMUTATIONS = {
    "MNIST_net_matching": ("--num_epochs", "2", "--num_fractions", "5"),
    "MNIST_number_of_transpositions": ("--num_epochs", "1", "--num_perm_exps", "3"),
}
TOY_EVALUATION = (
    "--num_draws", "10", "--num_match_images", "300", "--num_blocks", "4", "--rank", "20",
    "--num_bootstraps", "4", "--num_refits", "2", "--refit_draws", "2", "--num_references", "5",
    "--study_samples", "4", "--study_images", "100", "--further", "contribution",
    "consensus_repair_tau", "--further_refits", "2", "--consensus_images", "50",
    "--scale_draws", "2", "--num_pairs", "2", "--elbo_draws", "3", "--limit_draws", "20",
)  # fmt: skip


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory, data_dir) -> Path:
    """An out_dir with toy runs of HMC, ensemble and VI, and an evaluation of them."""
    out_dir = tmp_path_factory.mktemp("evaluated")
    steps = {name: (*TOY, *arguments) for name, arguments in TOY_POSTERIORS.items()}
    evaluation = ("--config_name", "quick", "--wandb", "offline", *TOY_EVALUATION)
    run_all(out_dir, data_dir, steps | {"MNIST_eval": evaluation})
    return out_dir


@pytest.fixture(scope="session")
def reproduced(evaluated, data_dir) -> Path:
    """The same out_dir with toy runs of all the other scripts as well."""
    steps = {name: (*TOY, *arguments) for name, arguments in TOY_PERMUTATIONS.items()}
    run_all(evaluated, data_dir, steps | {"MNIST_eval_pruning": ("--config_name", "quick")})
    return evaluated


def run_all(out_dir: Path, data_dir: Path, steps: dict[str, tuple]) -> None:
    for name, arguments in steps.items():
        with pytest.MonkeyPatch.context() as patch:
            command = script_command(out_dir, data_dir, name, *arguments)
            patch.setattr(sys, "argv", command[1:])
            runpy.run_path(command[1], run_name="__main__")


@pytest.fixture
def made_up_runs():
    """Leave finished runs at the points of a command of sweep.py, with these summaries."""
    import sweep  # not needed by most tests

    def make(command: list[str], summaries: Iterable[dict]) -> list[Path]:
        options = sweep.read_options(command[1:])
        points = sweep.plan_points(sweep.read_sweep(sweep.find_file(options.file)), options)
        for point, summary in zip(points, summaries, strict=False):
            point.directory.mkdir(parents=True)
            recorded = yaml.safe_dump(dataclasses.asdict(point.config))
            (point.directory / "config.yaml").write_text(recorded)
            (point.directory / "summary.json").write_text(json.dumps(summary))
            (point.directory / "meta.json").write_text('{"seconds": 75.0}')
            (point.directory / "DONE").touch()
        return [point.directory for point in points]

    return make


def script_command(out_dir: Path, data_dir: Path, name: str, *arguments) -> list[str]:
    common = ["--out_dir", out_dir, "--data_dir", data_dir, "--wandb", "disabled"]
    if name != "reproduce":  # whose steps have settings of their own
        common += ["--matmul", "default"]  # so that the same seed gives the same bits
    given = [str(argument) for argument in (*common, *arguments)]
    return [sys.executable, str(REPOSITORY / f"{name}.py"), *given]


@pytest.fixture(autouse=True)
def _no_wandb_from_outside(monkeypatch):
    """Tests log nowhere, whatever the user's own settings."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        if name != "WANDB_SERVICE":  # wandb's own: restored after a teardown it would be stale
            monkeypatch.delenv(name)


@pytest.fixture
def stopped_script(script, monkeypatch):
    """Run the script, ask it to stop in some step, and let go of its lock as a process does."""

    def run(in_step, *arguments):
        stop_if_asked, steps = ChainRecord.stop_if_asked, []

        def step(self):
            steps.append(1)
            self.run.stop_requested = len(steps) == in_step
            stop_if_asked(self)

        with monkeypatch.context() as patch:
            patch.setattr(ChainRecord, "stop_if_asked", step)
            stopped = script(*arguments)
        assert stopped.returncode == 130
        gc.collect()
        return stopped

    return run


def wait_for(path: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
