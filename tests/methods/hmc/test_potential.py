"""U(θ) and its gradient against autograd, and forces that skip points against the dense force."""

import math

from tests.networks.conv_networks import small
from tests.networks.toy_networks import GroupedConvNet
from utils.data.datasets import load_pixels
from utils.methods.hmc.anchored import anchored_maps
from utils.methods.hmc.leapfrog import leapfrog
from utils.methods.hmc.neighbour_list import SAFE_MARGIN
from utils.methods.hmc.potential import STANDARD_NORMAL, Potential, true_margins
from utils.methods.training import TrainingSettings, start_training, train
from utils.networks.mlp import MLP
from utils.networks.mlp_gradients import MLPPasses
from utils.posteriors.prior import Prior
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
    energy = Potential(network, images, labels, force).energy(weights)
    potential, nll, gradient = by_autograd(network, weights, images, labels)
    assert energy.potential == pytest.approx(potential, rel=1e-12)
    assert energy.nll == pytest.approx(nll, rel=1e-12)
    torch.testing.assert_close(energy.gradient, gradient, rtol=1e-9, atol=1e-5)


@pytest.mark.parametrize("kind", ["number", "each"])
def test_the_prior_has_any_width(kind):
    network = MLP((5, 4, 3))
    weights, images, labels = problem(network, 50)
    std = 0.3 if kind == "number" else torch.linspace(0.2, 3, network.num_weights).double()
    energy = Potential(network, images, labels, prior=Prior(std)).energy(weights)
    potential, nll, gradient = by_autograd(network, weights, images, labels)
    rest = 0.5 * (weights / std).square().sum() - 0.5 * weights.square().sum()
    assert energy.nll == pytest.approx(nll, rel=1e-12)
    assert energy.potential == pytest.approx(potential + rest.item(), rel=1e-12)
    expected = gradient - weights + weights / std**2
    torch.testing.assert_close(energy.gradient, expected, rtol=1e-9, atol=1e-9)


def test_heat_divides_the_likelihood_only():
    network, prior = MLP((5, 4, 3)), Prior(0.3).tempered(0.2)
    weights, images, labels = problem(network, 50)
    target = Potential(network, images, labels, prior=prior, temperature=0.2)
    cold, hot = target.energy(weights), target.heated(7.0).energy(weights)
    assert hot.nll == cold.nll == target.energy(weights).nll
    rest = prior.potential(weights)
    assert hot.potential - rest == pytest.approx((cold.potential - rest) / 7)
    pull = torch.zeros_like(weights)
    prior.add_gradient(pull, weights)
    torch.testing.assert_close(hot.gradient - pull, (cold.gradient - pull) / 7)


