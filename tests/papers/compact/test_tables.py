"""The paper's tables show what the result files say."""

from papers.compact.tables import (
    PAPER_METHODS,
    check_tables,
    metrics_of_tables,
    published_table1,
    reference_table,
    score_records,
    score_table,
    sparsity_summary,
    sparsity_table,
)
from utils.evaluation.metrics import METRICS, Metric
from utils.report.tables import Table

import pytest

DIAGNOSTICS = {
    "label": "HMC",
    "names": PAPER_METHODS,
    "dead_pixels": None,
    "dead_pixels_rebased": None,
    "dead_pixels_vi": None,
    "mixing": {"before": {"W1": {"median_rhat": None, "median_ess": 12.4}}, "after": {}},
    "average_std": {"after": {"hmc": {"alive": 0.98}}},
    "at_prior": {"after": {"band": [0.9, 1.1], "share": {"alive": 0.5}}},
    "transpositions": {"along_chain": [0, 6, 8], "random": 7.1},
    "prior_networks": {
        "average_transpositions": 7.0, "agreement": 0.1, "total_variation": 0.9,
        "sample_accuracy": 0.1, "mean_accuracy": 0.2, "average_std": 1.0,
    },
    "low_rank": {"rank": 3, "variance_kept": 0.875},
    "halves_of_hmc": {"agreement": 0.95, "total_variation": 0.0625},
    "references": {},
    "study_samples": 20,
    "study_images": 100,
}  # fmt: skip
CHECK = {
    "weights": 670, "mean_square": 1.001, "standard_error": 0.002, "std": 0.98,
    "std_expected": 0.99, "effective_samples": 50.2, "passed": True,
}  # fmt: skip


def rows_of(diagnostics: dict, title: str) -> dict[str, list[str]]:
    """Return the rows of the table with this title by their first cell."""
    (table,) = [t for t in check_tables(diagnostics) if isinstance(t, Table) and t.title == title]
    return {name: cells for name, *cells in table.rows}


def test_checks():
    assert check_tables(DIAGNOSTICS)[0].startswith("No pixel is zero in all training images")
    mixing = rows_of(DIAGNOSTICS, "Mixing of the weights (medians)")
    assert mixing == {"W1": ["–", "–", "12", "–"]}  # R-hat before and after, ESS before and after
    deviations = rows_of(DIAGNOSTICS, "Standard deviations of the weights")
    assert deviations == {"HMC": ["–", "0.980", "–", "50.0 %"]}
    others = rows_of(DIAGNOSTICS, "Other checks")
    assert others["NoT of HMC samples to the first, on average"] == ["7.0"]
    assert others["NoT of random permutations"] == ["7.1"]
    assert others["Agreement between the two halves of HMC samples"] == ["0.9500"]
    assert others["Share of the samples' variance that it keeps"] == ["87.5 %"]


@pytest.mark.parametrize(
    ("passed", "expected", "verdict"),
    [
        (True, "0.9900", "yes"),
        (False, "0.9900", "NO: look at the sampler"),
        (None, "–", "too few effective samples to tell"),
    ],
)
def test_dead_pixels(passed, expected, verdict):
    check = CHECK | {"passed": passed}
    vi = {"std": 0.9, "root_mean_square": 0.1}
    found = DIAGNOSTICS | {"dead_pixels": check, "dead_pixels_rebased": check, "dead_pixels_vi": vi}
    rows = rows_of(found, "Weights of dead pixels")
    cells = ["1.0010 ± 0.0020", "0.9800", expected, "50", verdict]
    assert rows == {"HMC samples": cells, "HMC samples, rebased": cells}
    others = rows_of(found, "Other checks")
    assert others["VI: average σ of dead pixels' weights (prior: 1)"] == ["0.9000"]
    assert others["VI: root mean square of their μ (prior: 0)"] == ["0.1000"]


def test_chains_too_short_for_r_hat_are_said_to_be():
    found = DIAGNOSTICS | {"mixing": {"before": {}, "after": {}}, "at_prior": {}}
    assert any("fewer than 8 samples" in part for part in check_tables(found) if part is str(part))


def test_scores_have_errors_and_the_papers_value():
    table = {
        "vi": {"agreement": 0.98, "nll": None, "sample_accuracy": 0.0},
        "hmc_low_rank": {"nll": 0.5},
    }
    errors = {
        "vi": {"agreement": 0.01, "nll": None, "sample_accuracy": 0.01},
        "hmc_low_rank": {"nll": 0.25},
    }
    published = {"vi": {"agreement": 0.9885}}
    metrics = [METRICS[name] for name in ("agreement", "nll", "sample_accuracy")]
    assert score_table(table, errors, published, metrics, PAPER_METHODS).rows == [
        ["VI q", "0.9800 ± 0.0100\npaper 0.9885", "– ± –", "0.00 ± 1.00"],
        ["HMC q_r, low rank", "–", "0.5000 ± 0.2500", "–"],
    ]
    vi, low_rank = score_records(table, errors, published, metrics[:1], PAPER_METHODS)
    scores = {"agreement": 0.98, "agreement ±": 0.01, "agreement paper": 0.9885}
    assert vi == {"posterior": "VI q"} | scores
    assert low_rank == {"posterior": "HMC q_r, low rank"} | dict.fromkeys(scores)


