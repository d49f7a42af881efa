"""No space but that of plain weights sees symmetries; the kernel of units beside a double loop."""

from tests.networks.conv_networks import SMALL, drawn_weights, small
from utils.distances.classifier import classify, held_out_accuracy, invariants
from utils.distances.mmd import FACTORS, fit_width
from utils.distances.spaces import TITLES, canonical, fit_spaces
from utils.distances.units import FEATURES, describe_units, fit_unit_features, without_scales
from utils.networks.mlp import MLP
from utils.symmetry.transformation import random_transformation

import numpy as np
import pytest
import torch

MLPS = {
    "relu": MLP((6, 5, 4, 3)),
    "tanh": MLP((6, 5, 4, 3), "tanh"),
    "silu": MLP((6, 5, 3), "silu"),
}
NETWORKS = [*MLPS, *SMALL]


def stack(network, count: int, seed: int = 0) -> torch.Tensor:
    return torch.stack([drawn_weights(network, seed + k) for k in range(count)])


def moved(network, weights: torch.Tensor) -> torch.Tensor:
    """Return each network transformed by an element of its own."""
    random = torch.Generator().manual_seed(1)
    return random_transformation(network, random, stack=(len(weights),)).apply(weights)


def inputs(network, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(6, *network.input_shape, generator=random, dtype=torch.float64)


@pytest.mark.parametrize("name", NETWORKS)
def test_spaces_do_not_see_symmetries(name):
    network = MLPS[name] if name in MLPS else small(name)
    weights = stack(network, 4)
    others = moved(network, weights)
    spaces = fit_spaces(
        network, weights[:3], weights[3], inputs(network, 0), inputs(network, 1), seed=0
    )
    assert [space.name for space in spaces] == list(TITLES)
    for space in spaces:
        before, after = space.features(weights), space.features(others)
        if space.name == "weights":
            assert (before - after).abs().max() > 0.01
        else:
            torch.testing.assert_close(before, after, rtol=1e-8, atol=1e-9)
        kernel = space.kernel(torch.cat([before, after]))
        assert kernel.shape == (8, 8)
        assert torch.linalg.eigvalsh(kernel).min() > -1e-9
    np.testing.assert_allclose(
        invariants(network, weights), invariants(network, others), rtol=1e-6, atol=1e-8
    )


def test_canonical_networks_compute_what_they_did():
    network = MLPS["relu"]
    weights, images = stack(network, 3), inputs(network, 0)
    after = network.outputs(canonical(network, weights), images)
    torch.testing.assert_close(after, network.outputs(weights, images))


def test_predictions_are_at_hellingers_distance():
    network = MLPS["relu"]
    weights, images = stack(network, 2), inputs(network, 0)
    space = fit_spaces(network, weights, weights[0], images, images, seed=0)[-3]
    features = space.features(weights)
    first, second = network.outputs(weights, images).softmax(-1)
    hellinger = (first.sqrt() - second.sqrt()).square().sum(-1).mean()
    assert space.name == "inside"
    torch.testing.assert_close((features[0] - features[1]).square().sum(), hellinger)


def test_random_features_have_the_kernel_of_all_pairs_of_units():
    """The error of FEATURES random features is about √(1 / FEATURES) for each factor."""
    network = MLP((3, 4, 2))
    weights = stack(network, 3)
    embed = fit_unit_features(network, weights, seed=0)
    units = describe_units(network, without_scales(network, weights), "h1")
    width = fit_width(units.flatten(0, 1))
    features = embed(weights)
    for i, j in ((0, 0), (0, 1), (1, 2)):
        squares = torch.cdist(units[i], units[j]).square()
        exact = sum((-squares / (2 * factor * width)).exp().mean() for factor in FACTORS)
        tolerance = 4 * (len(FACTORS) / FEATURES) ** 0.5
        assert (features[i] @ features[j]).item() == pytest.approx(exact.item(), abs=tolerance)


def test_units_of_a_layer_have_all_their_weights():
    network = MLP((3, 4, 2))
    weights = stack(network, 1)
    (units,) = describe_units(network, weights, "h1")
    first, bias, second, _ = (slot.of(weights)[0] for slot in network.slots)
    torch.testing.assert_close(units, torch.cat([first, bias[:, None], second.T], 1))


def test_a_classifier_finds_what_is_planted_and_nothing_else():
    """Of 20 null data sets, at 5 %, at most 4 are false alarms (probability 0.997)."""
    random, alarms = np.random.default_rng(0), 0
    blocks = np.arange(80)
    for _ in range(20):
        first, second = random.normal(size=(2, 40, 5))
        alarms += classify(first, second, blocks, 39, random).p <= 0.05
    assert alarms <= 4
    second[:, 2] += 3
    found = classify(first, second, blocks, 39, random)
    assert found.value > 0.85
    assert found.p == 1 / 40
    assert found.high < found.value


def test_blocks_are_held_out_together():
    """Modes that repeat one network each cannot be recognised when they are held out."""
    random = np.random.default_rng(3)
    modes = random.normal(size=(10, 300)).repeat(8, 0)
    is_first, blocks = np.arange(80) < 40, np.arange(80) // 8
    assert held_out_accuracy(modes, is_first, blocks) < 0.9
    assert held_out_accuracy(modes, is_first, np.arange(80)) == 1
