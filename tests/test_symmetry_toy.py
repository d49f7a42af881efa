"""symmetry_toy.py end to end at toy size, and its statistics on copies that are equal or not."""

import json
import math

from symmetry_toy import (
    CONFIG,
    bin_entropy,
    compare_copies,
    loss_gradient,
    shapes_in,
    summary_of,
    two_clouds,
)
from tests.offline_runs import check_told
from utils.networks.mlp import MLP
from utils.posteriors.samples import open_samples

import numpy as np
import pytest
import torch


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.figures
@pytest.mark.parametrize("hidden_units", [2, 3])
def test_the_script_runs_and_leaves_its_results(script, tmp_path, hidden_units):
    done = script(
        "symmetry_toy", "--config_name", "quick", "--num_networks", 300, "--num_epochs", 3,
        "--hidden_units", hidden_units, "--wandb", "offline",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "symmetry_toy-gaussians-quick"
    check_told(directory, "shapes", rows=2)
    assert (directory / "DONE").exists()
    assert (directory / "toy.png").stat().st_size > 5000
    summary = json.loads((directory / "summary.json").read_text())
    assert sum(summary["copies"]["counts"]) == 300
    assert len(summary["copies"]["counts"]) == math.factorial(hidden_units)
    assert summary["tied"] == 0
    assert "holds" in done.stdout
    samples = open_samples(directory)
    assert len(samples) == 300
    with np.load(directory / "toy.npz") as results:
        trained, scaled, in_order = results["last_layers"]
        (incoming, _), (outgoing, _) = samples.network.layers(torch.stack(list(samples)))
        np.testing.assert_allclose(trained, outgoing[:, 0])
        # incoming weights of norm 3, with outgoing weights that compensate
        np.testing.assert_allclose(scaled, trained * incoming.norm(dim=2).numpy() / 3, rtol=1e-5)
    assert (np.diff(in_order, axis=1) >= 0).all()
    np.testing.assert_array_equal(np.sort(scaled, axis=1), in_order)


def test_a_learning_rate_that_diverges_is_said_so(script):
    done = script(
        "symmetry_toy", "--config_name", "quick", "--num_networks", 100, "--learning_rate", 1e30
    )
    assert done.returncode == 2
    assert "lower --learning_rate" in done.stderr


def test_the_points_have_the_published_moments():
    points, classes = two_clouds(100_000, seed=0)
    for number, mean in enumerate(((-2.09, -1.89), (2.19, 2.17))):
        cloud = points[classes == number].numpy()
        np.testing.assert_allclose(cloud.mean(0), mean, atol=0.01)
        np.testing.assert_allclose(np.cov(cloud.T), [[0.96, -0.08], [-0.08, 0.96]], atol=0.02)


def test_the_gradient_is_that_of_each_network_alone():
    network = MLP((2, 2, 1))
    weights = torch.stack([network.initial_weights(random(k)) for k in range(3)]).double()
    points, classes = two_clouds(2, seed=0)
    batch, answers = points.expand(3, 4, 2).double(), classes.expand(3, 4).double()
    gradient = loss_gradient(network, weights, batch, answers)

    def loss(row: torch.Tensor) -> float:
        logits = network.outputs(row, points.double()).squeeze(-1)
        return float(torch.log1p(torch.exp(torch.where(classes > 0, -logits, logits))).mean())

    for k in range(3):
        for i in range(network.num_weights):
            step = torch.zeros_like(weights[k])
            step[i] = 1e-6
            slope = (loss(weights[k] + step) - loss(weights[k] - step)) / 2e-6
            assert gradient[k, i].item() == pytest.approx(slope, abs=1e-7)


def test_equal_copies_pass_and_others_do_not():
    count = 4000
    weights = torch.randn(count, 9, generator=random())
    orders = torch.rand(count, 3, generator=random(1)).argsort(1)
    equal = compare_copies(orders, weights)
    assert len(equal["counts"]) == 6
    assert equal["equal_shares_p"] > 0.01
    assert equal["equal_weights_p"] > 0.01
    few = orders[(orders[:, 0] == 0) | (torch.arange(count) % 2 == 0)]
    assert compare_copies(few, weights[: len(few)])["equal_shares_p"] < 1e-10
    shifted = weights + 1.0 * (orders[:, :1] == 0) * (torch.arange(9) == 4)
    assert compare_copies(orders, shifted)["equal_weights_p"] < 1e-6


def test_orders_that_never_occur_count_as_zero():
    orders = torch.tensor([[0, 1, 2], [2, 1, 0]]).repeat(50, 1)
    counts = compare_copies(orders, torch.randn(100, 4, generator=random()))["counts"]
    assert sorted(counts) == [0, 0, 0, 0, 50, 50]


def test_entropy_of_equally_filled_bins():
    places = np.array([(a, b) for a in (-1.0, 1.0) for b in (-1.0, 1.0)])
    for values in (places, 7 * np.repeat(places, 5, axis=0)):
        assert bin_entropy(values) == pytest.approx(2.0)


def test_the_shape_of_a_circle_with_lobes():
    angles = np.linspace(0.1, 1.4, 500)
    circle = 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    lobes = np.tile([[-2.0, 2.0]], (500, 1))
    sides = np.stack([np.linspace(0.1, 2.6, 500), np.linspace(2.6, 0.1, 500)], axis=1)
    shapes = shapes_in(np.vstack([circle, lobes]), np.vstack([sides, 0.7 * lobes]))
    expected = {"radius": 3, "lobe": 2, "side": 2.7, "scaled_lobe": 1.4}
    summary = summary_of(shapes)
    assert summary["shape"] == pytest.approx(expected)
    assert summary["shape_errors"] == pytest.approx(dict.fromkeys(expected, 0), abs=1e-12)


def test_its_data_are_no_images():
    assert CONFIG().dataset == "gaussians"
