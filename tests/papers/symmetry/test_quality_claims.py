"""Claims 3 to 6 on results made up to meet their criteria, or not."""

import copy
import json

from papers.symmetry.quality_claims import (
    SCORES,
    networks_stand_in,
    no_correlation,
    no_correlation_beside_hmc,
    no_correlation_of_modes,
    no_correlation_of_modes_beside_hmc,
    plain_networks_suffice,
    several_modes_are_better,
    several_modes_are_more_diverse,
)
from papers.symmetry.quality_tables import quality_tables
from papers.symmetry.table1 import COMPARED, published_rows, published_tables
from utils.quality.scores import QUALITY
from utils.report.paper import FAILS, HOLDS, PARTLY, UNDECIDED, UNKNOWN, judge
from utils.report.results import Results, RunResult

import pytest

HIGH = ("accuracy", "aupr_in")
DISTANCE = {"value": 0.1, "low": -0.2, "high": 0.2, "p": 0.5, "error": 0.01}


def row(name: str, modes: str, level: float) -> dict:
    """Return a row that is the better the higher its level, with errors of 0.01."""
    scores = {score: level if score in HIGH else 1 - level for score in QUALITY}
    scores |= {"mi_inside": level, "mi_outside": level}
    return {
        "name": name, "source": name, "modes": modes,
        "num_modes": 10, "samples": 100, "averaged": 1,
        "scores": scores, "errors": dict.fromkeys(QUALITY, 0.01),
        "beside": {
            "networks": {"agreement": 0.9, "total_variation": level},
            "hmc": {"agreement": 0.9, "total_variation": level},
        },
        "beside_errors": {
            "networks": {"agreement": 0.02, "total_variation": None},
            "hmc": {"agreement": 0.02, "total_variation": None},
        },
        "distances": {
            reference: dict.fromkeys(("weights", "inside", "outside", "units"), DISTANCE)
            for reference in ("networks", "hmc")
        },
        "training_seconds": None, "sampling_seconds": 1.0, "prediction_seconds": 2.0,
    }  # fmt: skip


def table() -> list[dict]:
    methods = {"a": 0.5, "b": 0.6, "c": 0.7}
    rows = [row(name, "one", level) for name, level in methods.items()]
    rows += [row(name, "multi", level + 0.1) for name, level in methods.items()]
    return [*rows, row("networks", "multi", 0.9), row("hmc", "multi", 0.9)]


def mark(claim, tmp_path, rows=None, cells=None) -> str:
    contents = {"table.json": rows, "correlations.json": cells}
    for name, content in contents.items():
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    results = Results("", "MNIST", {"symmetry_table": RunResult("", tmp_path)})
    return judge(claim, results).mark


def test_several_modes_are_better(tmp_path):
    rows = table()
    assert mark(several_modes_are_better, tmp_path, rows) == HOLDS
    rows[3]["scores"]["ece"] = 0.9
    assert mark(several_modes_are_better, tmp_path, rows) == PARTLY
    for each in rows[3:6]:
        each["scores"] |= {score: 0.5 if score in HIGH else 0.9 for score in SCORES}
    assert mark(several_modes_are_better, tmp_path, rows) == FAILS
    assert mark(several_modes_are_better, tmp_path, rows[-2:]) == UNKNOWN
    unclear = table()
    for each in unclear:
        each["scores"] |= dict.fromkeys(SCORES, 0.5)
    assert mark(several_modes_are_better, tmp_path, unclear) == UNDECIDED
    fewer = [each | {"samples": 10} if each["modes"] == "one" else each for each in table()]
    assert mark(several_modes_are_better, tmp_path, fewer) == UNKNOWN


def test_several_modes_are_more_diverse(tmp_path):
    rows = table()
    assert mark(several_modes_are_more_diverse, tmp_path, rows) == HOLDS
    rows[3]["scores"]["mi_inside"] = 0.51  # within two errors
    assert mark(several_modes_are_more_diverse, tmp_path, rows) == PARTLY
    for each in rows[3:6]:
        each["scores"] |= {"mi_inside": 0.1, "mi_outside": 0.1}
    assert mark(several_modes_are_more_diverse, tmp_path, rows) == FAILS


@pytest.mark.parametrize(
    ("low", "high", "p", "expected"),
    [
        (-0.2, 0.2, 0.9, HOLDS), (-0.6, 0.6, 0.9, UNDECIDED), (0.4, 0.9, 0.001, FAILS),
        (None, None, None, UNKNOWN),
    ],
)  # fmt: skip
def test_correlations(tmp_path, low, high, p, expected):
    cell = {"rho": 0.0, "low": low, "high": high, "p": p, "count": 12}
    other = cell | {"p": 0.0001, "low": 0.8, "high": 0.9}  # not of weights: does not count
    cells = {"rows": {"weights/ece": cell, "inside/ece": other}, "modes": {}}
    assert mark(no_correlation, tmp_path, cells=cells) == expected


