"""Training in stacks, beside torch.optim with autograd, one network at a time."""

from types import SimpleNamespace

from tests.networks.test_mlp import torch_network
from utils.data.batches import data_order
from utils.methods.method import Problem, scores_along, tensors_of
from utils.methods.training import TrainingSettings, start_training, train
from utils.networks.mlp import MLP
from utils.posteriors.prior import Prior
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import pytest
import torch
import torch.nn.functional as F

NETWORK = MLP((20, 16, 5))
NUM_POINTS, BATCH_SIZE = 330, 16  # the last batch of an epoch has 10 points
SETTINGS = {
    "SGD": TrainingSettings("SGD", 0.05, BATCH_SIZE, momentum=0.9),
    "SGD with prior": TrainingSettings("SGD", 0.05, BATCH_SIZE, momentum=0.8, prior_precision=3.0),
    "Adam": TrainingSettings("Adam", 0.01, BATCH_SIZE),
    "Adam with prior": TrainingSettings("Adam", 0.01, BATCH_SIZE, prior_precision=3.0),
}


def points(count=NUM_POINTS):
    images = torch.rand(count, 20, generator=generator(0, "images"))
    labels = torch.randint(0, 5, (count,), generator=generator(0, "labels"))
    return images, labels


def starts(count=3):
    return torch.stack([NETWORK.initial_weights(generator(0, "start", k)) for k in range(count)])


def train_with_torch(network, weights, settings, stream, num_epochs, images, labels, seed=7):
    """The usual loop, in float64: torch.nn, autograd, torch.optim."""
    model = torch_network(network, weights)
    if settings.optimizer == "SGD":
        optimizer = torch.optim.SGD(model.parameters(), settings.learning_rate, settings.momentum)
    else:
        optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate)
    losses = []
    for epoch in range(num_epochs):
        total = 0.0
        for batch in data_order(len(images), seed, stream, epoch).split(settings.batch_size):
            nll = F.cross_entropy(model(images[batch].double()), labels[batch])
            squares = sum(p.square().sum() for p in model.parameters())
            prior = 0.5 * settings.prior_precision * squares / len(images)
            optimizer.zero_grad()
            (nll + prior).backward()
            optimizer.step()
            total += nll.item() * len(batch)
        losses.append(total / len(images))
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return flat, losses


