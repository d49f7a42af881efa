"""What the scripts tell wandb, read back from the toy runs that the evaluation's tests share."""

import json

from tests.offline_runs import read_offline_run

import pytest

ROWS = ("agreement", "total_variation", "sample_accuracy", "mean_accuracy")
MORE = ("nll", "ece", "brier", "elbo")


@pytest.fixture(scope="module")
def batch(evaluated):
    return evaluated / "default"


def test_table_1_is_a_table_of_numbers(batch):
    run = batch / "eval-MNIST-quick"
    told = read_offline_run(run)
    assert (told.start.run_group, told.start.job_type) == ("default", "eval")
    ours, errors = (
        json.loads((run / f"{n}.json").read_text()) for n in ("table1", "table1_errors")
    )
    columns, lines = told.table("table1")
    assert columns == ["posterior", *(row + part for row in ROWS for part in ("", " ±", " paper"))]
    by_name = {line[0]: dict(zip(columns, line, strict=True)) for line in lines}
    assert len(by_name) == len(ours) == 13
    rebased = by_name["HMC q_r"]
    for row in ROWS:
        assert rebased[row] == pytest.approx(ours["hmc_rebased"][row])
        assert rebased[f"{row} ±"] == pytest.approx(errors["hmc_rebased"][row])
    assert rebased["agreement paper"] == 0.8249
    assert by_name["HMC"]["mean_accuracy"] is None  # samples have no mean network
    columns, _ = told.table("calibration")
    assert columns == ["posterior", *(row + part for row in MORE for part in ("", " ±"))]
    assert told.summary["table1"]["vi"]["agreement"] == pytest.approx(ours["vi"]["agreement"])


def test_figures_are_images_and_weights_stay_here(batch):
    run = batch / "eval-MNIST-quick"
    told = read_offline_run(run)
    assert told.images.keys() == {path.stem for path in run.glob("*.png")}
    for name, image in told.images.items():
        assert image.read_bytes() == (run / f"{name}.png").read_bytes()
    assert told.artifacts.keys() == {"run_table"}
    assert not [name for name in told.files if name.endswith((".npy", ".npz"))]


def test_chains_are_drawn_over_the_iteration(batch):
    run = batch / "HMC-MNIST-quick"
    told = read_offline_run(run)
    assert set(told.axes.values()) == {"iteration"}
    assert {"accept_prob", "step_size", "nll", "test_accuracy"} <= told.axes.keys()
    logged = [row["iteration"] for row in told.rows if "accept_prob" in row]
    assert logged == list(range(1, 12))
    assert told.config["step_size"] == 0.003
    assert told.artifacts.keys() <= {"run_table"}
    summary = json.loads((run / "summary.json").read_text())
    diagnostics = json.loads((run / "diagnostics.json").read_text())
    group = diagnostics["groups"]["test_log_likelihood"]
    assert summary["ess_per_hour"] == group["median_ess_bulk_per_hour"]
    assert told.summary["ess_per_hour"] == pytest.approx(summary["ess_per_hour"])
