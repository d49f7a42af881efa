"""Prunings of posteriors: planted ones are found, and errors agree with repeated simulation."""

from utils.data.datasets import Dataset
from utils.evaluation.pruning import (
    COARSE_PERCENT,
    KEPT_PERCENT,
    LOSSES,
    NUM_RANDOM,
    ORDER_BY,
    accuracy_curve,
    prune,
    random_orders,
)
from utils.evaluation.pruning_study import (
    RANDOM,
    REPAIR_ON,
    REPAIRED,
    Pruning,
    Refits,
    list_prunings,
    measure,
    prune_all,
    refit,
    refit_error,
    repair_for,
    values_of,
)
from utils.evaluation.weight_space import WeightSpace
from utils.networks.mlp import MLP
from utils.networks.predictions import class_probabilities
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.moments import fit_blocks
from utils.rebasin.repair import unit_moments

import numpy as np
import pytest
import torch

NETWORK = MLP((9, 30, 3))
SIZE = NETWORK.num_weights
HALF, POINTS = KEPT_PERCENT.index(50), len(KEPT_PERCENT)
NO_REFITS: list[Refits] = []


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def labelled(weights: torch.Tensor, count: int = 400) -> Dataset:
    """Images with the labels that a network gives them."""
    images = torch.rand(count, 9, generator=random(4))
    labels = class_probabilities(NETWORK, weights, images).argmax(-1)
    return Dataset("toy", images, labels, images, labels)


