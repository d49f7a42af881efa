"""Which samples are of one mode, and that sets of samples have equal shares of them."""

import json

from utils.networks.mlp import MLP
from utils.posteriors.files import open_posterior
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.posterior import Mixture
from utils.posteriors.samples import Points
from utils.quality.modes import modes_of, pieces_of, same_size, sample_modes

import numpy as np
import pytest
import torch

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
        (Mixture([points(2), points(2, start=2)]), 0, [[0, 1], [2, 3]]),  # such as snapshots
        (Mixture([points(2, [0, 1]), points(1, [2], 2)]), 0, [[0], [1], [2]]),  # train.py's stacks
    ],
)
def test_modes_of_stored_weights(posterior, chains, expected, tmp_path):
    assert contents(modes_of(saved(posterior, tmp_path / "run", chains))) == expected
    if not chains:
        assert contents(modes_of(posterior)) == expected


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


def test_blocks_of_both_sides_are_as_large():
    first, second = same_size(np.arange(6), np.repeat([0, 1], 3))
    assert first.tolist() == [0, 0, 0, 1, 1, 1]
    assert second.tolist() == [2, 2, 2, 3, 3, 3]
    unequal = np.repeat([0, 1, 2, 3, 4], 4), np.repeat([0, 1], 10)  # 2.5 blocks of one in another's
    first, second = same_size(*unequal)
    assert first.tolist() == [0] * 8 + [1] * 8 + [2] * 4
    assert second.tolist() == [3] * 10 + [4] * 10