def test_the_paper_has_values_of_mnist_alone():
    assert published_table1("MNIST")["hmc_rebased"]["agreement"] == 0.8249
    assert published_table1("FashionMNIST") == {}


def test_references_and_networks_from_the_prior():
    scores = dict.fromkeys(("agreement", "total_variation", "sample_accuracy", "mean_accuracy"), 1)
    row = scores | {"average_std": 0.5, "average_transpositions": 7, "mean_with_reference": -0.25}
    found = DIAGNOSTICS | {"references": {"sample 3": row}, "prior_networks": row}
    table = reference_table(found)
    cells = [*["1.0000"] * 4, "0.5000", "−0.250", "–", "–", "–", "7.0"]
    assert table.rows == [["sample 3", *cells], ["networks from the prior", *cells]]
    assert len(table.head) == len(table.rows[0])


def test_samples_that_are_not_hmcs_are_not_called_so():
    check = CHECK | {"passed": False}
    names = PAPER_METHODS | {"hmc": "samples"}
    found = {"label": "samples", "names": names, "dead_pixels": check}
    tables = check_tables(DIAGNOSTICS | found)
    rows = [row for table in tables if isinstance(table, Table) for row in table.rows]
    cells = [cell for row in rows for cell in row]
    assert not any("HMC" in cell or "sampler" in cell for cell in cells)
    assert "NO: exact samples would not" in cells
    scores = {"hmc_sample": {"nll": 1.0}, "hmc_rebased": {"nll": 1.0}, "vi": {"nll": 1.0}}
    rows = score_table(scores, scores, {}, [METRICS["nll"]], names).rows
    assert [row[0] for row in rows] == ["samples", "samples q_r", "VI q"]


def test_posteriors_are_called_what_the_evaluation_calls_them():
    found = {key: value for key, value in DIAGNOSTICS.items() if not key.startswith("halves")}
    found |= {
        "label": "chain", "names": {"sghmc": "chain", "swag": "SWAG, long"},
        "halves_of_sghmc": {"agreement": 0.95, "total_variation": 0.0625},
        "dead_pixels_swag": {"std": 0.5, "root_mean_square": 0.1},
        "average_std": {"after": {"sghmc": {"alive": 0.98}, "swag": {"alive": 0.25}}},
    }  # fmt: skip
    deviations = rows_of(found, "Standard deviations of the weights")
    assert deviations == {
        "chain": ["–", "0.980", "–", "50.0 %"], "SWAG, long": ["–", "0.250", "–", "–"],
    }  # fmt: skip
    others = rows_of(found, "Other checks")
    assert others["SWAG, long: average σ of dead pixels' weights (prior: 1)"] == ["0.5000"]
    scores = {"sghmc_rebased": {"nll": 1.0}, "swag": {"nll": 1.0}}
    rows = score_table(scores, scores, {}, [METRICS["nll"]], found["names"]).rows
    assert [row[0] for row in rows] == ["chain q_r", "SWAG, long q"]


def test_a_new_metric_stands_beside_likelihood_and_calibration(monkeypatch):
    score = Metric("sharpness", "sharpness", lambda p: 0.5, higher_is_better=True, percent=True)
    monkeypatch.setitem(METRICS, "sharpness", score)
    scores = {"hmc_sample": {"sharpness": 0.5}}
    table = score_table(scores, scores, {}, metrics_of_tables()[1], PAPER_METHODS)
    assert table.head[-1] == "sharpness (%) ↑"
    assert table.rows[0][-1] == "50.00 ± 50.00"


@pytest.mark.parametrize(
    ("errors", "suffix"),
    [({"sparsity_error": {"0.01": 0.021, "0.05": 0.021}}, " ± 2.1"), ({}, "")],
)
def test_pruned_shares(errors, suffix):
    """With their standard errors, if the run has them."""

    def curve(network: str, by: str, criterion: str, share: float) -> dict:
        return {
            "network": network, "by": by, "criterion": criterion, "accuracy": [0.9, 0.5],
            "sparsity": {"0.01": share / 2, "0.05": share}, **errors,
        }  # fmt: skip

    pruning = {
        "names": PAPER_METHODS,
        "curves": {
            part: {
                "a": curve("hmc mean", "hmc", "std", share),
                "b": curve("ensemble single", "hmc", "random", share),
            }
            for part, share in (("all", 0.5), ("alive", 0.25))
        },
    }
    first = "μ of HMC, kept by lowest σ of HMC"
    assert sparsity_summary(pruning) == {
        title: {
            "accuracy, unpruned": "90.00 %", "zero at −1 point, all": f"25.0{suffix} %",
            "zero at −5 points, all": f"50.0{suffix} %",
            "zero at −1 point, alive": f"12.5{suffix} %",
            "zero at −5 points, alive": f"25.0{suffix} %",
        }
        for title in (first, "one network of ensemble, kept by chance")
    }  # fmt: skip
    table = sparsity_table(pruning)
    assert table.head[-1] == "pruned at −5 points, live pixels"
    shares = [f"{share}{suffix} %" for share in ("25.0", "50.0", "12.5", "25.0")]
    assert table.rows[0] == [first, "90.00 %", *shares]
