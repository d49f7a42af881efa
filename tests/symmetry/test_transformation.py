"""The group action: conventions, functions left unchanged, and groups enumerated in full."""

import itertools
from dataclasses import replace

from tests.networks.toy_networks import (
    NETWORKS,
    GroupedConvNet,
    ToyConvNet,
    inputs_for,
    num_hidden_units,
)
from tests.symmetry.planted import any_permutation, same
from utils.networks.mlp import MLP
from utils.networks.network import TANH, Group, Network, Slot, lay_out
from utils.settings.errors import UserError
from utils.symmetry.transformation import (
    Transformation,
    check_same_function,
    check_same_units,
    from_row,
    random_transformation,
)

import numpy as np
import pytest
import torch

SHALLOW, DEEP = MLP((12, 40, 4)), MLP((12, 24, 24, 24, 4))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=NETWORKS)
def network(request) -> Network:
    return NETWORKS[request.param]


def weights_for(network: Network, seed: int = 0) -> torch.Tensor:
    return network.initial_weights(random(seed)).double()


# ---- what it does to weights


def test_convention_on_two_layers():
    network = MLP((2, 3, 2))
    weights = torch.arange(network.num_weights, dtype=torch.float64)
    (w1, b1), (w2, b2) = network.layers(weights)
    perm, scales = torch.tensor([2, 0, 1]), torch.tensor([0.5, 2, 4], dtype=torch.float64)
    moved = Transformation(network, {"h1": perm}, {"h1": scales.log()}).apply(weights)
    (v1, c1), (v2, c2) = network.layers(moved)
    torch.testing.assert_close(v1, (scales[:, None] * w1)[perm])
    torch.testing.assert_close(c1, (scales * b1)[perm])
    torch.testing.assert_close(v2, (w2 / scales)[:, perm])
    assert torch.equal(c2, b2)


def test_signs_flip_what_comes_in_and_what_goes_out():
    network = MLP((2, 3, 2), "tanh")
    weights = weights_for(network)
    (w1, b1), (w2, _) = network.layers(weights)
    signs = torch.tensor([1, -1, -1])
    (v1, c1), (v2, _) = network.layers(Transformation(network, signs={"h1": signs}).apply(weights))
    for after, before in ((v1, w1 * signs[:, None]), (c1, b1 * signs), (v2, w2 * signs)):
        assert torch.equal(after, before)


@pytest.mark.parametrize("seed", range(5))
def test_a_random_element_of_the_group_leaves_the_outputs_unchanged(network, seed):
    weights, inputs = weights_for(network), inputs_for(network).double()
    moved = random_transformation(network, random(seed)).apply(weights)
    assert network.groups == {} or (moved - weights).abs().max() > 0.1
    before, after = (network.outputs(each, inputs) for each in (weights, moved))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-10)
    check_same_function(network, weights, moved)


def test_a_variance_keeps_its_sign():
    class Normalised(Network):
        groups = {"x": Group(3, TANH)}  # noqa: RUF012
        slots = lay_out(Slot("variance", (3,), ("x",), (2,)), Slot("mean", (3,), ("x",), (1,)))

    flips = Transformation(Normalised(), signs={"x": torch.tensor([1, -1, -1])})
    assert flips.apply(torch.ones(6)).tolist() == [1, 1, 1, 1, -1, -1]


def test_units_that_feed_themselves_are_scaled_on_both_sides():
    class Recurrent(ToyConvNet):
        """x = W1 image; logits = W3 relu(W2 x + x)"""

        groups = {"x": Group(4)}  # noqa: RUF012
        slots = lay_out(
            Slot("W1", (4, 50), ("x", None), (1, 0), bound=0.5),
            Slot("W2", (4, 4), ("x", "x"), (1, -1), bound=0.5),
            Slot("W3", (3, 4), (None, "x"), (0, -1), bound=0.5),
        )

        def forward(self, tensors, images):
            x = images.flatten(1) @ tensors["W1"].T
            x = (x @ tensors["W2"].T + x).relu()
            return {"x": x}, x @ tensors["W3"].T

    network = Recurrent()
    weights = weights_for(network)
    moved = random_transformation(network, random(0)).apply(weights)
    assert (moved - weights).abs().max() > 0.1
    check_same_function(network, weights, moved)


