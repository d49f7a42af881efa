"""What the benchmarks make of runs; their timing is not tested."""

import importlib
import json
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.drawn import assert_readable, line_of

import pytest


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    return importlib.import_module


@pytest.fixture
def hmc_benchmark(benchmark):
    return benchmark("hmc")


@pytest.mark.parametrize("name", ["hmc_ranks", "matching", "predict", "recovery", "training"])
def test_a_benchmark_finds_what_it_measures(benchmark, name):
    assert callable(benchmark(name).main)


def test_effective_samples_are_those_of_the_pace_measured(hmc_benchmark, tmp_path):
    """However long the run itself took."""
    run = tmp_path / "HMC-MNIST-test3.2-anchored"
    run.mkdir()
    assert hmc_benchmark.effective_note(tmp_path, "test3.2", 90) == (
        "test3.2: 90 samples per hour; effective samples per hour not measured: "
        "there is no finished run."
    )
    weights = {"median_ess_bulk": 100, "median_ess_bulk_per_hour": 7, "largest_rhat": 1.234}
    groups = {"weights": weights, "probability": {}}
    diagnostics = {"chains": 2, "draws_per_chain": 100, "groups": groups}
    (run / "diagnostics.json").write_text(json.dumps(diagnostics))
    (run / "DONE").touch()
    note = hmc_benchmark.effective_note(tmp_path, "test3.2", 90)
    assert "among the 200 of the finished run HMC-MNIST-test3.2-anchored" in note
    assert note.endswith("effective samples per hour: weights 45 (R-hat up to 1.23).")


def test_samples_of_a_batch_are_found(hmc_benchmark):
    assert hmc_benchmark.samples_path("a/b.npy") == Path("a/b.npy")
    found = hmc_benchmark.samples_path("runs/laptop")
    assert found == Path("runs/laptop/HMC-MNIST-laptop/samples.npy")


def test_the_figure_of_recovery_shows_its_numbers(benchmark, tmp_path):
    path = tmp_path / "recovery.json"
    curves = {"activation": [1, 0.5, 0], "weight": [1, 1, 0.25], "cosine": [1, 1, 0.5]}
    recovered = {"1 hidden layer": curves, "3 hidden layers": curves}
    path.write_text(json.dumps({"noise": [0, 1, 2], "recovered": recovered}))
    figure = benchmark("recovery").draw(path)
    assert_readable(figure)
    for axis in figure.axes:
        assert line_of(axis, "by activation").tolist() == [100, 50, 0]
        assert line_of(axis, "by weight").tolist() == [100, 100, 25]
