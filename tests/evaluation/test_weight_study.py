"""Dead pixels, shares at the prior, mixing, references and the prior as a null."""

from tests.symmetry.planted import any_permutation
from utils.data.datasets import Dataset
from utils.evaluation.alignment import spaced_beside, spaced_references
from utils.evaluation.checks import study_prior, study_references
from utils.evaluation.setting import EvaluationConfig, Setting
from utils.evaluation.weight_space import move_together
from utils.evaluation.weight_study import (
    by_group,
    check_dead_pixels,
    check_dead_weights,
    choose_watched,
    correlations,
    dead_weights,
    describe_dead,
    mixing,
    num_effective,
    prior_band,
    share_at_prior,
    weight_groups,
)
from utils.networks.mlp import MLP
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.moments import fit_blocks, merge_all
from utils.rebasin.assignment import Matching
from utils.rebasin.matching import make_matcher
from utils.symmetry.permutation import expected_transpositions
from utils.symmetry.transformation import Transformation

import numpy as np
import pytest
import torch

NETWORK = MLP((8, 30, 3))


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images() -> torch.Tensor:
    values = torch.rand(100, 8, generator=random(1))
    values[:, [2, 5]] = 0
    return values


def chain(length: int, size: int, memory: float, std: float = 1.0, seed: int = 3) -> torch.Tensor:
    """A stationary AR(1) chain of N(0, std²), with correlation `memory` from step to step."""
    noise = torch.randn(length, size, generator=random(seed), dtype=torch.float64)
    states = [noise[0]]
    for step in noise[1:]:
        states.append(memory * states[-1] + (1 - memory**2) ** 0.5 * step)
    return std * torch.stack(states)


# ---- groups


def test_dead_weights_are_the_columns_of_dark_pixels():
    dead = dead_weights(NETWORK, images())
    weight, bias = NETWORK.layers(dead)[0]
    assert weight.sum(0).tolist() == [0, 0, 30, 0, 0, 30, 0, 0]
    assert dead.sum() == 60
    assert not bias.any()
    seldom = images()
    seldom[-1, 5] = 0.1  # one dot in one image is enough to live
    assert dead_weights(NETWORK, seldom).sum() == 30


def test_groups_hold_every_weight_once():
    groups = weight_groups(NETWORK, dead_weights(NETWORK, images()))
    assert {name: int(mask.sum()) for name, mask in groups.items()} == {
        "W1": 180, "b1": 30, "W2": 90, "b2": 3, "dead pixels": 60,
    }  # fmt: skip
    assert torch.stack(list(groups.values())).sum(0).eq(1).all()
    watched = choose_watched(groups, seed=0)
    assert {name: len(indices) for name, indices in watched.items()} == {
        "W1": 64, "b1": 30, "W2": 64, "b2": 3, "dead pixels": 60,
    }  # fmt: skip
    assert all(groups[name][indices].all() for name, indices in watched.items())


# ---- beside the prior


def check_of(samples: torch.Tensor) -> dict:
    """As the script does it: the effective samples are those of 64 of the weights."""
    moments = merge_all(fit_blocks(samples, len(samples)))
    found = mixing(by_group(samples[:, :64].numpy(), {"dead": 64}, num_chains=1))
    every = torch.ones(samples.shape[1], dtype=torch.bool)
    return check_dead_weights(moments, every, found["dead"]["median_ess"])


@pytest.mark.parametrize("memory", [0, 0.5, 0.8])
def test_dead_weights_pass_whatever_the_chains_memory(memory):
    check = check_of(chain(200, 4000, memory))  # |z| < 4 fails 1 in 16,000 seeds
    assert check["passed"] is True
    assert check["mean_square"] == pytest.approx(1, abs=4 * check["standard_error"])
    known = (1 - (1 + memory) / (1 - memory) / 200) ** 0.5  # of an AR(1) chain of 200
    assert check["std"] == pytest.approx(known, abs=0.005)
    assert check["std_expected"] == pytest.approx(known, abs=0.01)


