"""EmpCov: the prior N(0, Σ) on first-layer weights, as N(0, 1) for inputs Σ^½ x."""

from types import SimpleNamespace

from utils.data.datasets import RIDGE, Dataset
from utils.methods.hmc.potential import Potential
from utils.networks.mlp import MLP
from utils.networks.registry import inputs_for, network_for, network_from
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch


@pytest.fixture
def data():
    """Images of 2 × 3 pixels, two of which are always equal and one always 0."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (40, 1, 2, 3), generator=random, dtype=torch.uint8)
    images[:, 0, 0, 1] = images[:, 0, 0, 0]
    images[:, 0, 1, 2] = 0
    labels = torch.randint(3, (40,), generator=random)
    return Dataset("toy", images[:30], labels[:30], images[30:], labels[30:], 3)


SETTINGS = SimpleNamespace(
    network="mlp", width=None, normalise=False, hidden_sizes=[4], activation="relu", prior="empcov"
)


def test_the_posterior_is_that_of_correlated_weights_on_plain_pixels(data):
    """U(w′) = NLL(W) + ½ Σ_i w_iᵀ Σ⁻¹ w_i + ½ ‖rest‖² where W = W′ Σ^½ reads plain pixels."""
    network, plain = network_for(SETTINGS, data), MLP((6, 4, 3))
    read = inputs_for(network, data)
    weights = network.initial_weights(torch.Generator().manual_seed(1)) * 3
    pixels = data.train_images.flatten(1).numpy() / 255
    covariance = np.cov(pixels.T) + RIDGE * np.eye(6)
    values, vectors = np.linalg.eigh(covariance)
    first = weights[:24].view(4, 6).numpy() @ (vectors * np.sqrt(values)) @ vectors.T
    moved = torch.cat([torch.from_numpy(first).float().flatten(), weights[24:]])
    quadratic = np.trace(first @ np.linalg.inv(covariance) @ first.T)
    energy = Potential(network, read.train_images, read.train_labels).energy(weights)
    logits = plain.outputs(moved, torch.from_numpy(pixels).float())
    nll = torch.nn.functional.cross_entropy(logits, data.train_labels, reduction="sum").item()
    assert energy.nll == pytest.approx(nll, rel=1e-5)
    rest = weights[24:].square().sum().item()
    assert energy.potential == pytest.approx(nll + 0.5 * (quadratic + rest), rel=1e-5)
    tests = plain.outputs(moved, data.test_images.flatten(1) / 255)
    torch.testing.assert_close(network.outputs(weights, read.test_images), tests)


def test_the_network_says_which_images_the_covariance_is_of(data):
    network = network_for(SETTINGS, data)
    assert network.describe()["empcov"] == 30
    assert network_from(network.describe()) == network
    assert "empcov" not in MLP((6, 4, 3)).describe()
    fewer = Dataset("toy", data.train_images[:9], data.train_labels[:9], *data.part("test"), 3)
    with pytest.raises(UserError, match="give --num_train 30, or more"):
        inputs_for(network, fewer)


def test_convolutions_have_no_such_prior(data):
    settings = SimpleNamespace(**vars(SETTINGS) | {"network": "lenet"})
    with pytest.raises(UserError, match="give --network mlp"):
        network_for(settings, data)
