"""sweep.py as a user runs it: real runs at toy size, and sweeps whose runs have been made up."""

import dataclasses
import json
import signal
import subprocess
import sys

import sweep
from tests.conftest import REPOSITORY, wait_for
from utils.runs.locks import lock_directory
from utils.runs.points import Point
from utils.settings.errors import UserError
from utils.settings.sweeps import read_sweep

import pytest
import yaml

TOY = {
    "config_name": {"value": "quick"}, "hidden_sizes": {"value": [6]}, "num_train": {"value": 200},
    "num_epochs": {"value": 2}, "num_draws": {"value": 2}, "matmul": {"value": "default"},
}  # fmt: skip

TRAINED = {"config_name": {"value": "quick"}, "hidden_sizes": {"value": [6]}}


@pytest.fixture
def command(tmp_path, data_dir):
    """The command that sweeps these parameters, besides those of a toy run."""

    def make(
        parameters: dict, *arguments, program="MNIST_VI.py", fixed=TOY, **changed
    ) -> list[str]:
        metric = {"name": "test_accuracy", "goal": "maximize"}
        content = {"program": program, "method": "grid", "metric": metric}
        content |= {"parameters": fixed | parameters} | changed
        file = tmp_path / "mine.yaml"
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        common = ("--out_dir", tmp_path, "--data_dir", data_dir, "--wandb", "disabled")
        given = [str(argument) for argument in (file, *common, *arguments)]
        return [str(REPOSITORY / "sweep.py"), *given]

    return make


def plan(command: list[str]) -> list[Point]:
    options = sweep.read_options(command[1:])
    return sweep.plan_points(read_sweep(sweep.find_file(options.file)), options)


def results(tmp_path) -> dict:
    return json.loads((tmp_path / "mine" / "sweep-mine" / "sweep.json").read_text())


# ---- with real runs


@pytest.mark.figures
def test_runs_side_by_side_with_one_that_fails(command, run_here, tmp_path):
    given = command({"learning_rate": {"values": [0.0001, 1e30, 0.02]}}, "--jobs", 2)
    done = run_here(given)
    assert done.returncode == 1, done.stderr
    assert "1 of 3 runs failed: python sweep.py" in done.stderr
    batch = tmp_path / "mine"
    rates = ("0.0001", "1e+30", "0.02")
    slow, diverged, fast = (batch / f"VI-MNIST-quick-learning_rate={rate}" for rate in rates)
    accuracies = [
        json.loads((directory / "summary.json").read_text())["test_accuracy"]
        for directory in (slow, fast)
    ]
    assert accuracies[0] < accuracies[1]
    assert not (diverged / "DONE").exists()
    assert "learning_rate=1e+30 failed: MNIST_VI: Training diverged in epoch 1" in done.stdout
    assert "test_accuracy is a test score" in done.stdout
    found = results(tmp_path)
    assert [r["settings"]["learning_rate"] for r in found["runs"]] == [0.0001, 1e30, 0.02]
    assert [r["value"] for r in found["runs"]] == [accuracies[0], None, accuracies[1]]
    assert [r["finished"] for r in found["runs"]] == [True, False, True]
    assert [r["directory"] for r in found["runs"]] == [slow.name, diverged.name, fast.name]
    table = done.stdout[done.stdout.index("learning_rate  test_accuracy (maximize)") :]
    assert [line.split()[0] for line in table.splitlines()[1:4]] == ["0.02", "0.0001", "1e+30"]
    assert (batch / "sweep-mine" / "sweep.png").stat().st_size > 10_000
    assert "Saved in" in (batch / "sweep-mine" / "learning_rate=0.02.log").read_text()