@pytest.fixture
def planted() -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of which a little more than half do not matter; the mask of those that do.

    The last 16 of 30 units have no outgoing weights, and incoming ones as large as the others'.
    """
    weights = torch.randn(SIZE, generator=random(3))
    matters = torch.ones(SIZE, dtype=torch.bool)
    incoming, bias, outgoing, _ = (slot.of(matters) for slot in NETWORK.slots)
    incoming[14:], bias[14:], outgoing[:, 14:] = False, False, False
    NETWORK.slots[2].of(weights)[:, 14:] = 0
    assert not matters.double().mean() > 0.49
    return weights, matters


def space_of(weights: torch.Tensor, std: torch.Tensor, alive: torch.Tensor | None = None):
    gaussian = Gaussian(weights, std)
    alive = torch.ones(SIZE, dtype=torch.bool) if alive is None else alive
    frames = {frame: {"hmc": gaussian} for frame in ("before", "after")}
    return WeightSpace(NETWORK, frames, {"hmc": weights}, alive)


def test_planted_unimportant_weights_are_pruned_first(planted):
    weights, matters = planted
    std = torch.where(matters, 0.1, 1.0)
    space = space_of(weights, std)
    prunings = list_prunings(space, 0)
    curves = prune_all(space, labelled(weights), prunings, NO_REFITS, 0)["all"]
    by_std, chance = (curves[f"hmc mean, {c} of hmc"] for c in ("std", RANDOM))
    assert by_std["accuracy"][: HALF + 1] == [1] * (HALF + 1)
    assert by_std["sparsity"]["0.01"] > 0.5
    assert chance["sparsity"]["0.05"] < 0.2
    assert chance["accuracy"][HALF] < 0.9
    single = curves["hmc single, random of hmc"]
    assert single["accuracy"] == chance["accuracy"]  # the same network and the same orders
    assert single["deviation"][0] == 0 < single["deviation"][HALF]


def test_weights_behind_dead_pixels_are_left_alone(planted):
    weights, matters = planted
    space = space_of(weights, torch.ones(SIZE), alive=~matters)  # nothing else is pruned
    curves = prune_all(space, labelled(weights), list_prunings(space, 0), NO_REFITS, 0)
    for curve in curves["alive"].values():
        if curve["criterion"] != REPAIRED:
            assert curve["accuracy"] == pytest.approx([1] * POINTS)
    assert curves["all"]["hmc mean, random of hmc"]["accuracy"][HALF] < 0.9


# ---- errors


def hits_until(last: torch.Tensor, kept=KEPT_PERCENT) -> torch.Tensor:
    """Return hits [points, N] of images that are classified rightly until so much is zero."""
    zeros = torch.tensor([1 - percent / 100 for percent in kept])
    return zeros[:, None] <= last


def test_errors_of_images_are_those_of_repeated_test_sets():
    def drawn(seed: int) -> torch.Tensor:
        return hits_until(1.2 * torch.rand(800, generator=random(seed)) ** 0.3)[None]

    repeated = [measure(drawn(seed), seed) for seed in range(100)]
    actual = np.std([each.values for each in repeated], axis=0, ddof=1)
    told = np.mean([each.errors for each in repeated], axis=0)
    moving = actual > 0.001  # all images are right at first
    assert moving[-len(LOSSES) :].all()
    np.testing.assert_allclose(told[moving], actual[moving], rtol=0.35)
    assert np.mean(told[moving] / actual[moving]) == pytest.approx(1, abs=0.1)


def test_errors_of_chance_are_those_of_repeated_orders():
    """Images are so many that the orders make all the difference."""

    def drawn(seed: int) -> torch.Tensor:
        shifts = 0.1 * torch.randn(NUM_RANDOM, generator=random(seed))
        images = torch.linspace(0.2, 1.2, 20_000)
        return torch.stack([hits_until(images + shift, COARSE_PERCENT) for shift in shifts])

    repeated = [measure(drawn(seed), seed) for seed in range(60)]
    actual = np.std([each.values for each in repeated], axis=0, ddof=1)
    told = np.mean([each.errors for each in repeated], axis=0)
    assert told[HALF] == pytest.approx(actual[HALF], rel=0.25)
    np.testing.assert_allclose(told[POINTS:], actual[POINTS:], rtol=0.25)
    one = repeated[0]
    assert one.deviations[HALF] == pytest.approx(0.1, rel=0.6)
    assert measure(drawn(0)[:1], 0).deviations is None


def chain_error_and_truth(std: torch.Tensor, criterion: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors that refits give, and the deviations between simulated chains."""
    weights = torch.randn(SIZE, generator=random(3))
    data, nothing = labelled(weights, 1000), torch.zeros(SIZE, dtype=torch.bool)
    told, values = [], []
    for seed in range(30):
        samples = weights + std * torch.randn(100, SIZE, generator=random(100 + seed))
        blocks = fit_blocks(samples, 100, 20)
        refits = refit(blocks, 1, seed)
        gaussian = Gaussian(samples.mean(0), samples.std(0))
        order = ORDER_BY[criterion](gaussian)
        pruning = Pruning("vi mean", "hmc", criterion, weights, [order])
        told.append(refit_error(NETWORK, data, pruning, refits, nothing, lambda: None))
        images, labels = data.test_images, data.test_labels
        curve = accuracy_curve(NETWORK, weights, order, images, labels, COARSE_PERCENT)
        values.append(values_of(curve))
    return np.mean(told, axis=0), np.std(values, axis=0, ddof=1)


def test_errors_of_the_chain_are_those_of_repeated_chains():
    told, actual = chain_error_and_truth(0.5 + torch.rand(SIZE, generator=random(1)), "std")
    assert np.mean(told[5:POINTS] / actual[5:POINTS]) == pytest.approx(1, abs=0.2)
    np.testing.assert_allclose(told[POINTS:], actual[POINTS:], rtol=0.35)


def test_errors_of_the_chain_are_a_fifth_too_small_where_the_order_is_noise():
    """Then even orders by two refits of a chain are more alike than those of two chains."""
    told, actual = chain_error_and_truth(torch.ones(SIZE), "std")
    assert np.mean(told[5:POINTS] / actual[5:POINTS]) == pytest.approx(0.8, abs=0.15)


