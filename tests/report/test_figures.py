"""Figures show what their result files say; how they look is for people to judge."""

import json

from tests.drawn import assert_readable, line_of
from utils.report import figures

import numpy as np
import pytest


def curves(figure) -> list[list]:
    return [line.get_xydata().tolist() for axis in figure.axes for line in axis.lines]


def test_training_of_an_ensemble_is_drawn_as_recorded(tmp_path):
    records = [
        {"epoch": 1, "train_loss_0": 0.5, "train_loss_1": 0.6},
        {"epoch": 2, "train_loss_0": 0.3, "train_loss_1": 0.4},
        {"epoch": 2, "test_accuracy": 0.9},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    assert curves(figures.ensemble_training(path)) == [
        [[1, 0.5], [2, 0.3]],
        [[1, 0.6], [2, 0.4]],
        [[2, 90]],
    ]


def test_training_of_vi_is_drawn_as_recorded(tmp_path):
    path = tmp_path / "metrics.jsonl"
    record = {"epoch": 1, "nll": 20.0, "kl": 10.0, "elbo": -30.0, "test_accuracy": 0.5}
    path.write_text(json.dumps(record))
    drawn = curves(figures.vi_training(path))
    assert drawn == [[[1, 30]], [[1, 10]], [[1, 20]], [[1, 50]]]


def sweep_file(tmp_path, runs: list[tuple[dict, float | None]], goal="maximize"):
    path = tmp_path / "sweep.json"
    entries = [{"settings": settings, "value": value} for settings, value in runs]
    varied = list(runs[0][0])
    path.write_text(
        json.dumps({"metric": "accuracy", "goal": goal, "varied": varied, "runs": entries})
    )
    return path


def test_a_sweep_of_two_settings_has_a_line_for_each_value_of_the_other(tmp_path):
    runs = [
        ({"rate": rate, "kind": kind}, None if rate == 1.0 else rate + shift)
        for rate in (0.001, 0.01, 1.0)
        for kind, shift in (("SGD", 0.1), ("Adam", 0.2))
    ]
    figure = figures.sweep(sweep_file(tmp_path, runs))
    assert_readable(figure)
    by_rate, by_kind = figure.axes
    assert line_of(by_rate, "SGD").tolist() == [0.101, 0.11]
    assert line_of(by_rate, "Adam").tolist() == pytest.approx([0.201, 0.21])
    assert by_rate.get_xscale() == "log"
    assert line_of(by_rate, "best run").tolist() == pytest.approx([0.21])
    (failed,) = [line for line in by_rate.lines if line.get_label() == "no value"]
    assert failed.get_xdata().tolist() == [1.0, 1.0]
    assert [tick.get_text() for tick in by_kind.get_xticklabels()] == ["SGD", "Adam"]
    assert line_of(by_kind, "0.01").tolist() == pytest.approx([0.11, 0.21])


def test_a_sweep_of_many_settings_shows_all_runs_and_the_best_at_each_value(tmp_path):
    draws = np.random.default_rng(0).uniform(1, 2, (12, 4)).round(3).tolist()
    runs = [
        ({"a": a, "b": b, "c": c, "deep": k % 2 == 0, "e": k}, d)
        for k, (a, b, c, d) in enumerate(draws)
    ]
    figure = figures.sweep(sweep_file(tmp_path, runs, goal="minimize"))
    assert_readable(figure)
    assert [axis.get_xlabel() for axis in figure.axes] == ["a", "b", "c", "deep", "e"]
    values = [value for _, value in runs]
    first, deep = figure.axes[0], figure.axes[3]
    assert sorted(first.lines[0].get_ydata()) == sorted(values)
    assert first.get_xscale() == "linear"
    assert line_of(first, "best run").tolist() == [min(values)]
    best = [min(values[0::2]), min(values[1::2])]
    assert line_of(deep, "best at each value").tolist() == best
    assert [tick.get_text() for tick in deep.get_xticklabels()] == ["True", "False"]
