"""Forecasts in parts beside all members at once; their scores and errors."""

from utils.networks.mlp import MLP
from utils.quality.diversity import disagreement, entropy, infinite_mutual_information
from utils.quality.forecasts import forecast, num_parts
from utils.quality.images import ImageSets, evenly_spaced
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


def predictions(side: str) -> torch.Tensor:
    return NETWORK.outputs(WEIGHTS, getattr(IMAGES, side)).double().softmax(-1)


def test_parts_add_up_to_all_members():
    whole = forecast(NETWORK, WEIGHTS, 12, 4, IMAGES)
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
    part = forecast(NETWORK, WEIGHTS, 12, 5, IMAGES)
    torch.testing.assert_close(part.average, predictions("inside")[:10].mean(0), atol=1e-6, rtol=0)
    assert part.inside.members == 10


def test_errors_are_those_of_the_jackknife_for_few_parts():
    whole = forecast(NETWORK, WEIGHTS, 12, 4, IMAGES)
    left = [
        quality_scores(whole.chosen(torch.tensor([k for k in range(4) if k != out])))["brier"]
        for out in range(4)
    ]
    expected = 3 / 4**0.5 * np.std(left, ddof=1)
    errors = quality_errors(whole, 20, 0, "x")
    assert errors["brier"] == pytest.approx(expected)
    assert "disagreement_inside" not in errors


def test_a_single_member_has_no_diversity_and_no_errors():
    alone = forecast(NETWORK, WEIGHTS[:1], 1, 1, IMAGES)
    scores, errors = quality_scores(alone), quality_errors(alone, 5, 0, "x")
    assert np.isnan([scores["mi_inside"], scores["disagreement_outside"]]).all()
    assert np.isnan(errors["accuracy"])
    assert np.isfinite([scores[name] for name in ("accuracy", "aupr_out", "scaled_nll")]).all()


@pytest.mark.parametrize(
    ("members", "modes", "parts"),
    [(100, 10, 10), (100, 100, 20), (37, 37, 18), (1, 1, 1), (12, 1, 12)],
)  # fmt: skip
def test_how_many_parts(members, modes, parts):
    assert num_parts(members, modes) == parts


def test_positions_are_different_and_have_both_ends():
    assert evenly_spaced(10, None).tolist() == list(range(10))
    assert evenly_spaced(10, 4).tolist() == [0, 3, 6, 9]
