"""Detection scores beside scikit-learn, and by hand for ties, perfect separation and one point."""

from utils.quality.detection import (
    auroc,
    average_precision,
    confidence_score,
    false_positive_rate,
)

import pytest
import torch


def scores(count: int, shift: float, seed: int, digits: int) -> torch.Tensor:
    """Return nearly normal numbers without a generator, rounded to make ties."""
    k = torch.arange(1, count + 1, dtype=torch.float64)
    uniform = (k * 0.6180339887498949 + seed * 0.377).frac().clamp(1e-6, 1 - 1e-6)
    return (torch.special.ndtri(uniform) + shift).mul(10**digits).round().div(10**digits)


FROZEN = {  # digits: AUROC, average precision, the same at 50:50, FPR at 95 %
    6: (0.76185, 0.5611972945164063, 0.7570672685777808, 0.73),
    0: (0.7454083333333333, 0.48307790737363693, 0.6990239112982628, 0.9325),
}


@pytest.mark.parametrize("digits", FROZEN)
def test_scores_are_those_of_scikit_learn(digits):
    """Frozen: scikit-learn 1.9.1, without ties and with many."""
    positive, negative = scores(150, 1.0, 0, digits), scores(400, 0.0, 1, digits)
    ours = (
        auroc(positive, negative),
        average_precision(positive, negative),
        average_precision(positive, negative, 0.5),
        false_positive_rate(positive, negative),
    )
    assert ours == pytest.approx(FROZEN[digits], abs=1e-12)


def test_perfect_separation():
    high, low = torch.arange(5, 9), torch.arange(4)
    assert auroc(high, low) == average_precision(high, low) == 1
    assert false_positive_rate(high, low) == 0
    assert auroc(low, high) == 0
    assert false_positive_rate(low, high) == 1


def test_equal_scores_tell_nothing():
    same = torch.ones(30)
    assert auroc(same[:10], same) == 0.5
    assert average_precision(same[:10], same[:20]) == pytest.approx(1 / 3)  # the base rate
    assert average_precision(same[:10], same[:20], 0.5) == pytest.approx(0.5)
    assert false_positive_rate(same[:10], same) == 1


def test_one_tie_by_hand():
    """Positive 3 and 2, negative 2 and 1: three pairs won and one tied."""
    positive, negative = torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0])
    assert auroc(positive, negative) == pytest.approx(3.5 / 4)
    assert average_precision(positive, negative) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert false_positive_rate(positive, negative) == 0.5


def test_confidence_orders_what_rounds_to_one():
    probabilities = torch.tensor([[1.0, 1e-30, 0], [1.0, 1e-20, 0], [0.9, 0.1, 0], [1.0, 0, 0]])
    score = confidence_score(probabilities.double())
    assert score.argsort(descending=True).tolist() == [3, 0, 1, 2]
    assert score[2].item() == pytest.approx(torch.tensor(9.0).log().item(), rel=1e-6)
    assert auroc(score[[0]], score[[1]]) == 1  # both are 1 in float64
