"""Known answers about permutations of one group: small groups enumerated in full."""

import itertools
from collections import Counter

from utils.settings.errors import UserError
from utils.symmetry.permutation import (
    check_permutation,
    expected_transpositions,
    num_transpositions,
    random_permutation,
    transpositions_deviation,
)

import numpy as np
import pytest
import torch


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def swaps_to_identity(size: int) -> dict[tuple, int]:
    """Least number of swaps that makes each permutation, by breadth-first search."""
    start = tuple(range(size))
    distance, frontier = {start: 0}, [start]
    while frontier:
        reached = []
        for perm in frontier:
            for a, b in itertools.combinations(range(size), 2):
                swapped = list(perm)
                swapped[a], swapped[b] = swapped[b], swapped[a]
                if tuple(swapped) not in distance:
                    distance[tuple(swapped)] = distance[perm] + 1
                    reached.append(tuple(swapped))
        frontier = reached
    return distance


def test_transpositions_equal_the_least_number_of_swaps():
    distance = swaps_to_identity(6)
    assert len(distance) == 720
    for perm, swaps in distance.items():
        assert num_transpositions(torch.tensor(perm)) == swaps


def test_transpositions_of_a_known_permutation():
    """Its cycles are (0 2), (1) and (3 4 5)."""
    assert num_transpositions(torch.tensor([2, 1, 0, 4, 5, 3])) == 3


@pytest.mark.parametrize("size", [1, 2, 9, 100, 512])
def test_random_permutation_has_exactly_the_wanted_transpositions(size):
    generator = random(size)
    for transpositions in range(0, size, max(1, size // 40)):
        perm = random_permutation(size, transpositions, generator)
        assert sorted(perm.tolist()) == list(range(size))
        assert num_transpositions(perm) == transpositions
    assert num_transpositions(random_permutation(size, size - 1, generator)) == size - 1


@pytest.mark.parametrize("transpositions", [1, 2, 3])
def test_random_permutation_is_uniform(transpositions):
    """χ² over all permutations of 5 with this NoT; by chance above the limit once in 10,000."""
    wanted = [
        perm for perm in itertools.permutations(range(5))
        if num_transpositions(torch.tensor(perm)) == transpositions
    ]  # fmt: skip
    generator, draws = random(3), 6000
    counts = Counter(
        tuple(random_permutation(5, transpositions, generator).tolist()) for _ in range(draws)
    )
    assert set(counts) == set(wanted)
    expected = draws / len(wanted)
    chi_squared = sum((counts[perm] - expected) ** 2 / expected for perm in wanted)
    # 99.99% quantiles for 9, 34 and 49 degrees of freedom
    assert chi_squared < {1: 33.8, 2: 73.5, 3: 94.6}[transpositions]


def test_random_baseline_is_the_mean_over_all_permutations():
    permutations = list(itertools.permutations(range(6)))
    found = np.array([num_transpositions(torch.tensor(p)) for p in permutations])
    assert expected_transpositions(6) == pytest.approx(found.mean())
    assert transpositions_deviation(6) == pytest.approx(found.std())
    assert expected_transpositions(512) == pytest.approx(505.18, abs=0.01)


def test_random_baseline_of_blocks_is_the_mean_over_all_their_permutations():
    """Two blocks of three units change places, and so do the units of each."""
    found = []
    for first, second in itertools.product(itertools.permutations(range(3)), repeat=2):
        for blocks in (0, 3), (3, 0):
            perm = [
                start + k for start, row in zip(blocks, (first, second), strict=True) for k in row
            ]
            found.append(num_transpositions(torch.tensor(perm)))
    assert expected_transpositions(2, 3) == pytest.approx(np.mean(found))


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert num_transpositions(random_permutation(5, np.int64(2), random(0))) == 2


@pytest.mark.parametrize("transpositions", [-1, 5])
def test_impossible_transpositions_are_refused(transpositions):
    with pytest.raises(UserError, match="impossible"):
        random_permutation(5, transpositions, random(0))


@pytest.mark.parametrize("perm", [[0, 0, 2], [0, 1, 3], [0.0, 1.0, 2.0]])
def test_nothing_is_counted_of_what_is_not_a_permutation(perm):
    with pytest.raises(UserError, match="not a permutation of 3 units"):
        num_transpositions(torch.tensor(perm))


def test_every_row_has_to_be_a_permutation():
    rows = torch.tensor([[1, 0, 2], [2, 1, 0]])
    check_permutation(rows, (2, 3))
    rows[1, 0] = 1
    with pytest.raises(UserError, match="not a permutation of 2 × 3 units"):
        check_permutation(rows, (2, 3))
    with pytest.raises(UserError, match="not a permutation of 3 × 2 units"):
        check_permutation(rows, (3, 2))