UNCLEAR = {"rho": 0.1, "low": -0.5, "high": 0.6, "p": 0.5, "count": 12}
CLEAR = {"rho": 0.8, "low": 0.6, "high": 0.9, "p": 0.004, "least_p": 0.004, "count": 70}


def test_each_question_has_its_own_verdict_and_correction(tmp_path):
    """p = 0.004 is significant by itself, and not among three correlations."""
    alone, unclear = {"weights/ece": CLEAR}, {"weights/ece": UNCLEAR}
    among = alone | {f"{space}/ece": UNCLEAR for space in ("canonical", "rebased")}
    cells = {"rows": unclear, "modes": alone, "hmc": {"rows": among, "modes": alone}}
    for claim in (no_correlation, no_correlation_beside_hmc):
        assert mark(claim, tmp_path, table(), cells) == UNDECIDED
    for claim in (no_correlation_of_modes, no_correlation_of_modes_beside_hmc):
        assert mark(claim, tmp_path, table(), cells) == FAILS
    results = Results("", "MNIST", {"symmetry_table": RunResult("", tmp_path)})
    evidence = judge(no_correlation_beside_hmc, results).evidence
    assert "p ≤ 0.0040" in evidence  # as small as permutations can show
    assert "all 3, p ≤ 0.0120" in evidence
    assert "p = 0.5000" in judge(no_correlation, results).evidence
    del cells["hmc"]
    for claim in (no_correlation_beside_hmc, no_correlation_of_modes_beside_hmc):
        assert mark(claim, tmp_path, table(), cells) == UNKNOWN  # a run of an earlier version
    assert mark(no_correlation, tmp_path, table(), cells) == UNDECIDED


ORDER = {"tau": 0.8, "low": 0.6, "high": 1.0, "count": 10, "several": None}
SPACES = ("inside", "outside", "units")


def orders(*alike: str) -> dict:
    """Return correlations.json with orders that are alike by some measures only."""
    names = ("total_variation", *SPACES, "weights")
    return {"orders": {name: ORDER | {"low": 0.6 if name in alike else 0.4} for name in names}}


def test_networks_as_a_stand_in(tmp_path):
    """Weights do not count, and the average alone is not enough."""
    rows, every = table(), orders("total_variation", *SPACES)
    assert mark(networks_stand_in, tmp_path, rows, every) == HOLDS
    for missing in ("total_variation", *SPACES):
        some = orders(*({"total_variation", *SPACES} - {missing}))
        assert mark(networks_stand_in, tmp_path, rows, some) == PARTLY
    for space in SPACES:
        assert mark(networks_stand_in, tmp_path, rows, orders("weights")) == PARTLY  # not far
        rows[-2]["distances"]["hmc"] |= {space: copy.deepcopy(DISTANCE) | {"value": 0.3}}
        assert mark(networks_stand_in, tmp_path, rows, every) == PARTLY
    assert mark(networks_stand_in, tmp_path, rows, orders("total_variation")) == PARTLY
    assert mark(networks_stand_in, tmp_path, rows, orders("weights")) == FAILS


def test_a_stand_in_is_judged_by_all_orders_or_not_at_all(tmp_path):
    rows, every = table(), orders("total_variation", *SPACES)
    assert mark(networks_stand_in, tmp_path, rows[:-1], every) == UNKNOWN  # no HMC
    assert mark(networks_stand_in, tmp_path, rows, {"orders": {}}) == UNKNOWN  # few methods
    earlier = {"order": {"tau": 0.9, "low": 0.8, "high": 1.0}}
    assert mark(networks_stand_in, tmp_path, rows, earlier) == UNKNOWN


def test_plain_networks_beside_other_methods(tmp_path):
    """The error of a difference is 0.014: up to 0.028 may be chance, and equal scores show that
    networks are at most 0.028 worse, which is more than the margin."""
    rows = [row("networks", "multi", 0.6), row("a", "multi", 0.52), row("b", "multi", 0.5)]
    rows += [row("hmc", "multi", 0.9), row("a", "one", 0.9)]
    networks, a, b = (each["scores"] for each in rows[:3])
    networks["nll"], a["nll"], b["nll"] = 0.4, 0.45, 0.5
    assert mark(plain_networks_suffice, tmp_path, rows, {}) == HOLDS
    a["nll"] = 0.4
    assert mark(plain_networks_suffice, tmp_path, rows, {}) == UNDECIDED
    a["nll"] = 0.3
    assert mark(plain_networks_suffice, tmp_path, rows, {}) == PARTLY
    b["nll"] = 0.3
    assert mark(plain_networks_suffice, tmp_path, rows, {}) == FAILS
    rows[2]["num_modes"] = 99  # is no comparison with equally many
    assert mark(plain_networks_suffice, tmp_path, rows, {}) == PARTLY
    assert mark(plain_networks_suffice, tmp_path, rows[1:], {}) == UNKNOWN


