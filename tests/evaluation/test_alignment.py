"""A pass over samples: q_d, q_r, and symmetries that must not show."""

from tests.networks.toy_networks import WrongTable
from tests.symmetry.planted import any_permutation
from utils.data.datasets import Dataset
from utils.evaluation.alignment import (
    FIRST,
    Aligned,
    Blocks,
    RebasedSamples,
    Way,
    align,
    align_in_way,
    cycle_errors,
)
from utils.evaluation.setting import EvaluationConfig, Setting
from utils.networks.mlp import MLP
from utils.posteriors.gaussian import Gaussian
from utils.rebasin.matching import make_matcher
from utils.rebasin.weight_matching import WeightMatcher
from utils.symmetry.transformation import Transformation, random_transformation

import numpy as np
import pytest
import torch

NETWORK = MLP((12, 20, 4))
BLOCKS = Blocks(predictions=4, moments=4)
IMAGES = torch.rand(200, 12, generator=torch.Generator().manual_seed(1))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def networks(count: int) -> list[torch.Tensor]:
    """Networks that resemble one another, as samples of a chain do."""
    common = 3 * NETWORK.initial_weights(random(7))
    noise = [torch.randn(NETWORK.num_weights, generator=random(k)) for k in range(count)]
    return [common + 0.1 * each for each in noise]


def permuted(samples: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[Transformation]]:
    planted = [any_permutation(NETWORK, 50 + k) for k in range(len(samples))]
    return [t.apply(w) for t, w in zip(planted, samples, strict=True)], planted


def aligned(samples: list[torch.Tensor], method: str = "activation", **options):
    matcher = make_matcher(method, NETWORK, samples[0], IMAGES)
    watched = torch.tensor([0, 3])
    return align(NETWORK, samples, matcher, samples[0], IMAGES, BLOCKS, watched, **options)


def q_d_of(found: Aligned) -> Gaussian:
    return found.direct().gaussian()


@pytest.mark.parametrize("method", ["activation", "weight"])
def test_permuted_copies_of_one_network_are_one_point_after_rebasin(method):
    network = networks(1)[0]
    copies, _ = permuted([network] * 6)
    found = aligned(copies, method)
    compact, direct = found.rebased().gaussian(), q_d_of(found)
    assert compact.std.max() == 0
    assert direct.std.max() > 0.1
    expected = NETWORK.outputs(network, IMAGES)
    torch.testing.assert_close(NETWORK.outputs(compact.mean, IMAGES), expected)
    assert (NETWORK.outputs(direct.mean, IMAGES) - expected).abs().max() > 0.1


@pytest.mark.parametrize("method", ["activation", "contribution", "weight"])
def test_copies_of_a_tanh_network_with_other_signs_are_one_point_after_rebasin(method):
    network = MLP((12, 20, 4), "tanh")
    weights = 3 * network.initial_weights(random(7))
    elements = [random_transformation(network, random(k)) for k in range(5)]
    copies = [element.apply(weights) for element in elements]
    matcher = make_matcher(method, network, copies[0], IMAGES)
    found = align(network, copies, matcher, copies[0], IMAGES, BLOCKS, torch.tensor([0]))
    assert found.rebased().gaussian().std.max() == 0
    known = found.transformations
    for transformation, copy in zip(known, copies, strict=True):
        assert torch.equal(transformation.apply(copy), copies[0])


