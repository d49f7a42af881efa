"""R-hat and ESS against known answers and a second computation, term by term."""

import math
from statistics import NormalDist

from utils.evaluation import diagnostics
from utils.evaluation.diagnostics import (
    REJECTED_GAP,
    REJECTED_MISS,
    Quantities,
    WaysBack,
    diagnose_all,
    energy_balance,
    ess_bulk,
    ess_mean,
    ess_tail,
    rank_normalise,
    rhat,
    shortfalls,
    slow_groups,
    split,
    ways_back,
)
from utils.methods.hmc import leapfrog
from utils.methods.hmc.leapfrog import WayBack
from utils.networks.mlp import MLP
from utils.networks.predictions import class_probabilities

import numpy as np
import pytest
import torch
from scipy.stats import binom


def ar1(correlation, chains=4, draws=5000, seed=0):
    """Stationary AR(1) chains: the ESS of their mean is (1 − ρ) / (1 + ρ) of the draws."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(chains, draws)) * math.sqrt(1 - correlation**2)
    values = np.empty_like(noise)
    values[:, 0] = rng.normal(size=chains)
    for i in range(1, draws):
        values[:, i] = correlation * values[:, i - 1] + noise[:, i]
    return values


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_ess_of_autoregressive_chains(correlation):
    share = ess_bulk(ar1(correlation)) / 20000
    assert share == pytest.approx((1 - correlation) / (1 + correlation), rel=0.15)


def test_antithetic_chains_have_more_effective_draws_than_draws():
    assert ess_bulk(ar1(-0.5)) > 2.5 * 20000


def test_antithetic_draws_count_for_a_limited_number():
    """S log₁₀ S of S draws, where Geyer's sum of alternating ones would be about none."""
    alternating = (-1.0) ** np.arange(100) + 0.1 * ar1(0.0, draws=100)
    assert ess_bulk(alternating) == pytest.approx(400 * math.log10(400))


def test_ess_of_few_draws_term_by_term():
    """Geyer's sum with every autocorrelation written as a loop over draws."""
    draws = ar1(0.6, chains=2, draws=40, seed=3)
    z = rank_normalise(split(draws))
    chains, n = z.shape
    within = np.mean([np.sum((c - c.mean()) ** 2) / (n - 1) for c in z])
    between = n * np.var([c.mean() for c in z], ddof=1)
    total = (n - 1) / n * within + between / n
    rho = [1.0]
    for lag in range(1, n):
        products = [
            sum((c[i] - c.mean()) * (c[i + lag] - c.mean()) for i in range(n - lag)) / n for c in z
        ]
        rho.append(1 - (within - np.mean(products)) / total)
    tau, smallest, lag = -1.0, math.inf, 0
    while lag + 4 < n and rho[lag] + rho[lag + 1] >= 0:
        smallest = min(smallest, rho[lag] + rho[lag + 1])
        tau += 2 * smallest
        lag += 2
    tau += max(rho[lag], 0)
    assert ess_bulk(draws) == pytest.approx(chains * n / tau)


@pytest.mark.parametrize(
    ("draws", "bulk", "tail", "mean"),
    [
        (ar1(0.6, chains=2, draws=40, seed=3), 26.22350467, 93.48093481, 24.37788575),
        (ar1(0.9, chains=1, draws=250, seed=1), 17.12927370, 15.59458954, 16.88069436),
        (ar1(-0.3, chains=3, draws=61, seed=2), 405.9490509, 220.1229686, 405.9490509),
    ],
)
def test_ess_is_that_of_arviz(draws, bulk, tail, mean):
    """`arviz.ess` of arviz 0.23.4, by these methods."""
    assert (ess_bulk(draws), ess_tail(draws), ess_mean(draws)) == pytest.approx((bulk, tail, mean))


def test_ranks_are_normalised_as_blom_does():
    z = rank_normalise(np.array([[3.0, 1.0], [2.0, 2.0]]))
    expected = [[(4 - 0.375) / 4.25, (1 - 0.375) / 4.25], [2.125 / 4.25, 2.125 / 4.25]]
    np.testing.assert_allclose(z, np.vectorize(NormalDist().inv_cdf)(expected), atol=1e-12)


