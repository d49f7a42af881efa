"""The sampler against known answers. Statistical tests have fixed seeds; their bounds are at 4.5
standard errors or more, so that another seed would fail them once in 100,000 times per number."""

import math
from types import SimpleNamespace

from utils.evaluation.diagnostics import ess_bulk
from utils.methods.hmc import hmc
from utils.methods.hmc.hmc import (
    Chains,
    HMCSettings,
    StepSizeAdaptation,
    advance,
    kinetic_energy,
    leapfrog,
    start_chains,
    transition,
)
from utils.methods.hmc.potential import Energy, Posterior
from utils.networks.mlp import MLP

import numpy as np
import pytest
import torch


class Gaussian:
    """U(θ) = ½ (θ − m)ᵀ A (θ − m)."""

    def __init__(self, precision, mean=0.0):
        self.precision, self.mean = torch.as_tensor(precision, dtype=torch.float64), mean

    def energy(self, weights):
        gradient = self.precision @ (weights - self.mean)
        return Energy(0.5 * ((weights - self.mean) @ gradient).item(), 0.0, gradient)

    def trajectory(self, weights):
        return self.energy(weights), self

    def __call__(self, weights):
        return self.energy(weights).gradient

    def counts(self):
        return 0.0, 0


class Quartic(Gaussian):
    """U(θ) = ¼ Σ θ⁴ + ½ θᵀ A θ: no linear dynamics."""

    def energy(self, weights):
        quadratic = super().energy(weights)
        potential = quadratic.potential + 0.25 * weights.pow(4).sum().item()
        return Energy(potential, 0.0, quadratic.gradient + weights.pow(3))


