"""symmetry_diversity.py end to end at toy size: known pairs, all groups, refusals."""

import json

from papers.symmetry.quality_claims import collapse_is_absent
from papers.symmetry.quality_figures import diversity_scale, functional_collapse
from tests.drawn import assert_readable
from tests.offline_runs import check_told
from utils.networks.mlp import MLP
from utils.posteriors.samples import Points
from utils.quality.diversity import entropy, mutual_information
from utils.report.paper import FAILS, HOLDS, PARTLY, UNDECIDED
from utils.report.results import Results, RunResult

import numpy as np
import pytest
import torch

NETWORK = MLP((784, 5, 10))
TOY = ("--config_name", "quick", "--num_images", "21", "--num_train", "64", "--num_copies", "2")


def save_members(directory, count: int, num_chains: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(count)
    weights = torch.stack([5 * NETWORK.initial_weights(random) for _ in range(count)])
    directory.mkdir()
    Points(weights, NETWORK).save(directory)
    if num_chains:
        (directory / "chains.json").write_text(json.dumps({"num_chains": num_chains}))
    return weights


@pytest.mark.figures
def test_all_groups_of_pairs(script, tmp_path, data_dir):
    weights = save_members(tmp_path / "networks", 6)
    save_members(tmp_path / "chains", 8, num_chains=2)
    done = script(
        "symmetry_diversity", *TOY, "--networks", tmp_path / "networks", "--hmc",
        tmp_path / "chains", "--wandb", "offline",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "symmetry_diversity-MNIST-quick"
    check_told(directory, "pairs", rows=4)
    with np.load(directory / "diversity.npz") as results:
        counts = {name: len(results[name]) for name in results.files if name.endswith("inside")}
        first = results["inside"][0]
        assert results["inside"].shape == results["outside_disagreement"].shape
        assert results["copies_inside"].max() < results["inside"].mean()
    assert counts == {
        "inside": 15, "copies_inside": 2, "one_chain_inside": 12, "two_chains_inside": 16
    }  # fmt: skip
    assert first == pytest.approx(information_of_first_pair(weights, data_dir), abs=1e-6)
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["ood"] == "FashionMNIST"
    assert set(summary["groups"]) == {"independent", "copies", "one_chain", "two_chains"}
    for figure in (functional_collapse, diversity_scale):
        assert (directory / f"{figure.name}.png").exists()
        assert_readable(figure.draw(directory / "diversity.npz"))


def information_of_first_pair(weights: torch.Tensor, data_dir) -> float:
    from utils.data.datasets import load_pixels

    images = load_pixels("MNIST", data_dir).test_images
    inputs = images[np.linspace(0, len(images) - 1, 21).round().astype(int)]
    both = NETWORK.outputs(weights[:2], inputs).double().softmax(-1)
    return mutual_information(both, entropy(both))


def test_images_from_elsewhere_are_of_another_data_set(script, tmp_path):
    save_members(tmp_path / "networks", 4)
    arguments = ("--networks", tmp_path / "networks", "--ood", "MNIST")
    done = script("symmetry_diversity", *TOY, *arguments)
    assert done.returncode == 2
    assert "--ood MNIST is the data set itself" in done.stderr


def test_chains_are_no_independent_networks(script, tmp_path):
    save_members(tmp_path / "chains", 8, num_chains=2)
    done = script("symmetry_diversity", *TOY, "--networks", tmp_path / "chains")
    assert done.returncode == 2
    assert "independent networks" in done.stderr


@pytest.mark.parametrize(
    ("copies", "low", "high", "mark"),
    [
        (0.001, -0.2, 0.2, HOLDS), (0.001, 0.4, 0.5, PARTLY), (0.2, 0.4, 0.5, PARTLY),
        (0.2, -0.2, 0.2, PARTLY), (0.001, -0.2, 0.5, UNDECIDED), (0.2, -0.2, 0.5, PARTLY),
    ],
)  # fmt: skip
def test_the_claim_follows_its_criterion(tmp_path, copies, low, high, mark):
    side = {"mean": 0.1, "disagreement": 0.2, "relative_deviation": 0.1, "quantiles": [0.05, 0.06]}
    name = "relative_deviation_without_image_noise"
    summary = {
        "networks": 9, "ood": "X", "inside": side | {name: 0.1}, "outside": side | {name: 0.2},
        "correlation": {"rho": 0.1, "low": low, "high": high, "p": 0.5},
        "groups": {"copies": {"inside": copies}},
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    results = Results("", "MNIST", {"symmetry_diversity": RunResult("", tmp_path)})
    assert collapse_is_absent.judge(results).mark == mark
    assert mark != FAILS
