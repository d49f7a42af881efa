"""Which samples are of one mode, and that sets of samples have equal shares of them."""

import json
from dataclasses import replace

from utils.distances.mmd import distance, gaussian_kernel, number_modes
from utils.networks.mlp import MLP
from utils.posteriors.files import open_posterior
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.posterior import Mixture
from utils.posteriors.samples import Points
from utils.quality.modes import alike, modes_of, pieces_of, sample_modes
from utils.quality.rows import open_modes

import numpy as np
import pytest
import torch
import yaml

NETWORK = MLP((2, 2, 2))


def points(count: int, numbers=None, start: int = 0) -> Points:
    weights = torch.arange(start, start + count).float()[:, None].expand(-1, NETWORK.num_weights)
    members = None if numbers is None else {"modes": torch.tensor(numbers)}
    return Points(weights.contiguous(), NETWORK, members)


def saved(posterior, directory, chains: int = 0):
    directory.mkdir()
    posterior.save(directory)
    if chains:
        (directory / "chains.json").write_text(json.dumps({"num_chains": chains}))
    return open_posterior(directory, fewest=1)


def contents(modes) -> list[list[float]]:
    return [[float(each[0]) for each in mode] for mode in modes]


def gaussian() -> Gaussian:
    zeros = torch.zeros(NETWORK.num_weights)
    return Gaussian(zeros, zeros + 1, NETWORK)


@pytest.mark.parametrize(
    ("posterior", "chains", "expected"),
    [
        (points(3), 0, [[0], [1], [2]]),  # independent networks
        (points(4), 2, [[0, 1], [2, 3]]),  # chains
        (points(4, [5, 7, 5, 7]), 0, [[0, 2], [1, 3]]),
        (points(3, [4, 4, 4]), 0, [[0, 1, 2]]),  # draws of one mode
        (Mixture([points(2), points(2, start=2)]), 0, [[0], [1], [2], [3]]),  # imported
        (Mixture([points(2, [0, 0]), points(2, [1, 1], 2)]), 0, [[0, 1], [2, 3]]),
        (Mixture([points(2, [0, 1]), points(1, [2], 2)]), 0, [[0], [1], [2]]),  # train.py's stacks
    ],
)
def test_modes_of_stored_weights(posterior, chains, expected, tmp_path):
    assert contents(modes_of(saved(posterior, tmp_path / "run", chains))) == expected
    if not chains:
        assert contents(modes_of(posterior)) == expected


def test_a_chain_is_a_mode(tmp_path):
    chain = replace(points(3), is_chain=True)
    for posterior, count in ((chain, 1), (Mixture([chain, chain]), 2)):
        assert len(modes_of(posterior)) == count
        assert len(modes_of(saved(posterior, tmp_path / f"{count}"))) == count


@pytest.mark.parametrize(("config", "count"), [({"num_modes": 1}, 1), ({"num_members": 3}, 3)])
def test_modes_of_runs_that_saved_no_numbers(config, count, tmp_path):
    """Earlier versions of SWAG did not with batch normalisation, nor did ensembles."""
    posterior = saved(points(3), tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    assert len(open_modes(tmp_path / "run", posterior).modes) == 3  # of a user's own
    (tmp_path / "run" / "meta.json").write_text("{}")
    assert len(open_modes(tmp_path / "run", posterior).modes) == count


def test_components_that_are_distributions_are_modes(tmp_path):
    mixture = saved(Mixture([gaussian(), gaussian()]), tmp_path / "run")
    assert len(modes_of(mixture)) == 2
    assert len(modes_of(gaussian())) == 1


def test_shares_are_equal_and_drawn_the_same_again():
    samples = sample_modes("q", [gaussian(), gaussian(), gaussian()], 10, seed=0)
    assert len(samples) == 9
    assert samples.blocks.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    weights = samples.weights()
    assert weights.equal(samples.weights())
    assert len(weights.unique(dim=0)) == 9


def test_each_mode_gives_the_samples_of_its_block():
    zeros = torch.zeros(NETWORK.num_weights)
    modes = [Gaussian(zeros + number, zeros + 0.01, NETWORK) for number in (3, 1, 2)]
    samples = sample_modes("q", modes, 7, seed=0)
    assert samples.weights()[:, 0].round().tolist() == [3, 3, 1, 1, 2, 2]
    assert samples.blocks.tolist() == [0, 0, 1, 1, 2, 2]


def test_stored_weights_are_taken_once():
    assert len(sample_modes("q", modes_of(points(7)), 5, seed=0)) == 5
    snapshots = [points(3), points(4, start=3)]
    samples = sample_modes("q", snapshots, 100, seed=0)
    assert sorted(samples.weights()[:, 0].tolist())[:3] == [0, 1, 2]
    assert len(samples) == 6


def test_chains_are_cut_into_pieces(tmp_path):
    chains = modes_of(saved(points(12), tmp_path / "run", 2))
    pieces = contents(pieces_of(chains, 4))
    assert pieces == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_blocks_of_one_size_stay():
    first, second = alike(np.repeat([5, 7, 9], 2), np.repeat([0, 1], 2))
    assert first.tolist() == [0, 0, 1, 1, 2, 2]
    assert second.tolist() == [3, 3, 4, 4]


def test_otherwise_both_sides_have_as_many_blocks():
    first, second = alike(np.arange(7), np.repeat([0, 1, 2], 2))
    assert first.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert second.tolist() == [3, 3, 4, 4, 5, 5]
    first, second = alike(np.repeat([4, 7], 3), np.repeat([0, 1, 2, 3], 2))
    assert first.tolist() == [0, 0, 0, 1, 1, 1]
    assert second.tolist() == [2, 2, 2, 2, 3, 3, 3, 3]


@pytest.mark.parametrize("within", [0.1, 0.9])
def test_networks_beside_modes_hold_their_level(within):
    """Of 200 tests at 20 %, from 20 to 60 are false alarms (probability 0.9995)."""
    networks, modes = np.arange(49), np.arange(40) // 4
    numbers, blocks = number_modes(networks, modes), np.concatenate(alike(networks, modes))
    alarms = 0
    for seed in range(200):
        random = torch.Generator().manual_seed(seed)
        centres = torch.randn(10, 20, generator=random).repeat_interleave(4, 0)
        noise = torch.randn(40, 20, generator=random)
        samples = (1 - within) ** 0.5 * centres + within**0.5 * noise
        kernel = gaussian_kernel(torch.cat([torch.randn(49, 20, generator=random), samples]), 40.0)
        alarms += distance(kernel, 49, numbers, blocks, 99, np.random.default_rng(seed)).p <= 0.2
    assert 20 <= alarms <= 60
