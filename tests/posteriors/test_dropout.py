"""Dropped units: what they do to the function, their share, and the posterior on disk."""

from tests.networks.conv_networks import SMALL, drawn_images, drawn_weights, small
from utils.networks.mlp import MLP
from utils.posteriors.dropout import (
    DropoutMasks,
    draw_factors,
    droppable_groups,
    multiply_outgoing,
    outgoing,
)
from utils.posteriors.files import open_posterior
from utils.runs.seeding import generator
from utils.symmetry.transformation import random_transformation

import pytest
import torch
import torch.nn.functional as F

NETWORK = MLP((5, 40, 30, 3))
RATES = {"h1": 0.3, "h2": 0.6}


def test_it_is_dropout_of_an_mlps_activations():
    weights, images = drawn_weights(NETWORK), drawn_images(NETWORK, 7)
    factors = draw_factors(NETWORK, RATES, generator(0))
    (w1, b1), (w2, b2), (w3, b3) = NETWORK.layers(weights)
    first = (images @ w1.T + b1).relu() * factors["h1"]
    expected = ((first @ w2.T + b2).relu() * factors["h2"]) @ w3.T + b3
    dropped = weights.clone()
    multiply_outgoing(NETWORK, dropped, factors)
    torch.testing.assert_close(NETWORK.outputs(dropped, images), expected)


def test_it_is_dropout_of_lenets_channels_and_units():
    network = small("lenet")
    weights, images = drawn_weights(network), drawn_images(network, 7)
    rates = dict.fromkeys(droppable_groups(network), 0.5)
    factors = draw_factors(network, rates, generator(1))
    tensors = {name: tensor.flatten(1) if name.startswith("fc") and tensor.dim() > 1 else tensor
               for name, tensor in network.tensors(weights).items()}  # fmt: skip
    values = images
    for conv, group in (("conv1", "c1"), ("conv2", "c2")):
        values = F.conv2d(values, tensors[f"{conv}.weight"], tensors[f"{conv}.bias"]).relu()
        values = F.max_pool2d(values, 2) * factors[group][:, None, None]
    values = values.flatten(1)
    for layer, group in (("fc1", "h1"), ("fc2", "h2")):
        values = F.linear(values, tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]).relu()
        values = values * factors[group]
    expected = F.linear(values, tensors["fc3.weight"], tensors["fc3.bias"])
    dropped = weights.clone()
    multiply_outgoing(network, dropped, factors)
    torch.testing.assert_close(network.outputs(dropped, images), expected)


@pytest.mark.parametrize("name", SMALL)
def test_what_leads_to_a_dropped_unit_does_not_matter(name):
    network = small(name)
    weights, images = drawn_weights(network), drawn_images(network, 3)
    groups = droppable_groups(network)
    assert set(groups) == set(network.groups) - {"g"}
    for group in groups:
        factors = {group: torch.ones(network.units(group))}
        factors[group][..., 0] = 0
        dropped = weights.clone()
        multiply_outgoing(network, dropped, factors)
        other, readers = dropped.clone(), {slot for slot, _ in outgoing(network, group)}
        for slot in set(network.slots_of(group)) - readers:
            axis = slot.axes.index(group) - len(slot.shape)
            slot.of(other).select(axis, 0).mul_(1.7)
        assert not torch.equal(other, dropped)
        torch.testing.assert_close(
            network.outputs(other, images), network.outputs(dropped, images), rtol=0, atol=1e-9
        )
        multiply_outgoing(network, dropped, {group: torch.zeros(network.units(group))})
        changed = network.outputs(weights, images) - network.outputs(dropped, images)
        assert changed.abs().max() > 1e-6  # some unit is active


def test_the_last_layer_reads_one_group():
    last = {name: droppable_groups(small(name), last=True) for name in SMALL}
    assert last["lenet"] == ["h2"]
    assert last["optunet"] == ["c2"]
    assert last["resnet18"] == ["stage4"]
    assert droppable_groups(MLP((5, 3))) == []


def test_draws_have_the_rate_and_the_mean_of_the_network():
    """4 standard errors, for which chance fails 2 comparisons once in 8,000 seeds."""
    weights = drawn_weights(NETWORK)
    posterior = DropoutMasks(weights, RATES, NETWORK)
    draws = torch.stack(list(posterior.draw(500, generator(2))))
    for slot, rate in ((NETWORK.slots[2], 0.3), (NETWORK.slots[4], 0.6)):
        units = slot.of(draws)[:, 0]  # outgoing weights to one unit, one from each unit
        share = (units == 0).double().mean().item()
        assert abs(share - rate) < 4 * (rate * (1 - rate) / units.numel()) ** 0.5
        kept = units[units != 0] / slot.of(weights)[0].expand_as(units)[units != 0]
        torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=1e-6, atol=0)
    biases = NETWORK.slots[3]
    assert torch.equal(biases.of(draws), biases.of(weights).expand(500, -1))
    assert torch.equal(posterior.mean, weights)


def test_at_rate_zero_draws_are_the_network():
    weights = drawn_weights(NETWORK)
    for rates in ({}, {"h1": 0.0}):
        (draw,) = DropoutMasks(weights, rates, NETWORK).draw(1, generator(0))
        assert torch.equal(draw, weights)


def test_it_is_saved_and_moved(tmp_path):
    weights = drawn_weights(NETWORK, dtype=torch.float32)
    posterior = DropoutMasks(weights, {"h2": 0.25}, NETWORK)
    posterior.save(tmp_path)
    opened = open_posterior(tmp_path)
    assert opened.rates == {"h2": 0.25}
    for ours, theirs in zip(
        posterior.draw(3, generator(1)), opened.draw(3, generator(1)), strict=True
    ):
        assert torch.equal(ours, theirs)
    transformation = random_transformation(NETWORK, generator(3))
    moved = opened.moved(transformation)
    images = drawn_images(NETWORK, 4, dtype=torch.float32)
    torch.testing.assert_close(
        NETWORK.outputs(moved.mean, images), NETWORK.outputs(weights, images), rtol=1e-4, atol=1e-4
    )
    factors = draw_factors(NETWORK, {"h1": 0.5, "h2": 0.25}, generator(4))
    dropped, placed = weights.clone(), moved.weights.clone()
    multiply_outgoing(NETWORK, dropped, factors)
    moved_factors = {name: transformation.follow(name, each) for name, each in factors.items()}
    multiply_outgoing(NETWORK, placed, moved_factors)
    torch.testing.assert_close(placed, transformation.apply(dropped))
