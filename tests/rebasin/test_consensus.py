"""Alignment without a reference: planted elements, brute force, sums that only rise."""

import itertools

from tests.networks.toy_networks import NETWORKS, inputs_for
from utils.networks.mlp import MLP
from utils.rebasin.consensus import consensus
from utils.symmetry.transformation import Transformation, random_transformation

import pytest
import torch


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["relu", "deep relu", "tanh", "grouped", "residual"])
def test_planted_elements_are_undone_in_common(name):
    """Copies of one network are moved to one network, whichever it is."""
    network = NETWORKS[name]
    weights = network.initial_weights(random(0))
    for slot in network.slots:
        if slot.role == "bias":
            slot.of(weights).abs_().add_(0.5)  # no two units are dead: they would be alike
    copies = [
        random_transformation(network, random(k), log_scale=0).apply(weights) for k in range(4)
    ]
    found = consensus(network, copies, inputs_for(network, 60))
    assert found.at_rest
    moved = [t.apply(w) for t, w in zip(found.transformations, copies, strict=True)]
    for each in moved[1:]:
        torch.testing.assert_close(each, moved[0], rtol=1e-6, atol=1e-7)


def contribution_vectors(network, weights, images):
    (w1, b1), (w2, _) = network.layers(weights)
    hidden = (images @ w1.T + b1).relu()
    return (hidden[:, :, None] * (w2 - w2.mean(0)).T).movedim(1, 0).flatten(1)  # [units, N classes]


def test_three_networks_by_brute_force():
    """The sum over all pairs is within 2 % of the best of all (4!)² orders, mostly equal."""
    network, images = MLP((5, 4, 3)), torch.rand(50, 5, generator=random(9))
    ratios = []
    for seed in range(10):
        nets = [network.initial_weights(random(3 * seed + k)) for k in range(3)]
        a, b, c = (contribution_vectors(network, each, images) for each in nets)
        orders = [torch.tensor(p) for p in itertools.permutations(range(4))]
        best = max(
            ((a * b[p]).sum() + (a * c[q]).sum() + (b[p] * c[q]).sum()).item()
            for p in orders for q in orders
        )  # fmt: skip
        found = consensus(network, nets, images)
        p, q, r = (each.permutation("h1") for each in found.transformations)
        reached = (a[p] * b[q]).sum() + (a[p] * c[r]).sum() + (b[q] * c[r]).sum()
        own = sum(each.square().sum().item() for each in (a, b, c))
        assert found.similarity[-1] == pytest.approx(reached.item() + own / 2, rel=1e-5)
        ratios.append(reached.item() / best)
    assert min(ratios) > 0.98
    assert sum(ratio > 1 - 1e-5 for ratio in ratios) >= 7


def test_similarity_only_rises_until_it_rests():
    network = MLP((8, 30, 4))
    nets = [network.initial_weights(random(k)) for k in range(8)]
    images = torch.rand(40, 8, generator=random(9))
    found = consensus(network, nets, images)
    assert found.at_rest
    steps = torch.tensor(found.similarity, dtype=torch.float64).diff()
    assert (steps > -1e-6 * found.similarity[0]).all()
    assert steps.sum() > 0
    assert len(found.similarity) == found.rounds + 1
    stopped = consensus(network, nets, images, max_rounds=1)
    assert (stopped.rounds, stopped.at_rest) == (1, False)


def test_a_single_network_stays():
    network = MLP((8, 6, 4))
    (only,) = consensus(
        network, [network.initial_weights(random(0))], torch.rand(9, 8, generator=random(1))
    ).transformations
    assert torch.equal(only.to_row(), Transformation(network).to_row())
