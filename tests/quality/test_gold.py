"""Gold standards: four points by hand, what a file keeps, and what is refused."""

import json
import math

from utils.evaluation.metrics import METRICS
from utils.evaluation.predictions import PartPredictions
from utils.quality.gold import (
    checksum_of_labels,
    find_gold,
    floor,
    looks_shuffled,
    open_predictions,
    read_gold,
    save_gold,
    score_beside,
)
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch

HMC = torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 0, 0])
ABOUT = {"name": "four", "dataset": "MNIST", "checks": {"shortfalls": []}}


def predictions(*parts):
    return PartPredictions(torch.stack(parts), torch.ones(len(parts), dtype=torch.long))


@pytest.fixture
def gold_file(tmp_path):
    save_gold(tmp_path / "four.npz", predictions(HMC, HMC), LABELS, ABOUT)
    return tmp_path / "four.npz"


@pytest.fixture
def gold(gold_file):
    return read_gold(gold_file)


def saved(tmp_path, **arrays):
    np.savez(tmp_path / "mine.npz", **arrays)
    return tmp_path / "mine.npz"


def test_scores_of_four_points_by_hand(gold):
    mine = torch.tensor([[0.6, 0.4], [0.7, 0.3], [0.25, 0.75], [0.1, 0.9]], dtype=torch.float64)
    values, errors, _ = score_beside(predictions(mine), gold, 20, 0)
    assert values["agreement"] == 0.5  # of ties the first class counts
    assert values["total_variation"] == pytest.approx((0.2 + 0.3 + 0.25 + 0) / 4, abs=1e-3)
    assert values["sample_accuracy"] == 0.25
    nll = -(math.log(0.6) + math.log(0.3) + math.log(0.25) + math.log(0.1)) / 4
    assert values["nll"] == pytest.approx(nll)
    brier = 2 * (0.4**2 + 0.7**2 + 0.75**2 + 0.9**2) / 4
    assert values["brier"] == pytest.approx(brier)
    gaps = (1 - 0.6) + 0.7 + 0.75 + 0.9  # each confidence in a bin of its own
    assert values["ece"] == pytest.approx(gaps / 4)
    always = {name for name, metric in METRICS.items() if metric.needs == "average"}
    assert errors.keys() == values.keys() == always


