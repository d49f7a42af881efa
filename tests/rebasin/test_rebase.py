"""Networks moved to a reference: one at a time, proved to compute the same, and their mean."""

import itertools

from tests.networks.toy_networks import NETWORKS, WrongTable, inputs_for
from tests.symmetry.planted import any_permutation
from utils.networks.mlp import MLP
from utils.rebasin.matching import MATCHINGS, make_matcher
from utils.rebasin.rebase import iterated_mean, mean_weights, move, rebase, rebase_all
from utils.rebasin.weight_matching import WeightMatcher
from utils.settings.errors import UserError
from utils.symmetry.transformation import Transformation, random_transformation

import pytest
import torch

SHALLOW = MLP((12, 40, 4))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("method", MATCHINGS)
def test_a_stream_of_networks_is_rebased_one_at_a_time(method):
    weights = SHALLOW.initial_weights(random(0))
    asked = []

    def samples():
        for seed in range(1000):
            asked.append(seed)
            yield any_permutation(SHALLOW, seed).apply(weights)

    matcher = make_matcher(method, SHALLOW, weights, inputs_for(SHALLOW, 300))
    for number, moved in enumerate(itertools.islice(rebase_all(SHALLOW, samples(), matcher), 3)):
        assert torch.equal(moved.weights, weights)
        assert len(asked) == number + 1


def test_a_change_of_function_is_refused():
    network = WrongTable((12, 40, 4))
    weights, planted = network.initial_weights(random(0)), any_permutation(network, 1)
    assert torch.equal(move(weights, Transformation(network)), weights)  # nothing moves
    with pytest.raises(AssertionError, match="changed the network's logits"):
        move(weights, planted)
    matcher = WeightMatcher(network, weights)
    with pytest.raises(AssertionError, match="changed the network's logits"):
        rebase(network, any_permutation(SHALLOW, 1).apply(weights), matcher)


def test_half_a_move_of_dead_units_is_refused(monkeypatch):
    """No input tells: the logits stay what they were."""
    weights = SHALLOW.initial_weights(random(0))
    SHALLOW.layers(weights)[0][1][[3, 8]] = -100
    broken = weights.clone()
    incoming = SHALLOW.layers(broken)[0][0]
    incoming[[3, 8]] = incoming[[8, 3]]
    monkeypatch.setattr(Transformation, "apply", lambda self, weights: broken)
    with pytest.raises(AssertionError, match="took a unit of h1 apart"):
        move(weights, any_permutation(SHALLOW, 1))


@pytest.mark.parametrize("name", NETWORKS)
def test_any_element_of_the_group_moves_a_network(name):
    network = NETWORKS[name]
    weights, drawn = network.initial_weights(random(0)), random_transformation(network, random(1))
    assert torch.equal(move(weights.double(), drawn), drawn.apply(weights.double()))
    planted = any_permutation(network, 1)
    assert torch.equal(move(weights, planted), planted.apply(weights))


def test_mean_of_samples():
    samples = torch.randn(5, 53, generator=random(0))
    torch.testing.assert_close(mean_weights(samples), samples.mean(0))
    with pytest.raises(UserError, match="no samples"):
        mean_weights([])


@pytest.mark.parametrize("method", ["activation", "weight"])
def test_iterated_mean_finds_the_network_behind_shuffled_noisy_copies(method):
    weights = SHALLOW.initial_weights(random(0))
    copies = [
        any_permutation(SHALLOW, k).apply(
            weights + 0.02 * weights.std() * torch.randn(weights.shape, generator=random(k))
        )
        for k in range(8)
    ]
    images = inputs_for(SHALLOW, 300)
    mean = iterated_mean(
        SHALLOW, copies, lambda reference: make_matcher(method, SHALLOW, reference, images)
    )
    assert mean.at_rest
    back = rebase(SHALLOW, mean.weights, WeightMatcher(SHALLOW, weights)).weights
    # 8 copies with 2% noise each: their mean is off by 0.02/√8 = 0.7% of the weights' size
    assert (back - weights).norm() / weights.norm() < 0.01


def test_iterated_mean_stops_after_the_last_round_or_at_rest():
    samples, rounds = [SHALLOW.initial_weights(random(k)) for k in range(6)], []

    def matcher_for(reference):
        rounds.append(reference)
        return WeightMatcher(SHALLOW, reference)

    stopped = iterated_mean(SHALLOW, samples, matcher_for, max_rounds=1)
    assert (len(rounds), stopped.rounds, stopped.at_rest) == (1, 1, False)
    rested = iterated_mean(SHALLOW, samples, matcher_for)
    torch.testing.assert_close(rested.weights, rounds[-1], rtol=1e-5, atol=1e-6)
    assert rested.at_rest
    assert 1 < rested.rounds == len(rounds) - 1 < 20


@pytest.mark.parametrize("method", MATCHINGS)
def test_a_single_weight_that_is_not_finite_is_refused_in_a_sentence(method):
    weights = SHALLOW.initial_weights(random(0))
    matcher = make_matcher(method, SHALLOW, weights, inputs_for(SHALLOW, 300))
    broken = weights.clone()
    broken[-1] = float("nan")  # of the last bias, which no matcher compares
    with pytest.raises(UserError, match="not all finite"):
        rebase(SHALLOW, broken, matcher)
