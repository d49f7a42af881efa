"""The script as a user runs it, at toy size: what it leaves, and what it refuses."""

import json
from types import SimpleNamespace

from tests.networks.toy_networks import GroupedConvNet
from tests.toy_chains import TOY, WEIGHTS, records
from utils.data.datasets import Dataset, load_pixels
from utils.evaluation.diagnostics import rhat
from utils.evaluation.metrics import accuracy, mean_nll
from utils.methods.hmc import method as hmc
from utils.methods.hmc import record as record_module
from utils.methods.hmc.adaptation import HMCSettings
from utils.methods.hmc.annealing import compare_annealed, log_weights
from utils.methods.hmc.display import warnings
from utils.methods.hmc.potential import Force
from utils.methods.hmc.record import ChainRecord, Schedule
from utils.methods.method import Problem
from utils.networks.mlp import MLP
from utils.networks.registry import load_network
from utils.posteriors.prior import Prior
from utils.runs.ranks import ALONE
from utils.runs.run import open_run
from utils.settings.config import load_config

import numpy as np
import pytest
import torch
import yaml


@pytest.mark.parametrize("sharing", ["none", "data"])
def test_neighbour_lists_are_as_they_were_asked_for(sharing):
    config = hmc.HMCConfig(parallel=sharing, safe_margin=9.0)
    images, labels = torch.rand(20, 6), torch.zeros(20, dtype=torch.int64)
    data = Dataset("toy", images, labels, images, labels)
    problem = Problem(MLP((6, 10)), data, Prior(), torch.device("cpu"))
    target = hmc.build_potential(config, problem, ALONE)
    assert target.safe_margin == 9.0


def test_annealed_chains_from_the_prior_are_weighed(script, tmp_path):
    annealed = "--num_chains", 2, "--start", "prior", "--anneal_from", 100, "--temperature", 2
    process = script("MNIST_HMC", *TOY, *annealed)
    assert process.returncode == 0, process.stderr
    run = tmp_path / "default" / "HMC-MNIST-quick"
    layout = json.loads((run / "chains.json").read_text())
    num_burnin = yaml.safe_load((run / "config.yaml").read_text())["num_burnin"]
    settings, trace = HMCSettings(0.1, num_burnin, anneal_from=100.0), records(run)
    weights = log_weights(trace, settings, 2, 2.0)
    assert layout["log_weights"] == weights.tolist()
    assert max(weights) < -10
    after = [each for each in trace if not each["burnin"]]
    potentials = [[each["potential"] for each in after if each["chain"] == k] for k in range(2)]
    expected = compare_annealed(weights, np.array(potentials))
    assert layout["potential_rhats"] == expected.potential_rhats
    assert layout["left_out"] == expected.left_out
    summary = json.loads((run / "summary.json").read_text())
    assert summary["left_out"] == expected.left_out
    assert summary["log_weight_spread"] == expected.log_weight_spread


def test_annealed_chains_from_elsewhere_have_no_weights(script, tmp_path):
    process = script("MNIST_HMC", *TOY, "--num_chains", 2, "--anneal_from", 100)
    assert process.returncode == 0, process.stderr
    run = tmp_path / "default" / "HMC-MNIST-quick"
    layout = json.loads((run / "chains.json").read_text())
    assert layout.keys() == {"num_chains", "samples_per_chain", "stored_per_chain"}
    assert json.loads((run / "summary.json").read_text())["left_out"] == []


def test_what_was_left_out_is_an_estimate():
    left_out = {"left_out": [2], "log_weight_gap": 39.2, "log_weight_spread": 2.49}
    fine = dict.fromkeys(("divergences", "not_returned", "followed_back", "violations"), 0)
    summary = {**left_out, **fine, "diagnostics": {}, "images_per_step": 1, "leapfrog_steps": 1}
    potential = SimpleNamespace(method="dense", num_points=1)
    settings, schedule = HMCSettings(0.1, 4), Schedule(4, 4, 8)
    (warning,) = warnings(summary, settings, schedule, potential)
    assert all(part in warning for part in ("1 of 4", "estimate", "e^−39", "2.5"))