def test_permutations_beforehand_change_compact_form_by_one_overall_permutation():
    samples = networks(9)
    moved, planted = permuted(samples)
    before, after = (aligned(each).rebased().gaussian() for each in (samples, moved))
    for part in ("mean", "std"):
        expected = planted[0].apply(getattr(before, part))
        torch.testing.assert_close(getattr(after, part), expected, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(q_d_of(aligned(moved)).std, q_d_of(aligned(samples)).std)


@pytest.mark.parametrize("method", ["activation", "contribution", "weight"])
def test_where_fixed_weights_break_the_symmetry_rebasin_changes_nothing(method):
    """Each unit has a fixed weight that no other has, and one class: q_d equals q_r."""
    fixed = torch.zeros(NETWORK.num_weights)
    first, _, last, _ = (slot.of(fixed) for slot in NETWORK.slots)
    first[:12].fill_diagonal_(8)
    first[12:, :8].fill_diagonal_(8)
    first[torch.arange(12, 20), torch.arange(1, 9)] = 8  # a second pixel tells these from others
    last[torch.arange(20) % 4, torch.arange(20)] = 3
    noise = torch.stack([torch.randn(fixed.shape, generator=random(k)) for k in range(8)])
    found = aligned(list(fixed + 0.3 * noise), method)
    direct, rebased = found.direct().gaussian(), found.rebased().gaussian()
    assert torch.equal(direct.mean, rebased.mean)
    assert torch.equal(direct.std, rebased.std)


def test_a_pass_predicts_and_keeps_what_is_watched():
    samples, _ = permuted(networks(9))
    found = aligned(samples)
    expected = torch.stack([NETWORK.outputs(w, IMAGES).double().softmax(-1) for w in samples])
    torch.testing.assert_close(found.predictions.average(), expected.mean(0), atol=1e-6, rtol=1e-5)
    assert found.predictions.sizes.tolist() == [3, 2, 2, 2]
    moved = [t.apply(w) for t, w in zip(found.transformations, samples, strict=True)]
    watched = found.watched()
    np.testing.assert_array_equal(watched["before"], torch.stack(samples)[:, [0, 3]])
    np.testing.assert_array_equal(watched["after"], torch.stack(moved)[:, [0, 3]])


def test_moments_are_kept_in_as_many_blocks_as_are_asked_for():
    samples, _ = permuted(networks(9))
    matcher = make_matcher("activation", NETWORK, samples[0], IMAGES)
    arguments = (NETWORK, samples, matcher, samples[0], IMAGES)
    few = align(*arguments, Blocks(predictions=4, moments=1), torch.arange(2))
    assert len(few.predictions.sizes) == 4
    assert len(few.direct_blocks) == len(few.rebased_blocks) == 1
    torch.testing.assert_close(few.rebased().mean, aligned(samples).rebased().mean)


def test_known_permutations_are_not_searched_again():
    samples, _ = permuted(networks(6))
    whole = aligned(samples)

    def fail(weights):
        raise AssertionError("searched")

    options = {"known": whole.transformations}
    again = align(NETWORK, samples, fail, samples[0], IMAGES, BLOCKS, torch.tensor([0]), **options)
    assert torch.equal(again.rebased().variance(), whole.rebased().variance())


def test_rebasing_again_composes_permutations():
    samples, _ = permuted(networks(6))
    first = aligned(samples)
    reference = samples[3]
    rebased = RebasedSamples(NETWORK, samples, first.transformations, torch.device("cpu"))
    labels = torch.zeros(len(IMAGES))
    setting = Setting(NETWORK, Dataset("toy", IMAGES, labels, IMAGES, labels), EvaluationConfig())
    way = Way("activation", FIRST, "to the fourth")
    again = align_in_way(way, rebased, reference, setting, 2, 1)
    pairs = zip(samples, again.transformations, strict=True)
    expected = torch.stack([each.apply(weights) for weights, each in pairs]).double()
    torch.testing.assert_close(again.rebased().mean, expected.mean(0))
    assert again.transformations[3].total_transpositions() == 0


def test_known_permutations_must_not_change_the_function_either():
    network = WrongTable((12, 20, 4))
    known = [any_permutation(network, 1)]
    matcher = WeightMatcher(network, networks(1)[0])
    with pytest.raises(AssertionError, match="changed the network's logits"):
        align(
            network,
            networks(1),
            matcher,
            networks(1)[0],
            IMAGES,
            Blocks(),
            torch.arange(2),
            known=known,
        )


def test_cycle_errors_are_the_share_of_units_out_of_order():
    """Copies of one network whose 20 units are put in order, but for some swapped pairs."""
    copies, planted = permuted(networks(1) * 5)
    found = Aligned(NETWORK, copies[0], 5)
    for swaps, move in zip((5, 0, 1, 3, 6), planted, strict=True):
        units = torch.arange(20)
        order = torch.where(units < 2 * swaps, units ^ 1, units)
        transformation = move.inverse().then(Transformation(NETWORK, {"h1": order}))
        found.enter(transformation, copies[0][:0], copies[0][:0])
    errors = cycle_errors(copies, found, "activation", IMAGES, 10)
    # Samples 1 and 2 differ by one swap, 2 and 3 by two, 3 and 4 by three. No pair has the first
    # sample, to which others may have been matched.
    assert errors.tolist() == pytest.approx([2 / 20, 4 / 20, 6 / 20])
