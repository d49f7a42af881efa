"""Variational inference: the gradient beside autograd, and posteriors known in closed form."""

import json
import math

from utils.data.batches import data_order
from utils.data.datasets import Dataset
from utils.methods import vi
from utils.methods.method import Problem
from utils.methods.vi import VIConfig, recent_slope, start_vi, train_vi_epoch
from utils.networks.mlp import MLP
from utils.networks.registry import conv_network
from utils.posteriors.files import open_posterior
from utils.posteriors.prior import Prior
from utils.runs.seeding import generator

import pytest
import torch
import torch.nn.functional as F

NETWORK, PRIOR = MLP((6, 5, 3)), Prior()
LENET = conv_network("lenet", (1, 16, 16), 3, width=2)
RESNET = conv_network("resnet8_frn", (1, 8, 8), 3, width=2)
TOY = (
    "--method", "vi", "--config_name", "quick", "--hidden_sizes", "4", "--num_train", "200",
    "--num_epochs", "6", "--num_draws", "2",
)  # fmt: skip


def points(count=45, shape=(6,)):
    images = torch.rand(count, *shape, generator=generator(0, "images"))
    return images, torch.randint(0, 3, (count,), generator=generator(0, "labels"))


def epoch_of(
    network, state, images, labels, learning_rate, batch_size, seed=0, prior=PRIOR, temperature=1.0
):
    problem = Problem(
        network, Dataset("toy", images, labels, images, labels), prior, images.device,
        temperature=temperature,
    )  # fmt: skip
    config = VIConfig(learning_rate=learning_rate, batch_size=batch_size, seed=seed)
    return train_vi_epoch(problem, state, config)


def test_kl_of_the_prior_to_itself_is_zero():
    assert Prior().kl(torch.zeros(9), torch.zeros(9)) == 0


def test_kl_equals_that_of_torch_distributions():
    mean, log_std = torch.randn(2, 50, generator=generator(1))
    q = torch.distributions.Normal(mean.double(), log_std.double().exp())
    expected = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum()
    assert Prior().kl(mean, log_std) == pytest.approx(expected.item())


def fit_with_torch(network, mean, std, images, labels, learning_rate, batch_size, seed, num_epochs):
    """The same loss written down plainly, with autograd and torch.optim, in float64.

    Returns mean, log std and the last epoch's mean NLL.
    """
    mean = mean.double().requires_grad_()
    log_std = torch.full_like(mean, math.log(std)).requires_grad_()
    optimizer = torch.optim.Adam([mean, log_std], learning_rate)
    prior = torch.distributions.Normal(0.0, 1.0)
    for epoch in range(num_epochs):
        noise_stream = generator(seed, "weight_noise", epoch)
        total = 0.0
        for batch in data_order(len(images), seed, "vi", epoch).split(batch_size):
            noise = torch.empty(network.num_weights).normal_(generator=noise_stream)
            weights = mean + log_std.exp() * noise
            nll = F.cross_entropy(network.outputs(weights, images[batch].double()), labels[batch])
            q = torch.distributions.Normal(mean, log_std.exp())
            loss = len(images) * nll + torch.distributions.kl_divergence(q, prior).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += nll.item() * len(batch)
    return mean.detach(), log_std.detach(), total / len(images)


@pytest.mark.parametrize("network", [NETWORK, LENET, RESNET], ids=lambda network: network.name)
def test_training_equals_autograd_on_the_same_noise(network):
    images, labels = points(shape=network.input_shape)
    mean = network.initial_weights(generator(2))
    state = start_vi(mean, 0.1)
    for _ in range(3):
        state, nll = epoch_of(network, state, images, labels, 0.01, 10, seed=4)
    expected = fit_with_torch(network, mean, 0.1, images, labels, 0.01, 10, seed=4, num_epochs=3)
    torch.testing.assert_close(state.parameters[0].double(), expected[0], atol=2e-5, rtol=0)
    torch.testing.assert_close(state.parameters[1].double(), expected[1], atol=2e-5, rtol=0)
    assert nll == pytest.approx(expected[2], rel=1e-5)


