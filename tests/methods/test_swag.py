"""SWAG's moments and covariance beside NumPy's, and the driver's several modes."""

import json
from types import SimpleNamespace

from utils.data.datasets import Dataset
from utils.methods.method import problem_of
from utils.methods.swag import SWAG, SWAGConfig, SWAGState, collect
from utils.networks.mlp import MLP
from utils.networks.registry import conv_network
from utils.posteriors.files import open_posterior
from utils.runs.seeding import generator

import numpy as np
import pytest
import torch

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
