"""Passes over data by autograd: the same as an MLP's in closed form, and as autograd at once."""

from tests.networks.toy_networks import GroupedConvNet
from utils.networks.autograd import AutogradPasses
from utils.networks.mlp import MLP
from utils.networks.mlp_gradients import MLPPasses

import pytest
import torch

NETWORK = GroupedConvNet()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient_by(passes, weights, chunks):
    """The gradient of all chunks: (rows, errors of their logits, active rows or None)."""
    gradient, outputs = torch.full_like(weights, torch.nan), []
    passes.begin(weights, gradient)
    for rows, errors, active in chunks:
        outputs.append(passes.forward(rows).clone())
        passes.backward(errors, active)
    passes.finish()
    return gradient, torch.cat(outputs)


CHUNKS = [
    (slice(0, 7), normal(7, 3, seed=1), None),
    (slice(7, 20), normal(4, 3, seed=2), torch.tensor([0, 5, 11, 12])),
    (torch.tensor([3, 19, 4]), normal(3, 3, seed=3), None),
    (torch.tensor([8, 2, 6, 1]), normal(2, 3, seed=4), torch.tensor([3, 0])),
]


def by_hand(outputs, weights):
    """The same, from one graph over all 20 images."""
    weights = weights.clone().requires_grad_()
    logits, loss = outputs(weights), 0.0
    for rows, errors, active in CHUNKS:
        chosen = logits[rows] if active is None else logits[rows][active]
        loss = loss + (errors * chosen).sum()
    return torch.autograd.grad(loss, weights)[0], torch.cat([logits[r] for r, _, _ in CHUNKS])


@pytest.mark.parametrize("sizes", [(5, 3), (5, 4, 3), (5, 6, 4, 3)])
@pytest.mark.parametrize(
    ("activation", "kind"),
    [("relu", MLPPasses), ("tanh", MLPPasses), ("relu", AutogradPasses), ("silu", AutogradPasses)],
)
def test_passes_of_an_mlp(sizes, activation, kind):
    network, images = MLP(sizes, activation), normal(20, 5, seed=5)
    images[:, 2] = 0  # a dead pixel
    weights = normal(network.num_weights, seed=6)
    found = gradient_by(kind(network, images), weights, CHUNKS)
    torch.testing.assert_close(found, by_hand(lambda w: network.outputs(w, images), weights))


def test_passes_of_a_convolution():
    images, weights = normal(20, 2, 5, 5, seed=5), normal(NETWORK.num_weights, seed=6)
    found = gradient_by(NETWORK.data_passes(images), weights, CHUNKS)
    torch.testing.assert_close(found, by_hand(lambda w: NETWORK.outputs(w, images), weights))


def test_weights_may_change_between_gradients_and_are_left_alone():
    """As along a trajectory, where they move in place, inside torch.no_grad()."""
    images, weights = normal(20, 2, 5, 5, seed=5), normal(NETWORK.num_weights, seed=6)
    passes = NETWORK.data_passes(images)
    gradient_by(passes, weights, CHUNKS)
    weights.add_(1.0)
    before = weights.clone()
    with torch.no_grad():
        found = gradient_by(passes, weights, CHUNKS)
    torch.testing.assert_close(found, by_hand(lambda w: NETWORK.outputs(w, images), weights))
    assert torch.equal(weights, before)
    assert not weights.requires_grad


def test_an_mlp_has_closed_forms_where_they_are_written_down():
    images = normal(20, 5)
    kinds = {name: MLP((5, 4, 3), name).data_passes(images) for name in ("relu", "tanh", "silu")}
    assert [type(passes) for passes in kinds.values()] == [MLPPasses, MLPPasses, AutogradPasses]