def test_a_chain_that_has_not_left_its_start_is_not_held_against_the_prior():
    """It began at a draw from the prior, so its mean square is 1 and tells nothing."""
    assert check_of(chain(92, 4000, 0.999))["passed"] is None


def test_a_chain_that_trembles_around_its_start_does_not_pass():
    frozen = chain(1, 4000, 0) + 1e-4 * chain(92, 4000, 0, seed=5)
    check = check_of(frozen)
    assert abs(check["z"]) < 4  # the mean square alone would not tell
    assert check["passed"] is False


@pytest.mark.parametrize("std", [0.95, 1.05])
def test_dead_weights_of_another_size_do_not_pass(std):
    assert check_of(chain(200, 4000, 0.5, std))["passed"] is False


def test_no_dead_pixels_no_check():
    moments = merge_all(fit_blocks(chain(10, 5, 0), 10))
    assert check_dead_weights(moments, torch.zeros(5, dtype=torch.bool), 10) is None


@pytest.mark.parametrize("num_dead", [0, 5000])
def test_of_weights_at_the_prior_the_band_holds_95_percent(num_dead):
    groups = {"W1": torch.ones(20_000, dtype=torch.bool)}
    if num_dead:
        dead = torch.arange(20_000) < num_dead
        groups = {"W1": ~dead, "dead pixels": dead}
    samples = chain(50, 20_000, 0)
    known = torch.arange(20_000) >= 10_000  # half of the weights are known better than a priori
    samples[:, known] *= 0.5
    posterior = merge_all(fit_blocks(samples, 50)).gaussian()
    watched = {"W1": samples[None, :, :64].numpy()}
    found = share_at_prior(posterior, groups, prior_band(posterior, groups, watched, num_dead > 0))
    expected = 0.95 * (10_000 - num_dead) / (20_000 - num_dead)
    assert found["share"]["alive"] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("num_chains", "memory", "rejected"), [(1, 0, 0.25), (1, 0.5, 0.25), (4, 0, 0.5)]
)
def test_the_band_knows_that_samples_are_repeated(num_chains, memory, rejected):
    """With the samples counted as independent it would hold 80 to 86 % of these weights."""
    moves = np.random.default_rng(0).random((num_chains, 240 // num_chains)) > rejected
    chains = [
        chain(240, 20_000, memory, seed=number)[row.cumsum()] for number, row in enumerate(moves)
    ]
    samples = torch.cat(chains)
    posterior = merge_all(fit_blocks(samples, 240)).gaussian()
    groups = {"W1": torch.ones(20_000, dtype=torch.bool)}
    watched = by_group(samples[:, :64].numpy(), {"W1": 64}, num_chains)
    share = share_at_prior(posterior, groups, prior_band(posterior, groups, watched, False))[
        "share"
    ]
    assert share["W1"] == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize("follow_prior", [True, False])
def test_dead_weights_that_do_not_follow_the_prior_give_no_band(follow_prior):
    """Such as those of a chain with far too small a σ: all its weights are alike."""
    dead = torch.arange(20_000) < 5000
    samples = chain(200, 20_000, 0, std=0.01)
    posterior = merge_all(fit_blocks(samples, 200)).gaussian()
    watched = by_group(samples[:, :64].numpy(), {"dead pixels": 64}, 1)
    groups = {"W1": ~dead, "dead pixels": dead}
    band = prior_band(posterior, groups, watched, follow_prior)
    share = share_at_prior(posterior, groups, band)["share"]["alive"]
    assert share == pytest.approx(0.95 if follow_prior else 0, abs=0.01)


def test_without_effective_sizes_there_is_no_band():
    groups = {"W1": torch.ones(50, dtype=torch.bool)}
    for samples in (chain(7, 50, 0), chain(1, 50, 0).repeat(20, 1)):
        posterior = merge_all(fit_blocks(samples, len(samples))).gaussian()
        assert prior_band(posterior, groups, {"W1": samples[None].numpy()}, False) is None


def test_dead_pixels_after_rebasin_and_of_gaussians_are_looked_at_too():
    dead = torch.arange(5000) < 4000
    good, bad = (merge_all(fit_blocks(chain(200, 5000, 0, std), 200)) for std in (1, 1.1))
    mixed = {when: {"dead pixels": {"median_ess": 200.0}} for when in ("before", "after")}
    checks = check_dead_pixels({"before": good, "after": bad}, mixed, dead)
    assert checks["dead_pixels"]["passed"] is True
    assert checks["dead_pixels_rebased"]["passed"] is False
    assert check_dead_pixels({"before": good}, mixed, dead)["dead_pixels_rebased"] is None
    fitted = Gaussian(torch.full((5000,), 0.1), torch.where(dead, 0.9, 5.0))
    assert describe_dead(fitted, dead) == pytest.approx({"std": 0.9, "root_mean_square": 0.1})
    assert describe_dead(fitted, dead & ~dead) is None


def test_rebasin_leaves_the_verdict_on_dead_pixels_as_it_was():
    """Units of slow chains change places in every sample: the numbers stay, in other places."""
    samples, units = chain(300, 4000, 0.9), 100
    order = torch.stack([torch.randperm(units, generator=random(k)) for k in range(len(samples))])
    moved = samples.reshape(-1, units, 40)[torch.arange(len(samples))[:, None], order]
    moments = [merge_all(fit_blocks(s, 300)) for s in (samples, moved.reshape(len(samples), -1))]
    mixed = {"before": {"dead pixels": {"median_ess": 300 / 19}}}
    mixed["after"] = {"dead pixels": {"median_ess": 300.0}}
    dead = torch.ones(4000, dtype=torch.bool)
    checks = check_dead_pixels(dict(zip(("before", "after"), moments, strict=True)), mixed, dead)
    before, after = checks["dead_pixels"], checks["dead_pixels_rebased"]
    assert after["z"] == pytest.approx(before["z"])
    assert before["passed"] is after["passed"] is True
    mixed["before"]["dead pixels"]["median_ess"] = 5.0  # a chain that has hardly moved
    checks = check_dead_pixels(dict(zip(("before", "after"), moments, strict=True)), mixed, dead)
    assert checks["dead_pixels_rebased"]["passed"] is None


# ---- mixing


def mixing_of(values: np.ndarray, groups: dict[str, int], num_chains: int) -> dict:
    return mixing(by_group(values, groups, num_chains))


def test_mixing_sees_slow_weights_and_shifted_chains():
    fast, slow = (chain(400, 3, memory).numpy() for memory in (0, 0.95))
    shifted = np.concatenate([fast[:200], 5 + fast[200:]])  # two chains in two places
    both = np.concatenate([fast, slow, shifted], axis=1)
    found = mixing_of(both, {"fast": 3, "slow": 3, "shifted": 3}, num_chains=2)
    assert found["fast"]["median_ess"] > 250
    assert found["slow"]["median_ess"] < 60
    assert found["fast"]["largest_rhat"] < 1.05
    assert found["shifted"]["median_rhat"] > 1.5
    assert mixing_of(fast[:14], {"fast": 3}, num_chains=1)
    assert mixing_of(fast[:14], {"fast": 3}, num_chains=2) == {}  # 7 draws of each say nothing


def test_constant_weights_have_no_say_in_mixing_of():
    values = chain(100, 3, 0).numpy()
    values[:, 1] = 0.5
    found = mixing_of(values, {"some": 3}, num_chains=1)["some"]
    assert found["median_ess"] > 50
    assert found["largest_rhat"] < 1.1
    assert mixing_of(values[:, [1]], {"constant": 1}, num_chains=1) == {}


def test_samples_of_several_chains_lie_one_chain_after_the_other():
    """A chain that climbs and one that comes back: taken in turns they would seem to be mixed."""
    climb = np.linspace(0, 1, 100)
    values = np.concatenate([climb, climb[::-1]])[:, None]
    assert mixing_of(values, {"drifting": 1}, num_chains=2)["drifting"]["median_rhat"] > 1.5


def test_correlations_of_every_pair():
    mean = torch.randn(100, generator=random())
    std = torch.rand(100, generator=random(1))
    mask = torch.arange(100) < 50
    found = correlations(
        {
            "a": Gaussian(mean, std),
            "b": Gaussian(2 * mean + 1, -std),
            "c": Gaussian(torch.where(mask, -mean, 100 * mean), std),
        },
        mask,
    )
    assert found.keys() == {"a and b", "a and c", "b and c"}
    assert found["a and b"] == pytest.approx({"mean": 1, "std": -1})
    assert found["a and c"] == pytest.approx({"mean": -1, "std": 1})


# ---- references


LABELS = torch.randint(3, (100,), generator=random(2))
TRUTH = torch.randn(100, 3, generator=random(5), dtype=torch.float64).softmax(-1)


@pytest.fixture
def setting() -> Setting:
    data = Dataset("toy", images(), LABELS, images(), LABELS, num_classes=3)
    return Setting(NETWORK, data, EvaluationConfig(num_draws=3))


def test_permuted_copies_give_the_same_whatever_the_reference(setting):
    weights = torch.randn(NETWORK.num_weights, generator=random(7))
    samples = [any_permutation(NETWORK, k).apply(weights) for k in range(4)]
    references = {str(k): sample for k, sample in enumerate(samples)}
    rows = study_references(setting, TRUTH, samples, references)
    for row in rows.values():
        assert row["average_std"] == 0
        assert row["mean_with_reference"] == pytest.approx(1)
        assert row["mean_with_first"] == pytest.approx(1)
        assert row["total_variation"] == pytest.approx(rows["0"]["total_variation"])
    assert rows["0"]["average_transpositions"] > 15


def test_samples_are_not_rebased_to_one_of_themselves():
    samples = np.random.default_rng(0).random((10, 3))
    assert spaced_beside([0, 4, 9], samples, 4) == [1, 3, 6, 8]
    assert spaced_beside([0, 4, 9], samples, 99) == [1, 2, 3, 5, 6, 7, 8]
    samples[[1, 5, 6]] = samples[[0, 4, 4]]  # proposals were rejected, and the samples repeated
    assert spaced_beside([0, 4, 9], samples, 99) == [2, 3, 7, 8]
    assert spaced_beside([0, 1], samples[7:], 99) == []  # one alone has no deviation


def test_of_few_samples_half_at_most_are_references():
    samples = np.random.default_rng(0).random((6, 3))
    assert spaced_references(samples, 5) == [0, 2, 5]
    assert spaced_references(samples[:3], 5) == [0]
    samples[3:] = samples[0]  # a chain that has stood still
    assert spaced_references(samples, 5) == [0]
    assert spaced_beside([0], samples, 5) == [1, 2]


def test_noise_resembles_its_reference_no_more_than_other_noise_does(setting, monkeypatch):
    """With references among the samples it would by about 1 / √8 = 0.35."""
    draws = torch.randn(10, NETWORK.num_weights, generator=random(11))
    untouched = Matching(Transformation(NETWORK))
    monkeypatch.setattr(Setting, "study_matcher_for", lambda *reference: lambda _: untouched)
    samples = [draws[position] for position in spaced_beside([0, 9], draws.numpy(), 8)]
    rows = study_references(setting, TRUTH, samples, {"0": draws[0], "9": draws[9]})
    for row in rows.values():  # of 273 weights a correlation is good to 0.06
        assert abs(row["mean_with_reference"]) < 0.25


def test_networks_of_the_prior_are_permuted_at_random(setting):
    reference = torch.randn(NETWORK.num_weights, generator=random(7))
    methods = {"same": Gaussian(reference, torch.ones_like(reference))}
    methods["other"] = Gaussian(-reference, torch.ones_like(reference))
    null = study_prior(setting, TRUTH, reference, methods, 40, 40)
    assert null["mean_with"]["same"] == null["mean_with_reference"]
    assert null["mean_with"]["other"] == pytest.approx(-null["mean_with_reference"])
    # NoT of random permutations has a standard deviation of about √(ln 30) = 1.6
    expected = expected_transpositions(30)
    assert null["average_transpositions"] == pytest.approx(expected, abs=4 * 1.6 / 40**0.5)
    assert len(null["transpositions"]) == 40
    # aligning even noise with the reference takes something off its σ
    assert 0.8 < null["average_std"] < 0.97
    assert 0.02 < null["mean_with_reference"] < 0.9


def test_the_null_is_of_as_many_networks_as_hmcs_samples_are_worth(setting):
    """Whatever the study's samples are; alignment leaves less noise in the mean of more of them."""
    reference = torch.randn(NETWORK.num_weights, generator=random(7))
    methods = {"same": Gaussian(reference, torch.ones_like(reference))}
    found = {
        (count, effective): study_prior(setting, TRUTH, reference, methods, count, effective)
        for count, effective in ((2, 40), (10, 40), (60, 40), (40, 40), (10, 10))
    }
    alike = {null["mean_with"]["same"] for (_, effective), null in found.items() if effective == 40}
    assert len(alike) == 1
    assert alike == {found[40, 40]["mean_with_reference"]}
    assert found[10, 10]["mean_with"]["same"] < min(alike) - 0.02
    assert found[10, 40]["mean_with_reference"] == found[10, 10]["mean_with_reference"]
    assert [len(null["transpositions"]) for null in found.values()] == [2, 10, 60, 40, 10]


def test_a_mean_is_worth_the_effective_samples_of_the_first_layer():
    """A chain's mean has the noise of so many independent draws, 1 / ESS."""
    samples = chain(400, 2000, 0.8).numpy()
    watched = by_group(samples[:, :64], {"W1": 64}, 1)
    effective = num_effective(mixing(watched), 400)
    assert 1 / effective == pytest.approx(np.square(samples.mean(0)).mean(), rel=0.25)
    assert num_effective({}, 7) == 7
    assert num_effective({"W1": {"median_ess": 1.2}}, 7) == 2
    assert num_effective({"W1": {"median_ess": 9.0}}, 7) == 7


def test_weights_of_dead_pixels_are_not_aligned(setting, monkeypatch):
    values = torch.randn(100, 8, generator=random(1)) * (images()[:1] > 0)  # no unit is always off

    def by_signed_values(setting, reference):
        return make_matcher("activation", NETWORK, reference, values)

    monkeypatch.setattr(Setting, "study_matcher_for", by_signed_values)
    reference = torch.randn(NETWORK.num_weights, generator=random(7))
    null = study_prior(setting, TRUTH, reference, {}, 40, 2)
    assert null["mean_with_reference"] > 0.3
    assert abs(null["dead_with_reference"]) < 0.5  # of 60 weights it is good to 0.13


def test_what_moves_together_stays_together(setting):
    weights = torch.randn(NETWORK.num_weights, generator=random(7))
    planted = any_permutation(NETWORK, 8)
    std = torch.rand(NETWORK.num_weights, generator=random(9))
    member = torch.randn(NETWORK.num_weights, generator=random(10))  # alone it would go elsewhere
    gaussian = Gaussian(weights, std).moved(planted)
    moved, along = move_together(
        NETWORK, gaussian, planted.apply(member), setting.study_matcher_for(weights)
    )
    assert torch.equal(moved.mean, weights)
    assert torch.equal(moved.std, std)
    assert torch.equal(along, member)