def test_temperature_divides_the_potential():
    network, std, temperature = MLP((5, 4, 3)), 0.3, 0.2
    weights, images, labels = problem(network, 50)
    prior = Prior(std).tempered(temperature)
    target = Potential(network, images, labels, prior=prior, temperature=temperature)
    potential, nll, gradient = by_autograd(network, weights, images, labels)
    untempered = nll + (potential - nll) / std**2
    energy, force = target.trajectory(weights)
    assert energy.nll == pytest.approx(nll, rel=1e-12)
    assert energy.potential == pytest.approx(untempered / temperature, rel=1e-12)
    expected = (gradient - weights + weights / std**2) / temperature
    torch.testing.assert_close(energy.gradient, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(force(weights), expected, rtol=1e-9, atol=1e-9)


def test_energies_are_summed_in_float64():
    network = MLP((4, 3))
    weights, images, labels = problem(network, 3000, dtype=torch.float32)
    weights = torch.cat([weights[:-3], torch.tensor([3e4, 3e4, 3e4])])  # ½‖θ‖² = 1.35e9
    energy = Potential(network, images, labels).energy(weights)
    exact = energy.nll + 0.5 * weights.double().square().sum().item()
    assert energy.potential == pytest.approx(exact, abs=1e-5)  # in float32 off by tens
    assert energy.nll == pytest.approx(by_autograd(network, *(weights, images, labels))[1], 1e-4)
    each, _ = Potential(network, images, labels).pass_over(weights, torch.empty_like(weights))
    assert energy.nll == pytest.approx(each.double().sum().item(), abs=1e-9)
    assert each.dtype == torch.float32


def test_a_rank_may_be_without_images():
    network = MLP((20, 4, 3))
    weights, images, labels = problem(network, 1)
    energy = Potential(network, images[:0], labels[:0], "listed").energy(weights)
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


def path(separable, state, force, safe_margin=SAFE_MARGIN, num_steps=100):
    network, images, labels, states = separable
    target = Potential(network, images, labels, force, safe_margin)
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
    energy = Potential(MLP((1, 2)), images, labels, "active").energy(weights)
    pull = (energy.gradient - weights).tolist()
    assert torch.tensor(1.0) + 1e-7 > 1
    assert pull == pytest.approx([1e-5, -1e-5, 1e-5, -1e-5], rel=1e-5)


@pytest.mark.parametrize("force", ["active", "listed"])
def test_trajectories_can_be_gone_back(separable, force):
    network, images, labels, states = separable
    target = Potential(network, images, labels, force)
    there = path(separable, "fitted", force)
    back = leapfrog(target, there.weights, -there.momentum, 5e-4, 100)
    assert (there.weights - states["fitted"]).abs().max() > 0.1
    torch.testing.assert_close(back.weights, states["fitted"], rtol=0, atol=3e-7)
    assert back.delta_energy == pytest.approx(-there.delta_energy, abs=1e-3)


class WatchedNetwork:
    """A network that remembers which rows pass through it, for one data set."""

    def __init__(self, network):
        self._network, self.seen = network, []

    def data_passes(self, images):
        passes = MLPPasses(self._network, images)
        forward, everything = passes.forward, torch.arange(len(images))

        def watched(rows):
            self.seen.append(everything[rows])
            return forward(rows)

        passes.forward = watched
        return passes


class Watched:
    """A listed potential that counts, in every step, the points skipped below the safe margin."""

    def __init__(self, network, images, labels):
        self._network, self._images, self._labels = network, images, labels
        self._watched = WatchedNetwork(network)
        self._listed = Potential(self._watched, images, labels, "listed")
        self.overlooked = self.skipped = 0

    def trajectory(self, weights):
        energy, self._force = self._listed.trajectory(weights)
        self.energy, self.counts = self._force.energy, self._force.counts
        return energy, self

    def __call__(self, weights):
        self._watched.seen.clear()
        gradient = self._force(weights)
        margins = true_margins(self._network.outputs(weights, self._images), self._labels)
        margins[torch.cat(self._watched.seen)] = torch.inf
        self.skipped += (margins < torch.inf).sum().item()
        self.overlooked += (margins < SAFE_MARGIN).sum().item()
        return gradient


def test_in_burnin_when_margins_gather_speed_no_point_is_overlooked(data_dir):
    """From an anchored start the fall of margins becomes several times as fast within a path."""
    data, network = load_pixels("MNIST", data_dir, 3000), MLP((784, 64, 10))
    anchor = STANDARD_NORMAL.draw(network, generator(0, "initial_weights", 0))
    (start,) = anchored_maps(network, data, anchor[None], 0, epochs=3)
    problem = network, data.train_images, data.train_labels
    listed, momentum = Watched(*problem), normal(len(start), seed=0)
    found = leapfrog(listed, start, momentum, 0.0015, 120)
    dense = leapfrog(Potential(*problem, "dense"), start, momentum, 0.0015, 120)
    assert listed.overlooked == 0
    assert listed.skipped > 50_000
    assert (found.weights - dense.weights).abs().max().item() < 1e-6  # weights of size 4 to 8
    assert found.delta_energy == pytest.approx(dense.delta_energy, abs=1e-3)


def test_a_list_that_ignores_near_points_is_noticed(separable):
    """With margins down to −30 taken for safe the force is wrong, and the energy tells."""
    dense = path(separable, "fitted", "dense")
    listed = path(separable, "fitted", "listed", safe_margin=-30.0)
    assert (dense.weights - listed.weights).abs().max().item() > 1e-5


def test_points_asleep_where_a_trajectory_ends_are_looked_at_once_more(separable):
    network, images, labels, states = separable
    _, force = Potential(network, images, labels, "listed").trajectory(states["fitted"])
    for _ in range(3):
        force(states["fitted"])  # nothing moves: all with a margin sleep long
    energy = force.energy(states["unfitted"])  # where most margins are negative
    assert energy.nll == Potential(network, images, labels).energy(states["unfitted"]).nll
    _, violations, lowest_margin = force.counts()
    assert violations > 3000
    logits = network.outputs(states["unfitted"], images)
    margins = true_margins(logits, labels)
    asleep = true_margins(network.outputs(states["fitted"], images), labels) > 18
    assert lowest_margin == pytest.approx(margins[asleep].min().item(), rel=1e-4)


def test_when_most_points_are_near_the_list_is_everything(separable):
    network, images, labels, states = separable
    _, force = Potential(network, images, labels, "listed").trajectory(states["unfitted"])
    for _ in range(3):
        force(states["unfitted"] * 1e-3)
    assert force.counts() == (6000, 0, math.inf)


# ---- a network without closed-form gradients


CONVOLUTIONS = {"grouped": GroupedConvNet(), "lenet": small("lenet")}
IMAGES = {"grouped": 2000, "lenet": 600}
SCALES = {"grouped": 1.0, "lenet": 0.2}  # of the weights that training begins with


@pytest.fixture(scope="module", params=CONVOLUTIONS)
def convolution(request):
    """A state of a small convolutional posterior that fits most of its data by wide margins."""
    network, count = CONVOLUTIONS[request.param], IMAGES[request.param]
    random = torch.Generator().manual_seed(2)
    patterns = 3 * torch.randn(3, *network.input_shape, generator=random)
    labels = torch.randint(3, (count,), generator=random)
    images = patterns[labels] + torch.randn(count, *network.input_shape, generator=random)
    weights = SCALES[request.param] * torch.randn(network.num_weights, generator=random)
    weights.requires_grad_()
    optimizer = torch.optim.Adam([weights], 0.02)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(network.outputs(weights, images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network, images, labels, weights.detach()


@pytest.mark.parametrize("force", ["dense", "active", "listed"])
def test_energy_and_gradient_of_a_convolution(convolution, force):
    network, images, labels, weights = convolution
    images, exact = images.double(), weights.double().requires_grad_()
    nll = torch.nn.functional.cross_entropy(network.outputs(exact, images), labels, reduction="sum")
    (gradient,) = torch.autograd.grad(nll + 0.5 * exact.square().sum(), exact)
    energy = Potential(network, images, labels, force).energy(weights.double())
    assert energy.nll == pytest.approx(nll.item(), rel=1e-12)
    torch.testing.assert_close(energy.gradient, gradient, rtol=1e-9, atol=1e-4)


@pytest.mark.parametrize("force", ["dense", "listed"])
def test_the_force_of_a_convolution_beside_finite_differences(convolution, force):
    network, images, labels, weights = convolution
    random = torch.Generator().manual_seed(4)
    weights = weights.double() + 0.1 * torch.randn(len(weights), generator=random).double()
    target = Potential(network, images.double(), labels, force)
    gradient, width = target.energy(weights).gradient, 1e-6
    for direction in torch.randn(5, len(weights), generator=random).double():
        ends = [target.energy(weights + sign * width * direction).potential for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * width)
        assert (gradient @ direction).item() == pytest.approx(slope, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("force", ["active", "listed"])
def test_trajectories_of_a_convolution_are_the_dense_ones(convolution, force):
    network, images, labels, weights = convolution
    momentum = normal(network.num_weights, seed=3)
    dense, other = (
        leapfrog(Potential(network, images, labels, kind), weights, momentum, 1e-3, 100)
        for kind in ("dense", force)
    )
    assert (dense.weights - weights).abs().max() > 0.1
    torch.testing.assert_close(other.weights, dense.weights, rtol=0, atol=1e-5)
    assert other.delta_energy == pytest.approx(dense.delta_energy, abs=0.01)
    if force == "listed":
        assert other.list_rows < 0.7 * len(images)
        assert other.violations == 0


def test_parts_add_up_to_the_whole():
    network = MLP((30, 5, 3))
    weights, images, labels = problem(network, 3000)
    whole = Potential(network, images, labels).energy(weights)
    parts = [
        Potential(network, i, y).energy(weights)
        for i, y in zip(images.tensor_split(2), labels.tensor_split(2), strict=True)
    ]
    assert sum(part.nll for part in parts) == pytest.approx(whole.nll)
    torch.testing.assert_close(
        sum(part.gradient for part in parts) - weights, whole.gradient, rtol=1e-9, atol=1e-5
    )
