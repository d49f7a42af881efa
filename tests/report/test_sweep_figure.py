"""The figure of a sweep shows what sweep.json says."""

import json

from tests.drawn import assert_readable, line_of
from utils.report.figures import ORANGE
from utils.report.sweep_figure import sweep_figure

import matplotlib.colors
import numpy as np
import pytest


def draw(tmp_path, runs: list[tuple[dict, float | None]], goal="maximize"):
    path = tmp_path / "sweep.json"
    entries = [{"settings": settings, "value": value} for settings, value in runs]
    content = {"metric": "score", "goal": goal, "varied": list(runs[0][0]), "runs": entries}
    path.write_text(json.dumps(content))
    figure = sweep_figure(path)
    assert_readable(figure)
    return figure


def test_a_grid_of_two_settings_is_a_heat_map(tmp_path):
    runs = [
        ({"rate": rate, "kind": kind}, None if rate == 1.0 else rate + shift)
        for rate in (0.01, 0.001, 1.0)
        for kind, shift in (("SGD", 0.1), ("Adam", 0.2))
    ]
    figure = draw(tmp_path, runs)
    cells, colors = figure.axes
    assert [text.get_text() for text in cells.get_xticklabels()] == ["0.001", "0.01", "1.0"]
    assert [text.get_text() for text in cells.get_yticklabels()] == ["SGD", "Adam"]
    (image,) = cells.images
    assert image.get_array().tolist() == [[0.101, 0.11, None], [0.201, 0.21000000000000002, None]]
    texts = ["0.101", "0.11", "none", "0.201", "0.21", "none"]
    assert [text.get_text() for text in cells.texts] == texts
    (frame,) = cells.patches
    assert frame.get_edgecolor() == matplotlib.colors.to_rgba(ORANGE)
    assert (frame.get_xy(), cells.get_xlabel()) == ((0.5, 0.5), "rate")  # 0.01 and Adam
    assert colors.get_ylabel() == "score (high is good)"


def test_a_sweep_without_any_value_is_drawn(tmp_path):
    pairs = [{"a": a, "b": b} for a in (1, 2) for b in (1, 2)]
    assert not draw(tmp_path, [(pair, None) for pair in pairs]).axes[0].patches
    (axis,) = draw(tmp_path, [({"a": pair["b"]}, None) for pair in pairs]).axes
    assert line_of(axis, "no value").size == 4


def test_a_sweep_of_many_settings_shows_all_runs_and_the_best_at_each_value(tmp_path):
    draws = np.random.default_rng(0).uniform(1, 2, (12, 4)).round(3).tolist()
    runs = [
        ({"a": a, "b": b, "c": c, "deep": k % 2 == 0, "e": k}, d)
        for k, (a, b, c, d) in enumerate(draws)
    ]
    runs[3] = (runs[3][0], None)
    figure = draw(tmp_path, runs, goal="minimize")
    assert [axis.get_xlabel() for axis in figure.axes] == ["a", "b", "c", "deep", "e"]
    values = [value for _, value in runs]
    known = [value for value in values if value is not None]
    first, deep = figure.axes[0], figure.axes[3]
    assert sorted(first.lines[0].get_ydata()) == sorted(known)
    assert first.get_xscale() == "linear"
    assert line_of(first, "best run").tolist() == [min(known)]
    (failed,) = [line for line in first.lines if line.get_label() == "no value"]
    assert failed.get_xdata().tolist() == [runs[3][0]["a"]]
    best = [min(values[0::2]), min(value for value in values[1::2] if value is not None)]
    assert line_of(deep, "best at each value").tolist() == best
    assert [tick.get_text() for tick in deep.get_xticklabels()] == ["True", "False"]


@pytest.mark.parametrize(
    ("values", "goal", "label", "scale"),
    [
        ([0.29, 0.42, 2.3], "minimize", "score (low is good)", "log"),
        ([0.29, 0.42, 0.5], "minimize", "score (low is good)", "linear"),
        ([-3326.0, -118234.0, -5750.0], "maximize", "−score (low is good)", "log"),  # an ELBO
        ([0.1, 0.97, 0.98], "maximize", "score (high is good)", "linear"),  # accuracies
        ([-1.0, 3.0, 8.0], "minimize", "score (low is good)", "linear"),
    ],
)
def test_a_loss_of_wide_range_has_a_log_scale(tmp_path, values, goal, label, scale):
    rates = (0.001, 0.01, 0.1)
    figure = draw(tmp_path, list(zip([{"rate": r} for r in rates], values, strict=True)), goal)
    (axis,) = figure.axes
    assert (axis.get_ylabel(), axis.get_yscale(), axis.get_xscale()) == (label, scale, "log")
    best = max(values) if goal == "maximize" else min(values)
    assert line_of(axis, "best run").tolist() == [-best if label[0] == "−" else best]
