"""Forecasts in parts beside all members at once; their scores, by hand, and errors."""

from math import log

from utils.networks.mlp import MLP
from utils.posteriors.block_gaussian import BlockGaussian, WeightBlock
from utils.quality.diversity import disagreement, entropy, infinite_mutual_information
from utils.quality.forecasts import (
    Forecast,
    ImageSets,
    Outlook,
    Parts,
    evenly_spaced,
    forecast,
    linearised_forecast,
    parts_of,
)
from utils.quality.scores import QUALITY, quality_errors, quality_scores

import numpy as np
import pytest
import torch

NETWORK = MLP((4, 6, 3))
RANDOM = torch.Generator().manual_seed(0)
WEIGHTS = 5 * torch.stack([NETWORK.initial_weights(RANDOM) for _ in range(12)])
IMAGES = ImageSets(
    torch.randn(40, 4, generator=RANDOM), torch.randint(3, (40,), generator=RANDOM),
    5 * torch.randn(30, 4, generator=RANDOM), "far",
)  # fmt: skip

LAST = torch.arange(NETWORK.num_weights - 21, NETWORK.num_weights)[None]  # 6 × 3 weights, 3 biases
NOTHING = WeightBlock(LAST, torch.eye(1), torch.eye(21), torch.zeros(1, 21))
WIDE = NOTHING._replace(std=torch.full((1, 21), 1e3))


def predictions(side: str) -> torch.Tensor:
    return NETWORK.outputs(WEIGHTS, getattr(IMAGES, side)).double().softmax(-1)


