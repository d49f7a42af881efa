"""symmetry_mass.py end to end at toy size, on networks whose masses are known."""

import json

from symmetry_mass import lightest_masses, names_of, two_clusters, two_modes
from tests.offline_runs import check_told
from utils.networks.mlp import MLP
from utils.posteriors.samples import Points
from utils.symmetry.mass import mass, minimum_mass

import numpy as np
import pytest
import torch

NETWORK = MLP((4, 6, 5, 2))


def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def save_networks(directory, network, count: int = 30):
    generator = random()
    weights = torch.stack([network.initial_weights(generator) for _ in range(count)])
    directory.mkdir()
    Points(weights, network).save(directory)
    return weights


@pytest.mark.figures
def test_masses_of_a_set_of_networks(script, tmp_path):
    weights = save_networks(tmp_path / "networks", NETWORK)
    done = script(
        "symmetry_mass", "--config_name", "quick", "--posterior", tmp_path / "networks",
        "--wandb", "offline",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "symmetry_mass-MNIST-quick"
    check_told(directory, "clusters", rows=2)
    assert (directory / "representation_cost.png").stat().st_size > 5000
    counted = torch.cat([slot.of(weights).flatten(1) for slot in NETWORK.slots[::2]], 1)
    with np.load(directory / "mass.npz") as results:
        np.testing.assert_allclose(results["mass"], counted.double().square().sum(1), rtol=1e-12)
        lightest = minimum_mass(NETWORK, weights).apply(weights.double())
        counted = torch.cat([slot.of(lightest).flatten(1) for slot in NETWORK.slots[::2]], 1)
        np.testing.assert_allclose(results["minimum"], counted.square().sum(1), rtol=1e-12)
        assert results["curves"].shape == (5, 10, len(results["steps"]))
        at_zero = results["curves"][:, :, len(results["steps"]) // 2]
        np.testing.assert_allclose(at_zero, np.tile(results["mass"][:10], (5, 1)), rtol=1e-12)
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["smallest_second_difference"] > 0
    assert summary["minimum_spread_over_orbit"] < 1e-12
    assert sum(cluster["networks"] for cluster in summary["clusters"]) == 30
    assert "not measured: The paper's numbers are for OptuNet" in done.stdout


def test_two_planted_clusters_are_found():
    random = np.random.default_rng(0)
    centres = np.repeat([[200.0, 175.0], [150.0, 113.0]], [10, 30], axis=0)
    first, second = two_clusters(centres + random.normal(size=centres.shape))
    assert (first["networks"], second["networks"]) == (30, 10)
    assert first["minimum"] == pytest.approx(113, abs=1)
    assert second["excess"] == pytest.approx(200 / 175 - 1, abs=0.02)


@pytest.mark.filterwarnings("error")
def test_networks_that_differ_by_rounding_are_one_cluster():
    points = np.tile([7.1, 3.3], (30, 1))
    for noise in (0, 1e-15):
        points[::2] *= 1 + noise
        (cluster,) = two_clusters(points)
        assert cluster["networks"] == 30
        assert cluster["excess"] == pytest.approx(7.1 / 3.3 - 1)
    points[:10, 0] = 9
    assert [cluster["networks"] for cluster in two_clusters(points)] == [20, 10]


def test_the_modes_of_two_bumps():
    random = np.random.default_rng(0)
    bumps = np.concatenate([random.normal(0.3, 0.03, 700), random.normal(0.1, 0.03, 300)])
    assert two_modes(bumps) == pytest.approx([0.1, 0.3], abs=0.01)
    assert two_modes(bumps[:10]) == []


def test_finished_groups_of_a_run_are_one_set(script, tmp_path):
    weights = save_networks(tmp_path / "mode-000", NETWORK)
    save_networks(tmp_path / "mode-001", NETWORK, count=5)
    (tmp_path / "mode-002").mkdir()  # is being trained
    groups = sorted(tmp_path.glob("mode-*"))
    done = script("symmetry_mass", "--config_name", "quick", "--posterior", *groups)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "default" / "symmetry_mass-MNIST-quick" / "mass.npz") as results:
        expected = mass(NETWORK, torch.cat([weights, weights[:5]]))
        np.testing.assert_allclose(results["mass"], expected, rtol=1e-12)


def test_a_run_under_way_is_refused_with_what_to_give_instead(script, tmp_path):
    (tmp_path / "run").mkdir()
    save_networks(tmp_path / "run" / "mode-000", NETWORK)
    done = script("symmetry_mass", "--posterior", tmp_path / "run")
    assert done.returncode == 2
    assert f"give {tmp_path / 'run'}/mode-*" in done.stderr


def test_a_run_that_has_not_finished_any_group_is_refused(script, tmp_path):
    (tmp_path / "mode-000").mkdir()
    done = script("symmetry_mass", "--posterior", tmp_path / "mode-000")
    assert done.returncode == 2
    assert "has no networks yet" in done.stderr


def test_groups_may_be_single_networks(script, tmp_path):
    save_networks(tmp_path / "mode-000", NETWORK, count=1)
    save_networks(tmp_path / "mode-001", NETWORK, count=2)
    done = script(
        "symmetry_mass", "--config_name", "quick", "--posterior", *sorted(tmp_path.glob("mode-*"))
    )
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "default" / "symmetry_mass-MNIST-quick" / "mass.npz") as results:
        assert len(results["mass"]) == 3


