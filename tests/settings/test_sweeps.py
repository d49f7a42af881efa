"""Sweep files: what they say, the points that follow, and the sentences for what is wrong."""

from utils.settings.errors import UserError
from utils.settings.sweeps import as_arguments, choose_points, read_sweep

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
    assert (sweep.name, sweep.program) == ("mine", "MNIST_VI.py")
    assert (sweep.metric, sweep.goal) == ("test_nll", "minimize")
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
    "d": {"values": ["SGD", "Adam"]},
}


def test_random_points_follow_their_distributions(read):
    points = choose_points(read(RANDOM, method="random"), 2000, seed=1)
    a, b, c = (np.array([point[name] for point in points]) for name in "abc")
    assert len(points) == 2000
    assert (a.min() >= 0, a.max() <= 2) == (True, True)
    assert a.mean() == pytest.approx(1, abs=0.06)  # 5 standard errors
    assert np.bincount(b).tolist() == pytest.approx([0, 500, 500, 500, 500], abs=100)
    logs = np.log10(c)
    assert (logs.min() >= -3, logs.max() <= 1) == (True, True)
    assert logs.mean() == pytest.approx(-1, abs=0.13)
    types = {name: {type(point[name]) for point in points} for name in "abc"}
    assert types == {"a": {float}, "b": {int}, "c": {float}}
    assert {point["d"] for point in points} == {"SGD", "Adam"}
    assert all(len(f"{value:.10g}".replace(".", "").strip("0")) <= 4 for value in a)


def test_a_seed_names_the_same_random_points_however_many(read):
    sweep = read(RANDOM, method="random")
    assert choose_points(sweep, 9, seed=3)[:5] == choose_points(sweep, 5, seed=3)
    assert choose_points(sweep, 5, seed=4) != choose_points(sweep, 5, seed=3)


def test_random_points_are_different_and_end_where_there_are_no_more(read, capsys):
    sweep = read({"seed": {"values": [1, 2, 3]}}, method="random")
    points = choose_points(sweep, 10, seed=0)
    assert sorted(point["seed"] for point in points) == [1, 2, 3]
    assert "only 3 different points" in capsys.readouterr().out


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
        ({"methd": "grid"}, "Unknown key methd in .*mine.yaml; there are program, method, "),
        ({"program": None}, "mine.yaml lacks 'program'"),
        ({"method": "gird"}, "method in .* must be one of grid, random, got 'gird'"),
        ({"method": "bayes"}, "method in .* must be one of grid, random, got 'bayes'"),
        (
            {"early_terminate": {"type": "hyperband"}},
            "early_terminate in .* server: run `wandb sweep .*mine.yaml`",
        ),
        ({"metric": {"name": "x", "goal": "max"}}, "metric.goal in .* one of minimize, maximize"),
        ({"metric": {"name": "x", "target": 1}}, "metric in .* must be written {name: "),
        ({"metric": "test_nll"}, "metric in .* must be written {name: "),
        ({"run_cap": 0}, "run_cap in .* must be a whole number of runs, got 0"),
        ({"command": ["python", "MNIST_VI.py", "${args}"]}, r"must be a list with \$\{program\}"),
        (one(min=0.5, max=1.5), "parameters.rate in .*: list values, or write method: random"),
        (one(value=1), "Nothing varies in"),
        ({"parameters": {"run_name": {"value": "x"}}}, "run_name in .* is set by the sweep"),
        ({"parameters": {"out_dir": {"values": ["a", "b"]}}}, "must have one value for all runs"),
        ({"parameters": ["rate"]}, "parameters in .* must hold lines"),
    ],
)
def test_mistakes_in_a_sweep_file(read, changed, sentence):
    with pytest.raises(UserError, match=sentence):
        read(**changed)


@pytest.mark.parametrize(
    "given",
    [
        0.1,
        [0.1, 0.2],
        {},
        {"values": []},
        {"values": "SGD"},
        {"values": [1], "min": 0},
        {"parameters": {"a": {"values": [1]}}},
        {"min": 0},
        {"min": 2.0, "max": 1.0},
        {"min": "low", "max": 1},
        {"min": False, "max": True},
        {"min": 0.0, "max": float("inf")},
        {"min": 0.0, "max": 1.0, "q": 0.1},
        {"min": 0.0, "max": 1.0, "step": 0.1},
        {"distribution": "normal", "mu": 0, "sigma": 1},
        {"distribution": ["uniform"], "min": 0, "max": 1},
        {"distribution": "log_uniform_values", "min": 0, "max": 1},
        {"distribution": "int_uniform", "min": 0.5, "max": 3},
        {"distribution": "q_uniform", "min": 0, "max": 3, "q": 1},
    ],
)
def test_a_parameter_that_cannot_be_is_shown_with_those_that_can(read, given):
    with pytest.raises(UserError, match=r"parameters.rate in .* must be \{value.* got ") as caught:
        read({"rate": given}, method="random")
    assert repr(given) in str(caught.value)


def test_a_range_may_be_in_scientific_notation(read):
    """YAML takes 1e-3 for text; so do settings, see test_config."""
    rate = {"distribution": "log_uniform_values", "min": "1e-3", "max": "1e-2"}
    points = choose_points(read({"rate": rate}, method="random"), 50, seed=0)
    assert all(0.001 <= point["rate"] <= 0.01 for point in points)


def test_a_config_is_not_a_sweep_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("num_epochs: 3\nsweep:\n  seed: [1, 2]\n")
    with pytest.raises(UserError, match=r"config.yaml is not a sweep file: see configs/sweeps"):
        read_sweep(path)


def test_a_random_search_needs_an_end(read):
    with pytest.raises(UserError, match="needs --num_runs, or run_cap in"):
        choose_points(read(method="random"), None, seed=0)
