"""Every kind of posterior: what it draws, how it moves, and that it is read as it was saved."""

from dataclasses import replace

from utils.networks.mlp import MLP
from utils.posteriors.block_gaussian import BlockGaussian, WeightBlock
from utils.posteriors.files import open_posterior
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRank
from utils.posteriors.posterior import Mixture
from utils.posteriors.samples import Points
from utils.settings.errors import UserError
from utils.symmetry.transformation import random_transformation

import pytest
import torch

NETWORK = MLP((3, 4, 2))
SIZE = NETWORK.num_weights


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, SIZE, generator=random(seed))


def gaussian(seed: int = 0) -> Gaussian:
    mean, log_std = vectors(2, seed)
    return Gaussian(mean, (log_std - 1).exp(), NETWORK)


def low_rank(seed: int = 0) -> LowRank:
    mean, diagonal, *factor = vectors(5, seed)
    return LowRank(mean, torch.stack(factor), network=NETWORK, diagonal=diagonal.abs())


def blocks(seed: int = 0) -> BlockGaussian:
    """Return Kronecker blocks of 2 × 3 and 3 × 2 weights and a dense one of 4."""
    order, made = torch.randperm(SIZE, generator=random(seed)), []
    for places in (order[:6].view(2, 3), order[6:12].view(3, 2), order[12:16].view(1, 4)):
        noise = [torch.randn(n, n, generator=random(n)) for n in places.shape]
        std = torch.rand(places.shape, generator=random(7))
        made.append(WeightBlock(places, *(torch.linalg.qr(each).Q for each in noise), std))
    return BlockGaussian(vectors(1, seed)[0], made, NETWORK, vectors(1, seed + 1)[0].abs())


POSTERIORS = {
    "points": Points(vectors(6), NETWORK),
    "gaussian": gaussian(),
    "low rank": low_rank(),
    "blocks": blocks(),
    "blocks without scales": replace(blocks(), scales=None),
    "mixture of gaussians": Mixture([gaussian(1), gaussian(2), gaussian(3)]),
    "mixture of points": Mixture([Points(vectors(4, 1), NETWORK), Points(vectors(4, 2), NETWORK)]),
    "mixture of unlike": Mixture([gaussian(1), low_rank(2), Points(vectors(4, 3), NETWORK)]),
}
each = pytest.mark.parametrize("posterior", POSTERIORS.values(), ids=POSTERIORS)


@each
def test_it_is_read_as_it_was_saved(posterior, tmp_path):
    posterior.save(tmp_path)
    again = open_posterior(tmp_path)
    assert again.network == NETWORK
    assert (again.mean is None) == (posterior.mean is None)
    pairs = zip(posterior.draw(7, random(5)), again.draw(7, random(5)), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@each
def test_moved_draws_are_draws_moved(posterior):
    """With the same noise, up to the order of weights; so their moments are compared."""
    transformation = random_transformation(NETWORK, random(1), log_scale=0.3)
    draws = torch.stack([transformation.apply(w) for w in posterior.draw(4000, random(2))])
    moved = torch.stack(list(posterior.moved(transformation).draw(4000, random(3))))
    error = (draws.var(0) / 2000).sqrt()
    assert ((draws.mean(0) - moved.mean(0)).abs() < 6 * error + 1e-5).all()
    torch.testing.assert_close(draws.std(0), moved.std(0), rtol=0.15, atol=1e-5)


def test_a_mixture_draws_equal_shares():
    components = [Points(torch.full((2, SIZE), float(k)), NETWORK) for k in range(3)]
    counts = torch.stack(list(Mixture(components).draw(8, random()))).mean(1).long().bincount()
    assert counts.tolist() == [3, 3, 2]


def test_parts_of_a_set_may_differ_in_length(tmp_path):
    """As stacks of networks do of which some were left out; one has none left."""
    vectors = torch.arange(5.0)[:, None].expand(5, SIZE)
    parts = Mixture([Points(vectors[rows], NETWORK) for rows in (slice(3), slice(0), slice(3, 5))])
    parts.save(tmp_path)
    for posterior in (parts, open_posterior(tmp_path)):
        assert [int(weights[0]) for weights in posterior] == [0, 1, 2, 3, 4]
        counts = torch.stack([w[0] for w in posterior.draw(15, random())]).long().bincount()
        assert counts.tolist() == [3, 3, 3, 3, 3]
    Mixture([Points(vectors[:0], NETWORK)] * 3).save(tmp_path)
    with pytest.raises(UserError, match="has no networks: all were left out"):
        open_posterior(tmp_path)


def test_points_are_drawn_equally_often():
    points = Points(torch.arange(4.0)[:, None].expand(4, SIZE), NETWORK)
    counts = torch.stack([w[0] for w in points.draw(10, random())]).long().bincount()
    assert sorted(counts.tolist()) == [2, 2, 3, 3]


def test_low_rank_draws_have_its_covariance():
    """Each of 13 × 13 covariances within 6 standard errors of 40,000 draws."""
    posterior = low_rank()
    draws = torch.stack(list(posterior.draw(40_000, random(4)))).double()
    expected = posterior.factor.T.double() @ posterior.factor.double()
    expected += posterior.diagonal.double().square().diag()
    variances = expected.diagonal()
    error = ((torch.outer(variances, variances) + expected.square()) / 40_000).sqrt()
    assert ((draws.T.cov() - expected).abs() < 6 * error).all()


def test_block_draws_have_their_covariance():
    """Each of 26 × 26 covariances within 6 standard errors of 10,000 draws."""
    posterior = blocks()
    draws = torch.stack(list(posterior.draw(10_000, random(4)))).double()
    expected = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for places, left, right, std in posterior.blocks:
        vectors = torch.kron(left, right).double()
        flat = places.flatten()
        expected[flat[:, None], flat] = vectors * std.flatten().square() @ vectors.T
    expected *= torch.outer(posterior.scales, posterior.scales)
    variances = expected.diagonal()
    error = ((torch.outer(variances, variances) + expected.square()) / 10_000).sqrt()
    assert ((draws.T.cov() - expected).abs() <= 6 * error + 1e-9).all()


def test_an_unknown_class_is_named(tmp_path):
    (tmp_path / "posterior.json").write_text('{"class": "Dirichlet"}')
    with pytest.raises(UserError, match="unknown class 'Dirichlet'; known are: Samples, Gaussian"):
        open_posterior(tmp_path)


def test_runs_of_earlier_versions_have_no_posterior_json(tmp_path):
    gaussian().save(tmp_path)
    (tmp_path / "posterior.json").unlink()
    assert torch.equal(open_posterior(tmp_path).mean, gaussian().mean)
