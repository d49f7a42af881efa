"""Losses along the line between networks: ends, shortcuts and barriers with known answers."""

from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.rebasin.paths import Line, barrier, score, tensor_distances, tensor_names
from utils.rebasin.response_matching import ActivationMatcher, Stack
from utils.symmetry.transformation import Transformation

import pytest
import torch

NETWORKS = [MLP((8, 20, 3)), MLP((8, 12, 9, 3)), MLP((8, 20, 3), "tanh")]
LAMBDAS = (0.0, 0.1, 0.25, 0.5, 0.9, 1.0)


@pytest.fixture(params=NETWORKS, ids=["shallow", "deep", "tanh"])
def network(request) -> Network:
    return request.param


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pair(network: Network) -> tuple[torch.Tensor, torch.Tensor]:
    return network.initial_weights(random(0)), network.initial_weights(random(1))


def points(count: int = 250) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(count, 8, generator=random(2))
    return images, torch.randint(3, (count,), generator=random(3))


def test_line_equals_the_interpolated_networks_computed_directly(network):
    first, second = pair(network)
    line = Line(network, first, second, LAMBDAS)
    images, _ = points()
    for at, (hidden, logits) in zip(LAMBDAS, line.traces(images), strict=True):
        direct, expected = network.trace((1 - at) * first + at * second, images)
        assert list(hidden) == list(direct) == list(network.groups)
        for name, values in hidden.items():
            torch.testing.assert_close(values, direct[name], rtol=0, atol=2e-6)
        torch.testing.assert_close(logits, expected, rtol=0, atol=2e-6)


def test_line_begins_and_ends_with_the_networks_themselves(network):
    first, second = pair(network)
    line = Line(network, first, second, LAMBDAS)
    assert torch.equal(line.weights[0], first)
    assert torch.equal(line.weights[-1], second)


def test_ends_have_the_networks_own_losses(network, monkeypatch):
    monkeypatch.setattr(MLP, "chunk_rows", 64)
    images, labels = points()
    ends = torch.stack(pair(network))
    scores = score(Line(network, *ends, LAMBDAS), images, labels)
    for k, weights in ((0, ends[0]), (-1, ends[1])):
        logits = network.outputs(weights.double(), images.double())
        loss = torch.nn.functional.cross_entropy(logits, labels)
        assert scores.loss[k].item() == pytest.approx(loss.item(), rel=1e-6)
        assert scores.error[k] == (logits.argmax(-1) != labels).double().mean()
    alone = score(Stack(network, ends), images, labels)
    torch.testing.assert_close(alone.loss, scores.loss[[0, -1]])


def test_a_network_has_no_barrier_with_itself(network):
    weights, _ = pair(network)
    images, labels = points()
    scores = score(Line(network, weights, weights, LAMBDAS), images, labels)
    assert barrier(scores.loss, LAMBDAS).abs().max() < 1e-12
    assert barrier(scores.error, LAMBDAS).abs().max() < 1e-12


def test_barrier_of_known_curves():
    line = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    bump = torch.tensor([1.0, 5.0, 3.0], dtype=torch.float64)
    found = barrier(torch.stack([line, bump]), (0, 0.5, 1))
    assert found.tolist() == [[0, 0, 0], [0, 3, 0]]
    uneven = barrier(torch.tensor([0.0, 1.0, 4.0]), (0, 0.25, 1))
    assert uneven.tolist() == [0, 0, 0]


def test_the_barrier_to_a_permuted_copy_goes_when_it_is_rebased():
    network = NETWORKS[0]
    weights = 3 * network.initial_weights(random(0))
    images, labels = points()
    planted = Transformation(network, {"h1": torch.randperm(20, generator=random(4))})
    copy = planted.apply(weights)
    labels = network.outputs(weights, images).argmax(-1)  # so that its error is 0
    before = score(Line(network, weights, copy, LAMBDAS), images, labels)
    assert before.error[0] == before.error[-1] == 0
    assert barrier(before.loss, LAMBDAS).max() > 0.05
    rebased = ActivationMatcher(network, weights, images)(copy).transformation.apply(copy)
    after = score(Line(network, weights, rebased, LAMBDAS), images, labels)
    assert barrier(after.loss, LAMBDAS).abs().max() < 1e-12


def test_a_line_is_matched_as_its_networks_one_by_one():
    network = NETWORKS[1]
    first, second = pair(network)
    images, _ = points()
    line = Line(network, first, second, LAMBDAS)
    matcher = ActivationMatcher(network, first, images)
    for along, weights in zip(matcher.match_all(line), line.weights, strict=True):
        alone = matcher(weights).transformation
        assert torch.equal(along.transformation.to_row(), alone.to_row())


def test_lines_to_several_networks_are_those_to_each_alone(network):
    first, second = pair(network)
    ends = torch.stack([second, -second, first])
    images, labels = points()
    together = Line(network, first, ends, LAMBDAS)
    scores = score(together, images, labels)
    for k, end in enumerate(ends):
        alone, here = Line(network, first, end, LAMBDAS), slice(6 * k, 6 * k + 6)
        assert torch.equal(together.weights[here], alone.weights)
        assert torch.equal(scores.loss[here], score(alone, images, labels).loss)
        assert torch.equal(scores.error[here], score(alone, images, labels).error)


def test_distances_per_tensor():
    network = MLP((2, 2, 1))
    first = torch.zeros(network.num_weights)
    second = torch.tensor([1.0, 1, 1, 1, 0, 3, 0, 4, 12])
    assert tensor_names(network) == ["W1", "b1", "W2", "b2", "total"]
    distances = tensor_distances(network, first, second).tolist()
    assert distances == pytest.approx([2, 3, 4, 12, (4 + 9 + 16 + 144) ** 0.5])
