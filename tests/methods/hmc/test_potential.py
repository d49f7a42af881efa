import math

from utils.data.datasets import load_pixels
from utils.methods.hmc.anchored import anchored_maps
from utils.methods.hmc.hmc import Flight, leapfrog
from utils.methods.hmc.potential import (
    FirstLayer,
    ListSettings,
    NeighbourList,
    Posterior,
    true_margins,
)
from utils.methods.training import TrainingSettings, start_training, train
from utils.networks.mlp import MLP
from utils.runs.seeding import generator

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
    outputs = network.outputs(weights, images)
    nll = torch.nn.functional.cross_entropy(outputs, labels, reduction="sum")
    potential = nll + 0.5 * weights.square().sum()
    (gradient,) = torch.autograd.grad(potential, weights)
    return potential.item(), nll.item(), gradient


@pytest.mark.parametrize("force", ["dense", "active", "listed"])
@pytest.mark.parametrize(
    "network",
    [MLP((5, 3)), MLP((70, 6, 3)), MLP((70, 6, 4, 3), "tanh")],
    ids=lambda network: "-".join(map(str, network.sizes)),
)
def test_energy_and_gradient_are_those_of_autograd(network, force):
    weights, images, labels = problem(network, 4500)  # two chunks
    energy = Posterior(network, images, labels, force).energy(weights)
    potential, nll, gradient = by_autograd(network, weights, images, labels)
    assert energy.potential == pytest.approx(potential, rel=1e-12)
    assert energy.nll == pytest.approx(nll, rel=1e-12)
    torch.testing.assert_close(energy.gradient, gradient, rtol=1e-9, atol=1e-5)


def test_energies_are_summed_in_float64():
    network = MLP((4, 3))
    weights, images, labels = problem(network, 3000, dtype=torch.float32)
    weights = torch.cat([weights[:-3], torch.tensor([3e4, 3e4, 3e4])])  # ½‖θ‖² = 1.35e9
    energy = Posterior(network, images, labels).energy(weights)
    exact = energy.nll + 0.5 * weights.double().square().sum().item()
    assert energy.potential == pytest.approx(exact, abs=1e-5)  # in float32 off by tens
    assert energy.nll == pytest.approx(by_autograd(network, *(weights, images, labels))[1], 1e-4)
    _, each, _ = Posterior(network, images, labels).pass_over(weights, None)
    assert energy.nll == pytest.approx(each.double().sum().item(), abs=1e-9)
    assert each.dtype == torch.float32


@pytest.mark.parametrize("num_dead", [0, 2, 13, 30])  # 13: 47 are live, and ones fill the 48
def test_the_first_layer_is_that_of_all_pixels(num_dead):
    random = torch.Generator().manual_seed(0)
    images = torch.rand(10, 60, generator=random, dtype=torch.float64)
    images[:, 20 : 20 + num_dead] = 0
    weight, bias = torch.randn(7, 61, generator=random, dtype=torch.float64).split([60, 1], dim=1)
    weight, bias = weight.contiguous(), bias.squeeze(1)
    first = FirstLayer(images, 7)
    assert first.inputs.shape[1] % 16 == 0
    assert first.inputs.shape[1] < 60 - num_dead + 2 + 16
    outputs = first.inputs @ first.weight_of(weight, bias)[0].T
    torch.testing.assert_close(outputs, images @ weight.T + bias)
    errors = torch.randn(10, 7, generator=random, dtype=torch.float64)
    first.empty_gradient()[0].addmm_(errors.T, first.inputs)
    first.write_gradient(weight, bias)
    torch.testing.assert_close(weight, errors.T @ images)
    torch.testing.assert_close(bias, errors.sum(0))


def test_a_rank_may_be_without_images():
    network = MLP((20, 4, 3))
    weights, images, labels = problem(network, 1)
    energy = Posterior(network, images[:0], labels[:0], "listed").energy(weights)
    assert energy.nll == 0
    torch.testing.assert_close(energy.gradient, weights)


def test_margins():
    outputs = torch.tensor([[1.0, 5.0, 2.0], [1.0, 5.0, 2.0], [4.0, 4.0, -9.0]])
    assert true_margins(outputs, torch.tensor([1, 2, 0])).tolist() == [3, -3, 0]


# ---- forces that leave points out