def test_tables_show_every_row_and_mark_what_is_significant():
    rows = table()
    rows[0]["errors"]["accuracy"] = rows[0]["scores"]["mi_inside"] = None
    rows[0]["distances"]["hmc"]["weights"] = DISTANCE | {"p": 0.01}
    powers = {name: {"weights": {"weights × 1.1": 0.5}} for name in ("networks", "hmc")}
    summary = {"power": powers, "base_rate_in": 0.25, "base_rate_out": 0.75, "ood": "far"}
    earlier = {"rows": {}, "modes": {}, "order": None}
    scores, beside, first, second, *power = quality_tables(rows, summary, earlier)
    assert "25 % and 75 %" in scores.note
    assert len(scores.rows) == len(beside.rows) == len(rows)
    assert scores.rows[0][3] == "50.00"
    assert scores.rows[1][3] == "60.00 ± 1.00"
    assert "–" in scores.rows[0]
    assert beside.rows[0][3:5] == ["0.9000 ± 0.0200", "0.5000"]
    assert first.rows[0][3] == "−0.2000 to 0.2000"
    assert first.rows[1][3] == "0.1000 ± 0.0100 (≤ 0.2000)"
    assert second.rows[1][3] == "0.1000* ± 0.0100 (≤ 0.2000)"
    assert [table.rows for table in power] == 2 * [[["weights", "0.50"]]]


def test_tables_of_both_references_and_of_power_with_few_modes():
    powers = {name: {"weights": {"weights × 1.1": 0.5}} for name in ("networks", "hmc")}
    few = {"networks": {"weights": {"weights × 1.1": 0.25}}}
    summary = {"power": powers, "power_of_modes": few, "ood": "far"}
    summary |= {"base_rate_in": 0.5, "base_rate_out": 0.5}
    strong, weak = ({"weights/accuracy": CLEAR | {"p": p}} for p in (0.0006, 0.0007))
    related = {"rows": strong, "modes": weak, "hmc": {"rows": {}, "modes": strong}}
    several = {"tau": -0.2, "low": -0.6, "high": 0.3, "count": 6}
    related["orders"] = {"total_variation": ORDER | {"several": several}, "units": ORDER}
    *_, order, related, first, second = quality_tables(table(), summary, related)
    assert order.rows == [
        ["TV of averages", "10", "0.80 (0.60 to 1.00)", "6", "−0.20 (−0.60 to 0.30)"],
        ["sets of units", "10", "0.80 (0.60 to 1.00)", "–", "–"],
    ]
    assert related.head[2:] == ["rows beside networks", "modes beside networks", "modes beside hmc"]
    found = "0.80 (0.60 to 0.90)"
    assert related.rows[0] == ["weights", "accuracy", f"{found}*", found, f"{found}*"]  # of 15
    assert related.rows[1][2:] == ["–"] * 3
    assert first.rows == [["weights", "0.50 (0.25)"]]
    assert second.rows == [["weights", "0.50"]]


def test_the_papers_table_1_is_as_printed():
    rows = published_rows()
    assert {data: len(each) for data, each in rows.items()} == {"CIFAR-100": 10, "TinyImageNet": 8}
    assert {len(row) for each in rows.values() for row in each.values()} == {10}
    assert rows["CIFAR-100"]["VI", "one"]["accuracy"] == 57.9
    assert rows["TinyImageNet"]["networks", "multi"]["mi_outside"] == 83.4


def test_our_rows_stand_beside_the_papers():
    rows = [row("dropout", "one", 0.5), row("dropout", "multi", 0.6), row("other", "one", 0.5)]
    rows[1]["scores"]["scaled_ece"] = 0.51  # within two errors of 0.5
    scores, signs = published_tables(rows, "a network", "MNIST")
    assert sum(line[2].startswith("paper") for line in scores.rows) == 18
    ours = [line for line in scores.rows if line[2] == "ours, MNIST"]
    assert [line[:2] for line in ours] == [["dropout", "one"], ["dropout", "several"]]
    assert ours[0][3] == "50.0 ± 1.0"
    assert ["dropout", "one", "paper, CIFAR-100", "74.2"] in [line[:4] for line in scores.rows]
    by_source = {(line[0], line[1]): line[2:] for line in signs.rows}
    assert by_source["dropout", "paper, CIFAR-100"] == list("+−−−+++")
    assert by_source["dropout", "ours, MNIST"] == list("+−?−−++")
    assert "Of the 6 signs of ours that are clear, 5 are" in signs.note
    assert ("SGHMC", "paper, CIFAR-100") not in by_source  # several modes of it are not there
    assert len(COMPARED) == len(signs.head) - 2
