"""Symmetries of convolutional networks, with nested groups and groups shared by many slots."""

import math

from tests.networks.conv_networks import SMALL, drawn_images, drawn_weights, small
from utils.networks.mlp import MLP
from utils.networks.predictions import recompute_statistics
from utils.networks.registry import conv_network
from utils.rebasin.many_to_one import Selection, most_similar
from utils.rebasin.matching import make_matcher
from utils.rebasin.paths import Line, barrier, repair, repair_note, score
from utils.rebasin.rebase import rebase
from utils.rebasin.response_matching import ActivationMatcher, Stack
from utils.rebasin.weight_matching import CosineMatcher
from utils.runs.seeding import generator
from utils.symmetry.counts import chance_transpositions, count_symmetries, total
from utils.symmetry.transformation import Transformation, random_transformation

import pytest
import torch

NUM_PLANTED = 100


def random_permutation(network, seed) -> Transformation:
    drawn = random_transformation(network, generator(seed, "planted"))
    return Transformation(network, drawn.permutations)


@pytest.mark.parametrize("name", SMALL)
def test_random_elements_of_the_group_leave_the_function_unchanged(name):
    network = small(name)
    weights, images = drawn_weights(network), drawn_images(network, 5)
    before = network.outputs(weights, images)
    for seed in range(5):
        element = random_transformation(network, generator(seed))
        after = network.outputs(element.apply(weights), images)
        assert (after - before).abs().max() < 1e-10 * (1 + before.abs().max())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("method", ["activation", "weight", "cosine"])
def test_planted_permutations_are_recovered(name, method):
    network = small(name)
    weights = drawn_weights(network)
    matcher = make_matcher(method, network, weights, drawn_images(network, 20))
    if method == "weight":
        matcher.restarts = 0  # they could only help
    for seed in range(NUM_PLANTED):
        planted = random_permutation(network, seed)
        found = matcher(planted.apply(weights)).transformation
        undone = planted.then(found)
        assert undone.total_transpositions() == 0, seed
        inverse = planted.inverse().transpositions()
        assert found.transpositions() == inverse


@pytest.mark.parametrize("name", ["optunet", "lenet"])
def test_planted_permutations_are_recovered_where_units_are_dead_or_equal(name):
    """Images cannot tell dead units apart: then incoming weights do."""
    network = small(name)
    weights = drawn_weights(network)
    second = next(slot for slot in network.slots if slot.name == "conv2.weight").of(weights)
    if name == "optunet":
        second[0, 1:4] = -second[0, 1:4].abs()  # reads only what is positive
        second[1, :2] = -second[1, :2].abs()
    else:
        bias = next(slot for slot in network.slots if slot.name == "conv2.bias").of(weights)
        bias[[1, 4, 5]] = -1000
    matcher = ActivationMatcher(network, weights, drawn_images(network, 20))
    assert matcher(weights).dead >= (5 if name == "optunet" else 3)
    for seed in range(NUM_PLANTED):
        planted = random_permutation(network, seed)
        found = matcher(planted.apply(weights))
        assert planted.then(found.transformation).total_transpositions() == 0, seed


def test_blocks_whose_units_are_all_dead_are_told_apart():
    network = small("optunet")
    weights = drawn_weights(network)
    second = network.slots[1].of(weights)
    second.copy_(-second.abs())
    matcher = ActivationMatcher(network, weights, drawn_images(network, 20))
    for seed in range(10):
        planted = random_permutation(network, seed)
        found = matcher(planted.apply(weights)).transformation
        assert planted.then(found).total_transpositions() == 0


@pytest.mark.parametrize("name", SMALL)
def test_rebasin_checks_the_function_and_counts_transpositions(name):
    network = small(name)
    reference, weights = drawn_weights(network, 1), drawn_weights(network, 2)
    matcher = ActivationMatcher(network, reference, drawn_images(network, 20))
    rebased = rebase(network, weights, matcher)
    transpositions = rebased.matching.transformation.transpositions()
    assert set(transpositions) == set(network.groups)
    assert sum(transpositions.values()) > 0
    again = matcher(rebased.weights).transformation
    assert again.total_transpositions() == 0


# ---- many to one


@pytest.mark.parametrize("name", SMALL)
def test_many_to_one_finds_planted_permutations(name):
    network = small(name)
    weights = drawn_weights(network)
    matcher = ActivationMatcher(network, weights, drawn_images(network, 100))
    moved = random_permutation(network, 0).apply(weights)
    selection = most_similar(matcher, moved)
    assert not any(selection.lost().values())
    torch.testing.assert_close(selection.apply(moved), weights)


def test_a_unit_in_several_places_shares_what_goes_out():
    """So the function is unchanged if the units that are lost have no effect."""
    network = MLP((3, 4, 2))
    weights = drawn_weights(network)
    network.slots[2].of(weights)[:, [0, 3]] = 0
    selection = Selection(network, {"h1": torch.tensor([2, 1, 2, 2])})
    images = drawn_images(network, 6)
    selected = selection.apply(weights)
    torch.testing.assert_close(network.outputs(selected, images), network.outputs(weights, images))
    assert selection.lost() == {"h1": 2}
    outgoing = network.slots[2]
    torch.testing.assert_close(outgoing.of(selected)[:, 0], outgoing.of(weights)[:, 2] / 3)


