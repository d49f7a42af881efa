"""Pruning on copies, by nested masks, that leave what they say."""

import itertools

from utils.evaluation.metrics import accuracy
from utils.evaluation.pruning import (
    COARSE_PERCENT,
    KEPT_PERCENT,
    NUM_RANDOM,
    ORDER_BY,
    accuracy_curve,
    by_std,
    prune,
    random_orders,
    refined,
    sparsity_at,
    without,
)
from utils.networks.mlp import MLP
from utils.networks.predictions import class_probabilities
from utils.posteriors.gaussian import Gaussian

import numpy as np
import pytest
import torch

NETWORK = MLP((9, 30, 3))


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def gaussian() -> Gaussian:
    size = NETWORK.num_weights
    return Gaussian(torch.randn(size, generator=random()), torch.rand(size) + 0.01)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(500, 9, generator=random(4))


def test_the_most_certain_weights_are_kept():
    posterior = Gaussian(torch.tensor([1.0, -9.0, 4.0, 0.5]), torch.tensor([0.1, 3.0, 1.0, 0.0]))
    found = {name: order(posterior).tolist() for name, order in ORDER_BY.items()}
    assert found["std"] == [3, 0, 2, 1]
    assert found["abs_mean"] == [1, 2, 0, 3]
    assert found["signal_to_noise"] == [3, 0, 2, 1]  # σ = 0: as certain as can be
    assert prune(posterior.mean, by_std(posterior.std), 0.5).tolist() == [1, 0, 0, 0.5]


def test_random_orders_differ():
    found = [tuple(order.tolist()) for order in random_orders(torch.zeros(6), random())]
    assert all(sorted(order) == [0, 1, 2, 3, 4, 5] for order in found)
    assert len(set(found)) == len(found) == NUM_RANDOM


def test_where_all_deviations_are_zero_the_largest_weights_are_the_most_certain():
    posterior = Gaussian(torch.tensor([5.0, 0.1, -90.0, 0.0, 7.0]), torch.zeros(5))
    assert ORDER_BY["signal_to_noise"](posterior).tolist() == [2, 4, 0, 1, 3]


def test_pruning_leaves_its_input_alone(gaussian):
    mean, order = gaussian.mean.clone(), by_std(gaussian.std)
    kept = order.clone()
    prune(gaussian.mean, order, 0.1)
    assert torch.equal(gaussian.mean, mean)
    assert torch.equal(order, kept)


@pytest.mark.parametrize("criterion", ["std", "abs_mean", "signal_to_noise"])
def test_masks_are_nested_and_as_large_as_asked_for(gaussian, criterion):
    order = ORDER_BY[criterion](gaussian)
    ones = torch.ones(NETWORK.num_weights)
    masks = [prune(ones, order, percent / 100).bool() for percent in KEPT_PERCENT]
    for larger, smaller in itertools.pairwise(masks):
        assert not (smaller & ~larger).any()
    shares = [mask.double().mean().item() for mask in masks]
    assert shares == pytest.approx([p / 100 for p in KEPT_PERCENT], abs=0.5 / len(ones))


def test_excluded_weights_stay_as_they_are(gaussian):
    excluded = torch.rand(NETWORK.num_weights, generator=random(2)) < 0.3
    order = without(by_std(gaussian.std), excluded)
    pruned = prune(gaussian.mean, order, 0.1)
    assert torch.equal(pruned[excluded], gaussian.mean[excluded])
    assert (pruned[~excluded] != 0).sum() == round(0.1 * int((~excluded).sum()))
    kept = gaussian.std[~excluded & (pruned != 0)]
    assert kept.max() <= gaussian.std[~excluded & (pruned == 0)].min()


def test_keeping_everything_is_the_unpruned_network(images):
    weights = NETWORK.initial_weights(random(3))
    labels = torch.randint(3, (500,), generator=random(5))
    unpruned = accuracy(class_probabilities(NETWORK, weights, images), labels)
    order = torch.randperm(NETWORK.num_weights, generator=random(6))
    curve = accuracy_curve(NETWORK, weights, order, images, labels)
    assert len(curve) == len(KEPT_PERCENT)
    assert curve[0] == unpruned


def test_zeros_that_were_there_already_cost_nothing(images):
    weights = torch.randn(NETWORK.num_weights, generator=random(3))
    half = torch.arange(NETWORK.num_weights) % 2 == 0
    weights[half] = 0
    labels = class_probabilities(NETWORK, weights, images).argmax(-1)
    order = by_std(half.float())  # the zeros are the first to go
    curve = accuracy_curve(NETWORK, weights, order, images, labels)
    half_kept = KEPT_PERCENT.index(50)
    assert curve[: half_kept + 1] == [1] * (half_kept + 1)
    assert curve[-1] < 1


PAPERS_PERCENT = [100, 90, 80, 70, 60, 50, 40, 30, 20, 10, 5, 1]


def test_the_grid_has_the_papers_points():
    assert set(PAPERS_PERCENT) <= set(COARSE_PERCENT) <= set(KEPT_PERCENT)
    assert list(KEPT_PERCENT) == sorted(set(KEPT_PERCENT), reverse=True)
    assert len(KEPT_PERCENT) == 40


def curve_through(accuracies: list[float]) -> list[float]:
    """Return the curve that is linear between accuracies at the paper's points."""
    return [float(np.interp(-kept, [-p for p in PAPERS_PERCENT], accuracies))
            for kept in KEPT_PERCENT]  # fmt: skip


def test_sparsity_is_where_accuracy_first_falls_so_far():
    #        100   90    80    70    60   50   40   30   20   10   5    1 % kept
    falling = [0.95, 0.95, 0.945, 0.93, 0.95, 0.91, 0.7, 0.95, 0.2, 0.1, 0.1, 0.1]
    curve = curve_through(falling)
    assert sparsity_at(curve, 0.01) == pytest.approx(0.2 + 0.1 / 3)  # 0.94 between 0.945 and 0.93
    assert sparsity_at(curve, 0.05) == pytest.approx(0.5 + 0.1 / 21)
    assert sparsity_at([0.9] * len(KEPT_PERCENT), 0.01) == pytest.approx(0.99)
    # it counts against the unpruned network, not the best
    better = curve_through([0.9, 0.95, 0.92, *[0.1] * 9])
    assert sparsity_at(better, 0.01) == pytest.approx(0.2 + 0.1 * 0.03 / 0.82)


def test_a_coarse_curve_is_linear_between_its_points():
    falling = [0.95, 0.95, 0.945, 0.93, 0.95, 0.91, 0.7, 0.95, 0.2, 0.1, 0.1, 0.05]
    curve = curve_through(falling)
    coarse = [curve[KEPT_PERCENT.index(percent)] for percent in COARSE_PERCENT]
    assert refined(coarse) == pytest.approx(curve)


def test_a_fine_grid_finds_what_a_coarse_one_misses():
    """Accuracy falls from 0.9 to 0.8 at once, where 57 % are kept."""
    curve = [0.9 if percent > 56 else 0.8 for percent in KEPT_PERCENT]
    assert sparsity_at(curve, 0.05) == pytest.approx(0.4375)  # between 57.5 and 55 %