def test_labels_of_probability_zero_are_counted(gold):
    mine = torch.tensor([[0.0, 1.0], [0.5, 0.5], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    scored = score_beside(predictions(mine), gold, 4, 0)
    assert scored.impossible == 2
    assert scored.values["nll"] == math.inf


def test_hmc_agrees_with_itself_and_its_halves_are_the_floor(tmp_path):
    random = np.random.default_rng(0)
    parts = [torch.from_numpy(random.dirichlet(np.ones(5), 300)) for _ in range(4)]
    labels = torch.from_numpy(random.integers(0, 5, 300))
    save_gold(tmp_path / "g.npz", predictions(*parts), labels, ABOUT)
    gold = read_gold(tmp_path / "g.npz")
    values, errors, _ = score_beside(gold.predictions, gold, 20, 0)
    assert (values["agreement"], values["total_variation"]) == (1, 0)
    assert errors["total_variation"] > 0  # other chains would be somewhere else
    halves = [(parts[0] + parts[1]) / 2, (parts[2] + parts[3]) / 2]
    between = (halves[0] - halves[1]).abs().sum(1).mean() / 2
    assert floor(gold)["total_variation"] == pytest.approx(between.item(), rel=2e-3)
    assert not looks_shuffled(values, gold)


def test_shuffled_predictions_are_at_chance(tmp_path):
    """1,000 sure predictions of 5 classes: 0.2 ± 0.013; within 5 of its errors, 1 in 2 million."""
    random = np.random.default_rng(0)
    labels = torch.from_numpy(np.arange(1000) % 5)
    sure = 0.9 * torch.nn.functional.one_hot(labels, 5).double() + 0.02
    save_gold(tmp_path / "g.npz", predictions(sure), labels, ABOUT)
    gold = read_gold(tmp_path / "g.npz")
    values, errors, _ = score_beside(predictions(sure[random.permutation(1000)]), gold, 50, 0)
    assert values["agreement"] == pytest.approx(0.2, abs=0.065)
    assert errors["agreement"] == pytest.approx((0.2 * 0.8 / 1000) ** 0.5, rel=0.3)
    assert looks_shuffled(values, gold)


def test_a_file_keeps_small_probabilities_and_normalises(tmp_path):
    tiny = torch.tensor([[1 - 1e-12, 1e-12], [2.0, 2.0]], dtype=torch.float64)
    save_gold(tmp_path / "g.npz", predictions(tiny), LABELS[:2], ABOUT)
    with np.load(tmp_path / "g.npz") as archive:
        assert archive["log_probabilities"].dtype == np.float16
    (part,) = read_gold(tmp_path / "g.npz").predictions.parts
    assert part[0, 1].item() == pytest.approx(1e-12, rel=0.01)
    assert part.max() <= 1
    torch.testing.assert_close(part.sum(1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(part[1], torch.full((2,), 0.5, dtype=torch.float64))


def test_labels_have_a_checksum(gold_file, tmp_path):
    assert checksum_of_labels(LABELS) != checksum_of_labels(LABELS.flip(0))
    with np.load(gold_file) as archive:
        arrays = dict(archive)
    assert json.loads(arrays["about"].tobytes())["labels_sha256"] == checksum_of_labels(LABELS)
    for name, damaged in (("labels", arrays["labels"][::-1]), ("sizes", arrays["sizes"][:-1])):
        np.savez(gold_file, **arrays | {name: damaged})
        with pytest.raises(UserError, match="damaged"):
            read_gold(gold_file)


def test_files_of_predictions(gold, tmp_path):
    ours = HMC.numpy().astype(np.float32)
    np.save(tmp_path / "mine.npy", ours)
    several = saved(tmp_path, a=ours, b=ours, labels=LABELS.numpy(), more=np.zeros(3))
    for path, array in ((tmp_path / "mine.npy", None), (several, "a")):
        torch.testing.assert_close(open_predictions(path, gold, array), HMC, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "array", "words"),
    [
        ({"p": HMC[:3]}, None, r"must have probabilities \[4, 2\].* has p \[3, 2\]"),
        ({"p": HMC.T}, None, r"has p \[2, 4\]"),
        ({"p": LABELS}, None, "must have"),
        ({"p": LABELS.new_zeros(4, 2)}, None, "in floating point; its array is of int64"),
        ({}, None, "it has none"),
        ({"p": HMC, "q": HMC}, None, "--array and one of p, q"),
        ({"p": HMC}, "q", "no array 'q', but: p"),
        ({"p": HMC, "labels": LABELS.flip(0)}, None, "in another order"),
        ({"p": HMC, "labels": LABELS[:3]}, None, "other labels"),
        ({"p": HMC.log()}, None, "no probabilities"),
        ({"p": 1.1 * HMC}, None, "sums from 1.1"),
        ({"p": HMC / 0}, None, "NaN or infinite"),
    ],
)
def test_what_is_refused(gold, tmp_path, arrays, array, words):
    path = saved(tmp_path, **{name: each.numpy() for name, each in arrays.items()})
    with pytest.raises(UserError, match=words):
        open_predictions(path, gold, array)


def test_files_that_cannot_be_read(gold, gold_file, tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    for read in (lambda path: open_predictions(path, gold), read_gold):
        with pytest.raises(UserError, match="Cannot read"):
            read(tmp_path / "text.npz")
    assert find_gold("four", tmp_path) == find_gold(str(gold_file), tmp_path) == gold_file
    with pytest.raises(UserError, match="one of four, text"):
        find_gold("five", tmp_path)
