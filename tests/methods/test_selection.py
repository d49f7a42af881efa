"""What settings are chosen by: scores on held-out training images, and the ELBO."""

import json
from dataclasses import replace

from utils.data.batches import Batches
from utils.data.datasets import load_dataset
from utils.methods.method import Problem, gaussian_elbos, images_used, selection_scores
from utils.networks.mlp import MLP
from utils.networks.predictions import class_probabilities
from utils.posteriors.files import open_posterior
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRank
from utils.posteriors.posterior import Mixture
from utils.posteriors.prior import Prior
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch


def test_validation_images_are_the_last_ones_whatever_is_trained_on(data_dir):
    whole = load_dataset("MNIST", data_dir)
    assert whole.valid_labels is None
    assert images_used(whole) == {}
    for num_train in (None, 300):
        data = load_dataset("MNIST", data_dir, num_train, num_valid=200)
        assert torch.equal(data.valid_images, whole.train_images[-200:])
        assert torch.equal(data.valid_labels, whole.train_labels[-200:])
        count = num_train or 59_800
        assert torch.equal(data.train_labels, whole.train_labels[:count])
        assert images_used(data) == {"num_train": count}
    ready = data.inputs([784])
    torch.testing.assert_close(ready.valid_images, whole.train_images[-200:].flatten(1) / 255)
    with pytest.raises(UserError, match="num_train is 59900 and num_valid 200"):
        load_dataset("MNIST", data_dir, 59_900, num_valid=200)


@pytest.fixture
def problem(data_dir):
    data = load_dataset("MNIST", data_dir, 50).inputs([784])
    return Problem(MLP((784, 3, 10)), data, Prior(0.5), torch.device("cpu"), None, 2.0)


def test_elbo_of_a_narrow_gaussian_is_that_of_its_mean(problem):
    """E[NLL] is that of the mean; the KL is written out for the prior N(0, T s²)."""
    network, data = problem.network, problem.data
    mean = 0.1 * torch.randn(network.num_weights, generator=generator(0))
    narrow = Gaussian(mean, torch.full_like(mean, 1e-6), network)
    values = gaussian_elbos(problem, narrow, generator(1))
    probabilities = class_probabilities(network, mean, data.train_images)
    nll = -probabilities[range(50), data.train_labels].log().sum().item()
    variance = 2 * 0.5**2
    squares = mean.double().square().numpy() + 1e-12
    kl = 0.5 * (squares / variance - 1 - np.log(1e-12 / variance)).sum()
    assert values.mean().item() == pytest.approx(-nll / 2 - kl, rel=1e-6)
    assert values.std() < 1e-2


def test_the_prior_itself_has_no_kl(problem):
    network = problem.network
    std = torch.full((network.num_weights,), 0.5 * 2**0.5)
    values = gaussian_elbos(problem, Gaussian(torch.zeros_like(std), std, network), generator(1))
    assert values.mean() < -50 * 0.5 * np.log(10) / 2
    assert values.std() > 0


def test_augmentation_does_not_change_the_elbo(problem, data_dir):
    """Augmented images are kept as they were loaded, and the ELBO is of images as they are."""
    loaded = load_dataset("MNIST", data_dir, 50)
    raw = loaded.train_images.reshape(50, 1, 28, 28)
    assert raw.dtype == torch.uint8
    batches = Batches(raw, loaded.train_labels, (784,), padding=2)
    augmented = problem._replace(data=replace(loaded, train_images=raw), batches=batches)
    mean = 0.1 * torch.randn(problem.network.num_weights, generator=generator(0))
    gaussian = Gaussian(mean, torch.full_like(mean, 0.1), problem.network)
    values = [gaussian_elbos(each, gaussian, generator(1)) for each in (problem, augmented)]
    torch.testing.assert_close(*values)


def test_what_has_an_elbo(problem):
    mean = torch.zeros(problem.network.num_weights)
    gaussian = Gaussian(mean, torch.ones_like(mean), problem.network)
    config = type("Config", (), {"seed": 0, "num_draws": 2})()
    one = selection_scores(problem, gaussian, config)
    two = selection_scores(problem, Mixture([gaussian, gaussian]), config)
    assert one.keys() == two.keys() == {"elbo", "elbo_error"}
    assert two["elbo_error"] < 1.5 * one["elbo_error"]
    narrow = Gaussian(mean, 0 * mean, problem.network)  # no density
    low_rank = LowRank(mean, torch.ones(1, len(mean)), network=problem.network)
    assert selection_scores(problem, narrow, config) == {}
    assert selection_scores(problem, low_rank, config) == {}


TOY = ("--config_name", "quick", "--hidden_sizes", "5", "--num_train", "200", "--num_valid", "100")
HMC = (
    "--num_samples", "3", "--num_burnin", "1", "--num_steps", "3", "--trajectory_length", "none",
    "--anchored_epochs", "1", "--no-adapt_step_size",
)  # fmt: skip
RUNS = {
    "MNIST_VI": ("VI-MNIST-quick", ("--num_epochs", "2", "--num_draws", "3")),
    "MNIST_HMC": ("HMC-MNIST-quick", HMC),
    "MNIST_Ensemble": ("ensemble-MNIST-quick", ("--num_epochs", "2", "--num_members", "2")),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_method_is_scored_on_validation_images(name, script, tmp_path, data_dir):
    directory, arguments = RUNS[name]
    done = script(name, *TOY, *arguments)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "default" / directory
    summary = json.loads((run / "summary.json").read_text())
    assert ("elbo" in summary) == (name == "MNIST_VI")
    assert json.loads((run / "meta.json").read_text())["data"]["num_train"] == 200
    posterior = open_posterior(run)
    data = load_dataset("MNIST", data_dir, 200, num_valid=100).inputs([784])
    if name == "MNIST_VI":
        draws = list(posterior.draw(3, generator(0, "predictive_draws")))
    else:
        draws = list(posterior)
    network = posterior.network
    each = [class_probabilities(network, weights, data.valid_images) for weights in draws]
    average = torch.stack(each).mean(0)
    nll = -average[range(100), data.valid_labels].log().mean().item()
    assert summary["valid_nll"] == pytest.approx(nll, rel=1e-6)
    hits = (average.argmax(1) == data.valid_labels).double().mean().item()
    assert summary["valid_accuracy"] == pytest.approx(hits)