def test_activations_move_with_their_units(network):
    weights, inputs = weights_for(network), inputs_for(network).double()
    moved = random_transformation(network, random(1), log_scale=0)
    before, after = (network.activations(each, inputs) for each in (weights, moved.apply(weights)))
    for name, values in before.items():
        levels = len(network.units(name))
        units = values.movedim(0, levels)  # [*units, images, positions…]
        if name in moved.signs:
            units = units * moved.signs[name][:, None]
        there = moved.follow(name, units).movedim(levels, 0)
        torch.testing.assert_close(after[name], there, rtol=0, atol=1e-10)


def test_a_stack_is_transformed_row_by_row(network):
    stack = torch.randn(2, 3, network.num_weights, generator=random(0))
    transformation = random_transformation(network, random(1))
    moved = transformation.apply(stack)
    for a, b in itertools.product(range(2), range(3)):
        assert torch.equal(moved[a, b], transformation.apply(stack[a, b]))


def member(stack: Transformation, number: int) -> Transformation:
    """Return one element of a stack."""
    parts = (stack.permutations, stack.log_scales, stack.signs)
    return Transformation(
        stack.network, *({name: each[number] for name, each in part.items()} for part in parts)
    )


def test_a_stack_of_elements_acts_on_each_network_alone(network):
    first, second = (random_transformation(network, random(k), stack=(3,)) for k in (1, 2))
    weights = torch.stack([weights_for(network, seed) for seed in range(3)])
    both, back = first.then(second), first.inverse()
    for k in range(3):
        alone = [member(each, k) for each in (first, second)]
        for stacked, single in (
            (first, alone[0]), (both, alone[0].then(alone[1])), (back, alone[0].inverse())
        ):  # fmt: skip
            torch.testing.assert_close(stacked.apply(weights)[k], single.apply(weights[k]))
            assert torch.equal(stacked.to_row()[k : k + 1].flatten(), single.to_row())
    if network.groups:
        moved = first.apply(weights[0])
        torch.testing.assert_close(moved[2], member(first, 2).apply(weights[0]))
        check_same_function(network, weights, first.apply(weights))
        with pytest.raises(ValueError, match="Stacks of"):
            first.then(random_transformation(network, random(1), stack=(2,)))


def test_weights_are_left_alone(network):
    weights = weights_for(network)
    random_transformation(network, random(1)).apply(weights)
    assert torch.equal(weights, weights_for(network))


def test_deviations_are_those_of_transformed_draws(network):
    transformation = random_transformation(network, random(1))
    std = torch.rand(network.num_weights, generator=random(0), dtype=torch.float64)
    changed = transformation.apply_to_std(std)
    assert torch.equal(changed, transformation.apply(std).abs())


# ---- as a group


@pytest.mark.parametrize("kind", ["of all", "of some groups"])
def test_then_does_the_first_and_then_the_second(network, kind):
    first, second = (random_transformation(network, random(k)) for k in (1, 2))
    if kind == "of some groups":  # each has what the other has not
        names = list(network.groups)
        first, second = (
            Transformation(
                network,
                *({name: values[name] for name in some if name in values}
                  for values in (each.permutations, each.log_scales, each.signs)),
            )
            for each, some in ((first, names[1::2]), (second, names[::2]))
        )  # fmt: skip
    for one, two in ((first, second), (second, first)):
        weights = weights_for(network)
        one_by_one = two.apply(one.apply(weights))
        torch.testing.assert_close(one.then(two).apply(weights), one_by_one)


def test_inverse_undoes(network):
    weights, transformation = weights_for(network), random_transformation(network, random(1))
    back = transformation.inverse()
    torch.testing.assert_close(back.apply(transformation.apply(weights)), weights)
    for both in (transformation.then(back), back.then(transformation)):
        assert same(both, Transformation(network))
        torch.testing.assert_close(both.apply(weights), weights)


def test_the_inverse_of_a_permutation_is_exact(network):
    weights, planted = weights_for(network), any_permutation(network, 1)
    assert torch.equal(planted.inverse().apply(planted.apply(weights)), weights)


def test_blocks_alone_are_moved_back():
    network = GroupedConvNet(blocks=3)
    weights = weights_for(network)
    planted = Transformation(network, {"g": torch.tensor([1, 2, 0])})
    assert torch.equal(planted.inverse().apply(planted.apply(weights)), weights)


def moved_units(transformation: Transformation, name: str) -> tuple[int, ...]:
    """All units of a group by their numbers, in their new places."""
    shape = transformation.network.units(name)
    numbers = torch.arange(int(np.prod(shape))).reshape(shape)
    return tuple(transformation.follow(name, numbers).flatten().tolist())


