"""symmetry_table.py at toy size: its rows beside other computations, resume, refusals."""

import json

from papers.symmetry.quality_figures import TABLE
from tests.drawn import assert_readable
from utils.data.datasets import load_pixels
from utils.evaluation.metrics import agreement, brier
from utils.networks.mlp import MLP
from utils.posteriors.files import open_posterior
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.mixture import Mixture
from utils.posteriors.samples import Points
from utils.quality.images import evenly_spaced
from utils.quality.modes import modes_of
from utils.quality.references import split_networks
from utils.report.paper import RunFigure

import numpy as np
import pytest
import torch

NETWORK = MLP((784, 4, 10))
TOY = ("--config_name", "quick", "--num_samples", "8", "--num_images", "40", "--num_inputs", "10")
FEW = ("--num_permutations", "19", "--num_bootstraps", "3")


def draw(count: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.stack([10 * NETWORK.initial_weights(random) for _ in range(count)])


def save(posterior, directory, chains: int = 0):
    directory.mkdir()
    posterior.save(directory)
    if chains:
        (directory / "chains.json").write_text(json.dumps({"num_chains": chains}))


@pytest.fixture
def posteriors(tmp_path):
    """Save independent networks, two chains, and a mixture of Gaussians."""
    save(Points(draw(20, 0), NETWORK), tmp_path / "networks")
    save(Points(draw(40, 1), NETWORK), tmp_path / "chains", 2)
    spread = torch.full((NETWORK.num_weights,), 0.1)
    gaussians = [Gaussian(mean, spread, NETWORK) for mean in draw(4, 2)]
    save(Mixture(gaussians), tmp_path / "gaussians")
    return [
        "--networks", tmp_path / "networks", "--hmc", tmp_path / "chains", "--posteriors",
        f"vi={tmp_path / 'gaussians'}", f"DE={tmp_path / 'networks'}",
    ]  # fmt: skip


def test_rows_figures_and_resume(script, tmp_path, data_dir, posteriors, monkeypatch):
    done = script("symmetry_table", *TOY, *FEW, *posteriors)
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "symmetry_table-MNIST-quick"
    rows = json.loads((directory / "table.json").read_text())
    named = {(row["name"], row["modes"]): row for row in rows}
    assert [(row["name"], row["modes"], row["samples"], row["averaged"]) for row in rows] == [
        ("networks", "one", 1, 4), ("networks", "multi", 8, 1), ("hmc", "multi", 8, 1),
        ("vi", "one", 8, 4), ("vi", "multi", 8, 1), ("DE", "one", 1, 4), ("DE", "multi", 8, 1),
    ]  # fmt: skip
    check_scores(named["networks", "multi"], tmp_path / "networks", data_dir)
    assert len(named["vi", "one"]["points"]) == 4
    assert named["vi", "multi"]["distances"]["networks"]["weights"]["p"] is not None
    assert named["networks", "one"]["scores"]["mi_inside"] is None
    for row in rows:
        assert 0 < row["beside_errors"]["hmc"]["total_variation"] < 0.5
    for figure in TABLE:
        assert (directory / f"{figure.name}.png").exists()
        assert_readable(figure.draw(directory / figure.source))
    for words in ("MMD² to hmc", "null, 95 %", "AUPR out", "good stand-in"):
        assert words in done.stdout
    monkeypatch.setattr(RunFigure, "save", lambda figure, run: None)  # drawn above
    check_resume(script, directory, posteriors, rows)


def check_scores(row: dict, networks, data_dir) -> None:
    """Compare the row of the other half with predictions made here."""
    data = load_pixels("MNIST", data_dir)
    places = evenly_spaced(len(data.test_labels), 40)
    images, labels = data.test_images[places], data.test_labels[places]
    halves = split_networks(modes_of(open_posterior(networks)), 8, seed=0)
    averages = [
        NETWORK.outputs(half.weights(), images).double().softmax(-1).mean(0)
        for half in (halves.first, halves.second)
    ]
    assert row["scores"]["brier"] == pytest.approx(brier(averages[1], labels), abs=1e-6)
    expected = agreement(averages[1], averages[0])
    assert row["beside"]["networks"]["agreement"] == pytest.approx(expected)


def check_resume(script, directory, posteriors, rows) -> None:
    """What has been computed is kept; the rest gives the same numbers."""
    (directory / "DONE").unlink()
    kept = directory / "sets" / "vi-one-00.json"
    lost = directory / "sets" / "vi-multi-00.json"
    before = kept.stat().st_mtime_ns
    lost.unlink()
    done = script("symmetry_table", *TOY, *FEW, *posteriors, "--resume")
    assert done.returncode == 0, done.stderr
    assert kept.stat().st_mtime_ns == before
    again = json.loads((directory / "table.json").read_text())
    for one, two in zip(rows, again, strict=True):
        assert one["scores"] == two["scores"]
        assert one["distances"] == two["distances"]


def test_mistakes_end_in_a_sentence(script, tmp_path):
    save(Points(draw(4, 0), NETWORK), tmp_path / "few")
    save(Points(torch.randn(3, MLP((784, 3, 10)).num_weights), MLP((784, 3, 10))), tmp_path / "x")
    mistakes = {
        "at least 9": [],
        "posteriors of one network": ["--posteriors", f"x={tmp_path / 'x'}"],
        "name of a reference": ["--posteriors", f"hmc={tmp_path / 'x'}"],
        "--published is about CIFAR10": ["--published", "download"],
    }
    for words, arguments in mistakes.items():
        done = script("symmetry_table", *TOY, "--networks", tmp_path / "few", *arguments)
        assert done.returncode == 2
        assert words in done.stderr


def test_errors_of_rows_with_one_mode_are_between_modes():
    from symmetry_table import averaged_distance, pooled

    found = averaged_distance([{"value": value} for value in (1.0, 2.0, 4.0)])
    assert found["value"] == pytest.approx(7 / 3)
    assert found["error"] == pytest.approx(np.std([1, 2, 4], ddof=1) / 3**0.5)
    diagrams = [
        {"sizes": [1, 3], "confidence": [0.1, 0.9], "accuracy": [0.0, 1.0]},
        {"sizes": [1], "confidence": [0.92], "accuracy": [0.0]},
    ]
    joined = pooled(diagrams)
    assert joined["sizes"] == [1, 4]
    assert joined["accuracy"] == [0, 0.75]
    assert joined["confidence"] == pytest.approx([0.1, 0.905])
