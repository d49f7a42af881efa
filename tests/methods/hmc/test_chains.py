"""The sampler against known answers. Statistical tests have fixed seeds; their bounds are at 4.5
standard errors or more, so that another seed would fail them once in 100,000 times per number."""

import math
from types import SimpleNamespace

from tests.methods.hmc.targets import PRECISION, Gaussian, normal
from utils.evaluation.diagnostics import ess_bulk
from utils.methods.hmc import chains as chains_module
from utils.methods.hmc.adaptation import HMCSettings, StepSizeAdaptation
from utils.methods.hmc.chains import advance, start_chains, transition
from utils.methods.hmc.potential import Potential
from utils.networks.mlp import MLP
from utils.posteriors.prior import Prior

import numpy as np
import pytest
import torch

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


def test_divergence_is_a_rejection_and_stops_early():
    steps = []
    state, info = transition(
        Gaussian(PRECISION), normal(3), 50.0, 1000, 0, on_step=lambda: steps.append(1)
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


@pytest.mark.parametrize(("std", "temperature"), [(1.0, 1.0), (0.6, 1.0), (1.5, 0.3)])
def test_posterior_of_a_bias_in_closed_form(std, temperature):
    """Of images that are all zero a network without hidden layers sees its biases alone. With two
    classes the likelihood depends on δ = b₁ − b₀ only, whose prior is N(0, 2 s²): a density of one
    dimension, integrated numerically. The weights keep their prior, N(0, T s²) at temperature T."""
    network = MLP((2, 2))
    images, labels = torch.zeros(9, 2, dtype=torch.float64), torch.tensor([1] * 7 + [0] * 2)
    prior = Prior(std).tempered(temperature)
    target = Potential(network, images, labels, prior=prior, temperature=temperature)
    steps = 0.5 * std * math.sqrt(temperature), 4 if std > 0.6 else 3  # no period of δ's
    states, _ = run_chain(target, torch.zeros(6, dtype=torch.float64), *steps, 3000)
    delta = np.linspace(-12, 12, 20001)
    likelihood = -7 * np.log1p(np.exp(-delta)) - 2 * np.log1p(np.exp(delta))
    density = np.exp((likelihood - delta**2 / (4 * std**2)) / temperature)
    density /= density.sum()
    mean = (density * delta).sum()
    variance = (density * delta**2).sum() - mean**2
    found = states[:, 5] - states[:, 4]
    ess = ess_bulk(found[None])
    assert abs(found.mean() - mean) < 4.5 * math.sqrt(variance / ess)
    assert abs(found.var() - variance) < 4.5 * variance * math.sqrt(2.5 / ess)
    for weight in states[:, :4].T:
        weight = weight / (std * math.sqrt(temperature))
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

    target = Potential(network, torch.from_numpy(images), torch.from_numpy(labels))
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
    target = Potential(MLP((1, 2)), pixels[:, None], labels, "listed")
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
        target = Potential(network, images, labels)
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
    monkeypatch.setattr(chains_module, "math", always)
    assert np.abs(geweke_scores(count=800)).max() > 10


# ---- chains


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
    assert both.iteration == 8
    assert torch.equal(start, normal(2, 3))
