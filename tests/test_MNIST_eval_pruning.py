"""The script as a user runs it, on a toy evaluation; its numbers found once more with numpy."""

import json
import re
import shutil

from MNIST_eval_pruning import refit_truth
from tests.conftest import run_all
from tests.offline_runs import read_offline_run
from tests.test_MNIST_eval import predict
from utils.data.datasets import load_pixels
from utils.evaluation.pruning import KEPT_PERCENT
from utils.evaluation.weight_space import open_weight_space
from utils.runs.lookup import PastRun
from utils.runs.seeding import generator

import numpy as np
import pytest
import torch

METHODS = ("hmc", "ensemble", "vi")
PERCENT = list(KEPT_PERCENT)
NUM_IMAGES = 2500  # of the quick preset


@pytest.fixture(scope="module")
def source(evaluated):
    return evaluated / "default" / "eval-MNIST-quick"


@pytest.fixture(scope="module")
def run(source, tmp_path_factory, data_dir):
    out_dir = tmp_path_factory.mktemp("pruned")
    arguments = ("--config_name", "quick", "--eval", source, "--wandb", "offline")
    run_all(out_dir, data_dir, {"MNIST_eval_pruning": arguments})
    return out_dir / "default" / "eval_pruning-MNIST-quick"


def accuracy(weights: np.ndarray, data) -> float:
    images, labels = (part[:NUM_IMAGES].numpy() for part in (data.test_images, data.test_labels))
    return (predict(weights, images.astype(float)).argmax(1) == labels).mean()


@pytest.mark.figures
def test_curves_and_histograms(run, source, data_dir):
    results = json.loads((run / "pruning.json").read_text())
    space = np.load(source / "weight_space.npz")
    data = load_pixels("MNIST", data_dir)
    alive = space["alive"]
    assert results["kept_percent"] == PERCENT
    dead = ~load_pixels("MNIST", data_dir, 300).train_images.any(0)  # of the images HMC has seen
    assert results["weights"] == {"all": 7960, "alive": 7960 - 10 * int(dead.sum())}
    curves = results["curves"]
    assert curves["all"].keys() == curves["alive"].keys()
    by_std = {name for name in curves["all"] if ", std of" in name}
    means = [("hmc", "hmc"), ("vi", "vi"), *(("ensemble", by) for by in METHODS)]
    singles = [(method, by) for method in ("hmc", "ensemble") for by in METHODS]
    assert by_std == {
        *(f"{method} mean, std of {by}" for method, by in means),
        *(f"{method} single, std of {by}" for method, by in singles),
    }
    for weights, std, name in (
        ("hmc_after_mean", "hmc_after_std", "hmc mean, std of hmc"),
        ("ensemble_after_mean", "vi_after_std", "ensemble mean, std of vi"),
        ("hmc_single", "hmc_after_std", "hmc single, std of hmc"),
    ):
        order = np.argsort(space[std], kind="stable")
        for part, kept in (("all", order), ("alive", order[alive[order]])):
            for position in map(PERCENT.index, (100, 50, 92.5, 10)):
                pruned = space[weights].copy()
                pruned[kept[round(PERCENT[position] / 100 * len(kept)) :]] = 0
                found = curves[part][name]["accuracy"][position]
                assert found == pytest.approx(accuracy(pruned, data), abs=5e-4)
    # every curve of a network begins at the same accuracy: none starts from a pruned one
    for curve in [*curves["all"].values(), *curves["alive"].values()]:
        same = [c for c in curves["all"].values() if c["network"] == curve["network"]]
        assert [c["accuracy"][0] for c in same] == pytest.approx([curve["accuracy"][0]] * len(same))
    histograms = np.load(run / "sigma_histograms.npz")
    counts = histograms["hmc_after_alive"]
    exact = np.histogram(np.log10(space["hmc_after_std"][alive].astype(float)), histograms["edges"])
    np.testing.assert_array_equal(counts, exact[0])
    assert histograms["vi_before_all"].sum() == 7960
    for name in ("pruning", "pruning_criteria", "sigma_histograms"):
        assert (run / f"{name}.png").stat().st_size > 10_000
    told = read_offline_run(run)
    assert set(told.axes.values()) == {"kept_percent"}
    assert all(re.fullmatch("[a-z_]+", name) for name in told.axes)  # as wandb can sort by
    name = "alive_vi_mean_std_of_vi"
    drawn = [(row["kept_percent"], row[name]) for row in told.rows if name in row]
    accuracies = curves["alive"]["vi mean, std of vi"]["accuracy"]
    assert drawn == list(zip(PERCENT, accuracies, strict=True))
    assert told.images.keys() == {"pruning", "pruning_criteria", "sigma_histograms"}


