"""symmetry_order.py end to end at toy size, and its measures on planted changes of order."""

import json

from symmetry_order import (
    MEASURES,
    OrderConfig,
    order_correlations,
    train_with_snapshots,
    transpositions,
)
from tests.offline_runs import check_told
from utils.data.datasets import load_dataset
from utils.methods.training import settings_of, start_training, train
from utils.networks.mlp import MLP
from utils.runs.seeding import generator
from utils.symmetry.transformation import Transformation

import numpy as np
import pytest
import torch

NETWORK = MLP((6, 5, 4, 3))


@pytest.mark.figures
def test_the_script_leaves_its_results(script, tmp_path):
    done = script(
        "symmetry_order", "--config_name", "quick", "--num_train", 300, "--num_epochs", 3,
        "--num_networks", 2, "--hidden_sizes", 8, 6, "--wandb", "offline",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "symmetry_order-MNIST-quick"
    check_told(directory, "measures", rows=len(MEASURES))
    assert (directory / "order.png").stat().st_size > 5000
    with np.load(directory / "order.npz") as results:
        np.testing.assert_allclose(results["epochs"], [*np.arange(11) / 10, 2, 3])
        for name in ("not_by_activation_step", "not_by_weight_end", "norm_step"):
            assert results[name].shape == (12, 2, 2)
        np.testing.assert_allclose(results["norm_end"][-1], results["norm_step"][-1])
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["interval"] == pytest.approx({"first": 0.1, "last": 1})


@pytest.mark.parametrize("method", ["activation", "weight"])
def test_planted_orders_are_measured(method):
    """The first network stays, the second one's first layer is reversed, left and reversed back."""
    random = torch.Generator().manual_seed(0)
    weights = torch.stack([NETWORK.initial_weights(random) for _ in range(2)])
    reverse = Transformation(NETWORK, {"h1": torch.arange(5).flip(0)})
    moved = torch.stack([weights[0], reverse.apply(weights[1])])
    snapshots = torch.stack([weights, moved, moved, weights])
    same, reversed_once = [[0, 0], [0, 0]], [[0, 0], [2, 0]]
    moves = transpositions(NETWORK, snapshots, method, torch.randn(50, 6, generator=random))
    assert moves[f"not_by_{method}_step"].tolist() == [reversed_once, same, reversed_once]
    assert moves[f"not_by_{method}_end"].tolist() == [same, reversed_once, reversed_once]
    by_norm = order_correlations(NETWORK, snapshots, "norm")
    step, end = by_norm["norm_step"], by_norm["norm_end"]
    assert step[:, 0] == pytest.approx(np.ones((3, 2)))
    assert step[1] == pytest.approx(np.ones((2, 2)))
    keys = NETWORK.layers(weights[1])[0][0].norm(dim=1).argsort().argsort().numpy()
    pairs = [(a, b) for a in range(5) for b in range(a)]
    signs = [np.sign((keys[a] - keys[b]) * (keys[4 - a] - keys[4 - b])) for a, b in pairs]
    assert step[0, 1, 0] == pytest.approx(np.mean(signs))
    np.testing.assert_allclose(end, [step[1], step[0], step[0]])


def test_snapshots_after_the_first_epoch_are_those_of_plain_training(data_dir):
    """Weight decay acts alike in parts of an epoch and in whole ones."""
    images = load_dataset("MNIST", data_dir, 200)
    data, network = images.inputs([784]), MLP((784, 4, 10))
    config = OrderConfig(
        num_networks=1, num_epochs=2, batch_size=20, learning_rate=0.1, momentum=0.5,
        weight_decay=0.1,
    )  # fmt: skip
    snapshots = list(train_with_snapshots(network, data, config))
    assert len(snapshots) == 12
    start = network.initial_weights(generator(0, "initial_weights", 0))
    assert torch.equal(snapshots[0][1][0], start)
    parts = torch.randperm(200, generator=generator(0, "parts")).tensor_split(10)
    state = start_training(start[None], settings_of(config))
    for part in parts:
        settings = settings_of(config, prior_precision=0.1 * 20)
        state, _ = train(
            network, state, data.train_images[part], data.train_labels[part], settings, seed=0,
            num_epochs=1,
        )  # fmt: skip
    assert torch.equal(snapshots[10][1], state.weights)
    state, _ = train(
        network, state._replace(epoch=1), data.train_images, data.train_labels,
        settings_of(config, prior_precision=0.1 * 200), seed=0, num_epochs=1,
    )  # fmt: skip
    assert torch.equal(snapshots[11][1], state.weights)


def test_networks_without_hidden_units_are_refused(script, tmp_path):
    config = tmp_path / "linear.yaml"
    config.write_text("hidden_sizes: []\nnum_train: 100\n")
    done = script("symmetry_order", "--config", config)
    assert done.returncode == 2
    assert "hidden_sizes" in done.stderr


def test_layers_of_one_unit_are_refused(script, tmp_path):
    done = script("symmetry_order", "--hidden_sizes", 1, "--num_train", 100)
    assert done.returncode == 2
    assert "a layer needs at least two" in done.stderr
    assert not (tmp_path / "default").exists()
