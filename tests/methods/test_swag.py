"""SWAG's moments beside NumPy's and those of SGD on a quadratic; the driver's several modes."""

import json
from types import SimpleNamespace

from utils.data.datasets import Dataset
from utils.methods.method import Problem, problem_of
from utils.methods.swag import SWAG, SWAGConfig, SWAGState, collect
from utils.networks.mlp import MLP
from utils.networks.registry import conv_network
from utils.posteriors.files import open_posterior
from utils.posteriors.prior import Prior
from utils.runs.seeding import generator

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

NETWORK = MLP((3, 4, 2))
RANK, ITERATES = 5, 9
TOY = (
    "--config_name", "quick", "--hidden_sizes", "8", "--num_train", "300", "--num_epochs", "5",
    "--num_pretrain_epochs", "2", "--num_draws", "3", "--learning_rate", "0.05",
)  # fmt: skip


def iterates() -> torch.Tensor:
    shape = (ITERATES, 2, NETWORK.num_weights)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).cumsum(0)


def collected() -> SWAGState:
    """Return the state of two modes after these iterates."""
    zeros = torch.zeros(2, NETWORK.num_weights)
    deviations = torch.zeros(2, RANK, NETWORK.num_weights)
    state = SWAGState(torch.arange(2), zeros, zeros, zeros, zeros, deviations)
    for number, weights in enumerate(iterates(), start=1):
        state = collect(state._replace(weights=weights), number)
    return state


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_covariance_is_that_of_the_paper(temperature):
    """½ diag(σ²) + D Dᵀ / (2 (K − 1)), with deviations from the running mean, times T."""
    config = SimpleNamespace(num_epochs=ITERATES, num_pretrain_epochs=0, rank=RANK)
    problem = SimpleNamespace(network=NETWORK, temperature=temperature)
    mixture = SWAG().posterior(problem, collected(), config)
    for mode, posterior in enumerate(mixture.components):
        path = iterates()[:, mode].double().numpy()
        means = np.cumsum(path, 0) / np.arange(1, ITERATES + 1)[:, None]
        kept = (path - means)[-RANK:]
        expected = np.diag(path.var(0)) / 2 + kept.T @ kept / (2 * (RANK - 1))
        expected *= temperature
        factor, diagonal = posterior.factor.double(), posterior.diagonal.double()
        ours = factor.T @ factor + diagonal.square().diag()
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(posterior.mean.numpy(), path.mean(0), rtol=1e-5, atol=1e-5)


CURVATURE = np.array([[1.0, 0.3, 0.0], [0.3, 0.7, -0.2], [0.0, -0.2, 0.4]])
DECAY, MOMENTUM = 0.2, 0.5


class Quadratic:
    """A network of three weights whose loss of an image x is ½ (w − x)ᵀ A (w − x)."""

    num_weights, slots, has_buffers, members_together, chunk_rows = 3, (), False, 1000, 1000

    def initial_weights(self, generator):
        return torch.zeros(3)

    def outputs(self, weights, images):
        return images.new_zeros(len(images), 2)

    def zero_buffers(self, gradient):
        pass

    def gradient(self, weights, gradient, rows):
        def find_gradient(inputs, labels, *, scale, keep):
            offsets = weights[:, None] - inputs  # [K, batch, 3]
            slopes = offsets @ torch.from_numpy(CURVATURE).float()
            gradient.mul_(keep).add_(slopes.sum(1), alpha=scale)
            return (offsets * slopes).sum(-1) / 2

        return find_gradient


