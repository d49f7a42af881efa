"""Forecasts in parts beside all members at once; their scores and errors."""

from utils.networks.mlp import MLP
from utils.posteriors.block_gaussian import BlockGaussian, WeightBlock
from utils.quality.diversity import disagreement, entropy, infinite_mutual_information
from utils.quality.forecasts import (
    ImageSets,
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
