"""Figures show what their result files say; how they look is for people to judge."""

import json

from utils.report import figures


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
    assert curves(figures.training(path)) == [
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