FACTORS = np.array([[1.0], [2.0], [3.0], [4.0]])


@pytest.mark.parametrize(
    ("draws", "expected"),
    [
        (np.exp(ar1(0.3, draws=25)) * FACTORS, 1.2332770645742321),  # as they are: 1.139
        (5 + ar1(0.3, draws=25) * FACTORS, 1.1588540856099485),  # without folding: 1.054
    ],
    ids=["location", "scale"],
)
def test_rhat_is_that_of_arviz(draws, expected):
    """`arviz.rhat` of arviz 0.23.4: so few draws tell every n from n − 1, and 25 have no half."""
    assert rhat(draws) == pytest.approx(expected, rel=1e-12)


def test_rhat_of_good_chains_is_one():
    assert rhat(ar1(0.3)) == pytest.approx(1, abs=0.005)


def test_rhat_notices_chains_at_different_places():
    draws = ar1(0.0, chains=2)
    draws[1] += 1
    # four halves of variance 1 with means 0, 0, 1, 1, whose variance is 1/3
    assert rhat(draws) == pytest.approx(math.sqrt(1 + 1 / 3), abs=0.02)


def test_chains_stuck_in_different_places_have_not_converged():
    """As where every proposal is rejected: no variance within, and that must not look fine."""
    stuck = np.repeat([[1.0], [2.0]], 50, axis=1)
    assert rhat(stuck) == math.inf
    group = diagnose_all(stuck[:, :, None], ["weights/0"], hours=1.0)["groups"]["weights"]
    assert group["largest_rhat"] == math.inf
    assert group["smallest_ess_bulk"] < 5


def test_rhat_notices_different_scales_and_trends():
    scales = ar1(0.0, chains=2)
    scales[1] *= 3
    assert rhat(scales) > 1.05
    trend = ar1(0.0, chains=1, draws=500) + np.linspace(0, 3, 500)  # one chain, split in two
    assert rhat(trend) > 1.2


def test_heavy_tails_do_not_matter():
    """Of Cauchy draws, that have no variance, the ranks are still good."""
    draws = np.random.default_rng(0).standard_cauchy((4, 1000))
    assert rhat(draws) == pytest.approx(1, abs=0.01)
    assert ess_bulk(draws) == pytest.approx(4000, rel=0.15)
    assert ess_tail(draws) == pytest.approx(4000, rel=0.25)


def test_tail_ess_is_of_the_quantiles():
    """A chain that changes its scale slowly is fine in the middle and bad in the tails."""
    slow = np.exp(1.5 * ar1(0.995, chains=4, draws=2000))
    draws = slow * np.random.default_rng(1).normal(size=slow.shape)
    assert ess_tail(draws) < 0.3 * ess_bulk(draws)


def test_the_tail_begins_at_5_percent():
    """The lowest 5 % of otherwise independent draws come in one piece: one excursion a chain."""
    draws = np.random.default_rng(0).normal(size=(2, 1000))
    draws[:, 100:150] = np.sort(draws, axis=1)[:, :1] - 1
    assert ess_tail(draws) < 60 < 150 < ess_bulk(draws)  # from 10 % on it would be 88


def test_energy_balance_of_changes_as_exact_hmc_has_them():
    """For ΔH ~ N(s²/2, s²) the mean of exp(−ΔH) is 1; within 4 of its errors, 1 in 16,000 fails."""
    changes = np.random.default_rng(0).normal(0.3**2 / 2, 0.3, 20_000)
    balance, error = energy_balance(changes.tolist())
    assert error == pytest.approx((math.exp(0.3**2) - 1) ** 0.5 / 20_000**0.5, rel=0.05)
    assert abs(balance - 1) < 4 * error
    assert abs(energy_balance((changes + 0.1).tolist())[0] - 1) > 4 * error
    assert energy_balance([0.0, None])[0] == 0.5