def test_a_run_leaves_what_it_promises(script, tmp_path, data_dir):
    process = script("MNIST_HMC", *TOY, "--num_chains", 2, "--store_every", 2)
    assert process.returncode == 0, process.stderr
    run = tmp_path / "default" / "HMC-MNIST-quick"
    samples = np.load(run / "samples.npy", mmap_mode="r")
    assert samples.shape == (16, WEIGHTS)
    assert samples.dtype == np.float32
    assert json.loads((run / "network.json").read_text())["sizes"] == [784, 12, 10]
    assert json.loads((run / "posterior.json").read_text()) == {"class": "Samples"}
    chains = json.loads((run / "chains.json").read_text())
    assert chains == {"num_chains": 2, "samples_per_chain": 8, "stored_per_chain": 8}
    trace = records(run)
    assert [(r["iteration"], r["chain"]) for r in trace] == [
        (i, k) for i in range(1, 21) for k in range(2)
    ]
    assert sum(r["burnin"] for r in trace) == 8
    summary = json.loads((run / "summary.json").read_text())
    diagnostics = json.loads((run / "diagnostics.json").read_text())
    assert 0.3 < summary["test_accuracy"] < 0.95
    assert summary["divergences"] == 0
    assert "diverged" not in process.stdout
    assert diagnostics["groups"].keys() == {
        "test_log_likelihood", "train_nll", "mean_squared_weight", "probability", "weights",
        "output_layer", "invariants",
    }  # fmt: skip
    data, network = load_pixels("MNIST", data_dir), load_network(run / "network.json")
    outputs = network.outputs(torch.from_numpy(np.array(samples)), data.test_images)
    average = outputs.softmax(-1).double().mean(0)
    assert summary["test_accuracy"] == accuracy(average, data.test_labels)
    assert summary["test_nll"] == pytest.approx(mean_nll(average, data.test_labels), rel=1e-5)
    seconds = json.loads((run / "meta.json").read_text())["seconds"]
    assert 0 < summary["sampling_seconds"] <= seconds + 0.1  # of which seconds has one digit
    assert diagnostics["hours"] == summary["sampling_seconds"] / 3600
    kept = [r for r in trace if r["chain"] == 1 and r["iteration"] in range(6, 21, 2)]
    measured = np.load(run / "quantities.npy")
    np.testing.assert_array_equal(measured[8:, 1], [r["nll"] for r in kept])
    for sample, record in zip(samples[8:], kept, strict=True):
        energy = record["nll"] + 0.5 * np.square(sample.astype(float)).sum()
        assert record["potential"] == pytest.approx(energy, abs=1e-6)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum("rhat_weights" in record for record in metrics) == 1  # at the end: it costs time
    assert "R-hat" in process.stdout


@pytest.mark.parametrize(("hidden", "threads"), [(12, 1), (64, 2)])
def test_small_products_are_made_on_one_thread(script, monkeypatch, hidden, threads):
    numbers, before = set(), torch.get_num_threads()
    monkeypatch.setattr(
        ChainRecord, "stop_if_asked", lambda self: numbers.add(torch.get_num_threads())
    )
    torch.set_num_threads(2)
    try:
        process = script("MNIST_HMC", *TOY, "--hidden_sizes", hidden, "--num_burnin", 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert process.returncode == 0, process.stderr
    assert numbers == {threads}


def test_chains_are_diagnosed_while_they_run(script, tmp_path, monkeypatch):
    """Of the samples that each chain has so far, not of the rows that are still to be filled."""
    monkeypatch.setattr(record_module, "SECONDS_BETWEEN_DIAGNOSES", 0)
    process = script("MNIST_HMC", *TOY, "--num_samples", 20, "--num_chains", 2)
    assert process.returncode == 0, process.stderr
    run = tmp_path / "default" / "HMC-MNIST-quick"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = {r["iteration"] - 4: r for r in records if "rhat_weights" in r}
    assert list(found) == [8, 10, 12, 14, 16, 18, 20]
    train_nll = np.load(run / "quantities.npy")[:, 1].reshape(2, 20)
    for stored, record in found.items():
        assert record["rhat_train_nll"] == pytest.approx(rhat(train_nll[:, :stored]))


def test_steps_so_large_that_they_diverge_are_rejected(script, tmp_path):
    process = script("MNIST_HMC", *TOY, "--step_size", 10, "--no-adapt_step_size")
    assert process.returncode == 0, process.stderr
    run = tmp_path / "default" / "HMC-MNIST-quick"
    assert all(r["divergent"] and not r["accepted"] for r in records(run))
    assert json.loads((run / "summary.json").read_text())["divergences"] == 8
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [m["divergent"] for m in metrics if "divergent" in m] == [1.0] * 12
    told = "8 of 8 trajectories after burn-in diverged"
    assert told in process.stdout
    assert "a smaller --step_size than 10" in process.stdout
    assert "R-hat" not in process.stdout  # there is none to tell
    samples = np.load(run / "samples.npy")
    assert (samples == samples[0]).all()
    assert samples.any()


@pytest.mark.parametrize("each", [0, 1])
def test_violations_are_summed_up_and_told_when_many(script, tmp_path, monkeypatch, each):
    """One per transition, of 12 steps or so, is far more than one in 100 steps."""
    monkeypatch.setattr(Force, "counts", lambda self: (600.0, each))
    process = script("MNIST_HMC", *TOY, "--num_chains", 2)
    assert process.returncode == 0, process.stderr
    summary = json.loads((tmp_path / "default/HMC-MNIST-quick/summary.json").read_text())
    assert summary["violations"] == 24 * each
    told = f"overlooked points 24 times in {summary['leapfrog_steps']} steps"
    assert (told in process.stdout) == (each == 1)
    assert ("raise --safe_margin from 18, or give --force active" in process.stdout) == (each == 1)
    assert "600 of 600 images were computed in each step" in process.stdout


class DescribedConvNet(GroupedConvNet):
    def describe(self) -> dict:
        return {"network": self.name}


def test_a_network_without_closed_forms_is_sampled_with_lists(tmp_path, monkeypatch):
    random = torch.Generator().manual_seed(0)
    patterns = 3 * torch.randn(3, 2, 5, 5, generator=random)
    labels = torch.randint(3, (1000,), generator=random)
    images = patterns[labels] + torch.randn(1000, 2, 5, 5, generator=random)
    data = Dataset("toy", images[:800], labels[:800], images[800:], labels[800:])
    config = hmc.HMCConfig(
        out_dir=str(tmp_path), num_samples=4, num_burnin=4, num_steps=60, step_size=0.005,
        start="initialisation", wandb="disabled",
    )  # fmt: skip
    run = open_run(config, "HMC", torch.device("cpu"))
    problem = Problem(DescribedConvNet(), data, Prior(), torch.device("cpu"))
    hmc.run_chains(config, problem, ALONE, run)
    assert json.loads(run.path("summary.json").read_text())["test_accuracy"] > 0.95
    trace = records(run.directory)
    assert sum(record["accepted"] for record in trace[4:]) >= 2
    assert np.mean([record["list_rows"] for record in trace]) < 200  # of 800 images


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("anchored", ["anchored", "anchored"]),
        ("initialisation", ["initialisation", "initialisation"]),
        ("mixed", ["anchored", "initialisation"]),
    ],
)
def test_where_chains_start(script, tmp_path, start, expected):
    """Before it moves an anchored chain fits the data with weights of the prior's size."""
    arguments = ("--start", start, "--hidden_sizes", 64, "--anchored_epochs", 100)
    stay = ("--num_burnin", 0, "--no-adapt_step_size", "--num_steps", 1, "--step_size", 1e-9)
    process = script("MNIST_HMC", *TOY, *arguments, *stay, "--num_chains", 2)
    assert process.returncode == 0, process.stderr
    run = tmp_path / "default" / "HMC-MNIST-quick"
    chains = np.split(np.load(run / "samples.npy"), 2)
    for number, (samples, kind) in enumerate(zip(chains, expected, strict=True)):
        mean_square = np.square(samples[0]).mean()
        nll = next(record["nll"] for record in records(run) if record["chain"] == number)
        if kind == "anchored":
            assert 0.9 < mean_square < 1.3
            assert nll < 50
        else:
            assert mean_square < 0.01
            assert nll == pytest.approx(600 * np.log(10), rel=0.05)
    assert not np.allclose(chains[0][0], chains[1][0])


