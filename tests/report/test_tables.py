"""Numbers and tables as text."""

from utils.report.tables import Table, number

import pytest


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.12"), (-1, "−1.00"), (0, "0.00"), (None, "–"), (float("nan"), "–")],
)
def test_numbers(value, text):
    assert number(value, 2) == text


def test_printed_columns_are_aligned_and_second_lines_are_in_brackets(capsys):
    Table(["", "agreement"], [["q_r", "0.80\npaper 0.82"], ["VI", "–"]], title="Scores").print()
    assert capsys.readouterr().out.splitlines() == [
        "",
        "Scores",
        "     agreement",
        "q_r  0.80 (paper 0.82)",
        "VI   –",
    ]