def test_of_all_pairs_of_orders_only_equal_ones_leave_an_mlp_unchanged():
    """Incoming and outgoing weights are put into any orders of three units each."""
    network = MLP((4, 3, 2))
    weights = weights_for(network)
    for incoming, outgoing in itertools.product(itertools.permutations(range(3)), repeat=2):
        moved = weights.clone()
        (w1, b1), (w2, _) = network.layers(weights)
        (v1, c1), (v2, _) = network.layers(moved)
        v1[:], c1[:], v2[:] = w1[list(incoming)], b1[list(incoming)], w2[:, list(outgoing)]
        if incoming == outgoing:
            check_same_function(network, weights, moved)
            expected = Transformation(network, {"h1": torch.tensor(incoming)}).apply(weights)
            assert torch.equal(moved, expected)
        else:
            with pytest.raises(AssertionError, match="changed the network's logits"):
                check_same_function(network, weights, moved)


def test_the_group_of_a_grouped_convolution_by_brute_force():
    """Of all orders of all channels, the table has those that leave a grouped convolution.

    As one convolution without groups it has zeros outside its blocks; orders that put others there
    do not leave it what it is.
    """
    network = GroupedConvNet(blocks=2, width=2)
    weights = weights_for(network)
    w1, b1, w2, b2, w3, _ = (slot.of(weights) for slot in network.slots)
    dense = torch.zeros(4, 4, 2, 2, dtype=torch.float64)
    dense[:2, :2], dense[2:, 2:] = w2
    allowed = {}
    for c, d in itertools.product(itertools.permutations(range(4)), repeat=2):
        moved = dense[list(d)][:, list(c)]
        if not (moved[:2, 2:].any() or moved[2:, :2].any()):
            tensors = (
                w1.flatten(0, 1)[list(c)], b1.flatten()[list(c)],
                torch.stack([moved[:2, :2], moved[2:, 2:]]), b2.flatten()[list(d)],
                w3.flatten(1)[:, list(d)],
            )  # fmt: skip
            allowed[c, d] = torch.cat([tensor.flatten() for tensor in tensors])
    orders = list(itertools.permutations(range(2)))
    found = {}
    for g, *inner in itertools.product(orders, repeat=5):
        permutations = {"g": g, "c": inner[:2], "d": inner[2:]}
        each = Transformation(network, {k: torch.tensor(v) for k, v in permutations.items()})
        found[moved_units(each, "c"), moved_units(each, "d")] = each.apply(weights)
    assert len(found) == 2**5
    assert set(found) == set(allowed)
    for key, moved in found.items():
        assert torch.equal(moved[:-3], allowed[key])
        check_same_function(network, weights, moved)


# ---- rows, and numbers of transpositions


def test_permutations_come_back_from_a_row(network):
    planted = any_permutation(network, 1)
    row = planted.to_row()
    assert row.shape == (num_hidden_units(network),)
    back = from_row(network, row)
    assert list(back.permutations) == list(network.groups)
    assert all(torch.equal(perm, planted.permutations[k]) for k, perm in back.permutations.items())
    nothing = Transformation(network).to_row()
    weights = weights_for(network)
    assert torch.equal(from_row(network, nothing).apply(weights), weights)


def test_transpositions_per_group_and_in_total():
    network = MLP((2, 3, 4, 2))
    perms = {"h1": torch.tensor([1, 0, 2]), "h2": torch.tensor([1, 2, 3, 0])}
    planted = Transformation(network, perms)
    assert planted.transpositions() == {"h1": 1, "h2": 3}
    assert planted.total_transpositions() == 4
    assert Transformation(network).transpositions() == {"h1": 0, "h2": 0}


def test_a_block_that_moves_takes_its_channels_along():
    network = GroupedConvNet(blocks=2, width=3)
    swapped = Transformation(network, {"g": torch.tensor([1, 0])})
    assert swapped.transpositions() == {"g": 1, "c": 3, "d": 3}
    back = swapped.then(swapped)
    assert back.total_transpositions() == 0


# ---- what is refused


