from utils.hmc import leapfrog
from utils.mlp import Network, logits
from utils.posterior import (
    ListSettings,
    NeighbourList,
    Posterior,
    live_columns,
    true_margins,
)
from utils.training import TrainingSettings, start_training, train

import pytest
import torch


def problem(network, num_points, seed=0, dtype=torch.float64):
    """Random weights, and images of whose pixels a third are always zero, with random labels."""
    random = torch.Generator().manual_seed(seed)
    images = torch.rand(num_points, network.sizes[0], generator=random, dtype=dtype)
    images[:, ::3] = 0
    labels = torch.randint(network.sizes[-1], (num_points,), generator=random)
    weights = torch.randn(network.num_weights, generator=random, dtype=dtype)
    return weights, images, labels


def by_autograd(network, weights, images, labels):
    weights = weights.clone().requires_grad_()
    outputs = logits(network, weights, images)
    nll = torch.nn.functional.cross_entropy(outputs, labels, reduction="sum")
    potential = nll + 0.5 * weights.square().sum()
    (gradient,) = torch.autograd.grad(potential, weights)
    return potential.item(), nll.item(), gradient


@pytest.mark.parametrize("force", ["dense", "active", "listed"])
@pytest.mark.parametrize(
    "network",
    [Network((5, 3)), Network((70, 6, 3)), Network((70, 6, 4, 3), "tanh")],
    ids=lambda network: "-".join(map(str, network.sizes)),
)
def test_energy_and_gradient_are_those_of_autograd(network, force):
    weights, images, labels = problem(network, 4500)  # three chunks
    energy = Posterior(network, images, labels, force).energy(weights)
    potential, nll, gradient = by_autograd(network, weights, images, labels)
    assert energy.potential == pytest.approx(potential, rel=1e-12)
    assert energy.nll == pytest.approx(nll, rel=1e-12)
    torch.testing.assert_close(energy.gradient, gradient, rtol=1e-9, atol=1e-5)


def test_energies_are_summed_in_float64():
    network = Network((4, 3))
    weights, images, labels = problem(network, 3000, dtype=torch.float32)
    weights = torch.cat([weights[:-3], torch.tensor([3e4, 3e4, 3e4])])  # ½‖θ‖² = 1.35e9
    energy = Posterior(network, images, labels).energy(weights)
    exact = energy.nll + 0.5 * weights.double().square().sum().item()
    assert energy.potential == pytest.approx(exact, abs=1e-5)  # in float32 off by tens
    assert energy.nll == pytest.approx(by_autograd(network, *(weights, images, labels))[1], 1e-4)
    _, each, _ = Posterior(network, images, labels).pass_over(weights, None)
    assert energy.nll == pytest.approx(each.double().sum().item(), abs=1e-9)
    assert each.dtype == torch.float32


def test_live_columns_are_a_multiple_of_16_with_a_dead_one_for_the_dead():
    images = torch.rand(10, 60)
    images[:, 20:50] = 0
    columns, sources = live_columns(images)
    assert len(columns) == 32  # 30 alive and 2 dead ones
    assert set(range(20)) | set(range(50, 60)) <= set(columns.tolist())
    for pixel in range(60):
        place = columns[sources[pixel]].item()
        assert place == pixel or (not images[:, pixel].any() and not images[:, place].any())
    assert live_columns(torch.rand(10, 60)) == (None, None)


def test_margins():
    outputs = torch.tensor([[1.0, 5.0, 2.0], [1.0, 5.0, 2.0], [4.0, 4.0, -9.0]])
    assert true_margins(outputs, torch.tensor([1, 2, 0])).tolist() == [3, -3, 0]


# ---- forces that leave points out


@pytest.fixture(scope="module")
def separable():
    """A posterior with a state that fits its data by wide margins, and one that does not."""
    random = torch.Generator().manual_seed(1)
    network = Network((20, 64, 4))
    centres = 4 * torch.randn(4, 20, generator=random)
    labels = torch.randint(4, (6000,), generator=random)
    images = (centres[labels] + torch.randn(6000, 20, generator=random)).relu()
    start = torch.randn(1, network.num_weights, generator=random)
    settings = TrainingSettings("Adam", 0.01, 100)
    trained, _ = train(
        network, start_training(start, settings), images, labels, settings, seed=0, num_epochs=3
    )
    return network, images, labels, {"fitted": trained.weights[0], "unfitted": start[0]}


def path(separable, state, force, settings=None, num_steps=100):
    network, images, labels, states = separable
    target = Posterior(network, images, labels, force, settings)
    momentum = torch.randn(network.num_weights, generator=torch.Generator().manual_seed(2))
    return leapfrog(target, states[state], momentum, 5e-4, num_steps)


