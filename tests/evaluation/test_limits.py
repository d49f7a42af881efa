"""What q_r's numbers are worth, on posteriors where the answer is known."""

from types import SimpleNamespace

from tests.symmetry.planted import any_permutation
from utils.data.datasets import Dataset
from utils.evaluation.alignment import Aligned
from utils.evaluation.limits import (
    COUNTS,
    draw_curve,
    extrapolate,
    held_out,
    matched_cosine,
    split_half,
    unit_similarity,
)
from utils.evaluation.pixels import cross_fitted, dead_pixel_noise
from utils.evaluation.predictions import DIRECT, REBASED, Column
from utils.evaluation.setting import EvaluationConfig, Setting
from utils.evaluation.views import Fit, Views
from utils.networks.mlp import MLP
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.moments import fit_blocks
from utils.posteriors.samples import Points

import pytest
import torch

NETWORK = MLP((12, 8, 4))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def setting(**numbers) -> Setting:
    images = torch.rand(120, 12, generator=random(1))
    images[:, :3] = 0  # dead pixels
    labels = torch.randint(4, (120,), generator=random(2))
    data = Dataset("toy", images, labels, images, labels)
    config = EvaluationConfig(study_images=120, num_pairs=4, num_draws=50, rank=4, **numbers)
    return Setting(NETWORK, data, config)


def noisy_copies(count: int, noise: float = 0.05) -> torch.Tensor:
    weights = 3 * NETWORK.initial_weights(random(0))
    return torch.stack(
        [weights + noise * torch.randn(weights.shape, generator=random(k)) for k in range(count)]
    )


def test_scores_by_draws_are_extrapolated_to_their_limit():
    rows = [{"draws": n, "agreement": 0.9 - 0.5 * n**-0.5} for n in COUNTS]
    assert extrapolate(rows, "agreement") == pytest.approx(0.9)


def test_draws_that_are_all_alike_agree_however_many_there_are():
    each = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    found = draw_curve([each] * 20, each)
    assert [row["draws"] for row in found["rows"]] == [5, 10, 20]
    assert [row["batches"] for row in found["rows"]] == [4, 2, 1]
    assert all(row["agreement"] == 1 for row in found["rows"])
    assert found["rows"][-1]["agreement_error"] is None  # of a single batch
    assert found["limit"]["agreement"] == pytest.approx(1)


def test_few_draws_have_no_limit():
    each = torch.tensor([[0.7, 0.3]], dtype=torch.float64)
    assert draw_curve([each] * 3, each) == {"rows": [], "limit": None}
    assert draw_curve([each] * 10, each)["limit"] is None


def test_agreement_rises_with_the_number_of_draws():
    """Each draw votes for the right class with probability 0.6: the average of many is right."""
    right = torch.rand(200, 500, generator=random(0)) < 0.6
    drawn = [torch.stack([hit, ~hit], -1).double() for hit in right]
    truth = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(500, 2)
    rows = draw_curve(drawn, truth)["rows"]
    scores = [row["agreement"] for row in rows]
    assert scores == sorted(scores)
    assert scores[0] == pytest.approx(0.683, abs=0.02)  # of 5 votes 3 or more, binomial
    assert scores[-1] > 0.99


def test_reliability_is_the_share_of_variance_that_is_no_noise():
    """μ varies over weights by 1, each half's mean is off by 3 / √9 and the whole by 3 / √18."""
    truth = torch.randn(20000, generator=random(0))
    samples = truth + 3 * torch.randn(18, 20000, generator=random(1))
    found = split_half(fit_blocks(samples, 18, 6), {"all": torch.ones(20000, dtype=torch.bool)})
    mean = found["all"]["mean"]
    assert mean["halves"] == pytest.approx(0.5, abs=0.03)  # 1 / (1 + 9/9)
    assert mean["whole"] == pytest.approx(2 / 3, abs=0.03)  # 1 / (1 + 9/18)
    assert abs(found["all"]["std"]["halves"]) < 0.03  # all weights have the same σ


