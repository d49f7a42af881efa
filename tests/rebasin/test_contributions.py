"""Matching by contribution to the logits, and signs: planted elements, brute force, noise."""

import itertools

from tests.networks.conv_networks import drawn_images, drawn_weights, small
from tests.networks.toy_networks import NETWORKS, inputs_for
from utils.networks.mlp import MLP
from utils.networks.network import TANH
from utils.rebasin.contributions import contributions
from utils.rebasin.matching import make_matcher
from utils.rebasin.rebase import rebase
from utils.rebasin.response_matching import ContributionMatcher
from utils.rebasin.weight_matching import WeightMatcher
from utils.settings.errors import UserError
from utils.symmetry.transformation import Transformation, random_transformation

import pytest
import torch

TANH_NET, DEEP_TANH = MLP((9, 20, 4), "tanh"), MLP((9, 12, 11, 4), "tanh")


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(name: str):
    """Return a network with weights and images in float64."""
    if name in NETWORKS:
        network = NETWORKS[name]
        weights = network.initial_weights(random(0)).double()
        images = inputs_for(network, 200).double()
    else:
        network = small(name)
        weights, images = drawn_weights(network), drawn_images(network, 20)
    return network, weights, images


def assert_undone(planted: Transformation, found: Transformation) -> None:
    """Every unit is back in its place, with its sign."""
    undone = planted.then(found)
    assert undone.total_transpositions() == 0
    for name, group in planted.network.groups.items():
        if group.kind == TANH:
            assert (undone.signs[name] == 1).all()


@pytest.mark.parametrize(
    "name", ["relu", "deep relu", "tanh", "silu", "grouped", "residual", "lenet", "resnet8_frn"]
)
def test_planted_elements_of_the_group_are_recovered_for_every_unit(name):
    network, weights, images = problem(name)
    matcher = ContributionMatcher(network, weights, images)
    for seed in range(5):
        planted = random_transformation(network, random(seed))
        moved = rebase(network, planted.apply(weights), matcher)
        assert_undone(planted, moved.matching.transformation)


@pytest.mark.parametrize("method", ["activation", "contribution", "weight", "cosine"])
@pytest.mark.parametrize("network", [TANH_NET, DEEP_TANH], ids=["shallow", "deep"])
def test_tanh_units_are_matched_with_their_signs(network, method):
    weights = network.initial_weights(random(0))
    images = torch.rand(200, 9, generator=random(1))
    matcher = make_matcher(method, network, weights, images)
    for seed in range(3):
        planted = random_transformation(network, random(seed))
        moved = rebase(network, planted.apply(weights), matcher)
        assert_undone(planted, moved.matching.transformation)
        assert torch.equal(moved.weights, weights)


def test_matching_by_weight_tries_all_signs():
    """Against all 6! 2^6 elements, of a network that is no copy of the reference."""
    network = MLP((3, 6, 2), "tanh")
    reference, other = (network.initial_weights(random(k)).double() for k in (0, 1))
    rows = [
        torch.cat([*(slot.of(each).reshape(6, -1) for slot in network.slots[:2]),
                   network.slots[2].of(each).T], 1)
        for each in (reference, other)
    ]  # fmt: skip
    table = rows[0] @ rows[1].T
    best = max(
        sum(table[i, j].abs() for i, j in enumerate(perm))
        for perm in itertools.permutations(range(6))
    )
    bias = network.slots[3]
    moved = rebase(network, other, WeightMatcher(network, reference)).weights
    reached = reference @ moved - bias.of(reference) @ bias.of(other)
    assert reached.item() == pytest.approx(best.item(), rel=1e-9)


def test_contributions_are_what_changing_a_unit_s_output_changes():
    """Independently: finite differences of logits as all outgoing weights of a unit grow."""
    network, weights, images = problem("deep relu")
    found = contributions(network, weights, images)
    step = 1e-6
    outgoing = network.slots[2]  # of h1: W2 [8 → 7]
    for unit in range(8):
        grown, shrunk = weights.clone(), weights.clone()
        outgoing.of(grown)[:, unit] *= 1 + step
        outgoing.of(shrunk)[:, unit] *= 1 - step
        change = network.outputs(grown, images) - network.outputs(shrunk, images)
        expected = change / (2 * step)
        expected -= expected.mean(1, keepdim=True)
        ours = found["h1"][:, unit].reshape(network.num_classes, len(images)).T
        torch.testing.assert_close(ours, expected, atol=1e-8, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_matching_by_contribution_equals_brute_force(seed):
    """Σ over images and classes of products of contributions, over all orders of 6 units."""
    network = MLP((5, 6, 3))
    images = torch.rand(100, 5, generator=random(9)).double()
    reference, other = (network.initial_weights(random(2 * seed + k)).double() for k in (0, 1))
    parts = []
    for weights in (reference, other):
        (w1, b1), (w2, _) = network.layers(weights)
        hidden = (images @ w1.T + b1).relu()
        parts.append(hidden[:, None, :] * (w2 - w2.mean(0)))  # [N, classes, units]
    table = torch.einsum("nci,ncj->ij", *parts)
    best = max(
        sum(table[i, j] for i, j in enumerate(perm)) for perm in itertools.permutations(range(6))
    )
    perm = ContributionMatcher(network, reference, images)(other).transformation.permutation("h1")
    assert table[torch.arange(6), perm].sum().item() == pytest.approx(best.item(), rel=1e-5)


@pytest.mark.parametrize("network", [MLP((12, 40, 4)), TANH_NET], ids=["relu", "tanh"])
def test_recovery_by_contribution_fades_with_noise(network):
    """Noise relative to the weights' own deviation; all planted elements have scales and signs."""
    weights = network.initial_weights(random(0))
    images = torch.rand(300, network.sizes[0], generator=random(1))
    matcher = ContributionMatcher(network, weights, images)
    planted = random_transformation(network, random(2))
    recovered = []
    for noise in (0, 0.01, 0.1, 1, 10):
        blurred = weights + noise * weights.std() * torch.randn(weights.shape, generator=random(3))
        found = matcher(planted.apply(blurred)).transformation
        right = found.to_row() == planted.inverse().to_row()
        recovered.append(right.double().mean().item())
    assert recovered[:2] == [1, 1]
    assert recovered[2] > 0.9
    assert recovered[4] < 0.5
    assert sorted(recovered, reverse=True) == recovered


def test_what_every_logit_gets_makes_no_difference():
    network, weights, images = problem("relu")
    other = network.initial_weights(random(5)).double()
    shifted = weights.clone()
    network.slots[2].of(shifted).add_(torch.randn(8, generator=random(6)))  # the same in each row
    before, after = (
        ContributionMatcher(network, each, images)(other).transformation.to_row()
        for each in (weights, shifted)
    )
    assert torch.equal(before, after)


def test_networks_whose_activations_are_copies_are_refused_in_a_sentence():
    network = small("optunet")
    with pytest.raises(UserError, match="cannot be matched by contribution"):
        ContributionMatcher(network, drawn_weights(network), drawn_images(network, 3))


def test_the_mass_of_a_network_stays():
    network, weights, images = problem("deep relu")
    other = network.initial_weights(random(3)).double()
    moved = rebase(network, other, ContributionMatcher(network, weights, images)).weights
    assert moved.norm().item() == pytest.approx(other.norm().item(), rel=1e-12)
