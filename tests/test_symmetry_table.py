"""symmetry_table.py at toy size: its rows beside other computations, resume, refusals."""

import json

from papers.symmetry.paper import PAPER
from tests.drawn import assert_readable
from tests.offline_runs import check_told
from utils.data.datasets import load_pixels
from utils.evaluation.evaluate import open_candidate, warn_of_other_posteriors
from utils.evaluation.metrics import agreement, brier
from utils.networks.mlp import MLP
from utils.posteriors.block_gaussian import BlockGaussian, WeightBlock
from utils.posteriors.files import open_posterior
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRank
from utils.posteriors.posterior import Mixture
from utils.posteriors.samples import Points
from utils.quality.forecasts import evenly_spaced
from utils.quality.modes import modes_of
from utils.quality.references import split_networks
from utils.report.paper import RunFigure

import pytest
import torch
import yaml

NETWORK = MLP((784, 4, 10))
TOY = (
    "--config_name", "quick", "--num_samples", "8", "--num_modes", "4", "--num_images", "40",
    "--num_inputs", "10",
)  # fmt: skip
FEW = ("--num_permutations", "99", "--num_bootstraps", "3")

LAST = torch.arange(NETWORK.num_weights - 50, NETWORK.num_weights)[None]
BLOCK = WeightBlock(LAST, torch.eye(1), torch.eye(50), torch.full((1, 50), 0.1))


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
    gaussians = {
        "vi": [Gaussian(mean, spread, NETWORK) for mean in draw(9, 2)],
        "swag": [LowRank(mean, spread[None], network=NETWORK) for mean in draw(4, 3)],
        "laplace": [BlockGaussian(mean, [BLOCK], NETWORK) for mean in draw(3, 4)],
    }
    for name, modes in gaussians.items():
        save(Mixture(modes), tmp_path / name)
    (tmp_path / "vi" / "summary.json").write_text('{"converged": false}')
    return [
        "--networks", tmp_path / "networks", "--hmc", tmp_path / "chains", "--posteriors",
        *(f"{name}={tmp_path / name}" for name in gaussians),
    ]  # fmt: skip


def test_rows_figures_and_resume(script, tmp_path, data_dir, posteriors, monkeypatch):
    done = script("symmetry_table", *TOY, *FEW, *posteriors, "--wandb", "offline")
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "symmetry_table-MNIST-quick"
    check_told(directory, "posteriors", rows=15)
    rows = json.loads((directory / "table.json").read_text())
    named = {(row["name"], row["modes"]): row for row in rows}
    assert [(row["name"], row["modes"], row["samples"], row["averaged"]) for row in rows] == [
        ("networks", "one", 1, 4), ("networks", "multi", 4, 1), ("networks", "each", 8, 1),
        ("hmc", "multi", 8, 1), ("vi", "one", 8, 4), ("vi", "multi", 8, 1), ("vi", "each", 8, 1),
        ("swag", "one", 8, 4), ("swag", "multi", 8, 1), ("swag_mean", "one", 1, 4),
        ("swag_mean", "multi", 4, 1), ("laplace", "one", 8, 3), ("laplace", "multi", 6, 1),
        ("laplace_linearised", "one", None, 3), ("laplace_linearised", "multi", None, 1),
    ]  # fmt: skip
    check_scores(named["networks", "each"], tmp_path / "networks", data_dir)
    assert len(named["vi", "one"]["points"]) == 4
    assert named["vi", "each"]["distances"]["networks"]["weights"]["p"] is not None
    assert named["vi", "multi"]["distances"]["networks"]["weights"]["p"] is None  # of four modes
    assert named["laplace_linearised", "multi"]["distances"] == {}
    assert named["networks", "one"]["scores"]["mi_inside"] is None
    for row in rows:
        assert 0 < row["beside_errors"]["hmc"]["total_variation"] < 0.5
    for figure in (each for each in PAPER.figures if each.kind == "symmetry_table"):
        assert (directory / f"{figure.name}.png").exists()
        assert_readable(figure.draw(directory / figure.source))
    summary = json.loads((directory / "summary.json").read_text())
    assert set(summary["power_of_modes"]) == set(summary["power"]) == {"networks", "hmc"}
    related = json.loads((directory / "correlations.json").read_text())
    assert set(related) == {"rows", "modes", "hmc", "orders"}
    assert {row["name"] for row in rows if row["converged"] is False} == {"vi"}
    for words in (
        "vi †",
        "† Training had not converged",
        "MMD² to hmc",
        "null, other half",
        "AUPR out",
        "50 %",
        "good stand-in",
    ):
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
        for half in (halves.known, halves.second)
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
    (directory / "DONE").unlink()
    kept.write_text(kept.read_text()[:200])
    done = script("symmetry_table", *TOY, *FEW, *posteriors, "--resume")
    assert done.returncode == 2
    assert "vi-one-00.json is damaged" in done.stderr