@pytest.fixture(scope="module")
def separable():
    """A posterior with a state that fits its data by wide margins, and one that does not."""
    random = torch.Generator().manual_seed(1)
    network = MLP((20, 64, 4))
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
    return leapfrog(target, states[state], normal(network.num_weights, seed=2), 5e-4, num_steps)


def normal(size, seed):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("state", ["fitted", "unfitted"])
@pytest.mark.parametrize("force", ["active", "listed"])
def test_trajectories_are_the_dense_ones(separable, state, force):
    dense, other = path(separable, state, "dense"), path(separable, state, force)
    distance = (dense.weights - other.weights).abs().max().item()
    assert distance < (3e-7 if state == "fitted" else 3e-6)  # the unfitted state's force is huge
    assert abs(dense.delta_energy - other.delta_energy) < (1e-3 if state == "fitted" else 1e-2)
    assert dense.list_rows == 6000
    if force == "listed" and state == "fitted":
        assert other.list_rows < 3000
        assert other.violations == 0


def test_an_error_that_float32_would_notice_is_in_the_active_force():
    """1 + 1e-7 is no 1. Half of the rows have this error, and the others none to speak of."""
    labels, half = torch.ones(200, dtype=torch.int64), math.log(1e7) / 2
    images = torch.tensor([[1.0], [3.0]], dtype=torch.float64).repeat(100, 1)
    weights = torch.tensor([-half, half, 0, 0], dtype=torch.float64)
    energy = Posterior(MLP((1, 2)), images, labels, "active").energy(weights)
    pull = (energy.gradient - weights).tolist()
    assert torch.tensor(1.0) + 1e-7 > 1
    assert pull == pytest.approx([1e-5, -1e-5, 1e-5, -1e-5], rel=1e-5)


def test_a_flight_restored_goes_on_to_the_same_end(separable):
    """With lists that overlook points, before the step where it is left and after."""
    network, images, labels, states = separable
    target = Posterior(network, images, labels, "listed", ListSettings(slack=0.2))
    begun = target, states["fitted"], normal(network.num_weights, seed=2), 5e-4
    saved = {}

    def save(flight):
        if flight.step == 60:
            saved.update({name: value.clone() for name, value in flight.state().items()})

    whole, flight = leapfrog(*begun, 100, on_step=save), Flight(*begun)
    flight.restore(saved)
    resumed = flight.to_the_end(100, on_step=lambda flight: None)
    assert torch.equal(resumed.weights, whole.weights)
    assert resumed[4:] == whole[4:]  # the change of energy, and the counts
    assert whole.violations > 0


@pytest.mark.parametrize("force", ["active", "listed"])
def test_trajectories_can_be_gone_back(separable, force):
    network, images, labels, states = separable
    target = Posterior(network, images, labels, force)
    there = path(separable, "fitted", force)
    back = leapfrog(target, there.weights, -there.momentum, 5e-4, 100)
    assert (there.weights - states["fitted"]).abs().max() > 0.1
    torch.testing.assert_close(back.weights, states["fitted"], rtol=0, atol=3e-7)
    assert back.delta_energy == pytest.approx(-there.delta_energy, abs=1e-3)


class Watched:
    """A listed posterior that counts, in every step, the points asleep below the safe margin."""

    def __init__(self, network, images, labels):
        self._listed = Posterior(network, images, labels, "listed")
        self._dense = Posterior(network, images, labels, "dense")
        self.overlooked = self.left_alone = 0

    def trajectory(self, weights):
        energy, self._force = self._listed.trajectory(weights)
        self.energy, self.counts = self._force.energy, self._force.counts
        return energy, self

    def __call__(self, weights):
        rows = self._force._neighbours.due(self._force.num_calls + 1)
        if rows is not None:
            _, _, margins = self._dense.pass_over(weights, None)
            margins[rows] = torch.inf
            self.left_alone += (margins < torch.inf).sum().item()
            self.overlooked += (margins < ListSettings().safe_margin).sum().item()
        return self._force(weights)


def test_in_burnin_when_margins_gather_speed_no_point_is_overlooked(data_dir):
    """From an anchored start the fall of margins becomes several times as fast within a path."""
    data, network = load_pixels("MNIST", data_dir, 3000), MLP((784, 64, 10))
    (start,) = anchored_maps(network, data, [generator(0, "initial_weights", 0)], 0, epochs=3)
    problem = network, data.train_images, data.train_labels
    listed, momentum = Watched(*problem), normal(len(start), seed=0)
    found = leapfrog(listed, start, momentum, 0.0015, 120)
    dense = leapfrog(Posterior(*problem, "dense"), start, momentum, 0.0015, 120)
    assert listed.overlooked == 0
    assert listed.left_alone > 50_000
    assert (found.weights - dense.weights).abs().max().item() < 1e-6  # weights of size 4 to 8
    assert found.delta_energy == pytest.approx(dense.delta_energy, abs=1e-3)


