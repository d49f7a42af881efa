"""Normal forms: one network for each orbit, the same function, keys computed directly."""

import math
from functools import partial

from tests.networks.toy_networks import NETWORKS
from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.settings.errors import UserError
from utils.symmetry.mass import minimum_mass
from utils.symmetry.normal_forms import (
    KEYS,
    compose,
    count_ties,
    positive_signs,
    sort_units,
    unit_keys,
    unit_norm,
)
from utils.symmetry.transformation import (
    Transformation,
    check_same_function,
    random_transformation,
)

import pytest
import torch

SCALINGS = {"unit norm": unit_norm, "minimum mass": minimum_mass}


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(network: Network, count: int = 3) -> torch.Tensor:
    weights = [network.initial_weights(random(k)) for k in range(count)]
    return torch.stack(weights).double()


def orbit(network: Network, weights: torch.Tensor, count: int = 10) -> torch.Tensor:
    return torch.stack(
        [random_transformation(network, random(k)).apply(weights) for k in range(count)]
    )


def forms_of(network: Network, name: str, key: str):
    """Return the normal forms that remove the whole group of one of the toy networks."""
    sorting = partial(sort_units, key=key)
    if name == "silu":
        return (sorting,)
    if name == "tanh":
        return (positive_signs, sorting)
    if name == "residual" or key == "norm":  # of unit norm all units would be tied
        return (minimum_mass, sorting)
    return (unit_norm, sorting)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "no hidden units"])
def test_all_networks_of_an_orbit_have_one_normal_form(name, key):
    network = NETWORKS[name]
    (weights,) = draw(network, 1)
    forms = forms_of(network, name, key)
    members = orbit(network, weights)
    normal = compose(network, members, *forms).apply(members)
    expected = compose(network, weights, *forms).apply(weights)
    torch.testing.assert_close(normal, expected.expand_as(normal), rtol=1e-9, atol=1e-11)
    assert (normal - members).abs().amax(-1).min() > 0.01
    check_same_function(network, members, normal)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", ["relu", "grouped", "residual", "tanh"])
def test_a_normal_form_stays_as_it_is(name, key):
    network = NETWORKS[name]
    weights = draw(network)
    forms = forms_of(network, name, key)
    normal = compose(network, weights, *forms).apply(weights)
    again = compose(network, normal, *forms).apply(normal)
    torch.testing.assert_close(again, normal, rtol=1e-9, atol=1e-11)


def test_single_weights_and_stacks_are_treated_alike():
    network = NETWORKS["deep relu"]
    weights = draw(network)
    forms = (unit_norm, partial(sort_units, key="mean"))
    stacked = compose(network, weights, *forms)
    for k, row in enumerate(weights):
        alone = compose(network, row, *forms)
        assert torch.equal(alone.to_row(), stacked.to_row()[k])
        assert torch.equal(alone.apply(row), stacked.apply(weights)[k])


# ---- scales


def test_incoming_weights_have_norm_one():
    network = MLP((6, 8, 7, 3))
    weights = draw(network)
    scaled = unit_norm(network, weights).apply(weights)
    for weight, bias in network.layers(scaled)[:-1]:
        torch.testing.assert_close(weight.norm(dim=-1), torch.ones(3, len(bias[0])).double())
    tripled = unit_norm(network, weights, norm=3.0).apply(weights)
    norms = network.layers(tripled)[1][0].norm(dim=-1)
    torch.testing.assert_close(norms, torch.full_like(norms, 3))


def test_norm_one_is_refused_for_units_that_lead_back_to_themselves():
    network = NETWORKS["residual"]
    with pytest.raises(UserError, match="over residual connections"):
        unit_norm(network, draw(network))


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("name", ["silu", "tanh"])
def test_units_that_cannot_be_scaled_are_refused(name, scaling):
    with pytest.raises(UserError, match="cannot be scaled: they"):
        SCALINGS[scaling](NETWORKS[name], draw(NETWORKS[name]))