def test_constants_have_no_diagnostics_and_do_not_spoil_their_group():
    draws = np.stack([ar1(0.0, 1, 100)[0], np.ones(100)], axis=-1)[None]
    found = diagnose_all(draws, ["probability/0", "probability/1"], hours=2.0)
    assert math.isnan(found["quantities"]["probability/1"]["ess_bulk"])
    group = found["groups"]["probability"]
    assert group["median_ess_bulk_per_hour"] == pytest.approx(group["smallest_ess_bulk"] / 2)
    assert diagnose_all(np.ones((1, 50, 1)), ["p/0"], 1.0)["groups"] == {"p": {}}


def test_a_group_is_as_good_as_its_worst():
    good, bad = ar1(0.0, chains=2, draws=500), ar1(0.9, chains=2, draws=500)
    draws = np.stack([good, good + 1, bad], axis=-1)
    found = diagnose_all(draws, ["weights/0", "weights/1", "weights/2"], hours=1.0)
    assert found["groups"]["weights"] == {
        "largest_rhat": rhat(bad),
        "smallest_ess_bulk": ess_bulk(bad),
        "median_ess_bulk": ess_bulk(good),
        "smallest_ess_tail": ess_tail(bad),
        "smallest_ess_squares": ess_mean((bad - bad.mean()) ** 2),
        "median_ess_squares": np.median([ess_mean((d - d.mean()) ** 2) for d in (good, good, bad)]),
        "median_ess_bulk_per_hour": ess_bulk(good),
    }
    assert rhat(bad) > rhat(good)
    assert ess_bulk(bad) < ess_bulk(good)
    assert ess_tail(bad) < ess_tail(good)


def test_quantities_of_a_sample():
    network = MLP((5, 4, 3))
    random = torch.Generator().manual_seed(0)
    images, labels = torch.rand(50, 5, generator=random), torch.randint(3, (50,), generator=random)
    quantities = Quantities(network, labels, seed=1)
    weights = torch.randn(network.num_weights, generator=random)
    probabilities = class_probabilities(network, weights, images)
    numbers = quantities.measure(weights, probabilities, train_nll=7.5)
    named = dict(zip(quantities.names, numbers.tolist(), strict=True))
    chosen = probabilities.double()[range(50), labels]
    assert named["test_log_likelihood"] == pytest.approx(chosen.log().sum().item())
    assert named["train_nll"] == 7.5
    assert named["mean_squared_weight"] == pytest.approx(weights.square().mean().item())
    assert named["probability/0"] == pytest.approx(1 - chosen[0].item(), abs=1e-6)
    assert named["probability/49"] == pytest.approx(1 - chosen[49].item(), abs=1e-6)
    moved = weights.clone()
    moved[:-15] += 1  # all but the output layer
    others = dict(zip(quantities.names, quantities.measure(moved, probabilities, 0), strict=True))
    for i in range(diagnostics.NUM_PROJECTIONS):
        assert others[f"output_layer/{i}"] == pytest.approx(named[f"output_layer/{i}"])
        assert others[f"weights/{i}"] != pytest.approx(named[f"weights/{i}"], abs=1e-3)
    moved = weights.clone()
    moved[-15] += 1  # the first weight of the output layer, of which there are 12, and 3 biases
    others = dict(zip(quantities.names, quantities.measure(moved, probabilities, 0), strict=True))
    for i in range(diagnostics.NUM_PROJECTIONS):
        assert others[f"output_layer/{i}"] != pytest.approx(named[f"output_layer/{i}"], abs=1e-5)