def test_rebasin_is_told_from_shuffling_on_the_other_half():
    copies = noisy_copies(12)
    moves = [any_permutation(NETWORK, k) for k in range(12)]
    samples = Points(torch.stack([t.apply(w) for t, w in zip(moves, copies, strict=True)]), NETWORK)
    aligned = Aligned(NETWORK, copies[0], 12)
    for move in moves:
        aligned.enter(move.inverse(), copies[0][:0], copies[0][:0])
    where = setting()
    found = held_out(where, samples, {Column("hmc", REBASED): aligned}, where.data.test_images)
    assert found["samples"]["total_variation"] < 0.02
    rebased, shuffled = (found[f"Gaussian, {how}"] for how in ("hmc_rebased", "shuffled"))
    assert rebased["total_variation"] < 0.05 < shuffled["total_variation"]
    assert found["low rank, hmc_rebased"]["total_variation"] < 0.05


@pytest.mark.parametrize("matching", ["activation", "contribution"])
def test_matched_units_of_a_permuted_copy_have_cosine_1(matching):
    weights, images = noisy_copies(1)[0], setting().data.train_images
    moved = any_permutation(NETWORK, 3).apply(weights)
    assert matched_cosine(NETWORK, weights, moved, images, matching) == pytest.approx(1, abs=1e-5)


def test_units_of_samples_are_more_alike_than_those_of_the_prior_if_there_is_one_mode():
    samples = Points(noisy_copies(10), NETWORK)
    found = unit_similarity(setting(), samples, "contribution")
    assert found["samples"]["cosine"] > 0.95
    assert found["prior"]["cosine"] < 0.9
    of_prior = Points(torch.randn(10, NETWORK.num_weights, generator=random(5)), NETWORK)
    null = unit_similarity(setting(), of_prior, "contribution")
    difference = null["samples"]["cosine"] - null["prior"]["cosine"]
    assert (
        abs(difference) < 4 * (null["samples"]["error"] ** 2 + null["prior"]["error"] ** 2) ** 0.5
    )


def test_weights_are_correlated_where_matching_did_not_look():
    """The other posterior has the same means in another order; or weights of its own."""
    network, where = NETWORK, setting(study_samples=6)
    copies = noisy_copies(6, noise=0.1)
    moved = any_permutation(network, 3).apply(copies[0])
    same = Gaussian(moved, torch.full_like(moved, 0.1), network)
    other = Gaussian(torch.randn(moved.shape, generator=random(8)), same.std, network)
    candidates = {"hmc": Points(copies, network), "same": same, "other": other}
    found = cross_fitted(where, candidates, "hmc")
    assert found["same"]["mean"] > 0.9
    assert abs(found["other"]["mean"]) < 0.4  # of 36 weights twice; 1 in 1,000 by chance
    assert abs(found["same"]["null"]) < 0.4
    assert cross_fitted(where, {"hmc": candidates["hmc"]}, "hmc") is None


def test_noise_on_dead_pixels_reaches_whom_has_weights_there():
    where, weights = setting(study_samples=4), noisy_copies(4, noise=0)
    without = weights.clone()
    NETWORK.pixel_slot.of(without)[..., :3] = 0
    loud = weights.clone()
    NETWORK.pixel_slot.of(loud)[..., :3] = 20
    gaussian = Gaussian(without[0], torch.zeros(NETWORK.num_weights), NETWORK)
    fits = {Column("hmc", REBASED): Fit(gaussian), Column("hmc", DIRECT): Fit(gaussian)}
    candidates = {"hmc": Points(loud, NETWORK), "map": Points(without, NETWORK)}
    found = dead_pixel_noise(where, candidates, "hmc", Views({}, fits, None))
    assert found["blank_pixels"] == 3
    for name in ("map", "hmc_rebased"):
        assert len({row["nll"] for row in found["rows"][name]}) == 1
    calm, *_, noisy = (row["nll"] for row in found["rows"]["hmc"])
    assert noisy > calm + 0.5
    assert not SimpleNamespace(**found["rows"]["hmc"][0]).noise


def test_where_no_pixel_is_dead_there_is_nothing_to_see():
    where = setting()
    where.data.train_images.fill_(1)
    assert dead_pixel_noise(where, {}, "hmc", Views({}, {}, None)) is None
