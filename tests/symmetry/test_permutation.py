"""Known answers about permutations: small groups enumerated in full, functions left unchanged."""

import itertools
from collections import Counter

from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.runs.errors import UserError
from utils.symmetry.permutation import (
    compose,
    cycles,
    expected_transpositions,
    identity,
    invert,
    layer_transpositions,
    num_transpositions,
    permute_weights,
    random_permutation,
    transpositions_deviation,
)

import numpy as np
import pytest
import torch

DEEP = MLP((6, 5, 7, 4, 3))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def any_permutation(network: Network, seed: int) -> list[torch.Tensor]:
    generator = random(seed)
    return [torch.randperm(size, generator=generator) for size in network.sizes[1:-1]]


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
        assert num_transpositions([torch.tensor(perm)]) == swaps


def test_cycles_of_a_known_permutation():
    assert cycles(torch.tensor([2, 1, 0, 4, 5, 3])) == [[0, 2], [1], [3, 4, 5]]


def test_transpositions_per_layer_and_in_total():
    permutation = [torch.tensor([1, 0, 2]), torch.tensor([1, 2, 3, 0])]
    assert layer_transpositions(permutation) == [1, 3]
    assert num_transpositions(permutation) == 4


def test_convention_on_two_layers():
    network = MLP((2, 3, 2))
    weights = torch.arange(network.num_weights, dtype=torch.float32)
    (w1, b1), (w2, b2) = network.layers(weights)
    perm = torch.tensor([2, 0, 1])
    (v1, c1), (v2, c2) = network.layers(permute_weights(network, weights, [perm]))
    assert torch.equal(v1, w1[perm])
    assert torch.equal(c1, b1[perm])
    assert torch.equal(v2, w2[:, perm])
    assert torch.equal(c2, b2)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_logits_stay_the_same(activation):
    network = MLP(DEEP.sizes, activation)
    weights = torch.randn(network.num_weights, generator=random(0), dtype=torch.float64)
    inputs = torch.randn(50, 6, generator=random(1), dtype=torch.float64)
    moved = permute_weights(network, weights, any_permutation(network, 2))
    assert not torch.equal(moved, weights)
    torch.testing.assert_close(
        network.outputs(moved, inputs), network.outputs(weights, inputs), rtol=0, atol=1e-10
    )


def test_a_stack_is_permuted_row_by_row():
    stack = torch.randn(2, 3, DEEP.num_weights, generator=random(0))
    permutation = any_permutation(DEEP, 1)
    moved = permute_weights(DEEP, stack, permutation)
    for a, b in itertools.product(range(2), range(3)):
        assert torch.equal(moved[a, b], permute_weights(DEEP, stack[a, b], permutation))


def test_compose_applies_first_then_second():
    weights = DEEP.initial_weights(random(0))
    first, second = any_permutation(DEEP, 1), any_permutation(DEEP, 2)
    one_by_one = permute_weights(DEEP, permute_weights(DEEP, weights, first), second)
    assert torch.equal(permute_weights(DEEP, weights, compose(first, second)), one_by_one)


def test_invert_undoes():
    weights = DEEP.initial_weights(random(0))
    permutation = any_permutation(DEEP, 1)
    moved = permute_weights(DEEP, weights, permutation)
    assert torch.equal(permute_weights(DEEP, moved, invert(permutation)), weights)
    there_and_back = compose(permutation, invert(permutation))
    for perm, same in zip(there_and_back, identity(DEEP), strict=True):
        assert torch.equal(perm, same)


