"""q_d, q_r and the low-rank Gaussian: moments as numpy has them, symmetries that must not show."""

from utils.evaluation.alignment import Aligned, RebasedSamples, align, align_again
from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.posteriors.compact import Compact, load_compact
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRankFit, load_low_rank
from utils.posteriors.moments import block_of, fit_blocks, merge_all, no_moments
from utils.runs.errors import UserError
from utils.symmetry.matching import make_matcher
from utils.symmetry.permutation import num_transpositions, permute_weights
from utils.symmetry.rebasin import rebase_all

import numpy as np
import pytest
import torch

NETWORK = MLP((12, 20, 4))
IMAGES = torch.rand(200, 12, generator=torch.Generator().manual_seed(1))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(count: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, size, generator=random(seed))


def networks(count: int) -> list[torch.Tensor]:
    """Networks that resemble one another, as samples of a chain do."""
    common = 3 * NETWORK.initial_weights(random(7))
    return [common + 0.1 * vectors(1, NETWORK.num_weights, k)[0] for k in range(count)]


def permuted(samples: list[torch.Tensor]) -> tuple[list[torch.Tensor], list]:
    permutations = [[torch.randperm(20, generator=random(50 + k))] for k in range(len(samples))]
    pairs = zip(samples, permutations, strict=True)
    return [permute_weights(NETWORK, w, p) for w, p in pairs], permutations


def aligned(samples: list[torch.Tensor], method: str = "activation", **options):
    matcher = make_matcher(method, NETWORK, samples[0], IMAGES)
    watched = torch.tensor([0, 3])
    return align(NETWORK, samples, matcher, samples[0], IMAGES, 4, watched, **options)


# ---- moments


def test_moments_of_a_stream_are_numpys_even_far_from_zero():
    samples = 1e4 + vectors(57, 30)  # squares of such numbers would lose the deviations
    moments = merge_all(fit_blocks(iter(samples), 57))
    exact = samples.double().numpy()
    np.testing.assert_allclose(moments.mean, exact.mean(0), rtol=1e-14)
    np.testing.assert_allclose(moments.variance(), exact.var(0, ddof=1), rtol=1e-9)
    assert moments.count == 57


@pytest.mark.parametrize("num_blocks", [1, 2, 7, 57, 100])
def test_blocks_merge_to_the_whole_whatever_their_number(num_blocks):
    samples = 100 + vectors(57, 30)
    blocks = fit_blocks(samples, 57, num_blocks)
    assert len(blocks) == min(num_blocks, 57)
    counts = [block.count for block in blocks]
    assert max(counts) - min(counts) <= 1
    merged = merge_all(blocks)
    np.testing.assert_allclose(merged.mean, samples.double().mean(0), rtol=1e-13)
    np.testing.assert_allclose(merged.variance(), samples.double().var(0), rtol=1e-10)


def test_blocks_are_contiguous():
    blocks = [block_of(position, 10, 3) for position in range(10)]
    assert blocks == sorted(blocks)
    assert set(blocks) == {0, 1, 2}


def test_one_sample_has_no_deviation():
    with pytest.raises(UserError, match="needs two samples"):
        no_moments(torch.zeros(3)).add(torch.ones(3)).gaussian()


# ---- q_d and q_r


def q_d_of(found: Aligned) -> Gaussian:
    return merge_all(found.direct_blocks).gaussian()


@pytest.mark.parametrize("method", ["activation", "weight"])
def test_permuted_copies_of_one_network_are_one_point_after_rebasin(method):
    network = networks(1)[0]
    copies, _ = permuted([network] * 6)
    found = aligned(copies, method)
    compact, direct = found.rebased(), q_d_of(found)
    assert compact.std.max() == 0
    assert direct.std.max() > 0.1
    expected = NETWORK.outputs(network, IMAGES)
    torch.testing.assert_close(NETWORK.outputs(compact.mean, IMAGES), expected)
    assert (NETWORK.outputs(direct.mean, IMAGES) - expected).abs().max() > 0.1


