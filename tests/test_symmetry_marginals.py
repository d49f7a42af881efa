"""symmetry_marginals.py end to end at toy size."""

import json

from symmetry_marginals import views_of
from tests.offline_runs import check_told
from utils.networks.mlp import MLP
from utils.posteriors.files import Members
from utils.posteriors.samples import Points
from utils.symmetry.transformation import (
    check_same_function,
    check_same_units,
    random_transformation,
)

import pytest
import torch

NETWORK = MLP((4, 3, 3, 2))


@pytest.fixture
def posteriors(tmp_path):
    """Independent networks, and a chain that never changes the order of units."""
    random = torch.Generator().manual_seed(0)
    networks = torch.stack([NETWORK.initial_weights(random) for _ in range(200)])
    chain = networks[:1] * (1 + 0.01 * torch.randn(100, 1, generator=random))
    orders = random_transformation(NETWORK, random, log_scale=0, stack=(200,))
    paths = {"independent": tmp_path / "networks", "chain": tmp_path / "chain"}
    for path, weights in zip(paths.values(), (orders.apply(networks), chain), strict=True):
        path.mkdir()
        Points(weights, NETWORK).save(path)
    (paths["chain"] / "chains.json").write_text('{"num_chains": 1}')
    return [f"{name}={path}" for name, path in paths.items()]


@pytest.mark.figures
def test_independent_networks_pass_and_a_chain_that_stays_cannot_be_judged(
    script, tmp_path, posteriors
):
    arguments = ("--posteriors", *posteriors, "--wandb", "offline")
    done = script("symmetry_marginals", "--config_name", "quick", *arguments)
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "symmetry_marginals-MNIST-quick"
    check_told(directory, "tests", rows=12)
    assert (directory / "largest_weights.png").stat().st_size > 5000
    results = json.loads((directory / "marginals.json").read_text())
    for group in ("h1", "h2"):
        independent, chain = (results[name]["groups"][group] for name in ("independent", "chain"))
        assert all(independent[view]["p"] > 0.001 for view in ("as they are", "shuffled"))
        assert max(chain["as they are"]["counts"]) == 100
        assert chain["as they are"]["effective_draws"] == pytest.approx(1)
        assert chain["as they are"]["p_uncorrected"] < 0.001
        assert chain["shuffled"]["p_uncorrected"] > 0.001
        assert max(chain["rebased"]["counts"]) == 100
    assert "no verdict" in done.stdout


def test_views_are_orders_of_the_same_units():
    random = torch.Generator().manual_seed(0)
    rows = torch.stack([NETWORK.initial_weights(random) for _ in range(20)]).double()
    views = dict(views_of(Members(NETWORK, rows.unsqueeze(1)), "DE", seed=0))
    assert torch.equal(views["as they are"].squeeze(1), rows)
    assert torch.equal(views["rebased"][0, 0], rows[0])  # the reference
    for name in ("shuffled", "rebased"):
        moved = views[name].squeeze(1)
        assert not torch.equal(moved, rows)
        check_same_function(NETWORK, rows, moved)
        check_same_units(NETWORK, rows, moved)


@pytest.mark.parametrize("given", ["networks", "name="])
def test_posteriors_are_given_by_name(script, given):
    done = script("symmetry_marginals", "--posteriors", given)
    assert done.returncode == 2
    assert "--posteriors takes name=PATH" in done.stderr


def narrow_networks(path, sizes):
    network = MLP(sizes)
    random = torch.Generator().manual_seed(0)
    weights = torch.stack([network.initial_weights(random) for _ in range(20)])
    path.mkdir()
    Points(weights, network).save(path)
    return f"networks={path}"


def test_layers_of_one_unit_are_left_out(script, tmp_path):
    given = narrow_networks(tmp_path / "narrow", (4, 1, 3, 2))
    done = script("symmetry_marginals", "--config_name", "quick", "--posteriors", given)
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "symmetry_marginals-MNIST-quick"
    results = json.loads((directory / "marginals.json").read_text())
    assert list(results["networks"]["groups"]) == ["h2"]


def test_networks_of_single_units_are_refused(script, tmp_path):
    given = narrow_networks(tmp_path / "narrow", (4, 1, 1, 2))
    done = script("symmetry_marginals", "--config_name", "quick", "--posteriors", given)
    assert done.returncode == 2
    assert "one unit in each layer" in done.stderr


def test_without_any_run_it_says_which_to_make(script):
    done = script("symmetry_marginals")
    assert done.returncode == 2
    assert "python MNIST_HMC.py" in done.stderr
