"""What the benchmarks make of runs; their timing is not tested."""

import importlib
import json
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.drawn import assert_readable, line_of
from utils.data.datasets import load_dataset, network_inputs

import pytest
import torch


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    return importlib.import_module


@pytest.fixture
def hmc_benchmark(benchmark):
    return benchmark("hmc")


BENCHMARKS = ["hmc_ranks", "matching", "networks", "predict", "recovery", "samplers", "training"]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_finds_what_it_measures(benchmark, name):
    assert callable(benchmark(name).main)


def test_the_usual_loop_sees_the_images_that_ours_sees(benchmark, data_dir):
    """Without crops they are equal; cropped ones are parts of the padded image."""
    networks = benchmark("networks")
    data = load_dataset("MNIST", data_dir)
    inputs = network_inputs(data.train_images[:3], (1, 28, 28), data.normalisation("published"))
    plain, cropped = networks.Images(data, 0), networks.Images(data, 4)
    black = inputs.min()
    for position in range(3):
        image, label = plain[position]
        torch.testing.assert_close(image, inputs[position])
        assert label == data.train_labels[position]
        padded = torch.nn.functional.pad(inputs[position], (4,) * 4, value=black.item())
        crops = padded.unfold(1, 28, 1).unfold(2, 28, 1)
        errors = (crops - cropped[position][0][:, None, None]).abs().amax((0, 3, 4))
        assert errors.min() < 1e-6


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


def test_means_are_compared_by_their_standard_errors(benchmark):
    """Of labels of units and constants nothing is said."""
    ours, theirs = {"mean": 1.0, "error": 0.3}, {"mean": 0.5, "error": 0.4}
    constant = {"mean": 1.0, "error": float("nan")}
    scores = benchmark("samplers").standard_scores(
        {"train_nll": ours, "weights/0": ours, "probability/1": constant},
        {"train_nll": theirs, "weights/0": theirs, "probability/1": constant},
    )
    assert scores.tolist() == pytest.approx([1.0])
