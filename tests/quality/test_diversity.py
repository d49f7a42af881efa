"""Mutual information with known values, beside the Jensen-Shannon divergence, and debiased."""

from utils.quality.diversity import (
    disagreement,
    entropy,
    infinite_mutual_information,
    mutual_information,
    pairs_of,
    pairwise_disagreement,
    pairwise_mutual_information,
)

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon


def random_predictions(count: int, images: int = 40, classes: int = 3) -> torch.Tensor:
    random = torch.Generator().manual_seed(count)
    logits = 2 * torch.randn(count, images, classes, generator=random, dtype=torch.float64)
    return logits.softmax(-1)


def information(members: torch.Tensor) -> float:
    return mutual_information(members, entropy(members))


def test_identical_and_disjoint_members():
    same = random_predictions(1).expand(5, -1, -1)
    assert information(same) == pytest.approx(0, abs=1e-12)
    one_hot = torch.eye(2, dtype=torch.float64)[:, None]
    assert information(one_hot) == pytest.approx(np.log(2), abs=1e-15)
    pairs = pairwise_mutual_information(torch.cat([one_hot, one_hot[:1]]))
    expected = np.log(2) * np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    np.testing.assert_allclose(pairs, expected, atol=1e-6)


def test_pairs_have_the_jensen_shannon_divergence():
    predictions = random_predictions(20)
    pairs = pairwise_mutual_information(predictions)
    for first, second in ((0, 1), (3, 19), (17, 2)):
        distance = jensenshannon(predictions[first], predictions[second], axis=1)
        assert pairs[first, second].item() == pytest.approx((distance**2).mean(), abs=1e-6)
        both = predictions[[first, second]]
        assert pairs[first, second].item() == pytest.approx(information(both), abs=1e-6)
    assert pairs.equal(pairs.T)
    assert len(pairs_of(pairs)) == 190


def test_parts_hold_all_that_matters_of_their_members():
    members = random_predictions(12)
    parts = members.unflatten(0, (4, 3))
    apart = mutual_information(parts.mean(1), entropy(members).unflatten(0, (4, 3)).mean(1))
    assert apart == pytest.approx(information(members), abs=1e-12)


def test_the_jackknife_reaches_the_value_of_many_members():
    """Members of 10 are 10 % too low; the jackknife is within 2 % of 2,000 members."""
    many = random_predictions(2000, images=200)
    limit = information(many)
    few = [many[start : start + 10] for start in range(0, 200, 10)]
    plain = np.mean([information(each) for each in few])
    better = np.mean([infinite_mutual_information(each, entropy(each)) for each in few])
    assert plain == pytest.approx(0.9 * limit, rel=0.02)
    assert better == pytest.approx(limit, rel=0.02)


def test_disagreement_of_pairs_and_of_all_members():
    predictions = random_predictions(6)
    chosen = predictions.argmax(-1)
    pairs = pairwise_disagreement(predictions)
    assert pairs[1, 4].item() == pytest.approx(
        (chosen[1] != chosen[4]).double().mean().item(), abs=1e-6
    )
    votes = torch.nn.functional.one_hot(chosen, 3).sum(0)
    assert disagreement(votes, 6) == pytest.approx(pairs_of(pairs).mean().item(), abs=1e-6)
    assert np.isnan(disagreement(votes, 1))