def test_a_list_that_ignores_near_points_is_noticed(separable):
    """With margins down to −30 taken for safe the force is wrong, and the energy tells."""
    careless = ListSettings(safe_margin=-30.0)
    dense = path(separable, "fitted", "dense")
    listed = path(separable, "fitted", "listed", careless)
    assert (dense.weights - listed.weights).abs().max().item() > 1e-5


def lists(margins, first_margins, **settings):
    """A list after step 1, in which all points are looked at."""
    points = NeighbourList(torch.tensor(margins), ListSettings(10.0, **settings))
    assert points.due(1) is None
    points.update(1, None, torch.tensor(first_margins))
    return points


def wakes(points, point, step, others=(), margin=0.0):
    """The first step from `step` on in which the list wakes this point, if it sees no others than
    these, which stay at this margin."""
    others = torch.tensor(others, dtype=torch.int64)
    while (rows := points.due(step)) is not None and point not in rows:
        points.update(step, others, torch.full(others.shape, margin))
        step += 1
    return step


@pytest.mark.parametrize(("point", "step"), [(0, 51), (1, 11), (2, 2), (3, 51)])
def test_a_point_sleeps_until_it_could_have_come_near(point, step):
    """Point 1 is safe for ten steps more, and looked at in the last of them; 0 and 3 are for so
    long that they sleep for the longest there is."""
    margins = [101.0, 21.5, 5.0, 1000.0, 1000.0], [100.0, 20.5, 4.0, 1000.0, 1000.0]
    points = lists(*margins, longest_sleep=50, slack=1.0)
    assert wakes(points, point, 2) == step


def test_all_wake_earlier_when_one_falls_faster():
    points = lists([31.5] * 9, [30.5] * 9, longest_sleep=50, slack=1.0)
    points.update(2, torch.tensor([0]), torch.tensor([26.5]))  # by 4 in a step, not 1
    assert wakes(points, 1, 3) == 6  # 30.5 − 4 − 4 × 4 > 10; at the old speed 21


def test_speed_follows_what_is_seen():
    points = lists([30.0] * 9, [29.0] * 9, longest_sleep=50, slack=1.0)
    points.update(2, torch.tensor([0]), torch.tensor([19.0]))  # fell by 10: asleep no more
    assert wakes(points, 0, 3) == 3


def test_speed_is_per_step_of_sleep_and_gets_a_slack():
    points = lists([110.5, 110.5], [110.5, 110.5], longest_sleep=1000, slack=2.0)
    points.update(11, torch.tensor([0]), torch.tensor([90.5]))  # by 2 per step, taken for 4
    assert wakes(points, 0, 12) == 31  # 90.5 − 20 × 4 > 10


def test_a_fall_is_remembered_for_dozens_of_steps():
    """At 4 per step the way of 100 takes 25 steps; with 2 % less in each of them it takes 35."""
    points = lists([114.0] * 8 + [5.0], [110.0] * 8 + [5.0], longest_sleep=500, slack=1.0)
    assert wakes(points, 0, 2, others=[8], margin=5.0) in range(33, 38)


def test_by_default_a_point_sleeps_only_if_float32_misses_its_error():
    """About exp(−margin): 1.6e-8 here, and 1.4e-8 of the others. They do not move."""
    margins = torch.tensor([-math.log(1.6e-8)] + [-math.log(1.4e-8)] * 8)
    points = NeighbourList(margins, ListSettings())
    points.update(1, None, margins)
    assert points.due(2).tolist() == [0]


@pytest.mark.parametrize("step", [3, 11])
def test_a_violation_is_counted_once_per_point_that_came_near_asleep(step):
    """Whether it was left alone in a single step or in nine."""
    points = lists([21.0, 21.0, 10.5, 50.0], [20.0, 20.0, 9.5, 50.0], longest_sleep=50, slack=1.0)
    assert points.violations == 0  # 9.5 was looked at in every step
    points.update(step, torch.tensor([0, 1]), torch.tensor([9.0, 11.0]))
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
    network = MLP((30, 5, 3))
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