def test_ctrl_c_lets_runs_save_their_work_and_the_same_command_goes_on(command, run_here, tmp_path):
    epochs = {"num_epochs": {"value": 800}}  # several seconds, with a checkpoint after one
    given = command(epochs | {"seed": {"values": [1, 2]}}, "--num_runs", 1)
    process = subprocess.Popen(
        [sys.executable, *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    directory = tmp_path / "mine" / "VI-MNIST-quick-seed=1"
    try:
        wait_for(directory / "checkpoint.npz", process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "Stopped. Go on with: python sweep.py" in said
    assert "--num_runs 1" in said.splitlines()[-1]
    assert not (directory / "DONE").exists()
    epoch = len((directory / "metrics.jsonl").read_text().splitlines())
    log = tmp_path / "mine" / "sweep-mine" / "seed=1.log"
    assert "Stopped. Go on with" in log.read_text()
    done = run_here(given)
    assert done.returncode == 0, done.stderr
    assert f"Resuming {directory} after epoch {epoch}\n" in log.read_text()
    assert results(tmp_path)["runs"][0]["finished"]


# ---- with runs that have been made up


def test_the_table_has_the_best_first(command, run_here, made_up_runs, tmp_path):
    given = command(
        {"seed": {"values": [1, 2, 3]}, "activation": {"values": ["relu", "tanh"]}},
        metric={"name": "a.b", "goal": "minimize"},
    )
    values = [0.5, 0.25, None, 3.0, 0.125, 7.0]
    made_up_runs(given, [{"a": {"b": value}, "c": 1} for value in values])
    done = run_here(given)
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.index("seed  activation  a.b (minimize)") :].splitlines()
    rows = [line.split() for line in table[1:7]]
    assert rows[0] == ["3", "relu", "0.125", "1", "min", "15", "s"]
    assert [row[2] for row in rows] == ["0.125", "0.25", "0.5", "3", "7", "none"]
    assert results(tmp_path)["varied"] == ["seed", "activation"]
    assert "is a test score" not in done.stdout


def test_random_points_are_runs_of_their_own(command, run_here, made_up_runs, tmp_path):
    rate = {"distribution": "log_uniform_values", "min": 0.001, "max": 0.1}
    given = command({"learning_rate": rate}, "--num_runs", 4, "--seed", 7, method="random")
    directories = made_up_runs(given, [{"test_accuracy": k / 10} for k in range(4)])
    assert len(set(directories)) == 4
    done = run_here(given)
    assert "4 runs of MNIST_VI.py, 4 of them finished already" in done.stdout
    assert not list((tmp_path / "mine" / "sweep-mine").glob("*.log"))  # nothing was started
    assert all(0.001 <= r["settings"]["learning_rate"] <= 0.1 for r in results(tmp_path)["runs"])


def test_a_batch_and_fixed_settings_come_from_the_file_unless_given(command):
    parameters = {"seed": {"values": [1, 2]}, "run_batch_name": {"value": "monday"}}
    for arguments, batch in (((), "monday"), (("--run_batch_name", "friday"), "friday")):
        point, _ = plan(command(parameters, *arguments))
        assert point.config.run_batch_name == batch
        assert point.config.seed == 1
        assert point.config.hidden_sizes == [6]
        assert point.directory.name == "VI-MNIST-quick-seed=1"
        assert "--resume" in point.arguments


def test_train_is_swept_with_the_settings_of_each_points_method(command):
    given = command({"method": {"values": ["vi", "sgd"]}}, program="train.py", fixed=TRAINED)
    vi, sgd = (point.directory.name for point in plan(given))
    assert vi == "VI-MNIST-quick-method=vi"
    assert sgd == "sgd-MNIST-quick-method=sgd"


def test_a_script_of_your_own_is_swept_as_soon_as_it_has_settings(command, monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "ROOT", tmp_path)
    monkeypatch.setattr("utils.settings.config.CONFIG_ROOT", tmp_path)
    code = "from utils.settings.config import Config as CONFIG\n\nKIND = 'own'\n"
    (tmp_path / "mine.py").write_text(code)
    given = command({"seed": {"values": [1]}}, program="mine.py", fixed={})
    with pytest.raises(UserError, match="must be one of"):
        plan(given)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "paper.yaml").touch()
    assert plan(given)[0].directory.name == "own-MNIST-paper-seed=1"


@pytest.mark.parametrize("fixed", [{}, {"method": {"value": "none"}}])
def test_a_sweep_of_train_must_name_a_method_that_exists(command, fixed):
    given = command({"seed": {"values": [1]}}, program="train.py", fixed=TRAINED | fixed)
    with pytest.raises(UserError, match=r"mine\.yaml, seed=1: .* method.*laplace"):
        plan(given)


def test_a_run_that_was_begun_with_other_settings_is_no_point(command, run_here, made_up_runs):
    made_up_runs(command({"seed": {"values": [1]}}), [{"test_accuracy": 0.5}])
    done = run_here(command({"seed": {"values": [1]}, "num_epochs": {"value": 3}}))
    assert done.returncode == 2
    assert "seed=1 was begun with other settings (num_epochs was 2 and is 3)" in done.stderr
    assert "another --run_batch_name" in done.stderr


def test_a_run_of_other_inputs_is_no_point(command):
    fixed = {"hmc": {"value": "runs/a"}, "vi": {"value": "none"}}
    given = command({"seed": {"values": [1]}}, program="MNIST_eval.py", fixed=fixed)
    (point,) = plan(given)
    point.directory.mkdir(parents=True)
    recorded = dataclasses.asdict(point.config) | {"hmc": "runs/b"}
    (point.directory / "config.yaml").write_text(yaml.safe_dump(recorded))
    with pytest.raises(UserError, match="hmc was runs/b and is runs/a"):
        plan(given)


def test_a_finished_run_of_which_more_is_asked_for_goes_on(command, tmp_path):
    """Numbers of runs, such as these, may grow."""

    def point(num_runs: int) -> Point:
        fixed = {"config_name": {"value": "quick"}, "num_runs": {"value": num_runs}}
        program = "MNIST_number_of_transpositions.py"
        return plan(command({"seed": {"values": [1]}}, program=program, fixed=fixed))[0]

    directory = point(2).directory
    directory.mkdir(parents=True)
    recorded = dataclasses.asdict(point(2).config)
    (directory / "config.yaml").write_text(yaml.safe_dump(recorded))
    (directory / "summary.json").write_text('{"test_accuracy": 1}')
    (directory / "DONE").touch()
    assert [point(2).finished, point(3).finished] == [True, False]
    with pytest.raises(UserError, match="num_runs was 2 and is 1"):
        point(1)


def test_a_metric_that_is_not_there_is_said_with_those_that_are(command, run_here, made_up_runs):
    metric = {"name": "accuracy"}
    given = command({"seed": {"values": [1, 2]}}, metric=metric)
    made_up_runs(given, [{"test_accuracy": 0.5, "a": {"b": 1}}] * 2)
    done = run_here(given)
    assert done.returncode == 2
    assert "has no number 'accuracy', the metric of" in done.stderr
    assert "but test_accuracy, a.b. Name one of them" in done.stderr


def test_the_metric_may_be_the_last_value_of_one_that_is_logged(
    command, run_here, made_up_runs, tmp_path
):
    given = command({"seed": {"values": [1, 2]}}, metric={"name": "elbo", "goal": "maximize"})
    directories = made_up_runs(given, [{"kl": 1.0}] * 2)
    for directory, values in zip(directories, [(-9, -5), (-8, -7)], strict=True):
        records = [{"epoch": epoch, "elbo": value} for epoch, value in enumerate(values)]
        (directory / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    done = run_here(given)
    assert done.returncode == 0, done.stderr
    assert [run["value"] for run in results(tmp_path)["runs"]] == [-5, -7]


def test_two_sweeps_of_a_name_do_not_run_at_once(command, run_here, made_up_runs, tmp_path):
    given = command({"seed": {"values": [1]}})
    made_up_runs(given, [{"test_accuracy": 0.5}])
    (tmp_path / "mine" / "sweep-mine").mkdir()
    with lock_directory(tmp_path / "mine" / "sweep-mine"):
        done = run_here(given)
    assert done.returncode == 2
    assert "Another process is working in" in done.stderr
    assert "another --run_batch_name" in done.stderr
    assert run_here(given).returncode == 0


@pytest.mark.parametrize(
    ("parameters", "changed", "sentence"),
    [
        ({"lerning_rate": {"values": [1, 2]}}, {}, "nearest there is: --learning_rate"),
        ({"num_epochs": {"values": [1, 0]}}, {}, "yaml, num_epochs=0: --num_epochs must be at"),
        ({"seed": {"values": [1, 1]}}, {}, "has a point twice: seed=1"),
        ({"seed": {"values": [1]}}, {"program": "VI.py"}, "program in"),
        ({"seed": {"values": [1]}}, {"program": "reproduce.py"}, "MNIST_VI.py, "),
        ({"config_name": {"values": ["x"]}}, {}, "There is no config 'x' for MNIST_VI"),
    ],
)  # fmt: skip
def test_mistakes_are_said_before_any_run(
    command, run_here, tmp_path, parameters, changed, sentence
):
    done = run_here(command(parameters, **changed))
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "The following arguments are required: FILE"),
        (["missing.yaml"], "There is no sweep file missing.yaml"),
        (["x.yaml", "--jobs", "0"], "--jobs and --num_runs must be at least 1, and --seed"),
        (["x.yaml", "--num_runs", "0"], "--jobs and --num_runs must be at least 1, and --seed"),
        (["x.yaml", "--jobs", "two"], "--jobs: invalid int value: 'two'"),
        (["x.yaml", "--job", "2"], "Unrecognized arguments: --job 2"),
    ],
)
def test_mistakes_on_the_command_line(run_here, arguments, sentence):
    done = run_here([str(REPOSITORY / "sweep.py"), *arguments])
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs" / "sweeps").glob("*.yaml")))
def test_our_sweep_files_suit_their_scripts(path):
    """All settings known and possible, for every point; found by name as well as by path."""
    points = plan(["sweep.py", str(path)])
    assert len(points) >= 4
    assert points[0].config.run_batch_name == path.stem  # so that an agent's runs go there as well
    assert len(plan(["sweep.py", path.stem])) == len(points)


def test_sweep_files_are_found_by_name():
    path = sweep.find_file("vi_learning_rate")
    assert path == REPOSITORY / "configs" / "sweeps" / "vi_learning_rate.yaml"
    with pytest.raises(UserError, match="There is no sweep file elsewhere/vi_learning_rate"):
        sweep.find_file("elsewhere/vi_learning_rate.yaml")
    with pytest.raises(UserError, match="sweep file vi_learning_rat; configs"):
        sweep.find_file("vi_learning_rat")
