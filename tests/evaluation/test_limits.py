"""How far to trust q_r's numbers, on posteriors where the answer is known."""

from tests.evaluation.toy_setting import NETWORK, noisy_copies, random, setting
from tests.symmetry.planted import any_permutation
from utils.evaluation.alignment import Aligned
from utils.evaluation.checks import prior_network
from utils.evaluation.limits import (
    COUNTS,
    align_noise,
    draw_curve,
    extrapolate,
    held_out,
    limit_of,
    split_half,
)
from utils.evaluation.predictions import REBASED, Column
from utils.evaluation.views import Views
from utils.networks.predictions import class_probabilities
from utils.posteriors.moments import fit_blocks
from utils.posteriors.samples import Points
from utils.rebasin.rebase import rebase

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
    assert found["limit"] is None  # 20 are too few for a line
    assert draw_curve([each] * 300, each)["limit"]["agreement"] == pytest.approx(1)


def test_few_draws_have_no_limit():
    each = torch.tensor([[0.7, 0.3]], dtype=torch.float64)
    assert draw_curve([each] * 3, each) == {"rows": [], "limit": None}
    assert draw_curve([each] * 10, each)["limit"] is None


def test_the_limit_has_the_error_that_repetition_shows():
    """Draws are the truth with noise, so TV falls to 0 like 1/√n."""
    truth = torch.full((20, 2), 0.5, dtype=torch.float64)
    limits = []
    for seed in range(12):
        noise = 0.2 * torch.randn(250, 20, 1, dtype=torch.float64, generator=random(seed))
        limits.append(limit_of(list(truth + noise * torch.tensor([1.0, -1.0])), truth))
    found, errors = (
        torch.tensor([each[name] for each in limits], dtype=torch.float64)
        for name in ("total_variation", "total_variation_error")
    )
    assert abs(found.mean()) < 4 * found.std() / 12**0.5
    assert 0.5 < errors.square().mean().sqrt() / found.std() < 2


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
    assert found["mean, hmc_rebased"]["total_variation"] < 0.05
    scale = found["Gaussian with τ, hmc_rebased"]["total_variation"]
    assert scale <= rebased["total_variation"] + 1e-3


def test_few_samples_are_scored_by_the_other_half():
    where = setting()
    images = where.data.test_images
    samples = Points(torch.randn(8, NETWORK.num_weights, generator=random(3)), NETWORK)
    found = held_out(where, samples, {}, images)
    predicted = [class_probabilities(NETWORK, weights, images) for weights in samples]
    truth = sum(predicted[4:]) / 4
    each = torch.stack([(one - truth).abs().sum(-1).mean() / 2 for one in predicted[:4]])
    assert found["1 sample"]["total_variation"] == pytest.approx(each.mean().item(), rel=1e-6)
    error = each.std().item() / 2
    assert found["1 sample"]["total_variation_error"] == pytest.approx(error, rel=1e-6)
    pairs = [(predicted[0] + predicted[2]) / 2, (predicted[1] + predicted[3]) / 2]
    each = torch.stack([(one - truth).abs().sum(-1).mean() / 2 for one in pairs])
    assert found["2 samples"]["total_variation"] == pytest.approx(each.mean().item(), rel=1e-6)
    assert "5 samples" not in found  # half of the samples are four


def test_the_null_is_of_networks_from_the_prior_that_are_rebased():
    where = setting(study_samples=30)
    average = class_probabilities(NETWORK, noisy_copies(1)[0], where.data.test_images)
    found = align_noise(where, Views({}, {}, {}), "hmc", average)["hmc_rebased"]
    drawn = [prior_network(where, number) for number in range(30)]
    matcher = where.study_matcher_for(drawn[0])
    rebased = torch.stack([rebase(NETWORK, each, matcher)[0] for each in drawn]).double()
    before = torch.stack(drawn).double().var(0)[where.alive].sum()
    left = rebased.var(0)[where.alive].sum() / before
    assert found["remaining_variance"] == pytest.approx(left.item(), rel=1e-4)
    means = torch.stack([rebased[:15].mean(0), rebased[15:].mean(0)])
    for group, mask in where.groups.items():
        expected = torch.corrcoef(means[:, mask])[0, 1].item()
        halves = found["reliability"][group]["mean"]["halves"]
        assert halves == pytest.approx(expected, abs=1e-4)
    assert found["closeness"]["agreement"] < 0.9
