"""The prior beside torch.distributions, with one deviation or one for each weight."""

import math

from tests.networks.conv_networks import small
from utils.networks.mlp import MLP
from utils.posteriors.prior import Prior, prior_of
from utils.settings.errors import UserError

import pytest
import torch
from torch.distributions import Normal, kl_divergence

STDS = [1.0, 0.25, torch.tensor([0.5, 2.0, 1.0, 0.1])]


def vectors(count: int) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("std", STDS, ids=str)
def test_potential_is_minus_the_log_density_up_to_a_constant(std):
    first, second = vectors(2)
    ours = Prior(std).potential(first) - Prior(std).potential(second)
    density = Normal(torch.zeros(4, dtype=torch.float64), torch.as_tensor(std).double())
    expected = density.log_prob(second).sum() - density.log_prob(first).sum()
    assert ours == pytest.approx(expected.item())


@pytest.mark.parametrize("std", STDS, ids=str)
def test_gradient_is_that_of_the_potential(std):
    (weights,) = vectors(1)
    leaf = weights.clone().requires_grad_()
    (0.5 * (leaf / std).square().sum()).backward()
    gradient = torch.ones(4, dtype=torch.float64)
    Prior(std).add_gradient(gradient, weights)
    torch.testing.assert_close(gradient, 1 + leaf.grad)


@pytest.mark.parametrize("std", STDS, ids=str)
def test_kl_equals_that_of_torch(std):
    mean, log_std = vectors(2)
    prior = Normal(torch.zeros(4, dtype=torch.float64), torch.as_tensor(std).double())
    expected = kl_divergence(Normal(mean, log_std.exp()), prior).sum()
    assert Prior(std).kl(mean, log_std) == pytest.approx(expected.item())


def test_draws_have_the_priors_deviation():
    """The deviation of 100,000 draws is within 5 standard errors, 1 alarm in a million."""
    draws = Prior(0.3).draw(MLP((9999, 10)), torch.Generator().manual_seed(1))
    assert abs(draws.std().item() / 0.3 - 1) < 5 / (2 * 100_000) ** 0.5


@pytest.mark.parametrize(
    ("settings", "std"),
    [
        ({}, 1.0),
        ({"prior_std": 0.5, "weight_decay": None}, 0.5),
        ({"prior_std": 1.0, "weight_decay": 2e-4}, (60_000 * 2e-4) ** -0.5),
        ({"weight_decay": 0.0}, math.inf),
    ],
    ids=str,
)
def test_settings_and_recorded_configs_name_the_same_prior(settings, std):
    assert prior_of(settings, MLP((4, 3)), 60_000).std == pytest.approx(std)


def test_runs_with_a_prior_of_earlier_versions_are_refused():
    assert prior_of({"prior_precision": None}, MLP((4, 3)), 10).std == 1
    with pytest.raises(UserError, match="again with prior_std"):
        prior_of({"prior_precision": 4.0}, MLP((4, 3)), 10)


def test_weight_decay_of_the_mean_loss_is_the_priors_gradient():
    """λ w is 1/N of the gradient of ½ w²/s²."""
    (weights,) = vectors(1)
    gradient = torch.zeros(4, dtype=torch.float64)
    prior_of({"weight_decay": 0.03}, MLP((4, 3)), 500).add_gradient(gradient, weights)
    torch.testing.assert_close(gradient / 500, 0.03 * weights)


def test_layers_have_their_own_deviations():
    network = MLP((4, 3, 2))
    std = prior_of({"prior_std": [0.5, 2.0]}, network, 1).std
    assert std.tolist() == [0.5] * 15 + [2.0] * 8
    lenet = small("lenet")
    std = prior_of({"prior_std": [1.0, 2.0, 3.0, 4.0, 5.0]}, lenet, 1).std
    by_slot = {slot.name: slot.of(std).unique().tolist() for slot in lenet.slots}
    assert by_slot["conv2.weight"] == by_slot["conv2.bias"] == [2.0]
    assert by_slot["fc3.bias"] == [5.0]
    with pytest.raises(UserError, match=r"3 values.*2 layers"):
        prior_of({"prior_std": [1.0, 2.0, 3.0]}, network, 1)


def test_running_statistics_have_no_prior():
    network = small("resnet18")
    prior = prior_of({"prior_std": 0.5}, network, 1)
    draw = prior.draw(network, torch.Generator().manual_seed(0))
    buffers = torch.zeros(network.num_weights, dtype=torch.bool)
    for slot in network.slots:
        if slot.role == "buffer":
            slot.of(buffers).fill_(True)
            assert (slot.of(draw) == slot.center).all()
    assert draw[~buffers].std().item() == pytest.approx(0.5, rel=0.1)
    mean, log_std = torch.randn(2, network.num_weights, generator=torch.Generator().manual_seed(1))
    alone = Prior(0.5)
    kept = ~buffers
    assert prior.kl(mean, log_std) == pytest.approx(alone.kl(mean[kept], log_std[kept]))
    assert prior.potential(mean) == pytest.approx(alone.potential(mean[kept]))
    gradient = torch.zeros_like(mean)
    prior.add_gradient(gradient, mean)
    assert (gradient[buffers] == 0).all()
    torch.testing.assert_close(gradient[kept], mean[kept] / 0.25)


def test_a_tempered_prior_is_the_prior_of_the_divided_potential():
    (weights,) = vectors(1)
    tempered = Prior(0.3).tempered(0.2)
    assert tempered.potential(weights) == pytest.approx(Prior(0.3).potential(weights) / 0.2)


@pytest.mark.parametrize(
    "settings", [{"prior_std": 1e30}, {"prior_std": [1.0, 1e-30]}, {"weight_decay": 1e-300}]
)
def test_deviations_that_float32_cannot_square_are_refused(settings):
    with pytest.raises(UserError, match="deviation"):
        prior_of(settings, MLP((4, 3, 2)), 50)
    assert prior_of({"weight_decay": 0.0}, MLP((4, 3, 2)), 50).std == math.inf
