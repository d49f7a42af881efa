"""A pass over samples that is made again, with permutations that it has found before."""

from utils.evaluation.alignment import align
from utils.networks.mlp import MLP
from utils.symmetry import matching
from utils.symmetry.matching import WeightMatcher

import pytest
import torch

NETWORK = MLP((6, 9, 3))


def test_stored_permutations_must_not_change_the_function_either(monkeypatch):
    random = torch.Generator().manual_seed(0)
    reference, *samples = (NETWORK.initial_weights(random) for _ in range(4))
    images, matcher = torch.rand(20, 6, generator=random), WeightMatcher(NETWORK, reference)
    watched = torch.arange(2)
    known = [matcher(weights).permutation for weights in samples]
    again = align(NETWORK, samples, matcher, reference, images, 1, watched, known=known)
    found = align(NETWORK, samples, matcher, reference, images, 1, watched)
    assert torch.equal(again.permutation_rows, found.permutation_rows)
    assert torch.equal(again.rebased().mean, found.rebased().mean)
    monkeypatch.setattr(matching, "permute_weights", lambda network, weights, _: weights.flip(-1))
    with pytest.raises(AssertionError, match="changed the network's logits"):
        align(NETWORK, samples, matcher, reference, images, 1, watched, known=known)
