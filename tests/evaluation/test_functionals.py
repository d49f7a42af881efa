"""Functionals of weights: the same for every order of units, and equal to sums written out."""

from tests.networks.conv_networks import SMALL, drawn_weights, small
from tests.symmetry.planted import any_permutation
from utils.evaluation.diagnostics import functional_names, functionals
from utils.networks.mlp import MLP

import numpy as np
import pytest
import torch

NETWORKS = ["mlp", "deep", *SMALL]


def network_of(name):
    return {"mlp": MLP((5, 4, 3)), "deep": MLP((5, 4, 6, 3))}.get(name) or small(name)


@pytest.mark.parametrize("name", NETWORKS)
def test_permutations_change_nothing(name):
    network = network_of(name)
    weights = drawn_weights(network)
    moved = any_permutation(network, 1).apply(weights)
    assert (moved - weights).abs().max() > 0.01
    before, after = functionals(network, weights), functionals(network, moved)
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-12)
    assert len(before) == len(functional_names(network)) == len(set(functional_names(network)))


def test_signs_of_tanh_units_change_nothing():
    network = MLP((5, 4, 3), "tanh")
    weights = drawn_weights(network)
    moved = weights.clone()
    for slot in network.slots[:3]:  # the unit's incoming weights, its bias, its outgoing weights
        slot.of(moved).select(slot.axes.index("h1"), 2).neg_()
    torch.testing.assert_close(functionals(network, moved), functionals(network, weights))


def test_functionals_of_a_small_network_in_numpy():
    network = MLP((5, 4, 3))
    weights = drawn_weights(network)
    flat = weights.numpy()
    w1, b1 = flat[:20].reshape(4, 5), flat[20:24]
    w2, b2 = flat[24:36].reshape(3, 4), flat[36:]
    units = np.column_stack([w1, b1, w2.T])
    expected = [(part**2).mean() for part in (w1, b1, w2, b2)]
    expected += [*(w2**2).sum(1), *(w2**4).sum(1), *b2]
    expected += list(np.quantile(np.sqrt((units**2).sum(1)), [0, 0.25, 0.5, 0.75, 1]))
    expected.append(np.linalg.norm(units, 2) ** 2)
    np.testing.assert_allclose(functionals(network, weights).numpy(), expected, rtol=1e-10)