def test_parts_add_up_to_all_members():
    whole = forecast(NETWORK, WEIGHTS, Parts(4, 3), IMAGES)
    members = predictions("inside")
    torch.testing.assert_close(whole.average, members.mean(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        whole.inside.entropies, entropy(members).unflatten(0, (4, 3)).mean(1), atol=1e-5, rtol=0
    )
    votes = torch.nn.functional.one_hot(members.argmax(-1), 3).sum(0)
    assert whole.inside.votes.long().equal(votes)
    scores = quality_scores(whole)
    assert set(scores) == set(QUALITY)
    assert scores["disagreement_inside"] == pytest.approx(disagreement(votes, 12))
    expected = infinite_mutual_information(
        members.unflatten(0, (4, 3)).mean(1), entropy(members).unflatten(0, (4, 3)).mean(1)
    )
    assert scores["mi_inside"] == pytest.approx(expected, abs=1e-6)


def test_a_remainder_of_members_is_left_out():
    part = forecast(NETWORK, WEIGHTS, Parts(5, 2), IMAGES)
    torch.testing.assert_close(part.average, predictions("inside")[:10].mean(0), atol=1e-6, rtol=0)
    assert part.inside.members == 10


def test_errors_are_those_of_the_jackknife_for_few_parts():
    whole = forecast(NETWORK, WEIGHTS, Parts(4, 3), IMAGES)
    left = [
        quality_scores(whole.chosen(torch.tensor([k for k in range(4) if k != out])))["brier"]
        for out in range(4)
    ]
    expected = 3 / 4**0.5 * np.std(left, ddof=1)
    errors = quality_errors(whole, 20, 0, "x")
    assert errors["brier"] == pytest.approx(expected)
    assert "disagreement_inside" not in errors


def test_a_single_member_has_no_diversity_and_no_errors():
    alone = forecast(NETWORK, WEIGHTS[:1], Parts(1, 1), IMAGES)
    scores, errors = quality_scores(alone), quality_errors(alone, 5, 0, "x")
    assert np.isnan([scores["mi_inside"], scores["disagreement_outside"]]).all()
    assert np.isnan(errors["accuracy"])
    assert np.isfinite([scores[name] for name in ("accuracy", "aupr_out", "scaled_nll")]).all()


@pytest.mark.parametrize(
    ("members", "modes", "parts"),
    [
        (100, 10, (10, 10)), (100, 100, (20, 5)), (37, 37, (18, 2)), (1, 1, (1, 1)),
        (12, 1, (12, 1)), (74, 37, (18, 4)), (220, 22, (20, 10)),
    ],
)  # fmt: skip
def test_parts_have_whole_modes(members, modes, parts):
    assert parts_of(members, modes) == parts
    assert parts[1] % (members // modes) == 0 or modes == 1


def test_linearised_modes_are_parts_without_members():
    """Without variance a Gaussian predicts as its mean does."""
    exact = [BlockGaussian(weights, [NOTHING], NETWORK) for weights in WEIGHTS[:3]]
    found = linearised_forecast(exact, IMAGES)
    torch.testing.assert_close(found.average, predictions("inside")[:3].mean(0), atol=1e-5, rtol=0)
    scores, errors = quality_scores(found), quality_errors(found, 5, 0, "x")
    assert np.isnan([scores["mi_inside"], scores["disagreement_inside"]]).all()
    assert np.isfinite([scores["brier"], errors["brier"], scores["auroc"]]).all()
    wide = [BlockGaussian(each.mean, [WIDE], NETWORK) for each in exact]
    assert (linearised_forecast(wide, IMAGES).average.max(-1).values < 0.4).all()


def test_positions_are_different_and_have_both_ends():
    assert evenly_spaced(10, None).tolist() == list(range(10))
    assert evenly_spaced(10, 4).tolist() == [0, 3, 6, 9]


# Two parts of three members predict five test images and four others, in 64ths. On average the most
# probable class of images with even numbers has 42 and both others 11; of odd ones 40 and 12.
INSIDE = torch.tensor([
    [[50, 4, 10], [10, 48, 6], [50, 4, 10], [10, 6, 48], [4, 50, 10]],
    [[34, 18, 12], [14, 32, 18], [34, 18, 12], [14, 18, 32], [18, 34, 12]],
]) / 64.0  # fmt: skip
OUTSIDE = torch.tensor([
    [[45, 9, 10], [10, 40, 14], [16, 20, 28], [44, 10, 10]],
    [[37, 17, 10], [30, 24, 10], [20, 16, 28], [16, 38, 10]],
]) / 64.0  # fmt: skip
LABELS = torch.tensor([0, 1, 0, 0, 2])  # the first three are right
INSIDE_ENTROPIES = torch.tensor([[0.5, 0.4, 0.3, 0.2, 0.1], [0.7, 0.6, 0.5, 0.4, 0.3]])  # mean 0.4
OUTSIDE_ENTROPIES = torch.tensor([[0.1, 0.3, 0.2, 0.6], [0.2, 0.2, 0.5, 0.3]])  # mean 0.3
INSIDE_VOTES = torch.tensor([[6, 0, 0], [1, 5, 0], [4, 2, 0], [2, 0, 4], [3, 2, 1]])
OUTSIDE_VOTES = torch.tensor([[5, 1, 0], [3, 3, 0], [2, 2, 2], [4, 1, 1]])


def entropy_of(*counts: int) -> float:
    return -sum(count / 64 * log(count / 64) for count in counts)


def scores_by_hand() -> dict[str, float]:
    """Return all scores.

    Two of three even images are right and one of two odd ones. So the temperature of the even ones
    would make their odds 4 : 1 : 1, and that of the odd ones theirs 2 : 1 : 1. Each scales the
    images of the other kind.

    Bins of equal width have all images inside, those of equal mass two and three. From the most to
    the least confident there are three inside, one outside, two inside and three outside.
    """
    even = 1 / (1 + 2 * (11 / 42) ** (log(2) / log(40 / 12)))
    odd = 1 / (1 + 2 * (12 / 40) ** (log(4) / log(42 / 11)))
    # Σ of H of each part, and of the average
    parts_inside = 3 * (entropy_of(50, 4, 10) + entropy_of(34, 18, 12)) + 2 * (
        entropy_of(48, 10, 6) + entropy_of(32, 14, 18)
    )
    average_inside = 3 * entropy_of(42, 11, 11) + 2 * entropy_of(40, 12, 12)
    parts_outside = (
        entropy_of(45, 9, 10) + entropy_of(37, 17, 10) + entropy_of(10, 40, 14)
        + entropy_of(30, 24, 10) + 2 * entropy_of(16, 20, 28) + entropy_of(44, 10, 10)
        + entropy_of(16, 38, 10)
    )  # fmt: skip
    average_outside = (
        entropy_of(41, 13, 10) + entropy_of(20, 32, 12) + entropy_of(18, 18, 28)
        + entropy_of(30, 24, 10)
    )  # fmt: skip
    squares = (  # in 64ths: of two even hits, an even miss, an odd hit and an odd miss
        2 * (22**2 + 2 * 11**2) + (42**2 + 53**2 + 11**2)
        + (24**2 + 2 * 12**2) + (40**2 + 52**2 + 12**2)
    )  # fmt: skip
    by_class = (  # |hits − Σ p| of the bins of each class, in 64ths
        [11, 64 - 2 * 12, 2 * 64 - 2 * 42], [2 * 11, 12, 64 - 40, 42], [64 - 3 * 11, 12, 40]
    )  # fmt: skip
    return {
        "accuracy": 3 / 5,
        "nll": -(2 * log(42 / 64) + log(11 / 64) + log(40 / 64) + log(12 / 64)) / 5,
        "brier": squares / 64**2 / 5,
        "ece": abs(3 - (3 * 42 + 2 * 40) / 64) / 5,
        "adaptive_ece": (abs(2 - 3 * 42 / 64) + abs(1 - 2 * 40 / 64)) / 5,
        "scaled_ece": (abs(2 - 3 * even) + abs(1 - 2 * odd)) / 5,
        "debiased_square": (
            3 * ((2 / 3 - 42 / 64) ** 2 - 2 / 9 / 2) + 2 * ((1 / 2 - 40 / 64) ** 2 - 1 / 4)
        ) / 5,
        "classwise_ace": sum(map(sum, by_class)) / 64 / 5 / 3,
        "scaled_nll": -(
            2 * log(even) + log((1 - even) / 2) + log(odd) + log((1 - odd) / 2)
        ) / 5,
        "auroc": (3 * 4 + 2 * 3) / (5 * 4),
        "aupr_in": 3 / 5 + 2 / 5 * 5 / 6,  # gains in recall times precision
        "aupr_out": 3 / 4 + 1 / 4 * 4 / 6,
        "aupr_in_even": 3 / 5 + 2 / 5 / (1 + 1 / 4),
        "aupr_out_even": 3 / 4 + 1 / 4 / (1 + 2 / 5),
        "fpr95_in": 1 / 4,
        "fpr95_out": 2 / 5,
        # of two parts: 2 MI − the mean of each part's MI
        "mi_inside": (2 * average_inside - parts_inside / 2) / 5 - 0.4,
        "mi_outside": (2 * average_outside - parts_outside / 2) / 4 - 0.3,
        "disagreement_inside": 1 - (30 + 20 + (12 + 2) + (2 + 12) + (6 + 2)) / 30 / 5,
        "disagreement_outside": 1 - (20 + (6 + 6) + (2 + 2 + 2) + 12) / 30 / 4,
    }  # fmt: skip


def test_every_score_of_nine_images_by_hand():
    """All values differ, so that no two scores can be exchanged; temperatures are exact to 1e-9."""
    expected = scores_by_hand()
    values = np.sort(list(expected.values()))
    assert np.diff(values).min() > 1e-3
    given = Forecast(
        Outlook(INSIDE.double(), INSIDE_ENTROPIES.double(), INSIDE_VOTES, 6),
        Outlook(OUTSIDE.double(), OUTSIDE_ENTROPIES.double(), OUTSIDE_VOTES, 6),
        LABELS,
    )
    found = quality_scores(given)
    assert set(found) == set(QUALITY) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
    left = quality_scores(given, ("ece", "mi_inside"))
    assert left == {name: found[name] for name in found if name not in ("ece", "mi_inside")}