@pytest.mark.parametrize("state", ["fitted", "unfitted"])
@pytest.mark.parametrize("force", ["active", "listed"])
def test_trajectories_are_the_dense_ones(separable, state, force):
    dense, other = path(separable, state, "dense"), path(separable, state, force)
    distance = (dense.weights - other.weights).abs().max().item()
    assert distance < (1e-6 if state == "fitted" else 2e-5)  # the unfitted state's force is huge
    assert abs(dense.delta_energy - other.delta_energy) < 1e-2
    assert dense.list_rows == 6000
    if force == "listed" and state == "fitted":
        assert other.list_rows < 3000
        assert other.violations == 0


def test_a_list_that_ignores_near_points_is_noticed(separable):
    """With margins down to −30 taken for safe the force is wrong, and the energy tells."""
    careless = ListSettings(safe_margin=-30.0)
    dense = path(separable, "fitted", "dense")
    listed = path(separable, "fitted", "listed", careless)
    assert (dense.weights - listed.weights).abs().max().item() > 1e-5


def is_due(points, point, step):
    rows = points.due(step)
    return rows is None or point in rows


def test_a_point_sleeps_until_it_could_have_come_near():
    settings = ListSettings(safe_margin=10.0, longest_sleep=50, slack=1.0)
    points = NeighbourList(torch.tensor([101.0, 21.0, 5.0, 1000.0]), settings)
    assert points.due(1) is None  # at first all are looked at
    points.update(1, None, torch.tensor([100.0, 20.0, 4.0, 1000.0]))  # at most 1 per step
    wakes = {
        point: next(step for step in range(2, 99) if is_due(points, point, step))
        for point in range(4)
    }
    assert wakes == {0: 51, 1: 11, 2: 2, 3: 51}  # 90 and 990 steps exceed the longest sleep


def test_speed_follows_what_is_seen():
    settings = ListSettings(safe_margin=10.0, longest_sleep=50, slack=1.0)
    points = NeighbourList(torch.full((9,), 30.0), settings)
    points.update(1, None, torch.full((9,), 29.0))
    rows = torch.tensor([0])
    points.update(2, rows, torch.tensor([19.0]))  # fell by 10: now asleep for one step at most
    points.update(3, rows, torch.tensor([19.5]))
    assert is_due(points, 0, 4)


def test_speed_is_per_step_of_sleep_and_gets_a_slack():
    settings = ListSettings(safe_margin=10.0, longest_sleep=1000, slack=2.0)
    points = NeighbourList(torch.tensor([110.0, 110.0]), settings)
    points.update(1, None, torch.tensor([110.0, 110.0]))
    points.update(11, torch.tensor([0]), torch.tensor([90.0]))  # by 2 per step, taken for 4
    assert [is_due(points, 0, step) for step in (30, 31)] == [False, True]  # (90 − 10) / 4


def test_a_violation_is_counted_once_per_point_that_came_near_asleep():
    settings = ListSettings(safe_margin=10.0, longest_sleep=50, slack=1.0)
    points = NeighbourList(torch.tensor([21.0, 21.0, 10.5, 50.0]), settings)
    points.update(1, None, torch.tensor([20.0, 20.0, 9.5, 50.0]))
    assert points.violations == 0  # 9.5 was looked at in every step
    points.update(11, torch.tensor([0, 1]), torch.tensor([9.0, 11.0]))
    assert points.violations == 1


def test_points_asleep_where_a_trajectory_ends_are_looked_at_once_more(separable):
    network, images, labels, states = separable
    _, force = Posterior(network, images, labels, "listed").trajectory(states["fitted"])
    for _ in range(3):
        force(states["fitted"])  # nothing moves: all with a margin sleep long
    energy = force.energy(states["unfitted"])  # where most margins are negative
    assert energy.nll == Posterior(network, images, labels).energy(states["unfitted"]).nll
    assert force.counts()[1] > 3000


def test_nan_margins_are_looked_at_in_every_step():
    points = NeighbourList(torch.full((4,), torch.nan), ListSettings())
    points.update(1, None, torch.full((4,), torch.nan))
    assert points.due(2) is None


def test_when_most_points_are_near_the_list_is_everything(separable):
    network, images, labels, states = separable
    _, force = Posterior(network, images, labels, "listed").trajectory(states["unfitted"])
    for _ in range(3):
        force(states["unfitted"] * 1e-3)
    assert force.counts() == (6000, 0)


def test_parts_add_up_to_the_whole():
    network = Network((30, 5, 3))
    weights, images, labels = problem(network, 3000)
    whole = Posterior(network, images, labels).energy(weights)
    parts = [
        Posterior(network, i, y).energy(weights)
        for i, y in zip(images.tensor_split(2), labels.tensor_split(2), strict=True)
    ]
    assert sum(part.nll for part in parts) == pytest.approx(whole.nll)
    torch.testing.assert_close(
        sum(part.gradient for part in parts) - weights, whole.gradient, rtol=1e-9, atol=1e-5
    )
