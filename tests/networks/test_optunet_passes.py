"""OptuNet's gradient in closed form beside autograd."""

from tests.networks.conv_networks import drawn_images, drawn_weights, small
from utils.networks import optunet_passes
from utils.networks.autograd import AutogradPasses

import pytest
import torch
import torch.nn.functional as F

NETWORK = small("optunet")


def gradient_by(passes, weights, labels, chunks):
    """Return the gradient of the cross-entropy of these chunks, and their logits."""
    gradient, logits = torch.full_like(weights, torch.nan), []
    passes.begin(weights, gradient)
    for rows in chunks:
        logits.append(passes.forward(rows))
        passes.backward(logits[-1].softmax(-1) - F.one_hot(labels[rows], 10))
    passes.finish()
    return gradient, torch.cat(logits)


@pytest.fixture
def images():
    """Some, with a margin of equal pixels: there all places of a pooling window are equal."""
    images = drawn_images(NETWORK, 70)
    images[:, :, :9] = -0.4
    return images


ORDER = torch.tensor([5, 3, 69, 3, 20])


@pytest.mark.parametrize("chunks", [[slice(0, 30), slice(30, 60), slice(60, 70)], [ORDER]])
def test_gradients_are_those_of_autograd(images, chunks, monkeypatch):
    monkeypatch.setattr(optunet_passes, "CHUNK_ROWS", 30)
    weights, labels = drawn_weights(NETWORK), torch.arange(70) % 10
    expected = gradient_by(AutogradPasses(NETWORK, images), weights, labels, chunks)
    passes = NETWORK.data_passes(images)
    for _ in range(2):  # buffers are used again
        found = gradient_by(passes, weights, labels, chunks)
        torch.testing.assert_close(found, expected)


def test_errors_of_active_rows_are_those_of_all_rows_with_zeros(images):
    weights, active = drawn_weights(NETWORK), torch.tensor([2, 40, 7])
    passes, errors = NETWORK.data_passes(images), drawn_images(NETWORK, 3)[:, 0, 0, :10]
    full = torch.zeros(70, 10).double().index_copy_(0, active, errors)
    gradients = torch.empty(2, NETWORK.num_weights).double()
    for gradient, arguments in zip(gradients, [(errors, active), (full,)], strict=True):
        passes.begin(weights, gradient)
        passes.forward(slice(0, 70))
        passes.backward(*arguments)
        passes.finish()
    torch.testing.assert_close(*gradients)
    assert gradients[0].norm() > 1