@pytest.mark.parametrize("size", [1, 2, 9, 100, 512])
def test_random_permutation_has_exactly_the_wanted_transpositions(size):
    generator = random(size)
    for transpositions in range(0, size, max(1, size // 40)):
        perm = random_permutation(size, transpositions, generator)
        assert sorted(perm.tolist()) == list(range(size))
        assert num_transpositions([perm]) == transpositions
    assert num_transpositions([random_permutation(size, size - 1, generator)]) == size - 1


@pytest.mark.parametrize("transpositions", [1, 2, 3])
def test_random_permutation_is_uniform(transpositions):
    """χ² over all permutations of 5 with this NoT; by chance above the limit once in 10,000."""
    wanted = [
        perm for perm in itertools.permutations(range(5))
        if num_transpositions([torch.tensor(perm)]) == transpositions
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
    found = np.array([num_transpositions([torch.tensor(p)]) for p in permutations])
    assert expected_transpositions(6) == pytest.approx(found.mean())
    assert transpositions_deviation(6) == pytest.approx(found.std())
    assert expected_transpositions(512) == pytest.approx(505.18, abs=0.01)


@pytest.mark.parametrize(
    ("permutation", "reason"),
    [
        ([[0, 1, 1]], "unit 1 is there 2 times and unit 2 not at all"),
        ([[0, 1, 3]], "entries go from 0 to 3"),
        ([[-1, 0, 1]], "entries go from -1 to 1"),
        ([[0, 1]], "shape is"),
        ([[0.0, 1.0, 2.0]], "entries are torch.float32, not torch.int64"),
        ([[0, 1, 2], [0, 1, 2]], "for 2 hidden layers"),
    ],
)
def test_what_is_not_a_permutation_is_refused(permutation, reason):
    network = MLP((2, 3, 2))
    with pytest.raises(UserError, match=reason):
        permute_weights(
            network, torch.zeros(network.num_weights), [torch.tensor(p) for p in permutation]
        )


@pytest.mark.parametrize(
    ("perm", "reason"),
    [
        (np.array([1, 0, 2]), "it is a ndarray, not a tensor"),
        ([1, 0, 2], "it is a list, not a tensor"),
        (torch.tensor([1, 0, 1], dtype=torch.uint8), "torch.uint8, not torch.int64"),
        (torch.tensor([True, False, True]), "torch.bool, not torch.int64"),
    ],
    ids=["numpy", "list", "uint8", "bool"],
)
def test_what_cannot_index_is_refused(perm, reason):
    network = MLP((2, 3, 2))
    with pytest.raises(UserError, match=reason):
        permute_weights(network, torch.zeros(network.num_weights), [perm])
    with pytest.raises(UserError, match=reason):
        compose([perm], [perm])


@pytest.mark.parametrize(
    "permutation",
    [
        torch.tensor([1, 0, 2]), torch.tensor(1), np.array([1, 0, 2]), [1, 0, 2], 3, None,
        (perm for perm in [torch.tensor([1, 0, 2])]),
    ],
    ids=["tensor", "scalar", "numpy", "numbers", "number", "None", "generator"],
)  # fmt: skip
def test_what_is_no_list_of_tensors_is_refused(permutation):
    network = MLP((2, 3, 2))
    weights = torch.zeros(network.num_weights)
    for function in (
        lambda p: permute_weights(network, weights, p),
        lambda p: compose(p, identity(network)),
        lambda p: compose(identity(network), p),
        invert,
        layer_transpositions,
        num_transpositions,
    ):
        with pytest.raises(UserError, match="a list of 1-D tensors of whole numbers, one for each"):
            function(permutation)


@pytest.mark.parametrize("function", [invert, num_transpositions, lambda p: compose(p, p)])
def test_nothing_is_made_of_what_is_not_a_permutation(function):
    with pytest.raises(UserError, match="unit 0 is there 2 times and unit 1 not at all"):
        function([torch.tensor([0, 0, 2])])


@pytest.mark.parametrize(("size", "transpositions"), [(5, 2.0), (5.0, 2), (5, "2"), (5, None)])
def test_transpositions_that_are_no_whole_number_are_refused(size, transpositions):
    with pytest.raises(UserError, match="both have to be whole numbers"):
        random_permutation(size, transpositions, random(0))


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert num_transpositions([random_permutation(5, np.int64(2), random(0))]) == 2


@pytest.mark.parametrize("transpositions", [-1, 5])
def test_impossible_transpositions_are_refused(transpositions):
    with pytest.raises(UserError, match="impossible"):
        random_permutation(5, transpositions, random(0))