@pytest.mark.parametrize("second", ["set", "set/samples.npy"])
def test_sets_that_are_given_twice_are_refused(script, tmp_path, second):
    save_networks(tmp_path / "set", NETWORK)
    done = script("symmetry_mass", "--posterior", tmp_path / "set", tmp_path / second)
    assert done.returncode == 2
    assert "give each set once" in done.stderr


def test_every_set_is_recorded_whatever_the_names(tmp_path):
    assert names_of([tmp_path / "A" / "mode-0"]) == ["mode-0"]
    groups = [tmp_path / run / f"mode-{k}" for run in "AB" for k in (0, 1)]
    assert names_of(groups[:2]) == ["mode-0", "mode-1"]
    assert names_of(groups) == ["A/mode-0", "A/mode-1", "B/mode-0", "B/mode-1"]


def test_networks_of_zeros_are_refused(script, tmp_path):
    Points(torch.zeros(2, NETWORK.num_weights), NETWORK).save(tmp_path)
    done = script("symmetry_mass", "--posterior", tmp_path)
    assert done.returncode == 2
    assert "all of their weights are 0" in done.stderr


def test_units_without_incoming_weights_do_not_add_to_the_minimum():
    (w1, _), *_ = NETWORK.layers(weights := NETWORK.initial_weights(random()).double())
    w1[0] = 0
    (_, _), (w2, _), _ = NETWORK.layers(without := weights.clone())
    w2[:, 0] = 0
    torch.testing.assert_close(
        lightest_masses(NETWORK, weights[None]), lightest_masses(NETWORK, without[None])
    )


def test_sets_of_different_networks_are_refused(script, tmp_path):
    save_networks(tmp_path / "first", NETWORK)
    save_networks(tmp_path / "second", MLP((4, 6, 2)))
    done = script("symmetry_mass", "--posterior", tmp_path / "first", tmp_path / "second")
    assert done.returncode == 2
    assert "give sets of one network" in done.stderr


@pytest.mark.parametrize(
    ("network", "reason"),
    [(MLP((4, 3, 2), "tanh"), "flipped, not scaled"), (MLP((4, 2)), "no hidden units to scale")],
)
def test_networks_without_scales_are_refused(script, tmp_path, network, reason):
    save_networks(tmp_path / "networks", network)
    done = script("symmetry_mass", "--posterior", tmp_path / "networks")
    assert done.returncode == 2
    assert reason in done.stderr


def test_without_networks_it_says_how_to_make_some(script):
    done = script("symmetry_mass")
    assert done.returncode == 2
    assert "train.py --method sgd" in done.stderr
