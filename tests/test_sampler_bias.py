"""sampler_bias.py beside two toy chains of HMC."""

import json

from papers.compact.hmc_figures import bias_table, sampler_bias
from tests.drawn import assert_readable
from tests.offline_runs import check_told

import numpy as np
import pytest

TOY = (
    "--methods", "sghmc", "--sghmc_rates", "0.001", "1e9", "--num_chains", "2",
    "--num_burnin", "1", "--num_samples", "8", "--store_every", "1", "--num_bootstraps", "4",
)  # fmt: skip


@pytest.fixture
def records(evaluated, script, tmp_path, few_test_images):
    hmc = evaluated / "default" / "HMC-MNIST-quick"
    done = script("sampler_bias", "--hmc", str(hmc), *TOY, "--wandb", "offline")
    assert done.returncode == 0, done.stderr
    check_told(tmp_path / "default" / "sampler_bias-MNIST-quick", "cells", rows=3)
    path = tmp_path / "default" / "sampler_bias-MNIST-quick" / "cells.jsonl"
    return hmc, path, done


def test_cells_beside_hmc(records, script, data_dir):
    hmc, path, done = records
    exact, cell, wild = (json.loads(line) for line in path.read_text().splitlines())
    samples = np.load(hmc / "samples.npy")
    means = exact["means"]
    last = samples[:, 785 * 10 : 785 * 10 + 100].astype(float)  # 300 images, 10 units, 10 classes
    moment = next(name for name in means if name.startswith("second moment") and "2" in name)
    assert means[moment] == pytest.approx((last**2).mean(), rel=1e-6)
    squares = (last.reshape(-1, 10, 10)[:, 3] ** 2).sum(1)  # into class 3
    assert means["Σv² of class 3"] == pytest.approx(squares.mean(), rel=1e-6)
    assert wild["diverged"]
    assert not cell["diverged"]
    assert 0 < cell["total_variation"] < 1
    assert cell["agreement_error"] >= 0
    assert cell["temperature"] > 0
    assert len(cell["quantities"]) == len(means)
    assert "diverged" in done.stdout
    whole = path.read_text()
    path.write_text(whole.rpartition("\n{")[0] + "\n")  # as if stopped after the first cell
    path.with_name("DONE").unlink()
    again = script("sampler_bias", "--hmc", str(hmc), *TOY, "--resume")
    assert again.returncode == 0, again.stderr
    assert path.read_text() == whole


@pytest.mark.figures
def test_the_figure_and_the_table(records):
    _, path, _ = records
    drawn = sampler_bias(path)
    assert_readable(drawn)
    cells = [json.loads(line) for line in path.read_text().splitlines()]
    table = bias_table(cells)
    assert {len(row) for row in table.rows} == {len(table.head)}
    assert table.rows[-1][2] == "diverged"


def test_chains_that_are_too_few_or_no_chains_are_refused(evaluated, script):
    runs = evaluated / "default"
    thinned = script("sampler_bias", "--hmc", str(runs / "HMC-MNIST-quick"), "--num_hmc", "8")
    assert thinned.returncode == 2
    assert "at least 8 of each chain" in thinned.stderr
    gaussian = script("sampler_bias", "--hmc", str(runs / "VI-MNIST-quick"))
    assert gaussian.returncode == 2
    assert "no samples" in gaussian.stderr
