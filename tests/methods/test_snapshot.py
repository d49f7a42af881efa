"""Snapshot ensembles: the schedule by hand, and training beside a plain loop."""

import math

from utils.data.datasets import Dataset
from utils.methods.method import problem_of
from utils.methods.sgmcmc import Snapshot, SnapshotConfig
from utils.networks.registry import conv_network
from utils.posteriors.samples import Points
from utils.runs.seeding import generator

import pytest
import torch
import torch.nn.functional as F

SHORT = (
    "--method", "snapshot", "--config_name", "quick", "--num_train", "300", "--num_epochs", "4",
    "--num_cycles", "2",
)  # fmt: skip


def test_the_rate_starts_anew_in_each_cycle():
    config = SnapshotConfig(num_epochs=12, num_cycles=3, learning_rate=0.4)
    expected = {0: 0.4, 2: 0.2, 3: 0.2 - 0.2 * 0.5**0.5, 4: 0.4, 11: 0.2 - 0.2 * 0.5**0.5}
    for epochs, rate in expected.items():
        assert config.pace(epochs) == pytest.approx((rate, 0))
    assert [epoch for epoch in range(1, 13) if config.collects(epoch)] == [4, 8, 12]


def run(network, **settings) -> tuple[list, Points]:
    """Return the images and labels, and the snapshots of a run on them."""
    config = SnapshotConfig(num_epochs=4, num_cycles=2, batch_size=10, **settings)
    images = torch.rand(25, *network.input_shape, generator=generator(0, "images"))
    labels = torch.randint(3, (25,), generator=generator(0, "labels"))
    data = Dataset("toy", images, labels, images[:5], labels[:5], 3)
    problem, method = problem_of(config, network, data, torch.device("cpu")), Snapshot()
    state = method.init(problem, config, [0])
    while state.epoch < 4:
        state, _ = method.step(problem, state, config)
    return [images, labels], method.posterior(problem, state, config)


def test_snapshots_are_those_of_a_plain_loop():
    network = conv_network("lenet", (1, 16, 16), 3, width=2)
    (images, labels), posterior = run(network, learning_rate=0.05, weight_decay=0.01)
    stream = generator(0, "initial_weights", ("snapshot", 0))
    weights = network.initial_weights(stream).double().requires_grad_()
    velocity, snapshots, steps = torch.zeros_like(weights), [], 0
    for epoch in range(4):
        order = torch.randperm(25, generator=generator(0, "data_order", ("snapshot", 0), epoch))
        for batch in order.split(10):
            logits = network.outputs(weights, images[batch].double())
            loss = F.cross_entropy(logits, labels[batch]) + 0.01 / 2 * weights.square().sum()
            (slope,) = torch.autograd.grad(loss, weights)
            rate = 0.05 * (1 + math.cos(math.pi * (steps % 6) / 6)) / 2  # 3 steps an epoch
            velocity = 0.9 * velocity - rate * slope
            weights = (weights + velocity).detach().requires_grad_()
            steps += 1
        if epoch % 2:
            snapshots.append(weights.detach())
    assert len(posterior) == 2
    torch.testing.assert_close(
        posterior.weights.double(), torch.stack(snapshots), rtol=0, atol=1e-5
    )


def test_running_statistics_are_kept():
    network = conv_network("resnet18", (1, 8, 8), 3, width=2)
    _, posterior = run(network, weight_decay=0.1)
    (variance,) = [slot for slot in network.slots if slot.name == "bn1.running_var"]
    first, second = posterior.weights
    assert (variance.of(second) - variance.of(first)).abs().min() > 1e-3


def test_cycles_of_unequal_length_are_refused(script):
    done = script("train", *SHORT, "--num_cycles", 3)
    assert done.returncode == 2
    assert "4 epochs cannot be shared equally by 3 cycles" in done.stderr
