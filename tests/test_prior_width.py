"""prior_width.py on two toy runs that say they have different priors."""

import json
import re
import shutil

from papers.compact.hmc_figures import prior_width, width_table
from tests.drawn import assert_readable
from tests.offline_runs import check_told

import numpy as np
import pytest

TOY = (
    "--config_name", "quick", "--num_draws", "4", "--num_match_images", "300", "--num_blocks", "4",
    "--num_bootstraps", "4", "--num_refits", "2", "--refit_draws", "2",
)  # fmt: skip


@pytest.fixture
def two_runs(evaluated, tmp_path):
    wide = evaluated / "default" / "HMC-MNIST-quick"
    narrow = tmp_path / "narrow"
    shutil.copytree(wide, narrow)
    config = (narrow / "config.yaml").read_text()
    (narrow / "config.yaml").write_text(config.replace("prior_std: 1.0", "prior_std: 0.5"))
    return wide, narrow


def test_two_priors(two_runs, script, tmp_path):
    done = script("prior_width", "--runs", *map(str, two_runs), *TOY, "--wandb", "offline")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "default" / "prior_width-MNIST-quick"
    check_told(run, "widths", rows=2)
    wide, narrow = json.loads((run / "widths.json").read_text())
    assert (wide["prior_std"], narrow["prior_std"]) == (1, 0.5)
    assert wide["hmc"] == narrow["hmc"]  # of the same samples
    assert wide["hmc"]["values"]["agreement"] == 1
    assert narrow["average_std"] == pytest.approx(2 * wide["average_std"])
    summary = json.loads((two_runs[0] / "summary.json").read_text())
    assert wide["hmc"]["values"]["nll"] == pytest.approx(summary["test_nll"])
    groups = summary["diagnostics"]
    trace = [json.loads(line) for line in (two_runs[0] / "trace.jsonl").read_text().splitlines()]
    steps = sum(each["num_steps"] for each in trace if not each["burnin"])
    ess = groups["test_log_likelihood"]["smallest_ess_bulk"]
    assert wide["cost"]["steps_per_effective_sample"] == pytest.approx(steps / ess)


def test_priors_of_layers_are_told_apart(two_runs, script, tmp_path):
    for run, second in zip(two_runs, (0.5, 0.25), strict=True):
        shutil.copytree(run, tmp_path / f"{second}")
        config = (tmp_path / f"{second}" / "config.yaml").read_text()
        layers = re.sub(r"prior_std: .*", f"prior_std: [1.0, {second}]", config)
        (tmp_path / f"{second}" / "config.yaml").write_text(layers)
    runs = tmp_path / "0.25", tmp_path / "0.5"
    done = script("prior_width", "--runs", *map(str, runs), *TOY)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "default" / "prior_width-MNIST-quick"
    widths = json.loads((run / "widths.json").read_text())
    assert [each["stds"] for each in widths] == [[1, 0.5], [1, 0.25]]
    assert widths[0]["prior_std"] == pytest.approx(0.5**0.5)
    assert "1, 0.25" in done.stdout


def test_runs_of_one_prior_are_no_comparison(two_runs, script):
    wide, _ = map(str, two_runs)
    for runs in ((wide,), (wide, wide)):
        done = script("prior_width", "--runs", *runs, *TOY)
        assert done.returncode == 2
        assert "different priors" in done.stderr


@pytest.mark.figures
def test_the_figure_and_the_table(tmp_path):
    row = dict.fromkeys(("agreement", "total_variation", "sample_accuracy", "nll", "ece"), 0.5)
    row["mean_accuracy"] = 0.25
    cost = {"steps_per_effective_sample": 100.0, "largest_rhat": 1.01}
    widths = [
        {"prior_std": sigma, "stds": [sigma], "hmc": {"values": row, "errors": row},
         "q_r": {"values": row, "errors": row | {"mean_accuracy": None}},
         "calibrated_ece": 0.01, "cost": cost}
        for sigma in (1, 0.25)
    ]  # fmt: skip
    (tmp_path / "widths.json").write_text(json.dumps(widths))
    drawn = prior_width(tmp_path / "widths.json")
    assert_readable(drawn)
    costs = drawn.axes[-1].lines[0]
    np.testing.assert_array_equal(costs.get_xydata(), [[1, 100], [0.25, 100]])
    table = width_table(widths)
    assert table.rows[0][table.head.index("accuracy of μ_r (%)")] == "25.00 ± –"
