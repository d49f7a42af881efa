"""SGLD and SGHMC: stationary moments known in closed form, schedules, and SGD at temperature 0.

Statistical tests have fixed seeds and allow 4 standard errors: had they others, each comparison
would fail by chance once in 16,000 times.
"""

import math

from utils.data.datasets import Dataset
from utils.methods.langevin import LangevinConfig, langevin_step, run_epoch
from utils.methods.method import Problem
from utils.methods.sgmcmc import SGHMC, SGLD, SGHMCConfig
from utils.methods.training import TrainingSettings, start_training, train
from utils.networks.mlp import MLP
from utils.posteriors.files import open_members, open_posterior
from utils.posteriors.prior import Prior
from utils.runs.seeding import generator

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

CHAINS, ERRORS = 10_000, 4
SHORT = (
    "--config_name", "quick", "--num_train", "300", "--num_epochs", "6", "--num_burnin", "2",
    "--store_every", "2",
)  # fmt: skip
TOY = (*SHORT, "--hidden_sizes", "8")


def stationary_variance(a, h, momentum, temperature=1.0, noise=0.0):
    """The formula in the module's docstring."""
    heat = temperature + h * noise / (2 * (1 - momentum))
    return heat / (a * (1 - h * a / (2 * (1 + momentum))))


def simulate(gradient, size, num_steps, *, step, momentum, temperature) -> torch.Tensor:
    """Return the last states [CHAINS, size] of parallel chains that begin at 0."""
    random = generator(0, "chains")
    weights, velocity = torch.zeros(2, CHAINS, size, dtype=torch.float64)
    for _ in range(num_steps):
        noise = torch.randn(CHAINS, size, generator=random, dtype=torch.float64)
        langevin_step(
            weights, velocity, gradient(weights), noise,
            step=step, momentum=momentum, temperature=temperature,
        )  # fmt: skip
    return weights


@pytest.mark.parametrize("momentum", [0.0, 0.6, 0.9])
def test_the_formula_solves_the_lyapunov_equation(momentum):
    a, h, temperature, noise = 3.0, 0.2, 0.7, 2.5
    # (w, v) ← A (w, v) + (1, 1) ε
    A = np.array([[1 - h * a, momentum], [-h * a, momentum]])
    power = 2 * (1 - momentum) * h * temperature + h**2 * noise
    covariance = solve_discrete_lyapunov(A, power * np.ones((2, 2)))
    expected = stationary_variance(a, h, momentum, temperature, noise)
    assert covariance[0, 0] == pytest.approx(expected)
    heat = (1 + momentum) / (2 * h) * covariance[1, 1]
    assert heat == pytest.approx(a * expected)


@pytest.mark.parametrize(("momentum", "temperature"), [(0.0, 1.0), (0.8, 1.0), (0.8, 0.3)])
def test_linear_regression_has_the_covariance_of_its_step_size(momentum, temperature):
    """Full batches: Σ v vᵀ var(λ) over eigenpairs of the precision XᵀX + I/s², 6 numbers."""
    inputs = torch.randn(20, 3, generator=generator(0), dtype=torch.float64) * torch.tensor(
        [1, 2, 3]
    )
    targets = torch.randn(20, generator=generator(1), dtype=torch.float64)
    precision = inputs.T @ inputs + torch.eye(3) / 0.5**2
    values, vectors = torch.linalg.eigh(precision)
    step = 0.5 / values[-1].item()  # large: variances are 14 to 33 % too big along the stiffest
    weights = simulate(
        lambda w: w @ precision - targets @ inputs, 3, 250,
        step=step, momentum=momentum, temperature=temperature,
    )  # fmt: skip
    variances = [stationary_variance(a, step, momentum, temperature) for a in values.tolist()]
    expected = vectors @ torch.tensor(variances, dtype=torch.float64).diag() @ vectors.T
    diagonal = expected.diagonal()
    error = ((expected.square() + diagonal.outer(diagonal)) / CHAINS).sqrt()
    assert (weights.T.cov() - expected).abs().div(error).max() < ERRORS
    mean = torch.linalg.solve(precision, targets @ inputs)
    assert (weights.mean(0) - mean).abs().div((diagonal / CHAINS).sqrt()).max() < ERRORS


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_minibatches_add_their_noise(momentum):
    """y ~ N(w, 1): a minibatch's gradient is wrong by N (ȳ − ȳ_batch), whatever w is."""
    size, batch, step = 50, 5, 0.004
    targets = torch.randn(size, generator=generator(2), dtype=torch.float64)
    random = generator(3)

    def gradient(weights):
        chosen = targets[torch.randint(size, (CHAINS, batch), generator=random)]
        return size * (weights - chosen.mean(1, keepdim=True)) + weights

    weights = simulate(gradient, 1, 150, step=step, momentum=momentum, temperature=1.0)
    noise = size**2 * targets.var(unbiased=False).item() / batch
    expected = stationary_variance(size + 1, step, momentum, noise=noise)
    assert expected > 1.5 / (size + 1)
    error = expected * (2 / CHAINS) ** 0.5
    assert abs(weights.var().item() - expected) < ERRORS * error


def problem(network: MLP, images, labels, prior: Prior) -> Problem:
    data = Dataset("toy", images, labels, images[:5], labels[:5], network.num_classes)
    return Problem(network, data, prior, torch.device("cpu"))


