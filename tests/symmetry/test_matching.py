"""Rebasin's known answers: planted permutations, brute force, objectives that only rise."""

import itertools

from utils.networks.mlp import MLP, hidden_activations
from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian, rebase_gaussian
from utils.runs.errors import UserError
from utils.symmetry import matching
from utils.symmetry.matching import (
    METHODS,
    ActivationMatcher,
    CosineMatcher,
    Matching,
    Stack,
    WeightMatcher,
    check_same_function,
    make_matcher,
)
from utils.symmetry.permutation import identity, invert, num_transpositions, permute_weights
from utils.symmetry.rebasin import iterated_mean, mean_weights, rebase, rebase_all

import pytest
import torch
from scipy.optimize import linear_sum_assignment

SHALLOW = MLP((12, 40, 4))
DEEP = MLP((12, 24, 24, 24, 4))
SMALL = MLP((5, 7, 3))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images_for(network: Network, count: int = 300) -> torch.Tensor:
    return torch.rand(count, network.sizes[0], generator=random(99))


def any_permutation(network: Network, seed: int) -> list[torch.Tensor]:
    generator = random(seed)
    return [torch.randperm(size, generator=generator) for size in network.sizes[1:-1]]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def similarity_of(network: Network, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Σ_n a_i(n) b_j(n) of the only hidden layer, the slow and certain way."""
    images = images_for(network).double()
    (a,), (b,) = (hidden_activations(network, w.double(), images) for w in (first, second))
    return torch.einsum("ni,nj->ij", a, b)


def best_by_brute_force(similarity: torch.Tensor) -> float:
    places = range(len(similarity))
    table = similarity.tolist()
    return max(
        sum(table[i][j] for i, j in zip(places, perm, strict=True))
        for perm in itertools.permutations(places)
    )


@pytest.mark.parametrize("seed", range(5))
def test_activation_matching_equals_brute_force(seed):
    reference, other = (SMALL.initial_weights(random(k)) for k in (2 * seed, 2 * seed + 1))
    similarity = similarity_of(SMALL, reference, other)
    (perm,) = ActivationMatcher(SMALL, reference, images_for(SMALL))(other).permutation
    found = similarity[torch.arange(7), perm].sum().item()
    # the tie-break may give up 7 × RESOLUTION × the units' lengths, and fp32 rounds
    assert found == pytest.approx(best_by_brute_force(similarity), rel=2e-5)


@pytest.mark.parametrize("seed", range(5))
def test_weight_matching_equals_brute_force(seed):
    reference, other = (SMALL.initial_weights(random(k)) for k in (2 * seed, 2 * seed + 1))
    distances = [
        (reference - permute_weights(SMALL, other, [torch.tensor(perm)])).norm().item()
        for perm in itertools.permutations(range(7))
    ]
    moved = rebase(SMALL, other, WeightMatcher(SMALL, reference)).weights
    assert (reference - moved).norm().item() == pytest.approx(min(distances), rel=1e-6)


def test_cosine_matching_equals_brute_force():
    reference, other = (SMALL.initial_weights(random(k)) for k in (0, 1))
    (a, _), (b, _) = SMALL.layers(reference)[0], SMALL.layers(other)[0]
    cosines = torch.nn.functional.cosine_similarity(a[:, None], b[None], dim=-1)
    (perm,) = CosineMatcher(SMALL, reference)(other).permutation
    found = cosines[torch.arange(7), perm].sum().item()
    assert found == pytest.approx(best_by_brute_force(cosines), rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", [SHALLOW, DEEP], ids=["shallow", "deep"])
def test_a_network_is_matched_to_itself_by_the_identity(network, method):
    weights = network.initial_weights(random(0))
    matcher = make_matcher(method, network, weights, images_for(network))
    assert same(matcher(weights).permutation, identity(network))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", [SHALLOW, DEEP], ids=["shallow", "deep"])
def test_a_permuted_copy_is_moved_back_exactly(network, method):
    weights = network.initial_weights(random(0))
    planted = any_permutation(network, 1)
    matcher = make_matcher(method, network, weights, images_for(network))
    moved = rebase(network, permute_weights(network, weights, planted), matcher)
    assert same(moved.matching.permutation, invert(planted))
    assert torch.equal(moved.weights, weights)


@pytest.mark.parametrize("method", ["activation", "weight"])
@pytest.mark.parametrize("network", [SHALLOW, DEEP], ids=["shallow", "deep"])
def test_recovery_of_a_planted_permutation_fades_with_noise(network, method):
    """Noise σ relative to the weights' own: little is harmless, much makes it a random matching."""
    weights = network.initial_weights(random(0))
    planted = any_permutation(network, 1)
    matcher = make_matcher(method, network, weights, images_for(network))
    recovered = []
    for noise in (0, 0.01, 0.1, 1, 10):
        blurred = weights + noise * weights.std() * torch.randn(weights.shape, generator=random(2))
        found = matcher(permute_weights(network, blurred, planted)).permutation
        right = [(a == b).double().mean() for a, b in zip(found, invert(planted), strict=True)]
        recovered.append(float(sum(right) / len(right)))
    assert recovered[:2] == [1, 1]
    assert recovered[2] > 0.9
    assert recovered[4] < 0.5
    assert sorted(recovered, reverse=True) == recovered


def test_matching_by_activation_does_not_depend_on_the_other_layers():
    """So that layers can be matched one by one: permuting one layer moves its own result only."""
    reference, other = (DEEP.initial_weights(random(k)) for k in (0, 1))
    matcher = ActivationMatcher(DEEP, reference, images_for(DEEP))
    first, second, third = matcher(other).permutation
    swapped = any_permutation(DEEP, 3)[1]
    moved = permute_weights(DEEP, other, [torch.arange(24), swapped, torch.arange(24)])
    again = matcher(moved).permutation
    assert same(again, [first, torch.argsort(swapped)[second], third])


def test_several_networks_at_once_as_one_by_one():
    reference, *others = (SHALLOW.initial_weights(random(k)) for k in range(4))
    matcher = ActivationMatcher(SHALLOW, reference, images_for(SHALLOW))
    for together, weights in zip(
        matcher.match_all(Stack(SHALLOW, torch.stack(others))), others, strict=True
    ):
        assert same(together.permutation, matcher(weights).permutation)


def test_chunks_of_images_add_up(monkeypatch):
    reference, other = (SHALLOW.initial_weights(random(k)) for k in (0, 1))
    whole = ActivationMatcher(SHALLOW, reference, images_for(SHALLOW))(other).permutation
    monkeypatch.setattr(matching, "CHUNK_ROWS", 7)
    assert same(
        ActivationMatcher(SHALLOW, reference, images_for(SHALLOW))(other).permutation, whole
    )


def test_similarities_over_sixty_thousand_images_keep_the_precision_of_floats():
    first, second = (10 * torch.rand(60_000, 6, generator=random(k)) for k in (0, 1))
    comparison = matching._Comparison(6, first.device)
    for chunk in zip(first.split(2000), second.split(2000), strict=True):
        comparison.add(*chunk)
    exact = first.double().T @ second.double()
    torch.testing.assert_close(comparison.similarity, exact, rtol=1e-6, atol=0)


def with_dead_and_equal_units() -> torch.Tensor:
    """Units 3 and 8 never active; units 5 and 6 the same."""
    weights = SHALLOW.initial_weights(random(0))
    (incoming, bias), _ = SHALLOW.layers(weights)
    bias += 1  # without this some would be dead by themselves
    bias[[3, 8]] = -100
    incoming[6], bias[6] = incoming[5], bias[5]
    return weights


def test_dead_and_equal_units_are_counted_and_go_back_to_their_places():
    weights = with_dead_and_equal_units()
    matcher = ActivationMatcher(SHALLOW, weights, images_for(SHALLOW))
    itself = matcher(weights)
    assert (itself.dead, itself.reference_dead) == (2, 2)
    assert (itself.tied, itself.reference_tied) == (2, 2)
    dead = torch.tensor([3, 8])
    assert torch.equal(itself.permutation[0][dead], dead)
    planted = any_permutation(SHALLOW, 1)
    back = matcher(permute_weights(SHALLOW, weights, planted))
    apart = torch.tensor([place not in (5, 6) for place in range(40)])
    assert (back.dead, back.tied) == (2, 2)
    assert torch.equal(back.permutation[0][apart], invert(planted)[0][apart])
    assert same(back.permutation, matcher(permute_weights(SHALLOW, weights, planted)).permutation)


def rescaled(weights: torch.Tensor, seed: int) -> torch.Tensor:
    """The same function by units of very different sizes, none of them dead."""
    moved = weights.clone()
    (incoming, bias), (outgoing, _) = SHALLOW.layers(moved)
    bias += 1
    sizes = 10 ** (-4.0 * torch.randint(2, (40,), generator=random(seed)))
    incoming *= sizes[:, None]
    bias *= sizes
    outgoing /= sizes
    return moved


@pytest.mark.parametrize("seed", range(5))
def test_faint_units_are_matched_by_the_images_as_well(seed):
    reference, other = (rescaled(SHALLOW.initial_weights(random(k)), k) for k in (seed, seed + 1))
    _, best = linear_sum_assignment(similarity_of(SHALLOW, reference, other), maximize=True)
    (found,) = ActivationMatcher(SHALLOW, reference, images_for(SHALLOW))(other).permutation
    assert found.tolist() == best.tolist()


def with_dead_layer(seed: int) -> torch.Tensor:
    weights = SHALLOW.initial_weights(random(seed))
    SHALLOW.layers(weights)[0][1].fill_(-100)
    return weights


def test_a_dead_layer_is_matched_by_cosines():
    living, dead = SHALLOW.initial_weights(random(0)), with_dead_layer(1)
    for reference, other in ((living, dead), (dead, living), (dead, with_dead_layer(2))):
        found = ActivationMatcher(SHALLOW, reference, images_for(SHALLOW))(other).permutation
        assert same(found, CosineMatcher(SHALLOW, reference)(other).permutation)
        assert not same(found, identity(SHALLOW))


def test_dead_and_equal_units_of_the_network_and_of_the_reference_are_told_apart():
    living = rescaled(SHALLOW.initial_weights(random(0)), 0)
    found = ActivationMatcher(SHALLOW, living, images_for(SHALLOW))(with_dead_and_equal_units())
    assert (found.dead, found.reference_dead, found.tied, found.reference_tied) == (2, 0, 2, 0)
    found = ActivationMatcher(SHALLOW, with_dead_and_equal_units(), images_for(SHALLOW))(living)
    assert (found.dead, found.reference_dead, found.tied, found.reference_tied) == (0, 2, 0, 2)


@pytest.mark.parametrize("method", ["weight", "cosine"])
def test_what_a_matcher_does_not_look_at_it_does_not_count(method):
    weights = with_dead_and_equal_units()
    found = make_matcher(method, SHALLOW, weights, images_for(SHALLOW))(weights)
    assert (found.dead, found.reference_dead) == (None, None)
    assert (found.tied, found.reference_tied) == (None, None)


def test_ordinary_networks_have_no_ties():
    weights = SHALLOW.initial_weights(random(0))
    matcher = ActivationMatcher(SHALLOW, weights, images_for(SHALLOW))
    assert matcher(weights).tied == 0
    (incoming, bias), _ = SHALLOW.layers(weights)
    incoming[6], bias[6] = 1.0001 * incoming[5], 1.0001 * bias[5]
    assert matcher(weights).tied == 0  # alike, but the images tell them apart


@pytest.mark.parametrize("seed", range(3))
def test_weight_matching_never_worsens_its_objective(seed):
    reference, other = (DEEP.initial_weights(random(k)) for k in (2 * seed, 2 * seed + 1))
    matcher = WeightMatcher(DEEP, reference)
    steps = list(matcher.descend(other, any_permutation(DEEP, seed), random(seed)))
    objectives = [
        (reference.double() @ permute_weights(DEEP, other, step.permutation).double()).item()
        for step in steps
    ]
    assert len(steps) > 4
    assert all(later > earlier for earlier, later in itertools.pairwise(objectives))
    assert [step.objective for step in steps] == pytest.approx(objectives)


def test_the_end_of_the_descent_cannot_be_bettered_by_a_swap():
    reference, other = (DEEP.initial_weights(random(k)) for k in (0, 1))
    end = WeightMatcher(DEEP, reference)(other).permutation
    best = reference @ permute_weights(DEEP, other, end)
    for layer, (a, b) in itertools.product(range(3), itertools.combinations(range(24), 2)):
        swapped = [perm.clone() for perm in end]
        swapped[layer][[a, b]] = swapped[layer][[b, a]]
        assert reference @ permute_weights(DEEP, other, swapped) <= best + 1e-5


def test_no_layer_can_gain_anything_where_a_descent_ends():
    """Beginning again at an end looks at every layer at least once."""
    network = MLP((12, *5 * [16], 4))
    reference, other = (network.initial_weights(random(k)) for k in (0, 1))
    matcher = WeightMatcher(network, reference)
    for seed in range(30):
        *_, end = matcher.descend(other, any_permutation(network, seed), random(seed))
        assert len(list(matcher.descend(other, end.permutation, random(0)))) == 1


def test_one_hidden_layer_takes_one_assignment(monkeypatch):
    solved, assign = [], matching._assign
    monkeypatch.setattr(matching, "_assign", lambda table: solved.append(table) or assign(table))
    reference, other = (SHALLOW.initial_weights(random(k)) for k in (0, 1))
    WeightMatcher(SHALLOW, reference)(other)
    assert len(solved) == 1


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_the_start_by_cosines_beats_several_tries_from_the_identity(seed):
    reference, other = (DEEP.initial_weights(random(k)) for k in (seed, seed + 1))
    matcher = WeightMatcher(DEEP, reference, restarts=0)
    tries = [list(matcher.descend(other, identity(DEEP), random(k)))[-1] for k in range(5)]
    found = (reference @ rebase(DEEP, other, matcher).weights).item()
    assert found > max(end.objective for end in tries)


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_starts_but_the_identity_do_not_depend_on_the_order_of_units(seed):
    reference, other = (DEEP.initial_weights(random(k)) for k in (seed, seed + 1))
    matcher = WeightMatcher(DEEP, reference)
    copy = permute_weights(DEEP, other, any_permutation(DEEP, 9))
    begun, ended = [], []
    for weights in (other, copy):
        starts = list(matcher._starts(weights))
        ends = [list(matcher.descend(weights, start, random(0)))[-1] for start in starts]
        begun.append([permute_weights(DEEP, weights, start) for start in starts])
        ended.append([end.objective for end in ends])
    assert len(begun[0]) == 2 + matcher.restarts
    assert not torch.equal(begun[0][0], begun[1][0])
    assert len({tuple(start.tolist()) for start in begun[0]}) == len(begun[0])
    assert all(torch.equal(a, b) for a, b in zip(begun[0][1:], begun[1][1:], strict=True))
    assert ended[0][1:] == pytest.approx(ended[1][1:])


def test_restarts_can_only_help():
    def objective(seed, restarts):
        reference, other = (DEEP.initial_weights(random(k)) for k in (seed, seed + 1))
        matcher = WeightMatcher(DEEP, reference, restarts=restarts)
        return (reference @ rebase(DEEP, other, matcher).weights).item()

    gains = [objective(seed, 8) - objective(seed, 0) for seed in (0, 2, 4)]
    assert min(gains) >= 0
    assert max(gains) > 0


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_of_networks_is_rebased_one_at_a_time(method):
    weights = SHALLOW.initial_weights(random(0))
    asked = []

    def samples():
        for seed in range(1000):
            asked.append(seed)
            yield permute_weights(SHALLOW, weights, any_permutation(SHALLOW, seed))

    matcher = make_matcher(method, SHALLOW, weights, images_for(SHALLOW))
    for number, moved in enumerate(itertools.islice(rebase_all(SHALLOW, samples(), matcher), 3)):
        assert torch.equal(moved.weights, weights)
        assert len(asked) == number + 1


def test_rebase_refuses_a_change_of_function(monkeypatch):
    weights = SHALLOW.initial_weights(random(0))
    matcher = WeightMatcher(SHALLOW, weights)

    def forget_the_outgoing_weights(network, weights, permutation):
        moved = weights.clone()
        network.layers(moved)[0][0][:] = network.layers(weights)[0][0][permutation[0]]
        return moved

    monkeypatch.setattr(matching, "permute_weights", forget_the_outgoing_weights)
    assert torch.equal(rebase(SHALLOW, weights, matcher).weights, weights)  # nothing moves
    planted = permute_weights(SHALLOW, weights, any_permutation(SHALLOW, 1))
    with pytest.raises(AssertionError, match="changed the network's logits"):
        rebase(SHALLOW, planted, matcher)


def test_a_single_pair_of_units_moved_by_half_is_noticed():
    weights = SHALLOW.initial_weights(random(0))
    for a, b in itertools.combinations(range(40), 2):
        broken = weights.clone()
        outgoing = SHALLOW.layers(broken)[1][0]
        outgoing[:, [a, b]] = outgoing[:, [b, a]]
        with pytest.raises(AssertionError, match="changed the network's logits"):
            check_same_function(SHALLOW, weights, broken)


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("part", ["incoming", "bias", "outgoing"])
def test_half_a_move_of_units_that_are_dead_is_noticed(layer, part):
    """No input tells: the logits stay what they were."""
    weights = DEEP.initial_weights(random(0))
    DEEP.layers(weights)[layer][1][[3, 8]] = torch.tensor([-100.0, -101])
    broken = weights.clone()
    (incoming, bias), (outgoing, _) = DEEP.layers(broken)[layer : layer + 2]
    rows = {"incoming": incoming, "bias": bias, "outgoing": outgoing.T}[part]
    rows[[3, 8]] = rows[[8, 3]]
    with pytest.raises(AssertionError, match=f"took a unit of hidden layer {layer + 1} apart"):
        check_same_function(DEEP, weights, broken)


def test_a_gaussian_is_moved_as_a_whole():
    mean = SHALLOW.initial_weights(random(0))
    std = torch.rand(SHALLOW.num_weights, generator=random(1))
    planted = any_permutation(SHALLOW, 2)
    posterior = Gaussian(
        permute_weights(SHALLOW, mean, planted), permute_weights(SHALLOW, std, planted)
    )
    moved, found = rebase_gaussian(SHALLOW, posterior, WeightMatcher(SHALLOW, mean))
    assert torch.equal(moved.mean, mean)
    assert torch.equal(moved.std, std)
    assert same(found.permutation, invert(planted))


def test_mean_of_samples():
    samples = torch.randn(5, SMALL.num_weights, generator=random(0))
    torch.testing.assert_close(mean_weights(samples), samples.mean(0))
    with pytest.raises(UserError, match="no samples"):
        mean_weights([])


@pytest.mark.parametrize("method", ["activation", "weight"])
def test_iterated_mean_finds_the_network_behind_shuffled_noisy_copies(method):
    weights = SHALLOW.initial_weights(random(0))
    copies = [
        permute_weights(
            SHALLOW,
            weights + 0.02 * weights.std() * torch.randn(weights.shape, generator=random(k)),
            any_permutation(SHALLOW, k),
        )
        for k in range(8)
    ]
    images = images_for(SHALLOW)
    mean = iterated_mean(
        SHALLOW, copies, lambda reference: make_matcher(method, SHALLOW, reference, images)
    )
    assert mean.still
    back = rebase(SHALLOW, mean.weights, WeightMatcher(SHALLOW, weights)).weights
    # 8 copies with 2% noise each: their mean is off by 0.02/√8 = 0.7% of the weights' size
    assert (back - weights).norm() / weights.norm() < 0.01


def test_iterated_mean_says_when_it_did_not_come_to_rest():
    samples = [SHALLOW.initial_weights(random(k)) for k in range(6)]
    mean = iterated_mean(
        SHALLOW, samples, lambda reference: WeightMatcher(SHALLOW, reference), max_rounds=1
    )
    assert (mean.rounds, mean.still) == (1, False)


def test_iterated_mean_needs_samples_that_can_be_gone_through_again():
    samples = (SHALLOW.initial_weights(random(k)) for k in range(3))
    with pytest.raises(UserError, match="but a generator only once: give a list"):
        iterated_mean(SHALLOW, samples, lambda reference: WeightMatcher(SHALLOW, reference))


def test_a_misspelt_method_is_refused_in_a_sentence():
    weights = SHALLOW.initial_weights(random(0))
    with pytest.raises(UserError, match="no matching by 'cos'; there is: activation, weight, cos"):
        make_matcher("cos", SHALLOW, weights, images_for(SHALLOW))


@pytest.mark.parametrize("method", METHODS)
def test_a_network_without_hidden_layers_has_nothing_to_match(method):
    network = MLP((12, 4))
    weights = network.initial_weights(random(0))
    moved = rebase(network, weights, make_matcher(method, network, weights, images_for(network)))
    assert moved.matching.permutation == []
    assert torch.equal(moved.weights, weights)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reference_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_of_either_precision_are_matched(method, reference_dtype, dtype):
    weights = DEEP.initial_weights(random(0))
    planted = any_permutation(DEEP, 1)
    matcher = make_matcher(method, DEEP, weights.to(reference_dtype), images_for(DEEP))
    moved = rebase(DEEP, permute_weights(DEEP, weights, planted).to(dtype), matcher)
    assert same(moved.matching.permutation, invert(planted))
    assert torch.equal(moved.weights, weights.to(dtype))


@pytest.mark.parametrize("method", METHODS)
def test_diverged_weights_are_refused_in_a_sentence(method):
    weights = SHALLOW.initial_weights(random(0))
    matcher = make_matcher(method, SHALLOW, weights, images_for(SHALLOW))
    with pytest.raises(UserError, match="not all finite"):
        matcher(weights * float("nan"))


@pytest.mark.parametrize("method", METHODS)
def test_a_single_weight_that_is_not_finite_is_refused_in_a_sentence(method):
    weights = SHALLOW.initial_weights(random(0))
    matcher = make_matcher(method, SHALLOW, weights, images_for(SHALLOW))
    broken = weights.clone()
    broken[-1] = float("nan")  # of the last bias, which no matcher compares
    with pytest.raises(UserError, match="not all finite"):
        rebase(SHALLOW, broken, matcher)


def test_random_networks_need_nearly_as_many_transpositions_as_chance():
    """Unrelated networks: NoT of the matching near 40 − H_40 = 35.7, whose deviation is 1.6."""
    reference, other = (SHALLOW.initial_weights(random(k)) for k in (0, 1))
    found: Matching = WeightMatcher(SHALLOW, reference)(other)
    assert 28 <= num_transpositions(found.permutation) <= 39