@pytest.mark.parametrize("setting", ["jitter", "target_acceptance"])
def test_shares_are_below_one(script, setting):
    process = script("MNIST_HMC", "--config_name", "quick", f"--{setting}", 80)
    assert process.returncode == 2
    assert f"--{setting} must be less than 1, got 80" in process.stderr


def test_length_and_steps_exclude_each_other(script):
    process = script("MNIST_HMC", "--config_name", "quick", "--num_steps", 5)
    assert process.returncode == 2
    assert "either num_steps or a trajectory_length" in process.stderr


@pytest.mark.parametrize(
    ("step_size", "length", "sentence"),
    [
        (1e39, 1, "--step_size of 1e+39 is beyond float32"),
        (1e-320, 1, "is beyond float32"),
        (1e-12, 1e9, "more than 10,000,000 leapfrog steps"),
    ],
)
def test_steps_that_no_one_can_make_are_refused(script, step_size, length, sentence):
    given = ("--step_size", step_size, "--trajectory_length", length)
    process = script("MNIST_HMC", "--config_name", "quick", *given)
    assert process.returncode == 2
    assert sentence in process.stderr


@pytest.mark.parametrize("step_size", [1e30, 1e-30])
def test_the_largest_and_the_smallest_step_are_steps(script, step_size):
    process = script("MNIST_HMC", *TOY, "--step_size", step_size)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # the paper's settings; of its 10,000 samples the first 100 are the burn-in
        ("test3.2", dict(
            seed=123, hidden_sizes=[512], step_size=0.001, num_steps=500, num_burnin=100,
            num_samples=9900, start="initialisation", jitter=0.0, adapt_step_size=False,
            grow_trajectories=False,
        )),
        ("laptop", dict(
            hidden_sizes=[512], trajectory_length=0.8, num_steps=None, num_samples=250,
            store_every=2, start="mixed", jitter=0.1,
        )),
        ("quick", dict(hidden_sizes=[64], num_train=3000, start="anchored")),
    ],
)  # fmt: skip
def test_settings_are_those_that_were_promised(name, expected):
    config = load_config(hmc.HMCConfig, "MNIST_HMC", ["--config_name", name])
    assert {field: getattr(config, field) for field in expected} == expected
    everything = {"dataset": "MNIST", "num_chains": 1}
    everything |= {} if name == "quick" else {"num_train": None}
    assert {field: getattr(config, field) for field in everything} == everything
    config.hmc_settings()


def test_a_step_size_needs_burnin_to_be_adapted_in(script):
    process = script("MNIST_HMC", *TOY, "--num_burnin", 0)
    assert process.returncode == 2
    assert "adapted in burn-in, and this run has none" in process.stderr
