"""Any posterior, read from what it was saved in."""

from tests.posteriors.test_samples import NETWORK, make_samples
from utils.posteriors.files import open_posterior
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRank
from utils.posteriors.posterior import Mixture, is_set
from utils.posteriors.samples import Points, num_blocks
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, NETWORK.num_weights, generator=random(seed))


def gaussian(seed: int = 0) -> Gaussian:
    return Gaussian(*some(2, seed=seed), NETWORK)


POSTERIORS = {
    "points": Points(some(5), NETWORK),
    "gaussian": gaussian(),
    "low rank": LowRank(some(), some(2, seed=1), network=NETWORK, diagonal=some(seed=2)),
    "mixture of Gaussians": Mixture([gaussian(1), gaussian(2)]),
    "mixture of points": Mixture([Points(some(3, seed=k), NETWORK) for k in range(2)]),
}


@pytest.mark.parametrize("name", POSTERIORS)
def test_what_is_saved_draws_the_same_weights_when_opened(name, tmp_path):
    posterior = POSTERIORS[name]
    posterior.save(tmp_path)
    opened = open_posterior(tmp_path)
    assert opened.network == NETWORK
    assert (opened.mean is None) == (posterior.mean is None)
    pairs = zip(opened.draw(6, random()), posterior.draw(6, random()), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert is_set(opened) == ("points" in name)
    if is_set(opened):
        assert len(opened) == len(posterior)
        pairs = zip(opened, posterior, strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
        assert torch.equal(opened[len(opened) - 1], list(posterior)[-1])


def test_modes_of_equal_length_count_as_chains():
    parts = [Points(some(count), NETWORK) for count in (4, 4, 6)]
    assert Mixture(parts[:2]).num_chains == 2
    assert num_blocks(Mixture(parts[:2]), 6) == 6
    assert Mixture(parts).num_chains == 1
    with pytest.raises(IndexError):
        Mixture(parts)[14]


def test_deviations_of_a_low_rank_gaussian_are_those_of_its_covariance():
    low_rank = POSTERIORS["low rank"]
    covariance = low_rank.factor.T @ low_rank.factor + torch.diag(low_rank.diagonal**2)
    torch.testing.assert_close(low_rank.std, covariance.diag().sqrt())
    assert low_rank.variance() == pytest.approx(covariance.trace().item(), rel=1e-5)


def test_samples_of_a_run_can_be_thinned(tmp_path):
    make_samples(tmp_path / "a", 10)
    assert len(open_posterior(tmp_path / "a", discard=0.5, most=3)) == 3


def test_a_gaussian_is_read_from_its_run_or_file(tmp_path):
    run = make_samples(tmp_path / "a", 3)
    mean, std = np.random.default_rng(0).random((2, NETWORK.num_weights))
    np.savez(run / "posterior.npz", mean=mean, std=std)
    for path in (run, run / "posterior.npz"):
        posterior = open_posterior(path)
        assert posterior.network == NETWORK
        np.testing.assert_allclose(posterior.std, std, rtol=1e-6)


def test_a_damaged_gaussian_names_the_script_that_makes_it(tmp_path):
    run = make_samples(tmp_path / "a", 3)
    np.savez(run / "posterior.npz", mean=np.zeros(23), std=np.ones(23))
    whole = (run / "posterior.npz").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 255
    for content in (b"", whole[: len(whole) // 2], b"no archive", bytes(flipped)):
        (run / "posterior.npz").write_bytes(content)
        with pytest.raises(UserError, match=r"posterior\.npz .*such as VI, write it"):
            open_posterior(run)
    np.savez(run / "posterior.npz", mean=np.zeros(5))
    with pytest.raises(UserError, match=r"shapes \[5\] and \[0\]"):
        open_posterior(run)


def test_of_a_run_under_way_the_modes_that_are_ready_are_read(tmp_path, capsys):
    modes = [Points(some(3, seed=k), NETWORK) for k in range(3)]
    Mixture(modes).save(tmp_path)
    (tmp_path / "posterior.json").unlink()
    (tmp_path / "mode-001" / "posterior.json").unlink()
    (tmp_path / "mode-003").mkdir()
    mixture = open_posterior(tmp_path)
    assert torch.stack(list(mixture)).equal(torch.cat([modes[0].weights, modes[2].weights]))
    assert "2 of its directories of modes are ready" in capsys.readouterr().out


def test_a_finished_run_that_has_lost_networks_is_refused(tmp_path):
    Mixture([Points(some(3, seed=k), NETWORK) for k in range(3)]).save(tmp_path)
    assert len(open_posterior(tmp_path)) == 9
    (tmp_path / "mode-002" / "posterior.json").unlink()
    with pytest.raises(UserError, match="has lost 1 of its 3 directories of modes, mode-002 first"):
        open_posterior(tmp_path)
    (tmp_path / "mode-001" / "posterior.json").unlink()
    with pytest.raises(UserError, match="has lost 2 of its 3 directories of modes, mode-001 first"):
        open_posterior(tmp_path)


def test_a_run_of_an_earlier_version_does_not_say_how_many_modes_it_had(tmp_path):
    Mixture([Points(some(3, seed=k), NETWORK) for k in range(3)]).save(tmp_path)
    (tmp_path / "posterior.json").write_text('{"class": "Mixture"}')
    (tmp_path / "mode-001" / "posterior.json").unlink()
    with pytest.raises(UserError, match="mode-001 first"):
        open_posterior(tmp_path)
