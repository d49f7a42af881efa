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
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.prior import Prior
from utils.runs.seeding import generator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize

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


@pytest.mark.parametrize("temperature", [1.0, 0.3, 4.0])
def test_the_elbo_of_weights_without_data_is_known(temperature):
    """Of black images a network without hidden layers sees its biases alone.

    Those that are held at 0 say N log 2, so that ELBO = −N log 2 / T − KL(biases), and the other
    weights have no KL if they follow the tempered prior N(0, T s²).
    """
    network, prior, tiny = MLP((6, 2)), Prior(0.6), 1e-5
    images, labels = torch.zeros(30, 6), torch.arange(30) % 2
    problem = Problem(
        network, Dataset("toy", images, labels, images, labels, 2), prior, images.device,
        temperature=temperature,
    )  # fmt: skip
    std = 0.6 * temperature**0.5
    state = start_vi(torch.zeros(14), std)
    state.parameters[1, 12:] = math.log(tiny)
    config = VIConfig(learning_rate=1e-12, batch_size=10, num_epochs=1)
    _, [record] = vi.VI().step(problem, state, config)
    kl_of_biases = 2 * (math.log(std / tiny) - 0.5)
    assert record["kl"] == pytest.approx(kl_of_biases, rel=1e-5)
    assert record["elbo"] == pytest.approx(-30 * math.log(2) / temperature - kl_of_biases, rel=1e-5)


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
    assert summary["converged"] is False  # after six epochs


def test_the_slope_is_that_of_the_newest_fifth():
    """A line with noise of 0.5 after a bend: 20 points are left, and their error is 0.019."""
    elbos = torch.cat([torch.linspace(-900, 0, 80), 0.3 * torch.arange(20)]).double()
    elbos += 0.5 * torch.randn(100, generator=generator(0))
    slope, error = recent_slope(elbos)
    assert slope == pytest.approx(0.3, abs=0.08)  # 4 standard errors
    assert error == pytest.approx(0.5 / (20 * 19 * 21 / 12) ** 0.5, rel=0.6)


@pytest.mark.parametrize(("rising", "converged"), [([0, 1], False), ([0, 0], True), ([], None)])
def test_it_has_converged_if_no_mode_rises(rising, converged):
    """Runs of fewer epochs than show it, or of earlier versions, do not say."""
    images, labels = points()
    data = Dataset("toy", images, labels, images, labels, 3)
    problem = Problem(NETWORK, data, PRIOR, images.device)
    zeros = torch.zeros(NETWORK.num_weights)
    newest = {"kl": 1.0} | {f"elbo_rises_{k}": bool(each) for k, each in enumerate(rising)}
    posterior = Gaussian(zeros, zeros + 0.1, NETWORK)
    summary = vi.VI().scores(problem, posterior, VIConfig(num_draws=2), newest).summary
    assert summary.get("converged") is converged


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


NODES, MASSES = (torch.from_numpy(each) for each in np.polynomial.hermite_e.hermegauss(40))


def gaussian_loss(parameters, margins, temperature, variances):
    """Return E_q[−log p(labels | w)] / T + KL(q ‖ N(0, T s²)) by Gauss-Hermite quadrature.

    `parameters` are μ and log σ, one after the other. Of two classes and no hidden layer, the
    difference of a point's logits is a margin [d] times the weights, and so it is a Gaussian.
    """
    mean, log_std = parameters.unflatten(0, (2, -1))
    centres, widths = margins @ mean, (margins.square() @ (2 * log_std).exp()).sqrt()
    nll = F.softplus(-centres[:, None] - widths[:, None] * NODES) @ MASSES / MASSES.sum()
    ratios = (mean.square() + (2 * log_std).exp()) / (temperature * variances)
    kl = 0.5 * (ratios - 1 + (temperature * variances).log()) - log_std
    return nll.sum() / temperature + kl.sum()


def best_gaussian(loss, size):
    """Return μ and log σ with the smallest loss, and the loss's second derivatives there."""

    def with_gradient(values):
        parameters = torch.from_numpy(values).requires_grad_()
        value = loss(parameters)
        return value.item(), torch.autograd.grad(value, parameters)[0].numpy()

    found = minimize(with_gradient, np.zeros(2 * size), jac=True, method="BFGS", tol=1e-8)
    best = torch.from_numpy(found.x)
    return best, torch.autograd.functional.hessian(loss, best)


def gradient_noise(best, margins, temperature, batch_size, draws=20_000):
    """Return the covariance of a step's gradient at the best Gaussian."""
    mean, log_std = best.unflatten(0, (2, -1))
    random = generator(0, "gradient_noise")
    noise = torch.randn(draws, len(mean), generator=random, dtype=torch.float64)
    chosen = torch.rand(draws, len(margins), generator=random).argsort(1)[:, :batch_size]
    weights = mean + log_std.exp() * noise
    slopes = -torch.sigmoid(-weights @ margins.T).gather(1, chosen)
    gradients = (slopes[:, :, None] * margins[chosen]).mean(1) * len(margins) / temperature
    return torch.cat([gradients, gradients * noise * log_std.exp()], 1).T.cov()


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_the_best_gaussian_of_two_classes_is_found(temperature):
    """Beside the minimum of the loss by quadrature, where all weights have priors of their own.

    The average of n iterates has the covariance H⁻¹ S H⁻¹ / n, where H has the second derivatives
    of the loss and S is the covariance of a step's gradient (Polyak & Juditsky 1992). Its standard
    errors are at most 0.02. One of 12 numbers is off by 5 of them with a probability of 7e-6; 0.01
    is for the loss not being quadratic.
    """
    network, prior = MLP((2, 2)), Prior(torch.tensor([0.7, 1.5, 1.0, 2.0, 0.5, 1.2]))
    images = torch.tensor([[0.0, 1.0], [1.0, 0.5], [2.0, 0.0], [0.5, 2.0], [1.5, 1.0], [2.0, 2.0]])
    labels = torch.tensor([0, 0, 1, 0, 1, 1])
    points = torch.cat([images, torch.ones(6, 1)], 1).double()
    signs = 2.0 * labels[:, None] - 1
    # weights are in the order W of class 0, W of class 1, and both biases
    margins = (signs * points)[:, [0, 1, 0, 1, 2, 2]] * torch.tensor([-1, -1, 1, 1, -1, 1])
    variances = prior.std.double().square()

    best, hessian = best_gaussian(lambda p: gaussian_loss(p, margins, temperature, variances), 6)
    state = start_vi(torch.zeros(6), 0.3)
    for rate, epochs in ((0.03, 200), (0.01, 300), (0.004, 2000)):
        total = torch.zeros(2, 6, dtype=torch.float64)
        for _ in range(epochs):
            state, _ = epoch_of(
                network, state, images, labels, rate, 2, prior=prior, temperature=temperature
            )
            total += state.parameters
    inverse = hessian.inverse()
    covariance = inverse @ gradient_noise(best, margins, temperature, 2) @ inverse / (3 * epochs)
    errors, found = covariance.diag().sqrt(), (total / epochs).flatten()
    assert errors.max() < 0.025
    assert ((found - best).abs() < 5 * errors + 0.01).all()