def test_permutations_beforehand_change_compact_form_by_one_overall_permutation():
    samples = networks(9)
    moved, permutations = permuted(samples)
    before, after = aligned(samples).rebased(), aligned(moved).rebased()
    for part in ("mean", "std"):
        expected = permute_weights(NETWORK, getattr(before, part), permutations[0])
        torch.testing.assert_close(getattr(after, part), expected, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(q_d_of(aligned(moved)).std, q_d_of(aligned(samples)).std)


def test_a_pass_predicts_and_keeps_what_is_watched():
    samples, _ = permuted(networks(9))
    found = aligned(samples)
    expected = torch.stack([NETWORK.outputs(w, IMAGES).double().softmax(-1) for w in samples])
    torch.testing.assert_close(found.column.average(), expected.mean(0), atol=1e-6, rtol=1e-5)
    assert found.column.sizes.tolist() == [3, 2, 2, 2]
    moved = [permute_weights(NETWORK, *pair) for pair in zip(samples, found.permutations)]  # noqa: B905
    watched = found.watched()
    np.testing.assert_array_equal(watched["before"], torch.stack(samples)[:, [0, 3]])
    np.testing.assert_array_equal(watched["after"], torch.stack(moved)[:, [0, 3]])


def test_known_permutations_are_not_searched_again():
    samples, _ = permuted(networks(6))
    whole = aligned(samples)

    def fail(weights):
        raise AssertionError("searched")

    options = {"known": whole.permutations}
    again = align(NETWORK, samples, fail, samples[0], IMAGES, 4, torch.tensor([0]), **options)
    assert torch.equal(again.rebased().std, whole.rebased().std)


def test_rebasing_again_composes_permutations():
    samples, _ = permuted(networks(6))
    first = aligned(samples)
    reference = samples[3]
    matcher = make_matcher("activation", NETWORK, reference, IMAGES)
    rebased = RebasedSamples(NETWORK, samples, first.permutations, torch.device("cpu"))
    again = align_again(NETWORK, rebased, matcher, reference, 2, lambda: None)
    pairs = zip(samples, again.permutations, strict=True)
    expected = torch.stack([permute_weights(NETWORK, w, p) for w, p in pairs]).double()
    torch.testing.assert_close(again.rebased().mean, expected.mean(0).float())
    assert num_transpositions(again.permutations[3]) == 0


# ---- low rank


def covariance(low_rank) -> np.ndarray:
    return (low_rank.factor.T @ low_rank.factor).numpy()


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_with_enough_rank_the_low_rank_covariance_is_the_samples(chunk):
    samples = 10 + vectors(23, 40) * torch.linspace(0.1, 3, 40)
    fit = LowRankFit(rank=30, chunk=chunk)
    for weights in samples:
        fit.add(weights)
    found = fit.gaussian()
    np.testing.assert_allclose(found.mean, samples.mean(0), rtol=1e-5)
    np.testing.assert_allclose(covariance(found), np.cov(samples.numpy().T), atol=2e-5)


def test_samples_of_a_plane_need_no_more_rank_than_it_has():
    samples = vectors(50, 3, 1) @ vectors(3, 40, 2) + 5
    fit = LowRankFit(rank=3, chunk=4)
    for weights in samples:
        fit.add(weights)
    assert fit.gaussian().factor.shape == (3, 40)
    np.testing.assert_allclose(covariance(fit.gaussian()), np.cov(samples.numpy().T), atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_samples_vary_along_one_direction_less_than_there_are(chunk):
    fit = LowRankFit(rank=30, chunk=chunk)
    for weights in 10 + vectors(16, 40):
        fit.add(weights)
    assert fit.gaussian().factor.shape == (15, 40)


def test_copies_of_one_network_vary_along_no_direction():
    fit = LowRankFit(rank=3, chunk=2)
    for _ in range(5):
        fit.add(vectors(1, 40)[0])
    found = fit.gaussian()
    assert found.variance() == 0
    assert all(torch.equal(draw, found.mean) for draw in found.draw(2, random(3)))
    assert torch.equal(found.resampled(torch.tensor([2, 0, 1, 1, 1])).mean, found.mean)


def test_too_little_rank_keeps_the_leading_directions():
    samples = vectors(30, 40) * torch.linspace(0.1, 3, 40)
    fit = LowRankFit(rank=6)
    for weights in samples:
        fit.add(weights)
    found = fit.gaussian()
    eigenvalues = np.linalg.eigvalsh(np.cov(samples.numpy().T))[::-1]
    assert found.variance() == pytest.approx(eigenvalues[:6].sum(), rel=1e-4)


def test_draws_have_the_covariance():
    samples = vectors(8, 6) * torch.tensor([1.0, 2, 3, 1, 2, 3])
    fit = LowRankFit(rank=8)
    for weights in samples:
        fit.add(weights)
    draws = torch.stack(list(fit.gaussian().draw(20_000, random(3)))).numpy()
    expected = np.cov(samples.numpy().T)
    # entries are off by about √(2 / 20,000) of the variances: 36 entries within 5 of that
    np.testing.assert_allclose(np.cov(draws.T), expected, atol=0.05 * expected.diagonal().max())
    np.testing.assert_allclose(draws.mean(0), samples.mean(0), atol=0.13)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_low_rank_gaussian_knows_its_samples_and_is_fitted_again_to_some(chunk):
    samples = 10 + vectors(23, 40) * torch.linspace(0.1, 3, 40)
    fit = LowRankFit(rank=30, chunk=chunk)
    for weights in samples:
        fit.add(weights)
    found = fit.gaussian()
    again = found.mean + found.coordinates.float() @ found.factor
    torch.testing.assert_close(again, samples, atol=2e-5, rtol=0)
    counts = torch.randint(3, (23,), generator=random(4))
    chosen = samples.repeat_interleave(counts, 0)
    refitted = found.resampled(counts)
    np.testing.assert_allclose(refitted.mean, chosen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(covariance(refitted), np.cov(chosen.numpy().T), atol=3e-5)


def test_a_low_rank_gaussian_is_permuted_as_a_whole_and_saved(tmp_path):
    network = MLP((5, 4, 2))
    permutation = [torch.tensor([2, 0, 3, 1])]
    samples = vectors(6, network.num_weights)
    fits = LowRankFit(rank=9), LowRankFit(rank=9)
    for weights in samples:
        fits[0].add(weights)
        fits[1].add(permute_weights(network, weights, permutation))
    moved, expected = fits[0].gaussian().permuted(network, permutation), fits[1].gaussian()
    torch.testing.assert_close(moved.mean, expected.mean)
    np.testing.assert_allclose(covariance(moved), covariance(expected), atol=1e-5)
    moved.save(tmp_path / "low_rank.npz")
    loaded = load_low_rank(tmp_path / "low_rank.npz")
    assert torch.equal(loaded.mean, moved.mean)
    assert torch.equal(loaded.factor, moved.factor)


def test_draws_of_vi_are_samples_too():
    """q_r of a Gaussian's permuted draws has its moments, where activations tell units apart."""
    network, inputs = MLP((6, 5, 3)), torch.rand(200, 6, generator=random(8))
    posterior = Gaussian(vectors(1, network.num_weights)[0], torch.full((53,), 0.05))
    draws = list(posterior.draw(400, random(9)))
    matcher = make_matcher("activation", network, posterior.mean, inputs)
    shuffled = (
        permute_weights(network, weights, random_permutation_of(network, k))
        for k, weights in enumerate(draws)
    )
    rebased = (moved.weights for moved in rebase_all(network, shuffled, matcher))
    q_r = fit_blocks(rebased, 400)[0].gaussian()
    # the mean of 400 draws is good to 0.05 / 20; 53 weights within 5 of that
    np.testing.assert_allclose(q_r.mean, posterior.mean, atol=0.0125)
    np.testing.assert_allclose(q_r.std, 0.05, rtol=0.2)


def random_permutation_of(network: Network, seed: int) -> list[torch.Tensor]:
    return [torch.randperm(size, generator=random(seed)) for size in network.sizes[1:-1]]


# ---- files


def test_what_is_saved_is_loaded(tmp_path):
    network = MLP((5, 4, 3, 2))
    permutations = [
        [torch.tensor([1, 0, 2, 3]), torch.tensor([0, 1, 2])],
        [torch.tensor([1, 2, 3, 0]), torch.tensor([2, 1, 0])],
    ]
    posterior = Gaussian(*vectors(2, network.num_weights))
    Compact(posterior, permutations, vectors(1, 51)[0]).save(tmp_path / "compact.npz")
    arrays = np.load(tmp_path / "compact.npz")
    assert arrays["transpositions"].tolist() == [[1, 0], [3, 1]]
    assert arrays["permutations"].shape == (2, 7)
    loaded = load_compact(tmp_path / "compact.npz", (4, 3))
    assert torch.equal(loaded.posterior.std, posterior.std)
    for row, expected in zip(loaded.permutations, permutations, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(row, expected, strict=True))