def test_swag_with_batch_normalisation_has_its_modes_and_means(
    script, tmp_path, data_dir, few_test_images
):
    """The draws of each mode are its samples, and its mean is a network."""
    toy = (
        "--network", "resnet18", "--width", 2, "--num_train", 100, "--batch_size", 20,
        "--num_epochs", 3, "--num_pretrain_epochs", 1, "--num_draws", 4, "--config_name", "quick",
    )  # fmt: skip
    runs = {count: tmp_path / "default" / f"SWAG-MNIST-quick-{count}" for count in (1, 2)}
    for count in runs:
        arguments = ("--num_modes", count, "--run_name", count)
        done = script("train", "--method", "swag", *toy, *arguments)
        assert done.returncode == 0, done.stderr
    network = open_posterior(runs[1]).network
    random = torch.Generator().manual_seed(0)
    starts = torch.stack([network.initial_weights(random) for _ in range(9)])
    save(Points(starts, network), tmp_path / "networks")
    named = [f"{name}={runs[count]}" for name, count in (("single", 1), ("double", 2))]
    done = script(
        "symmetry_table", *TOY, *FEW, "--networks", tmp_path / "networks", "--posteriors", *named
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "default/symmetry_table-MNIST-quick/table.json").read_text())
    assert [
        (row["name"], row["modes"], row["num_modes"], row["samples"], row["averaged"])
        for row in rows[2:]
    ] == [
        ("single", "one", 1, 4, 1), ("single_mean", "one", 1, 1, 1),
        ("double", "one", 1, 4, 2), ("double", "multi", 2, 4, 1),
        ("double_mean", "one", 1, 1, 2), ("double_mean", "multi", 2, 2, 1),
    ]  # fmt: skip
    summary = json.loads((runs[1] / "summary.json").read_text())
    data = load_pixels("MNIST", data_dir)
    images = data.test_images.unflatten(1, network.input_shape)
    hits = network.outputs(open_posterior(runs[1]).mean, images).argmax(-1) == data.test_labels
    assert summary["mean_test_accuracy"] == pytest.approx(hits.double().mean().item())


def test_without_networks_it_says_how_the_quick_preset_makes_them(script):
    done = script("symmetry_table", *TOY)
    assert done.returncode == 2
    made = [step for step in PAPER.steps if step.kind == "networks"]
    (config_name,) = {step.plans["quick"].config for step in made}
    assert f"train.py --method sgd --config_name {config_name} --run_batch" in done.stderr
    assert done.stderr.count("--config_name") == 1


def test_mistakes_end_in_a_sentence(script, tmp_path):
    save(Points(draw(4, 0), NETWORK), tmp_path / "few")
    save(Points(torch.randn(3, MLP((784, 3, 10)).num_weights), MLP((784, 3, 10))), tmp_path / "x")
    save(Points(draw(4, 0), NETWORK), tmp_path / "swag")
    (tmp_path / "swag" / "meta.json").write_text('{"kind": "SWAG"}')
    mistakes = {
        "of kind SWAG, not HMC: give another --hmc": ["--hmc", tmp_path / "swag"],
        "not sgd or ensemble": ["--networks", tmp_path / "swag"],
        "at least 9": [],
        "posteriors of one network": ["--posteriors", f"x={tmp_path / 'x'}"],
        "name of a reference": ["--posteriors", f"hmc={tmp_path / 'x'}"],
        "--published is about CIFAR10": ["--published", "download"],
        "give --num_images none": ["--published", "download", "--dataset", "CIFAR10"],
    }
    for words, arguments in mistakes.items():
        done = script("symmetry_table", *TOY, "--networks", tmp_path / "few", *arguments)
        assert done.returncode == 2
        assert words in done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, None),
        ({"num_train": 100}, "different training images"),
        ({"prior_std": 0.5}, "different priors (networks: σ = 1; vi: σ = 0.5)"),
        ({"prior_std": [1.0, 0.5]}, "different priors (networks: σ = 1; vi: σ = 1, 0.5)"),
        ({"prior": "empcov"}, "different priors (networks: σ = 1; vi: σ = 1 with EmpCov)"),
        ({"temperature": 0.1}, "different temperatures (networks T = 1, vi T = 0.1)"),
        ({"padding": 2}, "vi have seen random crops or flips"),
        ({"fixed_share": 0.9}, "some weights of vi were fixed"),
        ({"weight_decay": 1 / 60_000}, None),
    ],
)
def test_posteriors_of_other_settings_are_noticed(tmp_path, capsys, settings, words):
    candidates = []
    for name, changed in {"networks": {}, "vi": settings}.items():
        save(Points(draw(2, 0), NETWORK), tmp_path / name)
        config = {"dataset": "MNIST", "num_train": None, "prior_std": 1.0} | changed
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(config))
        (tmp_path / name / "meta.json").write_text('{"kind": "sgd"}')
        candidates.append(open_candidate(name, name, tmp_path / name, fewest=1))
    warn_of_other_posteriors(candidates, 60_000)
    printed = capsys.readouterr().out
    assert printed.count("Warning") == (words is not None)
    assert (words or "") in printed