def test_refits_move_the_mean_network_of_the_posterior_only(planted):
    weights, _ = planted
    again = Gaussian(2 * weights, torch.rand(SIZE, generator=random(9)))
    for network, expected in (("hmc mean", again.mean), ("hmc single", weights)):
        moved = Pruning(network, "hmc", "std", weights, []).by_refit(again)
        assert torch.equal(moved.weights, expected)
        assert torch.equal(moved.orders[0], again.std.argsort(stable=True))


def test_equal_refits_have_no_error_and_none_is_unknown(planted):
    weights, matters = planted
    gaussian = Gaussian(weights, torch.where(matters, 0.1, 1.0))
    pruning = Pruning("hmc mean", "hmc", "std", weights, [])
    nothing = ~torch.ones(SIZE, dtype=torch.bool)
    arguments = (NETWORK, labelled(weights), pruning)
    equal = [Refits([gaussian] * 3, 1.0)]
    assert (refit_error(*arguments, equal, nothing, lambda: None) < 1e-9).all()
    assert np.isnan(refit_error(*arguments, NO_REFITS, nothing, lambda: None)).all()


def test_the_largest_of_several_ways_of_resampling_counts(planted):
    weights, _ = planted
    drawn = [Gaussian(weights, torch.rand(SIZE, generator=random(k))) for k in range(3)]
    pruning = Pruning("vi mean", "hmc", "std", weights, [])
    nothing = torch.zeros(SIZE, dtype=torch.bool)

    def error(*refits: Refits) -> np.ndarray:
        return refit_error(NETWORK, labelled(weights), pruning, refits, nothing, lambda: None)

    small, large = Refits(drawn, 0.5), Refits(drawn, 2.0)
    assert error(small, large) == pytest.approx(error(large))
    assert error(large) == pytest.approx(4 * error(small))
    assert error(large)[HALF] > 0


def test_what_the_truth_orders_has_errors_only_with_refits(planted):
    weights, matters = planted
    space, data = space_of(weights, torch.where(matters, 0.1, 1.0)), labelled(weights)
    prunings = list_prunings(space, 0)
    samples = weights + space.gaussians["after"]["hmc"].std * torch.randn(60, SIZE)
    refits = refit(fit_blocks(samples, 60, 20), 1, 0)
    for given in (refits, NO_REFITS):
        for curves in prune_all(space, data, prunings, given, 0).values():
            for curve in curves.values():
                known = curve["criterion"] == RANDOM
                known |= bool(given) and curve["criterion"] != REPAIRED
                errors = [*curve["accuracy_error"], *curve["sparsity_error"].values()]
                assert np.isfinite(errors).all() == known
                assert len(errors) == POINTS + len(LOSSES)


def test_two_chains_are_resampled_as_wholes_too():
    samples = torch.randn(40, SIZE, generator=random())
    assert len(refit(fit_blocks(samples, 40, 20), 1, 0)) == 1
    assert len(refit(fit_blocks(samples, 40, 20), 2, 0)) == 2


# ---- REPAIR


def test_repair_gives_units_of_pruned_networks_the_moments_they_had():
    images = torch.rand(500, 9, generator=random(4))
    network, weights = NETWORK, NETWORK.initial_weights(random())
    (order, *_) = random_orders(weights, random(1))
    pruning = Pruning("some mean", "some", REPAIRED, weights, [order])
    repair = repair_for(network, pruning, images)
    torch.testing.assert_close(repair(weights), weights, rtol=1e-4, atol=1e-5)
    after = unit_moments(network, repair(prune(weights, order, 0.7)), images[:REPAIR_ON])
    target = unit_moments(network, weights, images[:REPAIR_ON])
    torch.testing.assert_close(after.means[0], target.means[0], rtol=1e-3, atol=1e-4)
    unchanged = repair_for(network, Pruning("some mean", "some", "std", weights, [order]), images)
    assert unchanged(weights) is weights
