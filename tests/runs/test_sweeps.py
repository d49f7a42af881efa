"""Sweep files: what they say, the points that follow, and the sentences for what is wrong."""

from tests.conftest import REPOSITORY
from utils.runs.errors import UserError
from utils.runs.sweeps import as_arguments, choose_points, read_sweep

import numpy as np
import pytest
import yaml

GOOD = {
    "program": "MNIST_VI.py",
    "method": "grid",
    "metric": {"name": "test_nll", "goal": "minimize"},
    "parameters": {
        "config_name": {"value": "quick"},
        "learning_rate": {"values": [0.1, 0.2]},
        "seed": {"min": 3, "max": 5},
    },
}


@pytest.fixture
def read(tmp_path):
    """Read a sweep file with some of its entries changed."""

    def read(parameters=None, **changed):
        content = GOOD | changed
        if parameters is not None:
            content["parameters"] = parameters
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return read_sweep(path)

    return read


def test_a_grid_has_every_combination(read):
    sweep = read()
    assert (sweep.name, sweep.program, sweep.metric, sweep.maximize) == (
        "mine", "MNIST_VI.py", "test_nll", False,
    )  # fmt: skip
    assert sweep.fixed == {"config_name": "quick"}
    points = choose_points(sweep, None, seed=0)
    assert points == [
        {"learning_rate": rate, "seed": seed} for rate in (0.1, 0.2) for seed in (3, 4, 5)
    ]
    assert choose_points(sweep, 4, seed=0) == points[:4]
    assert choose_points(read(run_cap=2), None, seed=0) == points[:2]


RANDOM = {
    "a": {"min": 0.0, "max": 2.0},
    "b": {"min": 1, "max": 4},
    "c": {"distribution": "log_uniform_values", "min": 0.001, "max": 10},
    "d": {"distribution": "q_uniform", "min": 0.0, "max": 1.0, "q": 0.25},
    "e": {"distribution": "q_uniform", "min": 10, "max": 30, "q": 10},
    "f": {"values": ["SGD", "Adam"]},
}


def test_random_points_follow_their_distributions(read):
    points = choose_points(read(RANDOM, method="random"), 2000, seed=1)
    a, b, c, d, e = (np.array([point[name] for point in points]) for name in "abcde")
    assert len(points) == 2000
    assert (a.min() >= 0, a.max() <= 2) == (True, True)
    assert a.mean() == pytest.approx(1, abs=0.06)  # 5 standard errors
    assert np.bincount(b).tolist() == pytest.approx([0, 500, 500, 500, 500], abs=100)
    logs = np.log10(c)
    assert (logs.min() >= -3, logs.max() <= 1) == (True, True)
    assert logs.mean() == pytest.approx(-1, abs=0.13)
    assert set(d) == {0, 0.25, 0.5, 0.75, 1}
    assert set(e) == {10, 20, 30}
    assert (d == 0).mean() == pytest.approx(1 / 5, abs=0.045)  # 5 standard errors
    types = {name: {type(point[name]) for point in points} for name in "abcde"}
    assert types == {"a": {float}, "b": {int}, "c": {float}, "d": {float}, "e": {int}}
    assert {point["f"] for point in points} == {"SGD", "Adam"}
    assert all(len(f"{value:.10g}".replace(".", "").strip("0")) <= 4 for value in a)


@pytest.mark.parametrize(
    ("low", "high", "q", "multiples"),
    [
        (1, 10, 5, [5, 10]),
        (-7, 7, 3, [-6, -3, 0, 3, 6]),
        (1, 10, 4, [4, 8]),
        (0.1, 0.7, 0.1, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]),
        (0.3, 1.0, 0.25, [0.5, 0.75, 1.0]),
        (1e-05, 0.0007, 0.00012345, [0.00012345, 0.0002469, 0.00037035, 0.0004938, 0.00061725]),
        (0.5, 2.5, 1, [1, 2]),
    ],
)
def test_q_uniform_draws_the_multiples_of_q_in_the_range(read, low, high, q, multiples):
    rate = {"distribution": "q_uniform", "min": low, "max": high, "q": q}
    points = choose_points(read({"rate": rate}, method="random"), 99, seed=0)
    drawn = sorted(point["rate"] for point in points)
    assert drawn == multiples
    assert [type(number) for number in drawn] == [type(number) for number in multiples]


def test_a_seed_names_the_same_random_points_however_many(read):
    sweep = read(RANDOM, method="random")
    assert choose_points(sweep, 9, seed=3)[:5] == choose_points(sweep, 5, seed=3)
    assert choose_points(sweep, 5, seed=4) != choose_points(sweep, 5, seed=3)


