"""Mass and minimum mass: closed forms, a convex solver's answers, balance, orbits, refusals."""

import math

from tests.networks.toy_networks import NETWORKS, ToyConvNet
from utils.networks.mlp import MLP
from utils.networks.network import Group, Network, Slot, lay_out
from utils.networks.registry import conv_network
from utils.settings.errors import UserError
from utils.symmetry.mass import (
    Mass,
    counted_slots,
    imbalance,
    mass,
    mass_along_orbit,
    minimum_mass,
    minimum_of,
    scalable_groups,
)
from utils.symmetry.transformation import (
    Transformation,
    check_same_function,
    random_transformation,
)

import numpy as np
import pytest
import torch

SCALABLE = ("relu", "deep relu", "grouped", "residual")
# Found with cvxpy and Clarabel for the weights ½ sin(1), ½ sin(2), …: without and with biases.
CONVEX_SOLVER = {
    "deep relu": (22.588215052000574, 24.92146951959768),
    "grouped": (18.582134595443186, 19.556854105229966),
    "residual": (16.008367544724415, 17.096014721381188),
}


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(network: Network, count: int, seed: int = 0) -> torch.Tensor:
    weights = [network.initial_weights(random(seed + k)) for k in range(count)]
    return torch.stack(weights).double()


@pytest.fixture(params=SCALABLE)
def network(request) -> Network:
    return NETWORKS[request.param]


def test_mass_is_the_sum_of_squared_weights_without_biases_and_statistics():
    network = NETWORKS["residual"]
    (weights,) = draw(network, 1)
    tensors = {slot.name: slot.of(weights).numpy() for slot in network.slots}
    roles = {slot.name: slot.role for slot in network.slots}
    for biases, counted in ((False, ("weight",)), (True, ("weight", "bias"))):
        expected = sum((tensors[n] ** 2).sum() for n in tensors if roles[n] in counted)
        np.testing.assert_allclose(mass(network, weights, biases), expected, rtol=1e-14)


@pytest.mark.parametrize("name", ["relu", "silu", "residual"])
def test_mass_of_a_stack_is_that_of_each(name):
    weights = draw(NETWORKS[name], 3)
    each = torch.stack([mass(NETWORKS[name], row) for row in weights])
    assert torch.equal(mass(NETWORKS[name], weights), each)


