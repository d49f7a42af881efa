"""MC dropout: the gradient beside autograd, moments in closed form, and rate 0."""

import math

from utils.data.datasets import Dataset
from utils.methods.dropout import Dropout, DropoutConfig, Dropped
from utils.methods.method import Problem, problem_of
from utils.methods.training import TrainingSettings, start_training, train
from utils.networks.mlp import MLP
from utils.networks.registry import conv_network
from utils.posteriors.dropout import draw_factors
from utils.posteriors.files import open_posterior
from utils.posteriors.prior import Prior
from utils.posteriors.samples import open_samples
from utils.runs.seeding import generator

import pytest
import torch
import torch.nn.functional as F

NETWORK = MLP((6, 8, 3))
TOY = (
    "--config_name", "quick", "--hidden_sizes", "8", "--num_train", "310", "--num_epochs", "2",
    "--num_draws", "3",
)  # fmt: skip


@pytest.mark.parametrize(("rows", "count"), [(12, 4), (10, 2), (7, 1)])
def test_the_gradient_is_that_of_networks_with_dropped_activations(rows, count):
    """With 4 masks for 12 images, and as many as divide the images of a last batch."""
    weights = NETWORK.initial_weights(generator(0)).double()
    images = torch.rand(rows, 6, generator=generator(1)).double()
    labels = torch.randint(3, (rows,), generator=generator(2))
    gradient = torch.full_like(weights, 0.5)[None]
    find_gradient = Dropped(NETWORK, {"h1": 0.4}, 4, generator(3)).gradient(
        weights[None], gradient, 12
    )
    nll = find_gradient(images[None], labels[None], scale=0.1, keep=0.9)

    factors = draw_factors(NETWORK, {"h1": 0.4}, generator(3), (count,))["h1"]
    leaf = weights.clone().requires_grad_()
    (w1, b1), (w2, b2) = NETWORK.layers(leaf)
    hidden = (images @ w1.T + b1).relu() * factors.repeat_interleave(rows // count, 0)
    expected = F.cross_entropy(hidden @ w2.T + b2, labels, reduction="none")
    expected.sum().backward()
    torch.testing.assert_close(nll, expected.detach()[None])
    torch.testing.assert_close(gradient[0], 0.45 + 0.1 * leaf.grad)


def test_without_rates_it_is_plain_training():
    """Also that running statistics are kept: the network has batch normalisation."""
    network = conv_network("resnet18", (1, 8, 8), 3, width=2)
    settings = TrainingSettings("SGD", 0.1, 8, prior_precision=1.0)
    images = torch.rand(16, 1, 8, 8, generator=generator(1))
    labels = torch.randint(3, (16,), generator=generator(2))
    start = network.initial_weights(generator(0))[None]

    def trained(each) -> torch.Tensor:
        state = start_training(start, settings)
        state, _ = train(each, state, images, labels, settings, seed=0, num_epochs=2)
        return state.weights

    dropped = trained(Dropped(network, {}, 1, generator(3)))
    torch.testing.assert_close(dropped, trained(network), rtol=0, atol=1e-5)
    (variance,) = [slot for slot in network.slots if slot.name == "bn1.running_var"]
    assert (variance.of(dropped) - 1).abs().min() > 0.01


class Regression(MLP):
    """A linear regression on hidden units that are the inputs, with the loss ½ (output − label)².

    Only the slopes are trained. Units are relu, so inputs have to be positive.
    """

    def initial_weights(self, generator):
        weights = torch.zeros(self.num_weights)
        self.slots[0].of(weights).copy_(torch.eye(*self.slots[0].shape))
        return weights

    def gradient(self, weights, gradient, rows):
        slopes, target = self.slots[2].of(weights), self.slots[2].of(gradient)  # [K, 1, inputs]

        def find_gradient(inputs, labels, *, scale, keep):
            residuals = inputs @ slopes.mT - labels[..., None]
            gradient.zero_()
            target.add_(residuals.mT @ inputs, alpha=scale)
            return residuals[..., 0].square() / 2

        return find_gradient


def test_training_a_linear_regression_gives_its_slopes_under_dropout():
    """They solve (C + r diag C) w = mean(x y) with C = mean(x xᵀ) and r = p / (1 − p).

    With all images in each batch, masks are the only noise, and the expectation of SGD is that of
    gradient descent. Each of 3 numbers is off by 7 standard errors over 15 modes with a probability
    of 6e-6 (Student's t), so another seed fails with a probability of 2e-5.
    """
    network, rate = Regression((3, 3, 1)), 0.3
    inputs = 0.5 + torch.rand(24, 3, generator=generator(0, "inputs"))
    targets = inputs @ torch.tensor([1.0, -2.0, 3.0])
    data = Dataset("toy", inputs, targets, inputs[:2], torch.zeros(2, dtype=torch.long), 1)
    config = DropoutConfig(
        num_epochs=40, batch_size=24, learning_rate=0.2, momentum=0.5, optimizer="SGD",
        dropout_rate=rate,
    )  # fmt: skip
    problem, method = Problem(network, data, Prior(math.inf), torch.device("cpu")), Dropout()
    slopes = []
    for mode in range(15):
        state = method.init(problem, config, [mode])
        while state.epoch < config.num_epochs:
            state, _ = method.step(problem, state, config)
        slopes.append(network.slots[2].of(method.posterior(problem, state, config).weights)[0])
    slopes = torch.stack(slopes).double()
    moments = inputs.double().T @ inputs.double() / 24
    penalty = rate / (1 - rate) * moments.diag().diag()
    expected = torch.linalg.solve(moments + penalty, inputs.double().T @ targets.double() / 24)
    errors = slopes.std(0) / 15**0.5
    assert ((slopes.mean(0) - expected).abs() < 7 * errors).all()
    assert (errors < 0.1).all()
    assert ((torch.tensor([1, -2, 3]) - expected).abs() > 0.3).all()  # as without dropout


def test_predictions_have_the_moments_of_a_linear_network():
    """Of z = W₃ D₂ u + b₃ and u = W₂ D₁ h + b₂, with D diagonal, of mean 1 and variance r:

    the mean of z is the network's, and with V = r W₂ diag(h²) W₂ᵀ, the covariance of u, and its
    mean m, cov z = W₃ (V + r diag(V + m mᵀ)) W₃ᵀ. Each of 5 numbers is off by 5 standard errors
    with a probability of 6e-7, so another seed fails with a probability of 3e-6.
    """
    network, rate, count = MLP((3, 4, 5, 2)), 0.3, 5000
    weights = network.initial_weights(generator(0)).abs()  # all relu units are on
    image, ratio = torch.rand(1, 3, generator=generator(1)), rate / (1 - rate)
    labels = torch.zeros(1, dtype=torch.long)
    config = DropoutConfig(dropout_rate=rate)
    data = Dataset("toy", image, labels, image, labels, 2)
    problem, method = problem_of(config, network, data, torch.device("cpu")), Dropout()
    state = method.init(problem, config, [0])._replace(weights=weights[None])
    posterior = method.posterior(problem, state, config)
    draws = torch.stack(list(posterior.draw(count, generator(2))))
    logits = network.outputs(draws, image)[:, 0].double()

    (w1, b1), (w2, b2), (w3, b3) = network.layers(weights.double())
    hidden = image[0].double() @ w1.T + b1
    mean, covariance = w2 @ hidden + b2, ratio * w2 @ hidden.square().diag() @ w2.T
    covariance = covariance + ratio * (covariance + mean.outer(mean)).diag().diag()
    mean, covariance = w3 @ mean + b3, w3 @ covariance @ w3.T
    offsets = logits - mean
    products = torch.stack([offsets[:, 0] ** 2, offsets[:, 0] * offsets[:, 1], offsets[:, 1] ** 2])
    found = torch.cat([offsets.T, products])
    expected = torch.stack([*torch.zeros(2), *covariance[[0, 0, 1], [0, 1, 1]]])
    errors = found.std(1) / count**0.5
    assert ((found.mean(1) - expected).abs() < 5 * errors).all()
    assert (errors[2:] < 0.05 * covariance.max()).all()


def test_at_rate_zero_it_is_the_network_that_sgd_trains(script, tmp_path, monkeypatch):
    monkeypatch.setattr("utils.methods.sgd.SGD.stream", lambda self, mode: ("dropout", mode))
    for name, arguments in {
        "dropout": ("--dropout_rate", 0),
        "sgd": ("--num_modes", 1),
    }.items():
        recipe = ("--optimizer", "SGD", "--learning_rate", 0.1)
        done = script("train", "--method", name, *TOY, *arguments, *recipe)
        assert done.returncode == 0, done.stderr
    plain = open_samples(tmp_path / "default" / "sgd-MNIST-quick", fewest=1)[0]
    dropped = open_posterior(tmp_path / "default" / "dropout-MNIST-quick")
    for draw in dropped.draw(2, generator(0)):
        assert torch.equal(draw, plain)


def test_modes_are_independent_of_how_many_there_are(script, tmp_path):
    for count in (1, 2):
        arguments = ("--method", "dropout", *TOY, "--num_modes", count, "--run_name", count)
        done = script("train", *arguments)
        assert done.returncode == 0, done.stderr
    alone = open_posterior(tmp_path / "default" / "dropout-MNIST-quick-1")
    first, second = open_posterior(tmp_path / "default" / "dropout-MNIST-quick-2").components
    assert alone.rates == {"h1": pytest.approx(0.1)}
    assert torch.equal(alone.mean, first.mean)
    assert not torch.equal(first.mean, second.mean)


def test_a_network_without_hidden_units_is_refused(script, tmp_path):
    settings = tmp_path / "linear.yaml"
    settings.write_text("hidden_sizes: []\nnum_train: 100\n")
    done = script("train", "--method", "dropout", "--config", settings)
    assert done.returncode == 2
    assert "Dropout leaves out hidden units" in done.stderr