@pytest.mark.parametrize(
    ("activation", "kind", "reason"),
    [
        ("tanh", "log_scales", "can be flipped, not scaled"),
        ("silu", "log_scales", "can only be permuted"),
        ("silu", "signs", "can only be permuted"),
        ("relu", "signs", "can be scaled, not flipped"),
    ],
)
def test_what_an_activation_does_not_allow_is_refused(activation, kind, reason):
    network = MLP((2, 3, 2), activation)
    impossible = Transformation(network, **{kind: {"h1": torch.ones(3)}})
    with pytest.raises(UserError, match=reason):
        impossible.apply(weights_for(network))


def test_blocks_cannot_be_scaled():
    network = GroupedConvNet()
    with pytest.raises(UserError, match="g cannot be scaled"):
        Transformation(network, log_scales={"g": torch.ones(2)}).apply(weights_for(network))


@pytest.mark.parametrize(
    "perm",
    [
        torch.tensor([0, 1, 1]),
        torch.tensor([0, 1, 3]),
        torch.tensor([-1, 0, 1]),
        torch.tensor([0, 1]),
        torch.tensor(1),
        torch.tensor([0.0, 1.0, 2.0]),
        torch.tensor([1, 0, 2], dtype=torch.uint8),  # which torch would take for a mask
        np.array([1, 0, 2]),
        None,
    ],
)
def test_what_is_not_a_permutation_is_refused(perm):
    network = MLP((2, 3, 2))
    with pytest.raises(UserError, match="h1: not a permutation of 3 units"):
        Transformation(network, {"h1": perm}).apply(weights_for(network))


def test_a_permutation_of_one_block_only_is_refused():
    network = GroupedConvNet(blocks=2, width=3)
    for perm in ([1, 0, 2], [[1, 0, 2], [0, 0, 2]]):
        with pytest.raises(UserError, match="c: not a permutation of 2 × 3 units"):
            Transformation(network, {"c": torch.tensor(perm)}).apply(weights_for(network))


@pytest.mark.parametrize("kind", ["permutations", "log_scales", "signs"])
def test_units_that_the_network_has_not_are_refused(kind):
    network = MLP((2, 3, 2))
    transformation = replace(Transformation(network), **{kind: {"h2": torch.arange(3)}})
    with pytest.raises(UserError, match="has no units 'h2'; it has: h1"):
        transformation.apply(weights_for(network))


def test_scales_of_another_number_of_units_are_refused():
    network = MLP((2, 3, 2))
    with pytest.raises(UserError, match=r"h1 has \[3\] units, but is scaled by \[4\] numbers"):
        Transformation(network, log_scales={"h1": torch.zeros(4)}).apply(weights_for(network))


# ---- proof that the function stays


def test_a_single_pair_of_units_moved_by_half_is_noticed():
    weights = SHALLOW.initial_weights(random(0))
    for a, b in itertools.combinations(range(40), 2):
        broken = weights.clone()
        outgoing = SHALLOW.layers(broken)[1][0]
        outgoing[:, [a, b]] = outgoing[:, [b, a]]
        with pytest.raises(AssertionError, match="changed the network's logits"):
            check_same_function(SHALLOW, weights, broken)


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("part", ["incoming", "bias", "outgoing"])
def test_half_a_move_of_units_that_are_dead_is_noticed(layer, part):
    """No input tells: the logits stay what they were."""
    weights = DEEP.initial_weights(random(0))
    DEEP.layers(weights)[layer][1][[3, 8]] = torch.tensor([-100.0, -101])
    broken = weights.clone()
    (incoming, bias), (outgoing, _) = DEEP.layers(broken)[layer : layer + 2]
    rows = {"incoming": incoming, "bias": bias, "outgoing": outgoing.T}[part]
    rows[[3, 8]] = rows[[8, 3]]
    check_same_function(DEEP, weights, broken)
    with pytest.raises(AssertionError, match=f"took a unit of h{layer + 1} apart"):
        check_same_units(DEEP, weights, broken)


@pytest.mark.parametrize("name", ["grouped", "residual"])
def test_every_tensor_of_a_unit_has_to_move_with_it(name):
    network = NETWORKS[name]
    weights = weights_for(network)
    planted = any_permutation(network, 1)
    moved = planted.apply(weights)
    check_same_units(network, weights, moved)
    for slot in network.slots:
        if any(slot.axes):
            broken = moved.clone()
            slot.of(broken).copy_(slot.of(weights))  # stays behind
            with pytest.raises(AssertionError, match="took a unit of"):
                check_same_units(network, weights, broken)
            with pytest.raises(AssertionError, match="changed the network's logits"):
                check_same_function(network, weights, broken)