def test_chance_is_the_average_of_ten_orders(run, source, data_dir):
    curves = json.loads((run / "pruning.json").read_text())["curves"]
    space, data = np.load(source / "weight_space.npz"), load_pixels("MNIST", data_dir)
    random, accuracies = generator(0, "random_order"), []
    for _ in range(10):
        pruned, order = space["hmc_after_mean"].copy(), torch.randperm(7960, generator=random)
        pruned[order[3980:]] = 0
        accuracies.append(accuracy(pruned, data))
    chance = curves["all"]["hmc mean, random of hmc"]
    half = PERCENT.index(50)
    assert chance["accuracy"][half] == pytest.approx(np.mean(accuracies), abs=5e-4)
    assert chance["deviation"][half] == pytest.approx(np.std(accuracies, ddof=1), abs=5e-4)
    assert "deviation" not in curves["all"]["hmc mean, std of hmc"]


def test_everything_has_errors_but_what_the_chain_orders_and_repair_mends(run):
    for curves in json.loads((run / "pruning.json").read_text())["curves"].values():
        for name, curve in curves.items():
            errors = [*curve["accuracy_error"], *curve["sparsity_error"].values()]
            assert (None in errors) == (name == "hmc mean, std_repaired of hmc"), name
            assert len(curve["accuracy_error"]) == len(PERCENT)
        # of the test images alone: √(p (1 − p) / N)
        p = curves["vi mean, std of vi"]["accuracy"][0]
        expected = (p * (1 - p) / NUM_IMAGES) ** 0.5
        assert curves["vi mean, std of vi"]["accuracy_error"][0] == pytest.approx(expected, rel=0.2)
        half = PERCENT.index(50)  # σ of the chain says more about its own errors than images do
        by_chain, by_vi = (curves[f"ensemble mean, std of {by}"] for by in ("hmc", "vi"))
        assert by_chain["accuracy_error"][half] > by_vi["accuracy_error"][half]


def test_the_chain_is_looked_for_where_the_evaluation_read_it(source, tmp_path, capsys):
    space, evaluation = open_weight_space(source, torch.device("cpu")), PastRun(source)
    sources = json.loads((source / "diagnostics.json").read_text())["sources"]
    refits = refit_truth(space, evaluation, sources, seed=0)
    assert len(refits) == 2  # of blocks, and of the two chains
    assert {len(each.gaussians[0].std) for each in refits} == {7960}
    assert capsys.readouterr().out == ""
    for gone in (sources | {"HMC": str(tmp_path / "gone")}, {}):
        assert refit_truth(space, evaluation, gone, seed=0) == []
        assert "No standard errors where hmc orders the weights" in capsys.readouterr().out


def test_a_damaged_evaluation_costs_no_earlier_pruning(source, script, tmp_path):
    evaluation = shutil.copytree(source, tmp_path / "eval")
    (evaluation / "diagnostics.json").write_text("{")
    earlier = tmp_path / "default" / "eval_pruning-MNIST-quick"
    earlier.mkdir(parents=True)
    (earlier / "config.yaml").write_text("seed: 0")
    ended = script(
        "MNIST_eval_pruning", "--config_name", "quick", "--eval", evaluation, "--overwrite"
    )
    assert ended.returncode == 2
    assert "diagnostics.json is damaged: move" in ended.stderr
    assert (earlier / "config.yaml").exists()


def test_none_is_no_evaluation(script):
    ended = script("MNIST_eval_pruning", "--config_name", "quick", "--eval", "none")
    assert ended.returncode == 2
    assert "leave --eval out" in ended.stderr


def test_without_an_evaluation_the_command_is_named(script):
    ended = script("MNIST_eval_pruning", "--config_name", "quick")
    assert ended.returncode == 2
    assert "python MNIST_eval.py" in ended.stderr