@pytest.mark.parametrize("biases", [False, True])
def test_one_hidden_layer_has_a_closed_form(biases):
    """Σ_i 2 ‖in_i‖ ‖out_i‖"""
    network = MLP((7, 20, 4))
    weights = draw(network, 5)
    (w1, b1), (w2, b2) = network.layers(weights)
    squares = w1.square().sum(-1) + (b1.square() if biases else 0)
    expected = 2 * (squares.sqrt() * w2.norm(dim=1)).sum(-1)
    expected += b2.square().sum(-1) if biases else 0
    torch.testing.assert_close(minimum_of(network, weights, biases), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", CONVEX_SOLVER)
def test_the_minimum_is_that_of_a_convex_solver(name):
    network = NETWORKS[name]
    weights = 0.5 * torch.sin(torch.arange(1, network.num_weights + 1, dtype=torch.float64))
    for biases, expected in zip((False, True), CONVEX_SOLVER[name], strict=True):
        assert minimum_of(network, weights, biases).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("biases", [False, True])
def test_incoming_and_outgoing_mass_are_equal_at_the_minimum(network, biases):
    (weights,) = draw(network, 1)
    scaled = minimum_mass(network, weights, biases).apply(weights)
    check_same_function(network, weights, scaled)
    roles = ("weight", "bias") if biases else ("weight",)
    for name, group in network.groups.items():
        if group.kind != "relu":
            continue
        masses = [direct_masses(network, scaled, name, power, roles) for power in (1, -1)]
        np.testing.assert_allclose(*masses, rtol=1e-10)


def direct_masses(network, weights, name, power, roles) -> np.ndarray:
    """Sum squares over every axis but the group's and its parent's."""
    kept, total = {name, network.groups[name].within} - {None}, 0
    for slot in network.slots:
        if slot.role in roles and name in slot.axes and power == slot.powers[slot.axes.index(name)]:
            others = [axis for axis, each in enumerate(slot.axes) if each not in kept]
            total = total + (slot.of(weights).numpy() ** 2).sum(tuple(others))
    return total


def test_ten_points_of_an_orbit_have_one_minimum(network):
    (weights,) = draw(network, 1)
    orbit = [random_transformation(network, random(k)).apply(weights) for k in range(10)]
    masses, minima = mass(network, torch.stack(orbit)), minimum_of(network, torch.stack(orbit))
    assert masses.max() > 1.2 * masses.min()
    torch.testing.assert_close(minima, minima[:1].expand(10), rtol=1e-13, atol=0)


def test_a_planted_scaling_is_undone(network):
    (weights,) = draw(network, 1)
    lightest = minimum_mass(network, weights).apply(weights)
    planted = random_transformation(network, random(1))
    planted.permutations.clear()
    moved = planted.apply(lightest)
    found = minimum_mass(network, moved)
    torch.testing.assert_close(found.apply(moved), lightest, rtol=1e-10, atol=1e-12)
    for name, scales in planted.log_scales.items():
        torch.testing.assert_close(found.log_scales[name], -scales, rtol=0, atol=1e-10)


def test_a_stack_is_scaled_as_each_of_its_networks(network):
    weights = draw(network, 4)
    stacked = minimum_mass(network, weights)
    for k, row in enumerate(weights):
        alone = minimum_mass(network, row).apply(row)
        torch.testing.assert_close(stacked.apply(weights)[k], alone, rtol=1e-10, atol=1e-12)


def test_log_mass_is_strictly_convex_in_log_scales(network):
    """Second differences along random lines through random points."""
    weights = draw(network, 20)
    objective, width = Mass(network, weights), 0.1
    for seed in range(5):
        start, direction = (random_scales(objective, random(10 * seed + k)) for k in (0, 1))
        before, at, after = (
            objective({name: start[name] + step * width * direction[name] for name in start}).log()
            for step in (-1, 0, 1)
        )
        assert (before - 2 * at + after > 1e-6).all()


def test_the_mass_along_the_orbit_is_that_of_scaled_networks(network):
    """At step 0 the mass as it is; all steps are at least as heavy as the minimum, and convex."""
    weights = draw(network, 3)
    steps = torch.linspace(-1, 1, 5, dtype=torch.float64)
    curves = mass_along_orbit(network, weights, steps, 2, random(0))
    assert curves.shape == (2, 3, 5)
    torch.testing.assert_close(curves[:, :, 2], mass(network, weights).expand(2, 3))
    assert (curves >= minimum_of(network, weights)[:, None] * (1 - 1e-12)).all()
    assert (curves.log().diff(n=2) > 0).all()
    assert not curves[0].allclose(curves[1])


def random_scales(objective: Mass, generator: torch.Generator) -> dict:
    return {
        name: torch.randn(zeros.shape, generator=generator, dtype=torch.float64)
        for name, zeros in objective.no_scaling.items()
    }


def test_the_formula_of_the_mass_is_the_mass_of_the_scaled_network(network):
    weights = draw(network, 3)
    for seed, biases in ((0, False), (1, True)):
        objective = Mass(network, weights, biases)
        transformation = random_transformation(network, random(seed))
        scales = {
            name: each.expand(3, *each.shape) for name, each in transformation.log_scales.items()
        }
        direct = mass(network, transformation.apply(weights), biases)
        torch.testing.assert_close(objective(scales), direct, rtol=1e-12, atol=0)


def silence(network: Network, weights: torch.Tensor) -> None:
    """Take the incoming weights of unit 0 away, the outgoing ones of unit 1, and both of unit 2.

    The last unit of each group stays as it is.
    """
    for name in scalable_groups(network):
        for slot in counted_slots(network):
            power = slot.powers[slot.axes.index(name)] if name in slot.axes else 0
            if power:
                units = slot.of(weights).movedim(slot.axes.index(name), 0)[:-1]
                units[0:1] = 0 if power > 0 else units[0:1]
                units[1:2] = 0 if power < 0 else units[1:2]
                units[2:3] = 0


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("name", [*SCALABLE, "lenet", "optunet"])
def test_networks_with_idle_units_have_one_lightest_network(name, biases):
    network = NETWORKS[name] if name in NETWORKS else conv_network(name)
    (weights,) = draw(network, 1)
    silence(network, weights)
    members = torch.stack([
        Transformation(network, log_scales=planted.log_scales).apply(weights)
        for planted in (random_transformation(network, random(k)) for k in range(3))
    ])  # fmt: skip
    expected = minimum_mass(network, weights, biases).apply(weights)
    lightest = minimum_mass(network, members, biases).apply(members)
    torch.testing.assert_close(lightest, expected.expand_as(lightest), rtol=1e-9, atol=1e-11)
    check_same_function(network, members, lightest)
    assert (minimum_of(network, members, biases) <= mass(network, lightest, biases)).all()


def test_scales_settle_where_every_unit_is_idle():
    """Nothing leads to the outputs, so everything hangs together."""
    network = MLP((20, 100, 100, 100, 3))
    (weights,) = draw(network, 1)
    network.layers(weights)[-1][0][:] = 0
    members = torch.stack(
        [random_transformation(network, random(k)).apply(weights) for k in range(2)]
    )
    assert minimum_of(network, members).tolist() == [0, 0]


def test_idle_units_do_not_weigh_on_others():
    """The minimum is that of the network without them; what they lead to alone is idle, too."""
    network, smaller = MLP((3, 5, 4, 2)), MLP((3, 4, 3, 2))
    (weights,) = draw(network, 1)
    (w1, b1), (w2, b2), (w3, b3) = network.layers(weights)
    w1[0], w2[0, 1:] = 0, 0
    rest = (w1[1:], b1[1:], w2[1:, 1:], b2[1:], w3[:, 1:], b3)
    expected = minimum_of(smaller, torch.cat([each.flatten() for each in rest]))
    torch.testing.assert_close(minimum_of(network, weights), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["relu", "deep relu", "grouped"])
def test_gradient_flow_keeps_the_imbalance(name):
    """Its derivative along the gradient of any function of the outputs is 0."""
    network = NETWORKS[name]
    (weights,) = draw(network, 1)
    inputs = torch.randn(9, *network.input_shape, generator=random(5), dtype=torch.float64)
    weights.requires_grad_()
    network.outputs(weights, inputs).square().sum().backward()
    learnt = weights.grad
    ends = [imbalance(network, weights.detach() + step * learnt) for step in (1e-6, -1e-6)]
    rates = (ends[0] - ends[1]) / 2e-6
    scalable = [name for name, group in network.groups.items() if group.kind == "relu"]
    assert rates.shape == (sum(math.prod(network.units(name)) for name in scalable),)
    assert rates.abs().max() < 1e-6 * (weights.detach() * learnt).abs().sum()


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (MLP((6, 3)), "has no hidden units to scale"),
        (MLP((6, 8, 3), "silu"), "they can only be permuted, as with SiLU"),
        (MLP((6, 8, 3), "tanh"), "they can be flipped, not scaled"),
    ],
)
def test_networks_without_scales_are_refused(network, reason):
    with pytest.raises(UserError, match=reason):
        minimum_mass(network, draw(network, 1)[0])