def test_each_unit_of_the_reference_takes_its_most_similar_one():
    """Also where another one takes it as well, and whatever its scale."""
    network = MLP((3, 3, 2))
    reference, weights = drawn_weights(network, 1), drawn_weights(network, 2)
    incoming, bias = (slot.of(weights) for slot in network.slots[:2])
    theirs, their_bias = (slot.of(reference) for slot in network.slots[:2])
    incoming[2], bias[2] = 5 * theirs[0], 5 * their_bias[0]
    incoming[0], bias[0] = 0.1 * theirs[1], 0.1 * their_bias[1]
    theirs[2], their_bias[2] = theirs[0], their_bias[0]
    matcher = ActivationMatcher(network, reference, drawn_images(network, 50))
    assert most_similar(matcher, weights).units["h1"].tolist() == [2, 0, 2]


def test_units_of_tanh_are_taken_with_their_signs():
    """Also where two places take the same unit, with opposite signs."""
    network = MLP((3, 4, 2), "tanh")
    reference, images = drawn_weights(network, 1), drawn_images(network, 50)
    moved = random_transformation(network, generator(3)).apply(reference)
    found = most_similar(ActivationMatcher(network, reference, images), moved)
    torch.testing.assert_close(found.apply(moved), reference)

    weights = reference.clone()  # in the reference unit 1 becomes the opposite of unit 0
    incoming, bias = (slot.of(reference) for slot in network.slots[:2])
    incoming[1], bias[1] = -incoming[0], -bias[0]
    found = most_similar(ActivationMatcher(network, reference, images), weights)
    assert found.units["h1"].tolist() == [0, 0, 2, 3]
    assert found.signs["h1"].tolist() == [1, -1, 1, 1]
    network.slots[2].of(weights)[:, 1] = 0  # the unit that is lost
    torch.testing.assert_close(
        network.outputs(found.apply(weights), images), network.outputs(weights, images)
    )


@pytest.mark.parametrize("name", ["optunet", "lenet"])
def test_chance_level_of_transpositions(name):
    """Beside 2,000 random elements; mean and deviation to four of their standard errors."""
    network = small(name)
    random, draws = generator(5), 2000
    counts = torch.tensor(
        [
            sum(random_transformation(network, random).transpositions().values())
            for _ in range(draws)
        ]
    ).double()
    chance = chance_transpositions(network)
    assert abs(counts.mean() - chance.mean) < 4 * chance.deviation / draws**0.5
    squares = (counts - chance.mean).square()
    assert abs(squares.mean() - chance.deviation**2) < 4 * squares.std() / draws**0.5


# ---- batch normalisation on the way between two networks


def test_the_note_on_repair_counts_the_images():
    assert "from all 300 training images" in repair_note(300)
    assert "from the first 5,000 training images" in repair_note(60_000)


def test_scores_of_networks_with_batch_normalisation_are_repaired():
    network = small("resnet18")
    images = drawn_images(network, 60)
    labels = torch.randint(10, (60,), generator=generator(0))
    first, second = (
        recompute_statistics(network, drawn_weights(network, seed), images) for seed in (1, 2)
    )
    line = Line(network, first, second, (0.0, 0.5, 1.0))
    scores = score(line, images, labels)
    middle = recompute_statistics(network, torch.lerp(first, second, 0.5), images)
    expected = torch.nn.functional.cross_entropy(network.outputs(middle, images), labels)
    torch.testing.assert_close(scores.loss[1], expected)
    torch.testing.assert_close(repair(line, images).weights[0], first)
    assert barrier(scores.loss, line.fractions)[[0, 2]].tolist() == [0, 0]
    plain = Stack(network, line.weights).traces(images)
    assert not torch.allclose([logits for _, logits in plain][1], network.outputs(middle, images))


# ---- counts


def log10_factorials(*sizes):
    return sum(math.log10(math.factorial(size)) for size in sizes)


COUNTS = {  # log10 of the permutations and scalings, as counted by hand
    "optunet": (math.log10(2 * math.factorial(5) ** 2), 12),
    "lenet": (log10_factorials(6, 16, 120, 84), 226),
    "resnet20_frn": (log10_factorials(*[16] * 3, *[32] * 3, *[64] * 3, 16, 32, 64), 0),
    "resnet18": (log10_factorials(*[64, 128, 256, 512] * 3), 3 * 960),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name):
    shape = (1, 28, 28) if name in ("optunet", "lenet") else (3, 32, 32)
    counts = total(count_symmetries(conv_network(name, shape)))
    assert counts.log10_permutations == pytest.approx(COUNTS[name][0])
    assert (counts.scalings, counts.signs) == (COUNTS[name][1], 0)


def test_counts_of_mlps():
    assert total(count_symmetries(MLP())).log10_permutations == pytest.approx(1166.5, abs=0.1)
    assert total(count_symmetries(MLP())).scalings == 512
    assert total(count_symmetries(MLP(activation="tanh"))).signs == 512
    assert total(count_symmetries(MLP((4, 3)))).units == 0


def test_counts_are_those_of_the_published_study():
    """Permutations within residual blocks, and of residual streams, which tie all blocks."""
    counts = count_symmetries(conv_network("resnet18", (3, 32, 32)))
    streams = {name: counts.pop(name) for name in tuple(counts) if name.startswith("stage")}
    assert total(streams).log10_permutations == pytest.approx(1978, abs=0.5)
    assert total(counts).log10_permutations == pytest.approx(3956, abs=0.5)
    assert (total(streams).scalings, total(counts).scalings) == (960, 1920)


def test_cosines_of_a_residual_network_use_settled_inputs_only():
    """The stream's units are matched by the stem before the blocks' units are known."""
    network = small("resnet8_frn")
    weights = drawn_weights(network)
    changed = weights.clone()
    last = next(slot for slot in network.slots if slot.name == "layer1.0.conv2.weight")
    last.of(changed).neg_()
    found = CosineMatcher(network, weights)(changed).transformation
    assert found.transpositions()["stage1"] == 0
