"""Distances and scores: every panel shows rows of one kind beside one reference."""

import json

from papers.symmetry.quality_figures import quality_and_scores
from tests.drawn import assert_readable

import numpy as np
import pytest

DISTANCES = {"networks": 1.0, "hmc": 10.0}
LEVELS = {"one": 0.1, "multi": 0.2, "each": 0.3}
SCORES = {"accuracy": 0.9, "ece": 0.1, "aupr_in": 0.8}


def item(distance: float) -> dict:
    """Return distances ten times as far from HMC, and of predictions twice as far."""
    distances = {
        name: {"rebased": {"value": factor * distance}, "inside": {"value": 2 * factor * distance}}
        for name, factor in DISTANCES.items()
    }
    return {"distances": distances, "scores": SCORES}


def row(name: str, modes: str) -> dict:
    points = {"points": [item(0.05), item(0.15)]} if modes == "one" else {}
    return {"name": name, "modes": modes} | item(LEVELS[modes]) | points


@pytest.fixture
def source(tmp_path):
    rows = [row(name, modes) for name in ("a", "b", "c") for modes in LEVELS]
    rows += [row("networks", "multi"), row("hmc", "multi")]
    rows.append({"name": "networks", "modes": "one", "distances": {}, "scores": SCORES})
    (tmp_path / "table.json").write_text(json.dumps(rows))
    cell = {"rho": -0.5, "low": -0.7, "high": -0.1}
    related = {"rows": {"rebased/ece": cell}, "modes": {}}
    hmc = {"rows": {}, "modes": {"inside/accuracy": cell}}
    (tmp_path / "correlations.json").write_text(json.dumps(related | {"hmc": hmc}))
    return tmp_path / "table.json"


def values(axis) -> set[float]:
    return {round(x, 6) for line in axis.lines for x in line.get_xdata()}


def test_one_mode_and_several_have_panels_of_their_own(source):
    drawn = quality_and_scores.draw(source)
    assert_readable(drawn)
    axes = np.array(drawn.axes).reshape(4, 4)
    expected = [{0.05, 0.1, 0.15}, {0.2, 0.3}, {0.5, 1.0, 1.5}, {2.0, 3.0}]
    for line, distances in zip(axes, expected, strict=True):
        assert all(values(axis) == distances for axis in line[:3])
        assert values(line[3]) == {round(2 * each, 6) for each in distances}
    assert [axis.get_ylabel() for axis in axes[0]] == ["accuracy", "ECE", "AUPR in", "accuracy"]
    known = {axis for axis in axes.flat if "−0.50 (−0.70 to −0.10)" in axis.get_title()}
    assert known == {axes[1, 1], axes[2, 3]}


def test_every_method_has_a_marker_of_its_own(source):
    drawn = quality_and_scores.draw(source)
    markers = [line.get_marker() for line in drawn.legends[0].get_lines()]
    assert len(set(markers)) == len(markers) == 5


def test_runs_of_earlier_versions_know_no_correlations_beside_hmc(source):
    related = json.loads(source.with_name("correlations.json").read_text())
    del related["hmc"]
    source.with_name("correlations.json").write_text(json.dumps(related))
    axes = quality_and_scores.draw(source).axes
    assert "not measured" in axes[-1].get_title()
