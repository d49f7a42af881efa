"""Matching's known answers: planted permutations, brute force, objectives that only rise."""

import itertools

from tests.networks.toy_networks import GroupedConvNet, ResidualConvNet, inputs_for
from tests.symmetry.planted import any_permutation, same
from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.rebasin.matching import MATCHINGS, make_matcher
from utils.rebasin.rebase import rebase
from utils.rebasin.response_matching import ActivationMatcher, Stack
from utils.rebasin.weight_matching import CosineMatcher, WeightMatcher
from utils.settings.errors import UserError
from utils.symmetry.transformation import Transformation, random_transformation

import pytest
import torch
from scipy.optimize import linear_sum_assignment

SHALLOW = MLP((12, 40, 4))
DEEP = MLP((12, 24, 24, 24, 4))
SMALL = MLP((5, 7, 3))
CONVOLUTIONS = {"grouped": GroupedConvNet(), "residual": ResidualConvNet()}


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images_for(network: Network, count: int = 300) -> torch.Tensor:
    return torch.rand(count, network.sizes[0], generator=random(99))


def similarity_of(network: Network, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Σ_n a_i(n) b_j(n) of the only hidden layer, the slow and certain way."""
    images = images_for(network).double()
    a, b = (network.activations(w.double(), images)["h1"] for w in (first, second))
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
    perm = ActivationMatcher(SMALL, reference, images_for(SMALL))(
        other
    ).transformation.permutations["h1"]
    reached = similarity[torch.arange(7), perm].sum().item()
    # the tie-break may give up 7 × RESOLUTION × the units' lengths, and fp32 rounds
    assert reached == pytest.approx(best_by_brute_force(similarity), rel=2e-5)


@pytest.mark.parametrize("seed", range(5))
def test_weight_matching_equals_brute_force(seed):
    reference, other = (SMALL.initial_weights(random(k)) for k in (2 * seed, 2 * seed + 1))
    distances = [
        (reference - Transformation(SMALL, {"h1": torch.tensor(perm)}).apply(other)).norm().item()
        for perm in itertools.permutations(range(7))
    ]
    moved = rebase(SMALL, other, WeightMatcher(SMALL, reference)).weights
    assert (reference - moved).norm().item() == pytest.approx(min(distances), rel=1e-6)


def test_cosine_matching_equals_brute_force():
    reference, other = (SMALL.initial_weights(random(k)) for k in (0, 1))
    (a, _), (b, _) = SMALL.layers(reference)[0], SMALL.layers(other)[0]
    cosines = torch.nn.functional.cosine_similarity(a[:, None], b[None], dim=-1)
    perm = CosineMatcher(SMALL, reference)(other).transformation.permutations["h1"]
    reached = cosines[torch.arange(7), perm].sum().item()
    assert reached == pytest.approx(best_by_brute_force(cosines), rel=1e-5)


@pytest.mark.parametrize("method", MATCHINGS)
@pytest.mark.parametrize("network", [SHALLOW, DEEP], ids=["shallow", "deep"])
def test_a_network_is_matched_to_itself_by_the_identity(network, method):
    weights = network.initial_weights(random(0))
    matcher = make_matcher(method, network, weights, images_for(network))
    assert same(matcher(weights).transformation, Transformation(network))


@pytest.mark.parametrize("method", MATCHINGS)
@pytest.mark.parametrize("network", [SHALLOW, DEEP], ids=["shallow", "deep"])
def test_a_permuted_copy_is_moved_back_exactly(network, method):
    weights = network.initial_weights(random(0))
    planted = any_permutation(network, 1)
    matcher = make_matcher(method, network, weights, images_for(network))
    moved = rebase(network, planted.apply(weights), matcher)
    assert same(moved.matching.transformation, planted.inverse())
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
        found = matcher(planted.apply(blurred)).transformation
        right = found.to_row() == planted.inverse().to_row()  # layers are of one size
        recovered.append(right.double().mean().item())
    assert recovered[:2] == [1, 1]
    assert recovered[2] > 0.9
    assert recovered[4] < 0.5
    assert sorted(recovered, reverse=True) == recovered


def test_matching_by_activation_does_not_depend_on_the_other_layers():
    """So that layers can be matched one by one: permuting one layer moves its own result only."""
    reference, other = (DEEP.initial_weights(random(k)) for k in (0, 1))
    matcher = ActivationMatcher(DEEP, reference, images_for(DEEP))
    swapped = Transformation(DEEP, {"h2": torch.randperm(24, generator=random(3))})
    again = matcher(swapped.apply(other)).transformation
    assert same(again, swapped.inverse().then(matcher(other).transformation))


def test_several_networks_at_once_as_one_by_one():
    reference, *others = (SHALLOW.initial_weights(random(k)) for k in range(4))
    matcher = ActivationMatcher(SHALLOW, reference, images_for(SHALLOW))
    for together, weights in zip(
        matcher.match_all(Stack(SHALLOW, torch.stack(others))), others, strict=True
    ):
        assert same(together.transformation, matcher(weights).transformation)


def test_chunks_of_images_add_up(monkeypatch):
    reference, other = (SHALLOW.initial_weights(random(k)) for k in (0, 1))
    whole = ActivationMatcher(SHALLOW, reference, images_for(SHALLOW))(other).transformation
    monkeypatch.setattr(MLP, "chunk_rows", 7)
    assert same(
        ActivationMatcher(SHALLOW, reference, images_for(SHALLOW))(other).transformation, whole
    )


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
    assert torch.equal(itself.transformation.to_row()[dead], dead)
    planted = any_permutation(SHALLOW, 1)
    back = matcher(planted.apply(weights))
    apart = torch.tensor([place not in (5, 6) for place in range(40)])
    assert (back.dead, back.tied) == (2, 2)
    assert torch.equal(
        back.transformation.permutations["h1"][apart], planted.inverse().permutations["h1"][apart]
    )
    assert same(back.transformation, matcher(planted.apply(weights)).transformation)


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
    found = ActivationMatcher(SHALLOW, reference, images_for(SHALLOW))(other).transformation
    assert found.permutations["h1"].tolist() == best.tolist()


def with_dead_layer(seed: int) -> torch.Tensor:
    weights = SHALLOW.initial_weights(random(seed))
    SHALLOW.layers(weights)[0][1].fill_(-100)
    return weights


def test_a_dead_layer_is_matched_by_cosines():
    living, dead = SHALLOW.initial_weights(random(0)), with_dead_layer(1)
    for reference, other in ((living, dead), (dead, living), (dead, with_dead_layer(2))):
        found = ActivationMatcher(SHALLOW, reference, images_for(SHALLOW))(other).transformation
        assert same(found, CosineMatcher(SHALLOW, reference)(other).transformation)
        assert not same(found, Transformation(SHALLOW))


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
        (reference.double() @ step.transformation.apply(other).double()).item() for step in steps
    ]
    assert len(steps) > 4
    assert all(later > earlier for earlier, later in itertools.pairwise(objectives))
    assert [step.objective for step in steps] == pytest.approx(objectives)


def test_the_end_of_the_descent_cannot_be_bettered_by_a_swap():
    reference, other = (DEEP.initial_weights(random(k)) for k in (0, 1))
    end = WeightMatcher(DEEP, reference)(other).transformation
    best = reference @ end.apply(other)
    for name, (a, b) in itertools.product(DEEP.groups, itertools.combinations(range(24), 2)):
        swap = torch.arange(24)
        swap[[a, b]] = swap[[b, a]]
        swapped = end.then(Transformation(DEEP, {name: swap}))
        assert reference @ swapped.apply(other) <= best + 1e-5


def test_no_layer_can_gain_anything_where_a_descent_ends():
    """Beginning again at an end looks at every layer at least once."""
    network = MLP((12, *5 * [16], 4))
    reference, other = (network.initial_weights(random(k)) for k in (0, 1))
    matcher = WeightMatcher(network, reference)
    for seed in range(30):
        *_, end = matcher.descend(other, any_permutation(network, seed), random(seed))
        assert len(list(matcher.descend(other, end.transformation, random(0)))) == 1


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_the_start_by_cosines_beats_several_tries_from_the_Transformation(seed):
    reference, other = (DEEP.initial_weights(random(k)) for k in (seed, seed + 1))
    matcher = WeightMatcher(DEEP, reference, restarts=0)
    tries = [list(matcher.descend(other, Transformation(DEEP), random(k)))[-1] for k in range(5)]
    found = (reference @ rebase(DEEP, other, matcher).weights).item()
    assert found > max(end.objective for end in tries)


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_the_result_seldom_depends_on_the_order_of_units(seed):
    """Of all starts only the identity depends on it, and it can only better the result."""
    reference, other = (DEEP.initial_weights(random(k)) for k in (seed, seed + 1))
    matcher = WeightMatcher(DEEP, reference)
    copies = [any_permutation(DEEP, k).apply(other) for k in range(6)]
    moved = [rebase(DEEP, copy, matcher).weights for copy in copies]
    worst = min(moved, key=lambda weights: float(reference @ weights))
    assert sum(torch.equal(weights, worst) for weights in moved) >= 4


def test_restarts_can_only_help():
    def objective(seed, restarts):
        reference, other = (DEEP.initial_weights(random(k)) for k in (seed, seed + 1))
        matcher = WeightMatcher(DEEP, reference, restarts=restarts)
        return (reference @ rebase(DEEP, other, matcher).weights).item()

    gains = [objective(seed, 8) - objective(seed, 0) for seed in (0, 2, 4)]
    assert min(gains) >= 0
    assert max(gains) > 0


def test_a_misspelt_method_is_refused_in_a_sentence():
    weights = SHALLOW.initial_weights(random(0))
    with pytest.raises(UserError, match="no matching by 'cos'; choose from activation, "):
        make_matcher("cos", SHALLOW, weights, images_for(SHALLOW))


@pytest.mark.parametrize("method", MATCHINGS)
def test_a_network_without_hidden_layers_has_nothing_to_match(method):
    network = MLP((12, 4))
    weights = network.initial_weights(random(0))
    moved = rebase(network, weights, make_matcher(method, network, weights, images_for(network)))
    assert moved.matching.transformation.permutations == {}
    assert torch.equal(moved.weights, weights)


@pytest.mark.parametrize("method", MATCHINGS)
@pytest.mark.parametrize("reference_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_of_either_precision_are_matched(method, reference_dtype, dtype):
    weights = DEEP.initial_weights(random(0))
    planted = any_permutation(DEEP, 1)
    matcher = make_matcher(method, DEEP, weights.to(reference_dtype), images_for(DEEP))
    moved = rebase(DEEP, planted.apply(weights).to(dtype), matcher)
    assert same(moved.matching.transformation, planted.inverse())
    assert torch.equal(moved.weights, weights.to(dtype))


@pytest.mark.parametrize("method", MATCHINGS)
def test_diverged_weights_are_refused_in_a_sentence(method):
    weights = SHALLOW.initial_weights(random(0))
    matcher = make_matcher(method, SHALLOW, weights, images_for(SHALLOW))
    with pytest.raises(UserError, match="not all finite"):
        matcher(weights * float("nan"))


def test_random_networks_need_nearly_as_many_transpositions_as_chance():
    """Unrelated networks: NoT of the matching near 40 − H_40 = 35.7, whose deviation is 1.6."""
    reference, other = (SHALLOW.initial_weights(random(k)) for k in (0, 1))
    found = WeightMatcher(SHALLOW, reference)(other).transformation
    assert 28 <= found.total_transpositions() <= 39


# ---- convolutions, with blocks of channels and a residual stream


@pytest.mark.parametrize("method", ["activation", "weight"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_planted_permutations_of_channels_are_found(name, method, seed):
    network = CONVOLUTIONS[name]
    weights, planted = network.initial_weights(random(seed)), any_permutation(network, seed)
    matcher = make_matcher(method, network, weights, inputs_for(network))
    moved = rebase(network, planted.apply(weights), matcher)
    assert same(moved.matching.transformation, planted.inverse())
    assert torch.equal(moved.weights, weights)


@pytest.mark.parametrize("method", MATCHINGS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolutional_network_is_matched_to_itself_by_the_identity(name, method):
    network = CONVOLUTIONS[name]
    weights = network.initial_weights(random(0))
    found = make_matcher(method, network, weights, inputs_for(network))(weights)
    assert same(found.transformation, Transformation(network))


def all_block_permutations(network: GroupedConvNet):
    orders = [torch.tensor(order) for order in itertools.permutations(range(2))]
    for g, *inner in itertools.product(orders, repeat=5):
        permutations = {"g": g, "c": torch.stack(inner[:2]), "d": torch.stack(inner[2:])}
        yield Transformation(network, permutations)


@pytest.mark.parametrize("seed", range(5))
def test_matching_blocks_by_weight_equals_brute_force(seed):
    network = GroupedConvNet(blocks=2, width=2)
    reference, other = (network.initial_weights(random(k)) for k in (2 * seed, 2 * seed + 1))
    distances = [(reference - t.apply(other)).norm() for t in all_block_permutations(network)]
    moved = rebase(network, other, WeightMatcher(network, reference)).weights
    assert (reference - moved).norm().item() == pytest.approx(min(distances).item(), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_matching_blocks_by_activation_equals_brute_force(seed):
    network, images = GroupedConvNet(blocks=2, width=2), inputs_for(GroupedConvNet())
    reference, other = (network.initial_weights(random(k)) for k in (2 * seed, 2 * seed + 1))

    def likeness(weights) -> float:
        pairs = (network.activations(w.double(), images.double()) for w in (reference, weights))
        return sum((a * b).sum().item() for a, b in zip(*(p.values() for p in pairs), strict=True))

    best = max(likeness(t.apply(other)) for t in all_block_permutations(network))
    moved = rebase(network, other, ActivationMatcher(network, reference, images)).weights
    assert likeness(moved) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_scales_do_not_hide_units_from_their_activations(name):
    """Units that respond alike up to a factor are found; the factor stays."""
    network = CONVOLUTIONS[name]
    weights = network.initial_weights(random(0))
    drawn = random_transformation(network, random(1), log_scale=0.02)
    matcher = ActivationMatcher(network, weights, inputs_for(network))
    found = matcher(drawn.apply(weights)).transformation
    assert same(found, Transformation(network, drawn.permutations).inverse())