# ---- signs and order


def test_the_largest_incoming_weight_of_tanh_units_is_positive():
    network = NETWORKS["tanh"]
    weights = draw(network)
    for weight, _ in network.layers(positive_signs(network, weights).apply(weights))[:-1]:
        assert (weight.amax(-1) == weight.abs().amax(-1)).all()


@pytest.mark.parametrize("name", ["relu", "silu", "no hidden units"])
def test_units_without_signs_are_refused(name):
    with pytest.raises(UserError, match="flip"):
        positive_signs(NETWORKS[name], draw(NETWORKS[name]))


def test_keys_are_what_they_are_called():
    network = MLP((6, 8, 7, 3))
    (weights,) = draw(network, 1)
    (w1, _), (w2, _), (w3, _) = network.layers(weights)
    expected = {
        "norm": (w1.norm(dim=1), w2.norm(dim=1)),
        "largest": (w1.abs().amax(1), w2.abs().amax(1)),
        "mean": (w1.mean(1), w2.mean(1)),
        "last_layer": (w1.abs().amax(1), w3[0]),
    }
    for key, layers in expected.items():
        moved = sort_units(network, weights, key)
        for name, values in zip(("h1", "h2"), layers, strict=True):
            torch.testing.assert_close(unit_keys(network, weights, name, key), values)
            assert torch.equal(moved.permutations[name], values.argsort())


def test_blocks_are_sorted_with_what_they_contain():
    network = NETWORKS["grouped"]
    (weights,) = draw(network, 1)
    moved = sort_units(network, weights).apply(weights)
    for name in network.groups:
        keys = unit_keys(network, moved, name, "norm")
        assert (keys.diff(dim=-1) > 0).all()


def test_equal_units_are_counted_and_stay_in_their_order():
    network = MLP((6, 5, 3))
    weights = draw(network, 2)
    (w1, _), (w2, _) = network.layers(weights)
    w1[1, 3] = w1[1, 0]
    w1[1, 4] = -w1[1, 0]
    assert count_ties(network, weights).tolist() == [0, 0]
    w2[1, 0, 3] = w2[1, 0, 0]
    assert count_ties(network, weights).tolist() == [0, 2]
    w2[1, :, 4] = w2[1, :, 0]
    assert count_ties(network, weights[1]).item() == 3
    order = sort_units(network, weights, "norm").permutations["h1"][1].tolist()
    assert [unit for unit in order if unit in (0, 3, 4)] == [0, 3, 4]


def test_unknown_keys_are_refused():
    with pytest.raises(UserError, match="choose from norm, largest, mean, last_layer"):
        sort_units(NETWORKS["relu"], draw(NETWORKS["relu"]), "size")


def test_nothing_to_do_is_the_identity():
    network = NETWORKS["relu"]
    (weights,) = draw(network, 1)
    assert torch.equal(compose(network, weights).apply(weights), weights)
    assert compose(network, weights).to_row().equal(Transformation(network).to_row())


# ---- refusals


@pytest.mark.parametrize("form", [unit_norm, minimum_mass, positive_signs])
def test_sorting_before_other_forms_is_refused(form):
    network = NETWORKS["tanh" if form is positive_signs else "relu"]
    with pytest.raises(UserError, match="give sort_units last"):
        compose(network, draw(network), sort_units, form)


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf])
def test_norms_that_no_weights_have_are_refused(norm):
    with pytest.raises(UserError, match="give a number above 0"):
        unit_norm(NETWORKS["relu"], draw(NETWORKS["relu"]), norm)


@pytest.mark.parametrize("form", [*SCALINGS.values(), sort_units])
def test_weights_of_another_number_or_none_are_refused(form):
    network = NETWORKS["relu"]
    with pytest.raises(UserError, match="have 10 entries, but the network"):
        form(network, torch.zeros(10))
    with pytest.raises(UserError, match="not finite"):
        form(network, torch.full((network.num_weights,), torch.nan))
