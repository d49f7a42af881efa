"""REPAIR: units get the moments that are asked for, and a network that has them stays."""

from tests.networks.conv_networks import drawn_images, drawn_weights, small
from utils.networks.mlp import MLP
from utils.rebasin.repair import repaired, unit_moments
from utils.settings.errors import UserError

import pytest
import torch

DEEP = MLP((6, 9, 8, 3))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images():
    return torch.rand(70, 6, generator=random(9))


def network(seed: int) -> torch.Tensor:
    return DEEP.initial_weights(random(seed)).double()


def test_a_single_network_is_left_unchanged(images):
    weights = network(0)
    moments = unit_moments(DEEP, weights, images)
    torch.testing.assert_close(repaired(DEEP, weights, images, moments), weights)
    averaged = moments.averaged([moments, moments])
    torch.testing.assert_close(repaired(DEEP, weights, images, averaged), weights)


def test_units_get_the_average_moments_of_others(images):
    """Recomputed with nothing of the project's, layer by layer."""
    first, second = network(1), network(2)
    target = unit_moments(DEEP, first, images).averaged([unit_moments(DEEP, second, images)])
    changed = repaired(DEEP, (first + second) / 2, images, target)
    tensors = {slot.name: slot.of(changed) for slot in DEEP.slots}
    values = images.double() @ tensors["W1"].T + tensors["b1"]
    for number, upper in ((0, "2"), (1, None)):
        ends = []
        for weights in (first, second):
            parts = {slot.name: slot.of(weights) for slot in DEEP.slots}
            z = images.double() @ parts["W1"].T + parts["b1"]
            ends.append(z if number == 0 else z.relu() @ parts["W2"].T + parts["b2"])
        expected = sum(each.mean(0) for each in ends) / 2
        torch.testing.assert_close(values.mean(0), expected)
        expected = sum(each.std(0, correction=0) for each in ends) / 2
        torch.testing.assert_close(values.std(0, correction=0), expected)
        if upper:
            values = values.relu() @ tensors[f"W{upper}"].T + tensors[f"b{upper}"]


def test_units_that_do_not_vary_are_only_shifted(images):
    weights = network(1)
    DEEP.slots[0].of(weights)[3] = 0  # as pruning may leave it
    changed = repaired(DEEP, weights, images, unit_moments(DEEP, network(2), images))
    assert changed.isfinite().all()
    assert (DEEP.slots[0].of(changed)[3] == 0).all()
    expected = unit_moments(DEEP, network(2), images).means[0][3]
    assert DEEP.slots[1].of(changed)[3] == pytest.approx(expected.item())


def test_other_networks_are_refused_or_get_new_running_statistics():
    lenet = small("lenet")
    with pytest.raises(UserError, match="of an mlp"):
        unit_moments(lenet, drawn_weights(lenet), drawn_images(lenet, 3))