@pytest.mark.parametrize("name", SETTINGS)
def test_stack_equals_torch_optim_after_a_hundred_steps(name):
    images, labels = points()
    state = start_training(starts(), SETTINGS[name])
    state, losses = train(NETWORK, state, images, labels, SETTINGS[name], seed=7, num_epochs=5)
    for k, start in enumerate(starts()):
        weights, expected_losses = train_with_torch(
            NETWORK, start, SETTINGS[name], k, 5, images, labels
        )
        torch.testing.assert_close(state.weights[k].double(), weights, atol=1e-5, rtol=0)
        assert losses[:, k].tolist() == pytest.approx(expected_losses, abs=1e-5)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_member_of_a_stack_equals_the_network_trained_alone(name):
    images, labels = points()
    together, _ = train(
        NETWORK, start_training(starts(), SETTINGS[name]), images, labels, SETTINGS[name],
        seed=7, num_epochs=5,
    )  # fmt: skip
    for k in range(3):
        alone, _ = train(
            NETWORK, start_training(starts()[k : k + 1], SETTINGS[name]), images, labels,
            SETTINGS[name], seed=7, num_epochs=5, streams=[k],
        )  # fmt: skip
        torch.testing.assert_close(alone.weights[0], together.weights[k], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_stack_in_one_batched_product_equals_members_on_threads(name, monkeypatch):
    """The path that a GPU takes, on the CPU."""
    images, labels = points()
    settings = SETTINGS[name]
    threads, _ = train(
        NETWORK, start_training(starts(), settings), images, labels, settings, seed=7, num_epochs=5
    )
    monkeypatch.setattr(
        "utils.methods.training.groups_of", lambda network, count, device: [slice(0, count)]
    )
    batched, _ = train(
        NETWORK, start_training(starts(), settings), images, labels, settings, seed=7, num_epochs=5
    )
    torch.testing.assert_close(batched.weights, threads.weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_rounds_equal_one_go_bit_for_bit(name):
    images, labels = points()
    start, settings = start_training(starts(), SETTINGS[name]), SETTINGS[name]
    whole, _ = train(NETWORK, start, images, labels, settings, seed=7, num_epochs=4)
    state = start
    for num_epochs in (1, 3):
        state, _ = train(NETWORK, state, images, labels, settings, seed=7, num_epochs=num_epochs)
    assert state.epoch == whole.epoch == 4
    for name, tensor in tensors_of(whole).items():
        assert torch.equal(tensors_of(state)[name], tensor)


def test_the_given_state_is_left_alone():
    images, labels = points()
    state = start_training(starts(), SETTINGS["Adam"])
    train(NETWORK, state, images, labels, SETTINGS["Adam"], seed=7, num_epochs=1)
    assert torch.equal(state.weights, starts())
    assert not state.momentum.any()
    assert state.epoch == 0


def test_every_epoch_of_every_member_is_heard_of_once():
    images, labels = points()
    heard = []
    _, losses = train(
        NETWORK, start_training(starts(), SETTINGS["SGD"]), images, labels, SETTINGS["SGD"],
        seed=7, num_epochs=4, on_epoch=lambda *event: heard.append(event),
    )  # fmt: skip
    expected = {(k, e, losses[e, k].item()) for k in range(3) for e in range(4)}
    assert len(heard) == 12
    assert set(heard) == expected


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    images, labels = points()
    state = start_training(starts(), SETTINGS["SGD"])
    train(NETWORK, state, images, labels, SETTINGS["SGD"], seed=7, num_epochs=1)
    assert torch.get_num_threads() == before


def test_an_error_in_a_worker_is_raised():
    images, labels = points()
    state = start_training(starts(), SETTINGS["SGD"])
    with pytest.raises(IndexError):
        train(NETWORK, state, images, labels[:5], SETTINGS["SGD"], seed=7, num_epochs=1)


def test_orders_are_permutations_that_differ_between_members_and_epochs():
    orders = [data_order(50, 7, member, epoch).tolist() for member in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_divergence_is_said():
    images, labels = points()
    settings = TrainingSettings("SGD", 1e30, BATCH_SIZE)
    with pytest.raises(UserError, match="Training diverged in epoch 1"):
        train(
            NETWORK,
            start_training(starts(), settings),
            images,
            labels,
            settings,
            seed=7,
            num_epochs=2,
        )


def test_a_batch_larger_than_the_data_is_all_of_it():
    images, labels = points(20)
    weights = []
    for batch_size in (20, 10**9):
        settings = TrainingSettings("SGD", 0.05, batch_size)
        state = start_training(starts(), settings)
        state, _ = train(NETWORK, state, images, labels, settings, seed=7, num_epochs=2)
        weights.append(state.weights)
    assert torch.equal(*weights)


@pytest.mark.parametrize(("num_epochs", "scored"), [(3, [1, 2, 3]), (250, [*range(2, 251, 2)])])
def test_long_trainings_are_not_scored_after_every_epoch(num_epochs, scored):
    """And always after the last one."""
    images, labels = points(5)
    data = SimpleNamespace(test_images=images, test_labels=labels)
    problem = Problem(NETWORK, data, Prior(), torch.device("cpu"))
    weights, config = torch.zeros(NETWORK.num_weights), SimpleNamespace(num_epochs=num_epochs)
    epochs = range(1, num_epochs + 1)
    found = [epoch for epoch in epochs if scores_along(problem, weights, epoch, config)]
    assert found == scored
