"""symmetry_compact.py end to end at toy size, on copies of one network with planted scales."""

import json

from tests.offline_runs import check_told
from utils.networks.mlp import MLP
from utils.posteriors.samples import Points
from utils.symmetry.transformation import random_transformation

import pytest
import torch

NETWORK = MLP((784, 8, 10))


@pytest.fixture
def copies(tmp_path):
    """Networks that are nearly one network, in other scales and orders of units."""
    random = torch.Generator().manual_seed(0)
    first = NETWORK.initial_weights(random)
    noise = 1e-4 * torch.randn(12, NETWORK.num_weights, generator=random)
    planted = random_transformation(NETWORK, random, log_scale=1.0, stack=(12,))
    Points(planted.apply(first + noise), NETWORK).save(tmp_path)
    return tmp_path


def test_gaussians_of_copies_fit_once_scales_and_order_are_removed(script, copies, tmp_path):
    done = script(
        "symmetry_compact", "--config_name", "quick", "--posteriors", f"copies={copies}",
        "--num_match_images", 200, "--num_draws", 3, "--num_repeats", 3, "--wandb", "offline",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "symmetry_compact-MNIST-quick"
    check_told(directory, "gaussians", rows=6)
    (result,) = json.loads((directory / "compact.json").read_text()).values()
    assert result["networks"] == 12
    for scales in ("unit norm", "minimum mass"):
        assert min(result["scales"][scales]["q_r"]["agreement"]) > 0.98
        assert max(result["scales"][scales]["q_d"]["agreement"]) < 0.98
    assert max(result["scales"]["as they are"]["q_r"]["agreement"]) < 0.98
    assert "holds: Agreement of q_r's draws" in done.stdout


def test_single_networks_are_refused(script, tmp_path):
    Points(NETWORK.initial_weights(torch.Generator().manual_seed(0))[None], NETWORK).save(tmp_path)
    done = script("symmetry_compact", "--posteriors", f"one={tmp_path}")
    assert done.returncode == 2
    assert "a Gaussian needs two" in done.stderr


def test_networks_without_scales_are_refused(script, tmp_path):
    network = MLP((784, 4, 10), "tanh")
    Points(torch.zeros(2, network.num_weights), network).save(tmp_path)
    done = script("symmetry_compact", "--posteriors", f"tanh={tmp_path}")
    assert done.returncode == 2
    assert "flipped, not scaled" in done.stderr
