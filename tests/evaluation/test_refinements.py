"""A scale of deviations, chosen by the samples' predictions, and REPAIR of drawn networks."""

from utils.evaluation.views import SCALES, Refinement, TauSearch
from utils.networks.mlp import MLP
from utils.networks.predictions import class_probabilities
from utils.posteriors.gaussian import Gaussian
from utils.rebasin.repair import unit_moments

import pytest
import torch

NETWORK = MLP((5, 6, 3))
IMAGES = torch.rand(40, 5, generator=torch.Generator().manual_seed(1))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def gaussian() -> Gaussian:
    mean = 3 * NETWORK.initial_weights(random(0))
    return Gaussian(mean, torch.full_like(mean, 0.8), NETWORK)


def test_tau_of_0_is_the_mean_network_and_of_1_the_gaussian_as_it_is(gaussian):
    (at_mean,) = Refinement(NETWORK, (0.0,))(gaussian).draw(1, random(3))
    assert torch.equal(at_mean, gaussian.mean)
    ours, theirs = (
        next(iter(each.draw(1, random(3)))) for each in (Refinement(NETWORK)(gaussian), gaussian)
    )
    assert torch.equal(ours, theirs)


def test_layers_have_their_own_tau(gaussian):
    std = Refinement(NETWORK, (0.5, 2.0))(gaussian).std
    w1, b1, w2, b2 = (slot.of(std) for slot in NETWORK.slots)
    assert all((part == 0.4).all() for part in (w1, b1))
    assert all((part == 1.6).all() for part in (w2, b2))


@pytest.mark.parametrize("planted", [0.0, 0.25, 1.0])
def test_a_planted_tau_is_found(gaussian, planted):
    """The samples are draws with the planted scale; the search may miss by one step of its grid."""
    source = Refinement(NETWORK, (planted,))(gaussian)
    drawn = list(source.draw(500 if planted else 1, random(7)))
    truth = sum(class_probabilities(NETWORK, w, IMAGES) for w in drawn) / len(drawn)
    search = TauSearch(IMAGES, truth, 150, 0)
    (found,) = search.best(Refinement(NETWORK), gaussian, by_layers=False).taus
    assert abs(SCALES.index(found) - SCALES.index(planted)) <= 1


def test_a_tau_for_each_layer_is_at_least_as_near_as_one_for_all(gaussian):
    source = Refinement(NETWORK, (0.1, 1.0))(gaussian)
    drawn = list(source.draw(500, random(7)))
    truth = sum(class_probabilities(NETWORK, w, IMAGES) for w in drawn) / len(drawn)
    search = TauSearch(IMAGES, truth, 50, 0)
    one, several = (search.best(Refinement(NETWORK), gaussian, each) for each in (False, True))
    assert len(one.taus) == 1
    assert len(several.taus) == 2
    assert search.divergence(several, gaussian) < search.divergence(one, gaussian)


def test_drawn_networks_are_repaired(gaussian):
    target = unit_moments(NETWORK, gaussian.mean, IMAGES)
    posterior = Refinement(NETWORK, (1.0,), IMAGES, target)(gaussian)
    torch.testing.assert_close(posterior.mean, gaussian.mean, rtol=1e-4, atol=1e-5)
    for weights in posterior.draw(3, random(0)):
        moments = unit_moments(NETWORK, weights, IMAGES)
        torch.testing.assert_close(moments.means[0], target.means[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            moments.deviations[0], target.deviations[0], rtol=1e-3, atol=1e-4
        )