def epoch_map(rate: float, spread: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return R and Q with s ← R s + noise of covariance Q + constant, for an epoch of SGD.

    s is velocity and weights. Of a step, v ← βv + (A + λ)w − A b and w ← w − ηv, with the mean b of
    the batch. Batches of an epoch share out the images, so the covariance of two of their means is
    −1/(steps − 1) of their variance, `spread`.
    """
    hessian, unit = CURVATURE + DECAY * np.eye(3), np.eye(3)
    step = np.block([[MOMENTUM * unit, hessian], [-rate * MOMENTUM * unit, unit - rate * hessian]])
    noise = np.vstack([-CURVATURE, rate * CURVATURE])
    effects = [np.linalg.matrix_power(step, k) @ noise for k in range(num_steps)]
    total = sum(effects)
    covariance = sum(each @ spread @ each.T for each in effects) * num_steps / (num_steps - 1)
    covariance -= total @ spread @ total.T / (num_steps - 1)
    return np.linalg.matrix_power(step, num_steps), covariance


def expected_covariance(before: tuple, after: tuple, num_before: int, count: int) -> np.ndarray:
    """Return the mean of SWAG's covariance, with all of its `count` iterates as deviations."""
    state, joint = np.zeros((6, 6)), np.zeros((count, 3, count, 3))
    for _ in range(num_before):
        state = before[0] @ state @ before[0].T + before[1]
    for first in range(count):
        state = moved = after[0] @ state @ after[0].T + after[1]
        for second in range(first, count):
            joint[second, :, first], joint[first, :, second] = moved[3:, 3:], moved[3:, 3:].T
            moved = after[0] @ moved
    from_mean = np.eye(count) - 1 / count
    from_running_mean = np.eye(count) - np.tri(count) / np.arange(1, count + 1)[:, None]
    variance, scatter = (
        np.einsum("is,sktl,it->kl", rows, joint, rows) for rows in (from_mean, from_running_mean)
    )
    return np.diag(np.diag(variance)) / count / 2 + scatter / (count - 1) / 2


def test_sgd_on_a_quadratic_has_its_stationary_mean_and_covariance():
    """Through the training loop, as means over 200 modes.

    Each of 9 numbers is off by 5 standard errors with a probability of 1.3e-6 (Student's t), so
    another seed fails with a probability of 1.2e-5. Standard errors of variances are 1 %.
    """
    num_modes, pretrain, count, num_images, batch_size = 200, 30, 100, 20, 5
    images = 1 + torch.randn(num_images, 3, generator=generator(0, "images"))
    labels = torch.zeros(num_images, dtype=torch.long)
    data = Dataset("quadratic", images, labels, images[:2], labels[:2], 2)
    config = SWAGConfig(
        num_epochs=pretrain + count, num_pretrain_epochs=pretrain, rank=count, momentum=MOMENTUM,
        learning_rate=0.3, collect_learning_rate=0.15, batch_size=batch_size,
    )  # fmt: skip
    prior = Prior((num_images * DECAY) ** -0.5)
    problem, method = Problem(Quadratic(), data, prior, torch.device("cpu")), SWAG()
    state = method.init(problem, config, range(num_modes))
    while state.epoch < config.num_epochs:
        state, _ = method.step(problem, state, config)
    modes = method.posterior(problem, state, config).components
    means = torch.stack([mode.mean for mode in modes]).double().numpy()
    factors = torch.stack([torch.cat([m.factor, m.diagonal.diag()]) for m in modes]).double()
    covariances = (factors.mT @ factors).numpy()

    points = images.double().numpy()
    mean = np.linalg.solve(CURVATURE + DECAY * np.eye(3), CURVATURE @ points.mean(0))
    share = (num_images - batch_size) / (num_images - 1) / batch_size
    spread, steps = np.cov(points.T, bias=True) * share, num_images // batch_size
    before, after = (epoch_map(rate, spread, steps) for rate in (0.3, 0.15))
    expected = expected_covariance(before, after, pretrain, count)
    stationary = solve_discrete_lyapunov(*after)[3:, 3:]
    half = (stationary + np.diag(np.diag(stationary))) / 2  # of correlations, as SWAG has them
    assert abs(expected - half).max() < 0.03 * stationary.max()  # of finitely many iterates
    upper = np.triu_indices(3)
    found = np.hstack([means, covariances[:, upper[0], upper[1]]])
    errors = found.std(0, ddof=1) / num_modes**0.5
    assert (errors[3:] < 0.03 * stationary.max()).all()
    assert (abs(found.mean(0) - np.hstack([mean, expected[upper]])) < 5 * errors).all()


def test_modes_are_independent_of_how_many_there_are(script, tmp_path):
    for count in (1, 2):
        arguments = ("--method", "swag", *TOY, "--num_modes", count, "--run_name", count)
        done = script("train", *arguments)
        assert done.returncode == 0, done.stderr
        assert "Resuming" not in done.stdout
    runs = tmp_path / "default"
    alone = open_posterior(runs / "SWAG-MNIST-quick-1")
    first, second = open_posterior(runs / "SWAG-MNIST-quick-2").components
    assert torch.equal(alone.mean, first.mean)
    assert torch.equal(alone.factor, first.factor)
    assert not torch.equal(first.mean, second.mean)
    summary = json.loads((runs / "SWAG-MNIST-quick-2" / "summary.json").read_text())
    assert 0 < summary["test_accuracy"] <= 1


def test_too_few_iterates_are_refused(script):
    done = script("train", "--method", "swag", *TOY, "--num_pretrain_epochs", 4)
    assert done.returncode == 2
    assert "SWAG needs two iterates or more: give a --num_epochs of at least 6" in done.stderr


def test_draws_with_batch_normalisation_have_statistics_of_their_own():
    """Those of a forward pass through all training images, of every draw."""
    network = conv_network("resnet18", (1, 8, 8), 3, width=2)
    images = torch.rand(40, 1, 8, 8, generator=generator(0, "images"))
    labels = torch.randint(3, (40,), generator=generator(0, "labels"))
    data = Dataset("toy", images, labels, images[:5], labels[:5], 3)
    config = SWAGConfig(
        num_epochs=4, num_pretrain_epochs=1, learning_rate=0.05, collect_learning_rate=0.05,
        batch_size=10, num_draws=3,
    )  # fmt: skip
    problem, method = problem_of(config, network, data, torch.device("cpu")), SWAG()
    state = method.init(problem, config, [0])
    while state.epoch < 4:
        state, _ = method.step(problem, state, config)
    posterior = method.posterior(problem, state, config)
    draws, mean = posterior.weights, posterior.mean
    assert len(draws) == 3
    assert (draws[0] - draws[1]).abs().max() > 1e-4
    for slot in network.slots:
        if slot.role != "buffer":
            assert slot.of(mean).equal(slot.of(state.mean[0]))
    for weights in (*draws, mean):
        _, statistics = network.batch_outputs(weights[None], images)
        for slot in network.slots:
            if slot.role == "buffer":
                torch.testing.assert_close(slot.of(weights), statistics[slot.name][0])