@pytest.mark.parametrize("method", [SGLD(), SGHMC()], ids=lambda method: method.name)
def test_weights_that_no_image_reaches_follow_the_prior(method):
    """All images are black, so the weights' potential is w²/(2 s²) whatever the labels are."""
    network, std, temperature, size = MLP((5000, 4)), 0.7, 0.5, 32
    work = problem(network, torch.zeros(size, 5000), torch.arange(size) % 4, Prior(std))
    settings = {"momentum": 0.8} if method.name == "sghmc" else {}
    rate = 0.3 * std**2 * size  # h a = 0.3
    config = method.Config(
        **settings,
        learning_rate=rate,
        temperature=temperature,
        batch_size=10,
        num_epochs=20,
        num_burnin=0,
    )
    state = method.init(work, config, [0])
    for _ in range(20):
        state, _, heat = run_epoch(work, state, config, "sampler")
    weights = network.slots[0].of(state.weights[0])
    expected = stationary_variance(
        1 / std**2, 0.3 * std**2, settings.get("momentum", 0), temperature
    )
    error = expected * (2 / weights.numel()) ** 0.5
    assert abs(weights.var().item() - expected) < ERRORS * error
    assert heat == pytest.approx(expected / std**2, rel=0.03)  # 4 steps of 20,000 velocities


def test_at_temperature_zero_it_is_sgd():
    network = MLP((6, 5, 3))
    images = torch.rand(45, 6, generator=generator(0, "images"))
    labels = torch.randint(3, (45,), generator=generator(0, "labels"))
    work = problem(network, images, labels, Prior(0.4))
    config = SGHMCConfig(
        learning_rate=0.3, momentum=0.7, temperature=0, batch_size=10, num_epochs=3, num_burnin=0
    )
    state = SGHMC().init(work, config, [0])
    settings = TrainingSettings("SGD", 0.3, 10, momentum=0.7, prior_precision=1 / 0.4**2)
    expected, losses = train(
        network, start_training(state.weights, settings), images, labels, settings, seed=0,
        num_epochs=3, streams=["sampler"],
    )  # fmt: skip
    for epoch in range(3):
        state, loss, heat = run_epoch(work, state, config, "sampler")
        assert loss.item() == pytest.approx(losses[epoch].item(), rel=1e-5)
        assert heat is None
    torch.testing.assert_close(state.weights, expected.weights, rtol=0, atol=1e-5)


def test_falling_steps_have_no_temperature():
    """Velocities lag behind them: with 3 steps an epoch they would seem twice as hot."""
    images = torch.rand(30, 6, generator=generator(0, "images"))
    labels = torch.arange(30) % 3
    work = problem(MLP((6, 5, 3)), images, labels, Prior(0.4))
    config = SGHMCConfig(num_epochs=2, num_cycles=1, exploration=0, batch_size=10)
    state = SGHMC().init(work, config, [0])
    for _ in range(2):
        state, (record,) = SGHMC().step(work, state, config)
        assert "temperature" not in record


def test_samples_are_those_after_burnin_or_at_the_end_of_cycles():
    constant = LangevinConfig(num_epochs=10, num_burnin=4, store_every=2)
    assert [e for e in range(1, 11) if constant.collects(e)] == [6, 8, 10]
    assert constant.pace(7.3) == (constant.learning_rate, 1.0)
    cyclical = LangevinConfig(
        num_epochs=20, num_cycles=2, exploration=0.6, store_every=3, learning_rate=0.4,
        temperature=0.5,
    )  # fmt: skip
    assert [e for e in range(1, 21) if cyclical.collects(e)] == [7, 10, 17, 20]
    expected = {0: (0.4, 0), 5: (0.2, 0), 7.5: (0.2 - 0.2 * 0.5**0.5, 0.5), 10: (0.4, 0)}
    for epochs, pace in expected.items():
        assert cyclical.pace(epochs) == pytest.approx(pace)
    assert math.isclose(sum(cyclical.pace(e / 10)[1] > 0 for e in range(200)), 80)


def test_modes_are_independent_of_how_many_there_are(script, tmp_path):
    for count in (1, 2):
        arguments = ("--method", "sghmc", *TOY, "--num_modes", count, "--run_name", count)
        done = script("train", *arguments)
        assert done.returncode == 0, done.stderr
        assert "temperature in the last epoch" in done.stdout
    runs = tmp_path / "default"
    alone, both = (runs / f"SGHMC-MNIST-quick-{count}" for count in (1, 2))
    first, second = open_posterior(both).components
    assert len(open_posterior(alone)) == len(first) == len(second) == 2
    assert all(torch.equal(*pair) for pair in zip(open_posterior(alone), first, strict=True))
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], first[1])
    assert open_members(both).weights.shape[:2] == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--num_burnin", 6), "leaves none of 6"),
        (("--num_cycles", 4), "cannot be shared equally by 4 cycles"),
        (("--weight_decay", 0), "the prior is flat"),
        (("--learning_rate", 1e6), "Training diverged in epoch"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words, script):
    done = script("train", "--method", "sghmc", *SHORT, *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_batch_normalisation_is_refused(script):
    done = script("train", "--method", "sghmc", "--config_name", "quick", "--network", "resnet18")
    assert done.returncode == 2
    assert "SGHMC cannot take resnet18" in done.stderr
