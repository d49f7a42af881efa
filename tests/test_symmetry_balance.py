"""symmetry_balance.py end to end at toy size, its law, projection, and resume."""

import json
import math

import symmetry_balance
from papers.symmetry.balance import GridCell, measure_cell, profile, project, second_differences
from symmetry_balance import BalanceConfig, main
from tests.offline_runs import check_told
from utils.data.datasets import load_dataset
from utils.methods.training import TrainingSettings, start_training
from utils.networks.mlp import MLP
from utils.runs.script import Stopped
from utils.symmetry.mass import imbalance, mass, minimum_of
from utils.symmetry.transformation import check_same_function

import numpy as np
import pytest
import torch

TOY = (
    "--config_name", "quick", "--num_train", "100", "--num_networks", "2", "--num_epochs", "2",
    "--networks", "mlp", "optunet", "--weight_decays", "0", "0.01", "--momenta", "0.5",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(data_dir):
    images = load_dataset("MNIST", data_dir, 200)
    return images.inputs([images.num_pixels])


@pytest.mark.figures
def test_the_script_measures_every_cell(script, tmp_path):
    done = script("symmetry_balance", *TOY, "--wandb", "offline")
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "symmetry_balance-MNIST-quick"
    check_told(directory, "cells", rows=12)
    records = [json.loads(line) for line in (directory / "cells.jsonl").read_text().splitlines()]
    assert len(records) == 2 * (2 * 2 + 2)
    assert [record["network"] for record in records] == ["mlp"] * 6 + ["optunet"] * 6
    for record in records:
        assert [len(record[name]) for name in ("decay_time", "share_left", "excess")] == [3] * 3
        assert len(record["barrier"]) == 1
        assert min(record["second_difference"]) > 0
        assert record["share_left"][0] == pytest.approx([1, 1])
        if record["projected"]:
            assert max(map(abs, record["share_left"][-1])) < 1e-3
    for name in ("balance.png", "intervention.png"):
        assert (directory / name).stat().st_size > 5000
    assert len(json.loads((directory / "summary.json").read_text())["cells"]) == 12


def test_the_imbalance_left_is_the_law_s_with_full_batches(data):
    """Small steps of full-batch gradient descent are gradient flow, with momentum, too."""
    training = {"batch_size": 200, "num_networks": 2, "num_epochs": 150, "seed": 0}
    network = MLP((784, 6, 10))
    for momentum in (0.0, 0.5):
        cell = GridCell("mlp", "SGD", 0.01, momentum, weight_decay=0.2, projected=False)
        record = measure_cell(network, data, cell, **training)
        expected = math.exp(-2 * record["decay_time"][-1])
        assert expected < 0.65
        assert record["share_left"][-1] == pytest.approx([expected] * 2, abs=0.02)


def test_projection_reaches_the_minimum_and_keeps_the_function():
    network, random = MLP((5, 6, 4, 3)), torch.Generator().manual_seed(0)
    weights = torch.stack([network.initial_weights(random) for _ in range(2)]).double()
    settings = TrainingSettings("SGD", 0.1, 10, 0.9)
    state = start_training(weights, settings)
    state = state._replace(momentum=torch.randn(weights.shape, generator=random).double())
    projected = project(network, state)
    check_same_function(network, weights, projected.weights)
    lightest = minimum_of(network, weights, biases=True)
    torch.testing.assert_close(mass(network, projected.weights, biases=True), lightest)
    # gradients, and so momentum, change inversely to weights
    before, after = (each.momentum * each.weights for each in (state, projected))
    torch.testing.assert_close(before, after)


def test_profiles_are_those_of_each_network():
    network, random = MLP((5, 6, 3)), torch.Generator().manual_seed(0)
    weights = torch.stack([network.initial_weights(random) for _ in range(3)])
    start = imbalance(network, weights)
    numbers = profile(network, 2 * weights, start)
    assert numbers["share_left"] == pytest.approx([4] * 3)
    (w1, _), (w2, _) = network.layers(2 * weights.double())
    total = w1.square().sum((1, 2)) + w2.square().sum((1, 2))
    assert numbers["mass"] == pytest.approx(total.tolist())
    lightest = 2 * (w1.norm(dim=2) * w2.norm(dim=1)).sum(1)
    assert numbers["excess"] == pytest.approx((total / lightest - 1).tolist())


def test_one_unit_has_the_second_differences_of_its_formula():
    """m(u) = a exp(2u) + b exp(−2u), along the only direction there is."""
    network = MLP((3, 1, 2))
    weights = torch.stack([
        network.initial_weights(torch.Generator().manual_seed(k)) for k in range(3)
    ])  # fmt: skip
    (w1, _), (w2, _) = network.layers(weights.double())
    a, b = (each.square().sum((1, 2)).numpy()[:, None] for each in (w1, w2))
    steps = np.linspace(-2, 2, 21)
    expected = np.diff(np.log(a * np.exp(2 * steps) + b * np.exp(-2 * steps)), n=2).min(1)
    # some of the five directions point the other way
    backward = np.diff(np.log(a * np.exp(-2 * steps) + b * np.exp(2 * steps)), n=2).min(1)
    smallest = second_differences(network, weights, seed=0)
    np.testing.assert_allclose(smallest, np.minimum(expected, backward), rtol=1e-9)


def test_a_stopped_run_goes_on_with_the_next_cell(tmp_path, data_dir, monkeypatch):
    def config(**settings) -> BalanceConfig:
        return BalanceConfig(
            config_name="quick", hidden_sizes=[4], num_train=200, num_networks=2, num_epochs=1,
            momenta=[0.0], learning_rates=[0.1], weight_decays=[0.0, 0.01], wandb="disabled",
            device="cpu", out_dir=str(tmp_path), data_dir=str(data_dir), **settings,
        )  # fmt: skip

    main(config(run_name="whole"))
    cells, measured = [], measure_cell

    def stop_at_third(network, data, cell, **training):
        if len(cells) == 2:
            raise Stopped
        cells.append(cell)
        return measured(network, data, cell, **training)

    with monkeypatch.context() as patch:
        patch.setattr(symmetry_balance, "measure_cell", stop_at_third)
        with pytest.raises(Stopped):
            main(config(run_name="stopped"))
    main(config(run_name="stopped", resume=True))
    texts = [
        (tmp_path / "default" / f"symmetry_balance-MNIST-quick-{name}" / "cells.jsonl").read_text()
        for name in ("whole", "stopped")
    ]
    assert texts[0] == texts[1]


def test_networks_without_scales_are_refused_before_a_run_is_opened(script, tmp_path):
    done = script("symmetry_balance", *TOY, "--networks", "mlp", "resnet8_frn")
    assert done.returncode == 2
    assert "permuted" in done.stderr
    assert not (tmp_path / "default").exists()


def grid(script, *options):
    return script(
        "symmetry_balance", "--config_name", "quick", "--hidden_sizes", 4, "--num_train", 50,
        "--num_networks", 2, "--num_epochs", 1, "--weight_decays", 0.01, "--momenta", 0, *options,
    )  # fmt: skip


@pytest.mark.figures
def test_cells_that_diverge_are_recorded_and_left_out(script, tmp_path):
    done = grid(script, "--learning_rates", 0.1, 1e9)
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "symmetry_balance-MNIST-quick"
    cells = json.loads((directory / "summary.json").read_text())["cells"]
    assert [cell.get("diverged", False) for cell in cells] == [False] * 2 + [True] * 2 + [False]
    assert "Training diverged in 2 of 5 cells" in done.stdout
    assert "damaged" not in done.stdout


def test_a_grid_that_diverges_is_refused(script):
    done = grid(script, "--learning_rates", 1e9, "--adam_rates", 1e9)
    assert done.returncode == 2
    assert "lower --learning_rates and --adam_rates" in done.stderr