PRECISION = [[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- leapfrog


def test_leapfrog_is_reversible():
    target, start, momentum = Quartic(PRECISION), normal(3), normal(3, seed=1)
    there = leapfrog(target, start, momentum, 0.05, 40)
    back = leapfrog(target, there.weights, -there.momentum, 0.05, 40)
    assert (there.weights - start).norm() > 0.5
    torch.testing.assert_close(back.weights, start, rtol=0, atol=1e-12)
    torch.testing.assert_close(back.momentum, -momentum, rtol=0, atol=1e-12)
    assert back.delta_energy == pytest.approx(-there.delta_energy, abs=1e-12)


def test_energy_error_falls_with_the_square_of_the_step_size():
    target, start, momentum = Quartic(PRECISION), normal(3), normal(3, seed=1)
    errors = [abs(leapfrog(target, start, momentum, 1.0 / n, n).delta_energy) for n in (20, 40, 80)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.05)


def test_kinetic_energy_is_summed_in_float64():
    momentum = normal(100_000).float()
    exact = 0.5 * (momentum.numpy().astype(float) ** 2).sum()
    assert kinetic_energy(momentum) == pytest.approx(exact, abs=1e-6)  # in float32 off by 1e-3


def test_leapfrog_preserves_volume():
    """The determinant of its Jacobian, by central differences, is 1."""
    target, width = Quartic(PRECISION), 1e-5

    def flow(phase):
        end = leapfrog(target, phase[:3], phase[3:], 0.2, 7)
        return torch.cat([end.weights, end.momentum])

    point, axes = normal(6), width * torch.eye(6, dtype=torch.float64)
    jacobian = torch.stack([flow(point + e) - flow(point - e) for e in axes], 1) / (2 * width)
    assert torch.linalg.det(jacobian).item() == pytest.approx(1, abs=1e-7)
    assert (jacobian - torch.eye(6)).abs().max() > 0.5


def test_leapfrog_of_a_harmonic_oscillator_goes_round_in_two_pi():
    """U = ½ θ² with ε n = 2π returns to its start, up to the phase error ε²/24 per unit time."""
    start, momentum = normal(4), normal(4, seed=1)
    round_trip = leapfrog(Gaussian(torch.eye(4)), start, momentum, 2 * math.pi / 500, 500)
    quarter = leapfrog(Gaussian(torch.eye(4)), start, momentum, math.pi / 1000, 500)
    torch.testing.assert_close(round_trip.weights, start, rtol=0, atol=2e-4)
    torch.testing.assert_close(quarter.weights, momentum, rtol=0, atol=2e-4)


def test_arguments_are_left_alone():
    start, momentum = normal(3), normal(3, seed=1)
    leapfrog(Gaussian(PRECISION), start, momentum, 0.1, 5)
    assert torch.equal(start, normal(3))
    assert torch.equal(momentum, normal(3, seed=1))


# ---- transitions


def run_chain(target, start, step_size, num_steps, count, seed=0):
    states, infos = [start], []
    for iteration in range(count):
        state, info = transition(target, states[-1], step_size, num_steps, seed, iteration)
        states.append(state)
        infos.append(info)
    return torch.stack(states[1:]).numpy(), infos


@pytest.mark.parametrize(("step_size", "num_steps"), [(0.9, 3), (0.2, 7)])
def test_gaussian_mean_and_covariance(step_size, num_steps):
    """With the large step a fifth is rejected: without that the covariance would be off."""
    mean = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    states, infos = run_chain(Gaussian(PRECISION, mean), mean, step_size, num_steps, 4000)
    if step_size == 0.9:
        assert 0.5 < np.mean([info.accepted for info in infos]) < 0.9
    covariance = np.linalg.inv(PRECISION)
    products = {(i, i): (states[:, i], mean[i].item(), covariance[i, i]) for i in range(3)}
    for (i, _), (values, expected, variance) in products.items():
        error = math.sqrt(variance / ess_bulk(values[None]))
        assert abs(values.mean() - expected) < 4.5 * error
        for j in range(i + 1):
            centred = (values - expected) * (states[:, j] - mean[j].item())
            spread = math.sqrt(covariance[i, i] * covariance[j, j] + covariance[i, j] ** 2)
            error = spread / math.sqrt(ess_bulk(centred[None]))
            assert abs(centred.mean() - covariance[i, j]) < 4.5 * error


def test_the_acceptance_is_that_of_the_energy_change():
    _, infos = run_chain(Gaussian(PRECISION), normal(3), 1.0, 2, 300)
    for info in infos:
        assert info.accept_prob == pytest.approx(min(1, math.exp(-info.delta_energy)))
    share = np.mean([info.accepted for info in infos])
    expected = np.mean([info.accept_prob for info in infos])
    assert abs(share - expected) < 4.5 * 0.5 / math.sqrt(300)
    assert share < 0.95


def test_a_rejection_repeats_the_state():
    states, infos = run_chain(Gaussian(PRECISION), normal(3), 1.3, 3, 100)
    assert 5 < sum(not info.accepted for info in infos) < 95
    for before, after, info in zip(states, states[1:], infos[1:], strict=False):
        assert np.array_equal(before, after) == (not info.accepted)
    last = Gaussian(PRECISION).energy(torch.from_numpy(states[-1]))
    assert infos[-1].potential == pytest.approx(last.potential)


def test_what_diverges_on_the_way_does_so_on_the_way_back():
    """Of a stiff spring, barely stable, ½p² rises far above H at one end only, or at both.

    Were the start alone looked at, some trajectories could be accepted that have no way back.
    """
    spring = Gaussian(300 * torch.eye(1))
    step_size, differ, finite = math.sqrt(3.97 / 300), 0, 0
    for seed in range(200):
        start, momentum = 8 * normal(1, seed=seed), 40 * normal(1, seed=seed + 1000)
        kinetic = []
        there = leapfrog(spring, start, momentum, step_size, 6)
        end, arrived = start.clone(), momentum.clone()
        for _ in range(6):
            arrived -= 0.5 * step_size * 300 * end
            kinetic.append(0.5 * arrived.item() ** 2)
            end += step_size * arrived
            arrived -= 0.5 * step_size * 300 * end
        back = leapfrog(spring, end, -arrived, step_size, 6)
        above = [max(kinetic) - spring.energy(x).potential - 0.5 * p.item() ** 2 >= 1000
                 for x, p in ((start, momentum), (end, arrived))]  # fmt: skip
        differ += above[0] != above[1]
        finite += not any(above)
        for path in (there, back):
            assert (path.delta_energy == math.inf) == any(above)
    assert differ > 10
    assert finite > 10


def test_a_trajectory_cut_short_is_no_state_of_the_chain():
    path = leapfrog(Gaussian(PRECISION), normal(3), normal(3, seed=1), 50.0, 1000)
    assert path.delta_energy == math.inf
    assert path.end == path.start


def test_divergence_is_a_rejection_and_stops_early():
    steps = []
    state, info = transition(
        Gaussian(PRECISION), normal(3), 50.0, 1000, 0, on_step=lambda _: steps.append(1)
    )
    assert torch.equal(state, normal(3))
    assert info.divergent
    assert (info.accepted, info.accept_prob) == (False, 0.0)
    assert len(steps) < 20


def test_nan_is_a_rejection():
    class Broken(Gaussian):
        def __call__(self, weights):
            return weights * math.nan

    state, info = transition(Broken(PRECISION), normal(3), 0.1, 10, 0)
    assert torch.equal(state, normal(3))
    assert info.divergent
    assert not info.accepted


def test_a_transition_depends_on_its_stream_alone():
    target, start = Gaussian(PRECISION), normal(3)
    first, _ = transition(target, start, 0.1, 5, 7, 0, 3)
    assert torch.equal(first, transition(target, start, 0.1, 5, 7, 0, 3)[0])
    for other in ((8, 0, 3), (7, 1, 3), (7, 0, 4)):
        assert not torch.equal(first, transition(target, start, 0.1, 5, *other)[0])


# ---- posteriors


def test_posterior_of_a_bias_in_closed_form():
    """Of images that are all zero a network without hidden layers sees its biases alone. With two
    classes the likelihood depends on δ = b₁ − b₀ only, whose prior is N(0, 2): a density of one
    dimension, integrated numerically. The weights keep their prior N(0, 1)."""
    network = MLP((2, 2))
    images, labels = torch.zeros(9, 2, dtype=torch.float64), torch.tensor([1] * 7 + [0] * 2)
    target = Posterior(network, images, labels)
    states, _ = run_chain(target, torch.zeros(6, dtype=torch.float64), 0.5, 4, 3000)
    delta = np.linspace(-12, 12, 20001)
    density = np.exp(-(delta**2) / 4 - 7 * np.log1p(np.exp(-delta)) - 2 * np.log1p(np.exp(delta)))
    density /= density.sum()
    mean = (density * delta).sum()
    variance = (density * delta**2).sum() - mean**2
    found = states[:, 5] - states[:, 4]
    ess = ess_bulk(found[None])
    assert abs(found.mean() - mean) < 4.5 * math.sqrt(variance / ess)
    assert abs(found.var() - variance) < 4.5 * variance * math.sqrt(2.5 / ess)
    for weight in states[:, :4].T:
        assert abs(weight.mean()) < 4.5 / math.sqrt(ess_bulk(weight[None]))
        assert abs((weight**2).mean() - 1) < 4.5 * math.sqrt(2 / ess_bulk(weight[None] ** 2))


def test_small_posterior_against_importance_sampling():
    """Predictions of a network with 17 weights, beside averages over 100,000 draws from the prior
    weighted by their likelihood, computed in NumPy."""
    network, rng = MLP((2, 3, 2), "tanh"), np.random.default_rng(0)
    images = rng.normal(size=(8, 2))
    labels = (images[:, 0] * images[:, 1] > 0).astype(int)
    questions = rng.normal(size=(5, 2))

    def log_probabilities(draws, inputs):
        first, bias = draws[:, :6].reshape(-1, 3, 2), draws[:, 6:9]
        second, other_bias = draws[:, 9:15].reshape(-1, 2, 3), draws[:, 15:]
        hidden = np.tanh(np.einsum("khi,ni->knh", first, inputs) + bias[:, None])
        outputs = np.einsum("kch,knh->knc", second, hidden) + other_bias[:, None]
        return outputs - np.logaddexp(outputs[..., 0], outputs[..., 1])[..., None]

    draws = rng.normal(size=(100_000, 17))
    weight = np.exp(log_probabilities(draws, images)[:, np.arange(8), labels].sum(1))
    weight /= weight.sum()
    answers = np.exp(log_probabilities(draws, questions)[..., 1])
    expected = weight @ answers
    errors = np.sqrt((weight**2) @ (answers - expected) ** 2)

    target = Posterior(network, torch.from_numpy(images), torch.from_numpy(labels))
    states, infos = run_chain(target, torch.zeros(17, dtype=torch.float64), 0.25, 6, 2500)
    assert np.mean([info.accepted for info in infos]) > 0.6
    found = network.outputs(torch.from_numpy(states), torch.from_numpy(questions)).softmax(-1)
    for k, values in enumerate(found[..., 1].numpy().T):
        error = math.hypot(errors[k], values.std() / math.sqrt(ess_bulk(values[None])))
        assert error < 0.02
        assert abs(values.mean() - expected[k]) < 4.5 * error


def test_posterior_in_closed_form_by_the_way_that_the_script_takes():
    """Several chains, in float32, with jitter and neighbour lists that leave most images alone.

    With two classes, one pixel and no hidden layer the likelihood depends on the differences of
    the two weights and of the two biases only, whose priors are N(0, 2): integrated on a grid.
    60 images of a bright pixel are far from the boundary nearly always; 12 others are near it.
    Six numbers within 4.5 standard errors: another seed would fail them once in 20,000 times.
    """
    near = torch.linspace(-1, 1, 12)
    pixels = torch.cat([torch.full((30,), 100.0), torch.full((30,), -100.0), near])
    labels = torch.cat([pixels[:60] > 0, torch.arange(12) % 3 > 0]).long()
    target = Posterior(MLP((1, 2)), pixels[:, None], labels, "listed")
    settings = HMCSettings(0.05, 0, trajectory_length=1.2, jitter=0.3)
    chains = start_chains(torch.tensor([[-0.5, 0.5, 0.0, 0.0]]).repeat(2, 1), settings)
    states, results = [], []
    for _ in range(500):
        chains, made = advance(target, chains, settings, seed=0)
        states.append(chains.weights)
        results += made
    states = torch.stack(states, 1).double().numpy()  # [chains, draws, weights]
    assert chains.weights.dtype == torch.float32
    assert len({result.num_steps for result in results}) > 10
    assert np.mean([result.list_rows for result in results]) < 36  # of 72 images
    assert 0.5 < np.mean([result.accepted for result in results]) < 0.95

    slope, offset = np.meshgrid(np.linspace(-6, 8, 1401), np.linspace(-8, 8, 801), indexing="ij")
    log_density = -(slope**2 + offset**2) / 4
    for pixel, label in zip(pixels.double().tolist(), labels.tolist(), strict=True):
        log_density -= np.logaddexp(0, (1 - 2 * label) * (slope * pixel + offset))
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    slopes, offsets = states[..., 1] - states[..., 0], states[..., 3] - states[..., 2]
    sums = states[..., 1] + states[..., 0], states[..., 3] + states[..., 2]
    for found, expected in [
        (slopes, (density * slope).sum()),
        (slopes**2, (density * slope**2).sum()),
        (offsets, (density * offset).sum()),
        (offsets**2, (density * offset**2).sum()),
        (sums[0] ** 2, 2.0),  # of which the data tell nothing
        (sums[1] ** 2, 2.0),
    ]:
        assert abs(found.mean() - expected) < 4.5 * found.std() / math.sqrt(ess_bulk(found))


def geweke_scores(count: int) -> np.ndarray:
    """z-scores of Geweke's (2004) joint-distribution test on a network with 12 weights.

    Labels drawn given the weights, and weights moved given the labels, in turn: the weights then
    have their prior as marginal distribution. The step is so large that most of correctness rests
    on the accept step.
    """
    network, labels_stream = MLP((2, 2, 2), "tanh"), torch.Generator().manual_seed(3)
    images = 2 * normal(6, 2, seed=4)
    weights, tests = normal(12, seed=5), []
    for iteration in range(count):
        chances = network.outputs(weights, images).softmax(-1)
        labels = torch.multinomial(chances, 1, generator=labels_stream).squeeze(1)
        target = Posterior(network, images, labels)
        weights, _ = transition(target, weights, 1.1, 2, 6, iteration)
        tests.append([*weights.tolist(), *weights.square().tolist()])
    tests = np.array(tests).T
    expected = np.repeat([0.0, 1.0], 12)
    variance = np.repeat([1.0, 2.0], 12)
    errors = np.sqrt(variance / [ess_bulk(values[None]) for values in tests])
    return (tests.mean(axis=1) - expected) / errors


def test_geweke_joint_distribution():
    """24 numbers: another seed would fail it once in 6,000 times."""
    assert np.abs(geweke_scores(count=2500)).max() < 4.5


def test_geweke_notices_a_broken_accept_step(monkeypatch):
    always = SimpleNamespace(exp=lambda change: 1.0)  # but for divergences
    monkeypatch.setattr(hmc, "math", always)
    assert np.abs(geweke_scores(count=800)).max() > 10


# ---- adaptation and chains


def test_step_size_adapts_to_the_target_acceptance():
    target = Gaussian(torch.diag(torch.linspace(1, 400, 50, dtype=torch.float64)))
    settings = HMCSettings(
        0.05, 300, trajectory_length=1.5, jitter=0.5, adapt_step_size=True, target_acceptance=0.8
    )
    chains = start_chains(normal(1, 50), settings)
    results = []
    for _ in range(700):
        chains, (result,) = advance(target, chains, settings, seed=0)
        results.append(result)
    sampling = results[300:]
    assert len({result.step_size for result in sampling}) == 1  # frozen
    assert np.mean([result.accept_prob for result in sampling]) == pytest.approx(0.8, abs=0.08)


def test_dual_averaging_by_hand():
    """Two updates of Hoffman & Gelman's equations (6), with μ = log ε₀."""
    adaptation = StepSizeAdaptation.start(0.1).update(1.0, 0.8).update(0.5, 0.8)
    first_error = -0.2 / 11
    first_step = math.log(0.1) - 1 / 0.05 * first_error
    error = first_error * (1 - 1 / 12) + 0.3 / 12
    step = math.log(0.1) - math.sqrt(2) / 0.05 * error
    average = 2**-0.75 * step + (1 - 2**-0.75) * first_step
    assert adaptation.error == pytest.approx(error)
    assert adaptation.log_step == pytest.approx(step)
    assert adaptation.log_average == pytest.approx(average)


@pytest.mark.parametrize(("acceptance", "farthest"), [(0.0, 0.001), (1.0, 10.0)])
def test_the_step_size_stays_within_a_factor_of_100(acceptance, farthest):
    adaptation = StepSizeAdaptation.start(0.1)
    for _ in range(1000):
        adaptation = adaptation.update(acceptance, 0.8)
    assert math.exp(adaptation.log_step) == pytest.approx(farthest)
    assert 0.001 < math.exp(adaptation.log_average) < 10.0


def test_lengths_vary_by_the_jitter_and_grow_in_burnin():
    settings = HMCSettings(0.01, 10, trajectory_length=1.0, jitter=0.2, grow_trajectories=True)
    adaptation = StepSizeAdaptation.start(0.01)
    drawn = [settings.draw_steps(adaptation, 10 + i, 0, i) for i in range(500)]
    assert min(drawn) in range(80, 83)
    assert max(drawn) in range(118, 121)
    assert np.mean(drawn) == pytest.approx(100, abs=4.5 * 11.5 / math.sqrt(500))
    assert [settings.expected_steps(adaptation, i) for i in (0, 4, 9)] == [10, 50, 100]
    assert HMCSettings(0.001, 0, num_steps=500).draw_steps(adaptation, 0, 0) == 500


@pytest.mark.parametrize(
    "settings",
    [
        HMCSettings(0.1, 0, num_steps=5),
        HMCSettings(0.5, 5, trajectory_length=4.0, jitter=0.5, adapt_step_size=True),
    ],
    ids=["fixed", "adapted and jittered"],
)
def test_chains_are_what_they_would_be_alone(settings):
    """Each with step sizes that follow from its own acceptances, and lengths drawn for it."""
    target, start, made = Gaussian(PRECISION), normal(2, 3), []
    both = start_chains(start, settings)
    for _ in range(8):
        both, results = advance(target, both, settings, seed=1)
        made.append(results)
    for k in range(2):
        state, adaptation = start[k], StepSizeAdaptation.start(settings.step_size)
        for iteration in range(8):
            step_size = settings.step_size_at(adaptation, iteration)
            num_steps = settings.draw_steps(adaptation, iteration, 1, "length", k, iteration)
            state, alone = transition(target, state, step_size, num_steps, 1, k, iteration)
            assert made[iteration][k]._replace(seconds=0) == alone._replace(seconds=0)
            if iteration < settings.num_burnin:
                adaptation = adaptation.update(alone.accept_prob, settings.target_acceptance)
        assert torch.equal(both.weights[k], state)
    assert not torch.equal(both.weights[0], both.weights[1])
    assert isinstance(both, Chains)
    assert both.iteration == 8
    assert torch.equal(start, normal(2, 3))