def test_without_information_in_the_data_q_becomes_the_prior():
    """All images are black: but for the output's biases nothing depends on the first weights."""
    network = MLP((8, 3))
    images, labels = torch.zeros(30, 8), torch.arange(30) % 3
    state = start_vi(torch.full((network.num_weights,), 0.5), 0.1)
    for _ in range(250):
        state, _ = epoch_of(network, state, images, labels, 0.02, 10, seed=0)
    # these parameters' gradient has no noise, so they converge
    torch.testing.assert_close(state.parameters[0, :24], torch.zeros(24), atol=1e-3, rtol=0)
    torch.testing.assert_close(state.parameters[1, :24].exp(), torch.ones(24), atol=1e-3, rtol=0)


def test_std_never_falls_below_the_smallest(monkeypatch):
    monkeypatch.setattr(vi, "SMALLEST_STD", 0.1)
    images, labels = points()
    state = start_vi(torch.zeros(NETWORK.num_weights), 0.1)
    state, _ = epoch_of(NETWORK, state, images, labels, 1, 10)
    assert state.parameters[1].min() >= math.log(0.1) - 1e-6


def test_modes_are_independent_of_how_many_there_are(script, tmp_path):
    for count in (1, 2):
        options = ("--num_modes", count, "--run_name", count, "--temperature", 0.3)
        done = script("train", *TOY, *options)
        assert done.returncode == 0, done.stderr
        assert "nats per epoch at the end" in done.stdout
    alone = open_posterior(tmp_path / "default" / "VI-MNIST-quick-1")
    first, second = open_posterior(tmp_path / "default" / "VI-MNIST-quick-2").components
    assert torch.equal(alone.mean, first.mean)
    assert torch.equal(alone.std, first.std)
    assert not torch.equal(first.mean, second.mean)
    summary = json.loads((tmp_path / "default" / "VI-MNIST-quick-2" / "summary.json").read_text())
    prior = Prior().tempered(0.3)
    expected = sum(prior.kl(each.mean, each.std.log()) for each in (first, second)) / 2
    assert summary["kl"] == pytest.approx(expected, rel=1e-5)


def test_the_slope_is_that_of_the_newest_fifth():
    """A line with noise of 0.5 after a bend: 20 points are left, and their error is 0.019."""
    elbos = torch.cat([torch.linspace(-900, 0, 80), 0.3 * torch.arange(20)]).double()
    elbos += 0.5 * torch.randn(100, generator=generator(0))
    slope, error = recent_slope(elbos)
    assert slope == pytest.approx(0.3, abs=0.08)  # 4 standard errors
    assert error == pytest.approx(0.5 / (20 * 19 * 21 / 12) ** 0.5, rel=0.6)


def test_what_it_cannot_fit_is_refused(script):
    done = script("train", *TOY[:4], "--network", "resnet18", "--width", 2)
    assert done.returncode == 2
    assert "VI cannot take resnet18, whose batch normalisation" in done.stderr
    done = script("train", *TOY, "--weight_decay", 0)
    assert done.returncode == 2
    assert "the prior is flat" in done.stderr


@pytest.mark.parametrize(("std", "temperature"), [(0.6, 1.0), (1.5, 0.3)])
def test_weights_without_data_follow_the_tempered_prior(std, temperature):
    """Of images that are all zero the weights of a network without hidden layers see nothing, so q
    of these is N(0, T s²)."""
    images, labels = torch.zeros(30, 6), torch.tensor([0] * 25 + [1] * 5)
    network = MLP((6, 2))
    state = start_vi(torch.zeros(network.num_weights), 0.1)
    for _ in range(150):
        state, _ = epoch_of(
            network, state, images, labels, 0.02, 15, prior=Prior(std), temperature=temperature
        )
    mean, log_std = (values[: 6 * 2] for values in state.parameters)
    deviation = std * temperature**0.5
    torch.testing.assert_close(mean / deviation, torch.zeros(12), atol=0.05, rtol=0)
    torch.testing.assert_close(log_std.exp() / deviation, torch.ones(12), atol=0.05, rtol=0)
