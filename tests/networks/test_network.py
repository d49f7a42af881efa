"""The table of slots: a flat vector without gaps, and initial values as the table says."""

from tests.networks.toy_networks import NETWORKS, GroupedConvNet, ResidualConvNet, inputs_for
from utils.networks.network import Network
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import pytest
import torch


@pytest.fixture(params=NETWORKS)
def network(request) -> Network:
    return NETWORKS[request.param]


def test_slots_hold_every_weight_once(network):
    numbers = torch.arange(network.num_weights)
    parts = [slot.of(numbers) for slot in network.slots]
    assert torch.equal(torch.cat([part.flatten() for part in parts]), numbers)
    for slot, part in zip(network.slots, parts, strict=True):
        assert part.shape == slot.shape
        assert len(slot.shape) == len(slot.axes) == len(slot.powers)


def test_slots_are_views_of_a_stack_as_well(network):
    stack = torch.zeros(4, network.num_weights)
    for number, slot in enumerate(network.slots):
        assert slot.of(stack).shape == (4, *slot.shape)
        slot.of(stack).fill_(number + 1)
    assert stack.all()


def test_initial_values_lie_where_their_slots_say(network):
    weights = network.initial_weights(generator(0))
    for slot in network.slots:
        values = slot.of(weights)
        assert (values - slot.center).abs().max() <= slot.bound
        assert slot.size < 20 or values.std() > slot.bound / 3  # uniform: bound / √3


def test_a_stack_gives_what_each_gives_alone(network):
    stack = torch.stack([network.initial_weights(generator(0, k)) for k in range(3)])
    images = inputs_for(network, 7)
    for shared in (images, images.expand(3, *images.shape)):
        hidden, logits = network.trace(stack, shared)
        assert logits.shape == (3, 7, network.num_classes)
        for k, weights in enumerate(stack):
            torch.testing.assert_close(logits[k], network.outputs(weights, images))
            for name, values in network.activations(weights, images).items():
                torch.testing.assert_close(hidden[name][k], values)


def test_units_of_nested_groups_come_with_their_parents():
    network = GroupedConvNet(blocks=2, width=3)
    assert [network.units(name) for name in "gcd"] == [(2,), (2, 3), (2, 3)]
    assert [slot.name for slot in network.slots_of("c")] == ["W1", "b1", "W2"]


def test_running_statistics_are_buffers():
    roles = {slot.name: slot.role for slot in ResidualConvNet().slots}
    assert [name for name, role in roles.items() if role == "buffer"] == ["mean", "variance"]


def test_a_line_goes_from_one_network_to_the_other(network):
    first, second = (network.initial_weights(generator(0, k)) for k in (0, 1))
    images = inputs_for(network, 7)
    for at, (_, logits) in zip(
        (0, 0.25, 1), network.trace_line(first, second, (0, 0.25, 1), images), strict=True
    ):
        expected = network.outputs((1 - at) * first + at * second, images)
        torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)


def test_weights_of_another_length_are_refused(network):
    with pytest.raises(UserError, match=f"have {network.num_weights + 1} entries"):
        network.outputs(torch.zeros(network.num_weights + 1), inputs_for(network, 2))