def test_random_points_are_different_and_end_where_there_are_no_more(read, capsys):
    sweep = read({"seed": {"values": [1, 2, 3]}}, method="random")
    points = choose_points(sweep, 10, seed=0)
    assert sorted(point["seed"] for point in points) == [1, 2, 3]
    assert "no more than 3 different points" in capsys.readouterr().out


def test_arguments_are_written_as_wandb_agents_write_them():
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    settings = {"rate": 1e-05, "sizes": [6, 7], "switch": False, "none": None, "name": "a b"}
    agents = create_sweep_command_args({"args": {k: {"value": v} for k, v in settings.items()}})
    assert as_arguments(settings) == agents["args"]


def test_further_words_of_the_command_go_to_the_script(read):
    command = ["${env}", "python3", "${program}", "--device", "cpu", "${args}"]
    assert read(command=command).arguments == ["--device", "cpu"]


def test_where_runs_go_in_wandb_is_handed_on(read):
    assert read(project="p", entity="e").environment == {"WANDB_PROJECT": "p", "WANDB_ENTITY": "e"}


def one(**given):
    return {"parameters": {"rate": given}}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"methd": "grid"}, "Unknown key methd in .*mine.yaml; the nearest there is: method"),
        ({"program": None}, "mine.yaml lacks 'program'"),
        ({"method": "gird"}, "method in .* must be grid or random, got 'gird'"),
        ({"method": "bayes"}, "write method: random, or search there with `wandb sweep"),
        ({"early_terminate": {"type": "hyperband"}}, "early_terminate in .* needs wandb's server"),
        ({"metric": {"name": "x", "goal": "max"}}, "metric.goal in .* must be minimize or maxi"),
        ({"metric": {"name": "x", "target": 1}}, "metric.target in .* needs wandb's server"),
        ({"metric": "test_nll"}, "metric in .* must have a name"),
        ({"run_cap": 0}, "run_cap in .* must be a whole number of runs, got 0"),
        ({"command": ["${program}", "${args_no_boolean_flags}"]}, r"after it, \$\{args\}"),
        ({"command": ["${program}", "${envvar:X}", "${args}"]}, r"\$\{envvar:X\} has no meaning"),
        (one(), "uniform is given by max and min, not by nothing"),
        (one(values=[]), "parameters.rate in .*: values must be a list with something in it"),
        (one(parameters={"a": {"value": 1}}), "parameters.rate in .* is nested"),
        (one(values=[1], min=1), "categorical is given by values, not by min, values"),
        (one(min=1), "uniform is given by max and min, not by min"),
        (one(min=2, max=2), "min must be less than max, got 2 and 2"),
        (one(min="1e-3", max=1.0), "min must be a number, got '1e-3' .*1.0e-3 a number"),
        (one(distribution="normal", mu=0), "the distribution is one of constant, categorical"),
        (one(distribution="log_uniform_values", min=0, max=1), "must begin above 0"),
        (one(distribution="int_uniform", min=0.5, max=3), "from a whole number to a whole number"),
        (one(distribution="q_uniform", min=0, max=3, q=0), "q must be greater than 0"),
        (one(distribution="q_uniform", min=6, max=9, q=5), "no multiple of q, 5, from 6 to 9"),
        (one(min=0.0, max=float("inf")), "max must be a number, got inf"),
        (one(min=0.5, max=1.5), "parameters.rate in .*: a grid has no end of points in a range"),
        (one(value=1), "Nothing varies in"),
        ({"parameters": {"run_name": {"value": "x"}}}, "run_name in .* is set by the sweep"),
        ({"parameters": {"out_dir": {"values": ["a", "b"]}}}, "must be the same for all runs"),
        ({"parameters": ["rate"]}, "parameters in .* must hold lines"),
    ],
)
def test_what_is_wrong_with_a_sweep_file_is_said(read, changed, sentence):
    with pytest.raises(UserError, match=sentence):
        read(**changed)


def test_a_parameter_without_braces_is_explained(read):
    for bare in (0.1, [0.1, 0.2]):
        with pytest.raises(UserError, match=r"parameters.rate in .* must be \{value"):
            read({"rate": bare})


def test_a_random_search_needs_an_end(read):
    with pytest.raises(UserError, match="give --num_runs, or write run_cap"):
        choose_points(read(method="random"), None, seed=0)


def test_a_key_given_twice_is_an_error(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("method: grid\nparameters:\n  a: {value: 1}\n  a: {value: 2}\n")
    with pytest.raises(UserError, match=r"twice.yaml has 'a' twice, in lines 3 and 4"):
        read_sweep(path)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs" / "sweeps").glob("*.yaml")))
def test_our_sweep_files_are_read_and_have_points(path):
    sweep = read_sweep(path)
    assert len(choose_points(sweep, None, seed=0)) >= 5
    assert sweep.fixed["run_batch_name"] == path.stem  # so that an agent's runs go there as well