class BeforeNormalisation(ToyConvNet):
    """The table of a convolution whose channels' scales a normalisation undoes."""

    groups = {"c": Group(4)}  # noqa: RUF012
    slots = lay_out(
        Slot("conv", (4, 2, 3, 3), ("c", None, None, None), (1, 0, 0, 0), bound=0.5),
        Slot("variance", (4,), ("c",), (2,), "buffer", center=1.0),
        Slot("gamma", (4,), ("c",), (0,), center=1.0),
    )


class Recurrent(ToyConvNet):
    groups = {"x": Group(4)}  # noqa: RUF012
    slots = lay_out(
        Slot("W1", (4, 50), ("x", None), (1, 0), bound=0.5),
        Slot("W2", (4, 4), ("x", "x"), (1, -1), bound=0.5),
    )


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (BeforeNormalisation(), "as between a convolution and a normalisation"),
        (Recurrent(), "Units of x feed themselves"),
    ],
)
def test_scales_without_a_minimum_are_refused(network, reason):
    with pytest.raises(UserError, match=reason):
        minimum_mass(network, draw(network, 1)[0])


def test_weights_that_are_no_numbers_are_refused():
    network = MLP((3, 4, 2))
    with pytest.raises(UserError, match="finite"):
        minimum_mass(network, torch.full((network.num_weights,), torch.nan))
