"""Lines of text for numbers that are there, and for those that are not."""

from utils.report.tables import (
    REFERENCE_HEADINGS,
    number,
    reference_rows,
    summary_lines,
    table_rows,
)

import pytest

MIXING = {"W1": {"median_rhat": None, "median_ess": 12.4}}
DIAGNOSTICS = {
    "label": "HMC",
    "dead_pixels": None,
    "dead_pixels_rebased": None,
    "dead_pixels_vi": None,
    "mixing": {"before": MIXING, "after": {}},
    "average_std": {"after": {"hmc": {"alive": 0.98}}},
    "at_prior": {"after": {"band": [0.9, 1.1], "share": {"alive": 0.5}}},
    "transpositions": {"along_chain": [0, 6, 8], "random": 7.1},
    "prior_networks": {"average_transpositions": 7.0},
    "low_rank": {"rank": 3, "variance_kept": 0.875},
    "halves_of_hmc": {"agreement": 0.95, "total_variation": 0.0625},
}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.12"), (-1, "−1.00"), (0, "0.00"), (None, "–"), (float("nan"), "–")],
)
def test_numbers(value, text):
    assert number(value, 2) == text


def test_findings_in_lines():
    lines = summary_lines(DIAGNOSTICS)
    assert lines[0].startswith("Dead pixels: none in these images")
    assert lines[1] == "Weights before rebasin, W1: median R-hat –, median ESS 12"
    assert "50.0 % of these weights have a σ that can be the prior's (0.900 to 1" in lines[3]
    assert "NoT of HMC samples to the first: 7.0 on average" in lines[4]
    assert lines[3].startswith("HMC after rebasin")
    assert "rank 3 and 87.5 %" in lines[5]
    assert "agree on 0.9500 of the images, TV 0.0625" in lines[6]


@pytest.mark.parametrize(
    ("passed", "told"),
    [
        (True, "(0.9900 expected of 50 effective samples): as the prior has it."),
        (False, "(0.9900 expected of 50 effective samples): NOT the prior's: look at the sampler."),
        (None, "; too few effective samples to hold them against the prior."),
    ],
)
def test_dead_pixels_in_a_line(passed, told):
    check = {"weights": 670, "mean_square": 1.001, "standard_error": 0.002, "std": 0.98,
             "std_expected": 0.99, "effective_samples": 50.2, "passed": passed}  # fmt: skip
    line = summary_lines(DIAGNOSTICS | {"dead_pixels": check})[0]
    more = {"dead_pixels_rebased": check, "dead_pixels_vi": {"std": 0.9, "root_mean_square": 0.1}}
    _, rebased, vi, *_ = summary_lines(DIAGNOSTICS | {"dead_pixels": check} | more)
    assert rebased == f"After rebasin d{line[1:]}"
    assert "VI's σ of dead pixels' weights is 0.9000 on average, their μ 0.1000 in size" in vi
    measured = "Dead pixels' 670 weights: mean square 1.0010 ± 0.0020, average σ 0.9800"
    assert line == measured + (told if passed is None else f" {told}")


def test_cells_have_errors_and_the_papers_value():
    table = {"vi": {"agreement": 0.98, "nll": None}, "hmc_low_rank": {"nll": 0.5}}
    errors = {"vi": {"agreement": 0.01, "nll": None}, "hmc_low_rank": {"nll": 0.25}}
    rows = table_rows(table, errors, {"vi": {"agreement": 0.9885}}, ("agreement", "nll"))
    assert rows == [
        ["VI q", "0.9800 ± 0.0100 (0.9885)", "– ± –"],
        ["HMC q_r, low rank", "–", "0.5000 ± 0.2500"],
    ]


def test_references_and_the_null_in_rows():
    scores = dict.fromkeys(("agreement", "total_variation", "sample_accuracy", "mean_accuracy"), 1)
    row = scores | {"average_std": 0.5, "average_transpositions": 7, "mean_with_reference": None}
    rows = reference_rows({"references": {"sample 3": row}, "prior_networks": row})
    assert rows[0] == ["sample 3", *["1.0000"] * 4, "0.5000", "–", "–", "–", "–", "7.0"]
    assert len(REFERENCE_HEADINGS) == len(rows[0])
    assert rows[1][0] == "networks from the prior"


def test_samples_that_are_not_hmcs_are_not_called_so():
    check = {"weights": 670, "mean_square": 1.1, "standard_error": 0.002, "std": 0.98,
             "std_expected": 0.99, "effective_samples": 50.2, "passed": False}  # fmt: skip
    found = DIAGNOSTICS | {"label": "samples", "dead_pixels": check}
    lines = summary_lines(found)
    assert not any("HMC" in line or "sampler" in line for line in lines)
    assert lines[0].endswith("NOT the prior's: samples of this posterior would have it so.")
    table = {"hmc_sample": {"nll": 1.0}, "hmc_rebased": {"nll": 1.0}, "vi": {"nll": 1.0}}
    rows = table_rows(table, table, {}, ("nll",), "samples")
    assert [row[0] for row in rows] == ["samples", "q_r", "VI q"]


def test_chains_too_short_for_r_hat_are_said_to_be():
    lines = summary_lines(DIAGNOSTICS | {"mixing": {"before": {}, "after": {}}, "at_prior": {}})
    assert any("fewer than 8 samples" in line for line in lines)
