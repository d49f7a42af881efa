"""How far to trust q_r's numbers, on posteriors where the answer is known."""

from tests.evaluation.toy_setting import NETWORK, noisy_copies, random, setting
from tests.symmetry.planted import any_permutation
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
from utils.evaluation.predictions import REBASED, Column
from utils.posteriors.moments import fit_blocks
from utils.posteriors.samples import Points

import pytest
import torch


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