def test_ess_of_squares_sees_a_sign_that_flips():
    """x = ±y with a slow y: the mean has as many effective draws as there are, the variance few."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (2, 2000))
    draws = signs * np.exp(ar1(0.98, chains=2, draws=2000))
    numbers = diagnostics.diagnose(draws)
    assert numbers["ess_squares"] < 300 < 2000 < ess_mean(draws)


def converged(**changes):
    group = {"largest_rhat": 1.002, "smallest_ess_bulk": 500.0}
    groups = {"probability": group, "invariants": group, "weights": group}
    groups |= {name: group | change for name, change in changes.items()}
    return {"chains": 4, "groups": groups}


RETURNED = WaysBack(followed=300, missed=0, largest_gap=0.1)


def test_a_reference_is_judged_by_functions_and_invariants_alone():
    assert shortfalls(converged(), RETURNED) == []
    switched = converged(weights={"largest_rhat": 1.6, "smallest_ess_bulk": 5.0})
    assert shortfalls(switched, RETURNED) == [] == slow_groups(switched["groups"])
    for worse in (
        converged(probability={"largest_rhat": 1.02}),
        converged(invariants={"smallest_ess_bulk": 399.0}),
        converged(invariants={"largest_rhat": None}),
        converged() | {"chains": 1},
    ):
        assert len(shortfalls(worse, RETURNED)) == 1
    assert len(slow_groups(converged(invariants={"largest_rhat": 1.06})["groups"])) == 1


@pytest.mark.parametrize(
    ("followed", "missed", "words"),
    [
        (0, 0, "no trajectory was followed back"),
        (13, 2, "trajectories do not return (2 of 13 missed, so up to 41 %"),
        (13, 0, "too few trajectories were followed back (0 of 13 missed, so up to 20.6 %"),
        (3, 3, "trajectories do not return (3 of 3 missed, so up to 100 %"),
        (148, 0, "too few"),  # 0.98^148 = 0.0503, and 0.98^149 = 0.0493
        (149, 0, None),
        (1000, 12, None),  # 12 or fewer of 1,000 at 2 %: 3.8 %, and 13 or fewer: 6.3 %
        (1000, 13, "too few"),
    ],
)
def test_trajectories_of_a_reference_return(followed, missed, words):
    """All but 2 %, with 95 % confidence: by hand, and by the binomial distribution."""
    back = WaysBack(followed, missed, 0.1)
    found = shortfalls(converged(), back)
    assert len(found) == (words is not None)
    assert found == [] or found[0].startswith(words)
    if missed < followed:
        assert binom.cdf(missed, followed, back.largest_share) == pytest.approx(0.05)


def test_ways_back_are_counted_as_hmc_rejects_them():
    numbers = [(0.0, 0.3), (0.009, -0.99), (0.011, 0.0), (0.0, -1.01), (None, None), (0.0, None)]
    records = [
        {"followed_back": True, "reversal_miss": miss, "reversal_gap": gap} for miss, gap in numbers
    ]
    returned = [
        WayBack(*(math.nan if number is None else number for number in pair)).returned
        for pair in numbers
    ]
    others = [{"followed_back": False, "reversal_miss": 0.0, "reversal_gap": 0.0}, {}]
    back = ways_back(records + others)
    assert (back.followed, back.missed) == (6, 4) == (6, returned.count(False))
    assert back.largest_gap is None
    assert ways_back(records[:4]).largest_gap == 1.01
    assert (REJECTED_MISS, REJECTED_GAP) == (leapfrog.LARGEST_MISS, leapfrog.LARGEST_GAP)
    assert ways_back(others) == WaysBack(0, 0, None)


def test_quantities_of_earlier_versions_are_completed():
    """Their rows lack the invariants, which follow from the samples; unfilled rows stay empty."""
    network = MLP((5, 4, 3))
    quantities = Quantities(network, torch.zeros(30, dtype=torch.long), seed=1)
    samples = np.random.default_rng(0).normal(size=(3, network.num_weights)).astype("float32")
    probabilities = torch.full((30, 3), 1 / 3)
    whole = np.stack([quantities.measure(torch.tensor(s), probabilities, 2.0) for s in samples])
    samples[2] = whole[2] = 0
    count = sum(not name.startswith("invariants") for name in quantities.names)
    completed = quantities.complete(whole[:, :count], samples)
    np.testing.assert_allclose(completed, whole, rtol=1e-12)
    assert quantities.complete(completed, samples) is completed
