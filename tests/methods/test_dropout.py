"""MC dropout: the gradient beside autograd with dropped activations, and rate 0."""

from utils.methods.dropout import Dropped
from utils.methods.training import TrainingSettings, start_training, train
from utils.networks.mlp import MLP
from utils.networks.registry import conv_network
from utils.posteriors.dropout import draw_factors
from utils.posteriors.files import open_posterior
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
