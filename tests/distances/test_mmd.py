"""MMD² beside double loops and the closed form for Gaussians; its null and its power."""

import math

from utils.distances.mmd import (
    FACTORS,
    distance,
    fit_width,
    gaussian_kernel,
    inner_products,
    jackknife_error,
    linear_kernel,
    mmd_squares,
    number_modes,
    permuted,
    power,
    splits,
    squared_distances,
)

import numpy as np
import pytest
import torch


def normal(count: int, size: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return shift + torch.randn(count, size, generator=random, dtype=torch.float64)


def first_of(count: int, total: int) -> torch.Tensor:
    return torch.arange(total) < count


def test_kernels_are_those_of_a_double_loop():
    rows = normal(7, 5, 0, shift=1000.0).float()  # far from 0, where float32 would cancel
    squares = squared_distances(rows)
    kernel = gaussian_kernel(rows, 3.0)
    for i in range(7):
        for j in range(7):
            square = (rows[i].double() - rows[j].double()).square().sum().item()
            assert squares[i, j].item() == pytest.approx(square, rel=1e-9, abs=1e-9)
            value = sum(math.exp(-square / (2 * factor * 3.0)) for factor in FACTORS)
            assert kernel[i, j].item() == pytest.approx(value, rel=1e-9)
    wide = normal(3, 70_000, 1)  # more than are multiplied at once
    torch.testing.assert_close(inner_products(wide, wide), wide @ wide.T)
    torch.testing.assert_close(linear_kernel(wide), wide @ wide.T)


def test_the_width_is_the_median_of_pairs():
    rows = torch.tensor([[0.0], [1.0], [3.0]])
    assert fit_width(rows) == pytest.approx(4)  # of 1, 4 and 9
    assert fit_width(torch.ones(4, 2)) == 1.0


def test_mmd_is_that_of_a_double_loop():
    kernel = gaussian_kernel(torch.cat([normal(4, 3, 0), normal(6, 3, 1)]), 2.0)
    within = [kernel[i, j] for i in range(4) for j in range(4) if i != j]
    beyond = [kernel[i, j] for i in range(4, 10) for j in range(4, 10) if i != j]
    across = [kernel[i, j] for i in range(4) for j in range(4, 10)]
    expected = np.mean(within) + np.mean(beyond) - 2 * np.mean(across)
    assert mmd_squares(kernel, first_of(4, 10), np.arange(10)).item() == pytest.approx(
        expected, abs=1e-12
    )


def closed_form(shift: float, width: float) -> float:
    """Return MMD² of N(0, 1) and N(shift, 1): E k(x, y) is a Gaussian of variance 2 + c h²."""
    total = 0.0
    for factor in FACTORS:
        variance = factor * width
        scale = math.sqrt(variance / (variance + 2))
        total += 2 * scale * (1 - math.exp(-(shift**2) / (2 * (variance + 2))))
    return total


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_mean_is_the_closed_form(shift):
    """Of 400 pairs of samples, within 4 standard errors; 0 without a shift."""
    values = []
    for seed in range(400):
        rows = torch.cat([normal(20, 1, 2 * seed), normal(20, 1, 2 * seed + 1, shift)])
        kernel = gaussian_kernel(rows, 1.5)
        values.append(mmd_squares(kernel, first_of(20, 40), np.arange(40)).item())
    error = np.std(values) / 20
    assert np.mean(values) == pytest.approx(closed_form(shift, 1.5), abs=4 * error)
    assert min(values) < 0 or shift


def test_false_alarms_and_planted_shifts():
    """At 5 %, at most 12 of 100 tests are false alarms (probability 0.998)."""
    random, alarms = np.random.default_rng(0), 0
    blocks = np.arange(40)
    for seed in range(100):
        rows = torch.cat([normal(20, 2, 2 * seed), normal(20, 2, 2 * seed + 1)])
        alarms += distance(gaussian_kernel(rows, 2.0), 20, blocks, blocks, 99, random).p <= 0.05
    assert alarms <= 12
    rows = torch.cat([normal(20, 2, 0), normal(20, 2, 1, shift=1.5)])
    found = distance(gaussian_kernel(rows, 2.0), 20, blocks, blocks, 99, random)
    assert found.p == 0.01
    assert found.low < 0 < found.high < found.value


def test_correlated_modes_need_their_blocks():
    """Ten modes of ten equal rows are ten observations: permuting rows would find a difference."""
    random, alarms = np.random.default_rng(1), {"rows": 0, "blocks": 0}
    for seed in range(30):
        rows = normal(20, 2, seed).repeat_interleave(10, 0)
        kernel = gaussian_kernel(rows, 2.0)
        choices = {"rows": np.arange(200), "blocks": np.arange(200) // 10}
        for name, blocks in choices.items():
            alarms[name] += distance(kernel, 100, np.arange(200), blocks, 99, random).p <= 0.05
    assert alarms["blocks"] <= 6
    assert alarms["rows"] > 10


def test_pairs_of_one_mode_do_not_count():
    """Modes drawn like the networks have a mean of 0, within 4 standard errors of 200 trials."""
    values = {"modes": [], "rows": []}
    modes = number_modes(np.arange(20), np.arange(40) // 10)
    for seed in range(200):
        centres = normal(4, 2, 2 * seed + 1).repeat_interleave(10, 0)
        rows = torch.cat([normal(20, 2, 2 * seed), centres + 0.1 * normal(40, 2, 1000 + seed)])
        kernel, first = gaussian_kernel(rows, 2.0), first_of(20, 60)
        values["modes"].append(mmd_squares(kernel, first, modes).item())
        values["rows"].append(mmd_squares(kernel, first, np.arange(60)).item())
    error = np.std(values["modes"]) / math.sqrt(200)
    assert np.mean(values["modes"]) == pytest.approx(0, abs=4 * error)
    assert np.mean(values["rows"]) > 10 * error


def test_samples_of_the_only_mode_count_one_by_one():
    numbers = number_modes(np.array([0, 0, 1, 1]), np.zeros(3, int))
    assert numbers.tolist() == [0, 0, 1, 1, 2, 3, 4]
    assert number_modes(np.zeros(2, int), np.array([0, 1])).tolist() == [0, 1, 2, 3]


def test_few_blocks_have_no_null():
    kernel = gaussian_kernel(normal(12, 2, 0), 1.0)
    result = distance(kernel, 6, np.arange(12), np.arange(12) // 2, 50, np.random.default_rng(0))
    assert np.isfinite(result.value)
    assert np.isnan(result.p)


def test_permutations_keep_blocks_together():
    masks = permuted(np.array([5, 5, 7, 7, 7, 9]), 1, 50, np.random.default_rng(0))
    assert {tuple(mask) for mask in masks.astype(int)} == {
        (1, 1, 0, 0, 0, 0), (0, 0, 1, 1, 1, 0), (0, 0, 0, 0, 0, 1)
    }  # fmt: skip


def test_power_grows_with_the_planted_change():
    rows, random = normal(40, 3, 0), np.random.default_rng(0)
    powers = []
    for shift in (0.0, 2.0):
        kernel = gaussian_kernel(torch.cat([rows, rows + shift]), 6.0)
        blocks = np.arange(40)
        null = distance(gaussian_kernel(rows, 6.0), 20, blocks, blocks, 200, random)
        powers.append(power(kernel, np.arange(40), null.high, 50, random))
    assert powers[0] < 0.2
    assert powers[1] == 1
    assert np.isnan(power(kernel, np.arange(40), float("nan"), 50, random))


def test_thresholds_are_one_sided():
    kernel, blocks = gaussian_kernel(normal(40, 2, 0), 2.0), np.arange(40)
    found = distance(kernel, 20, blocks, blocks, 99, np.random.default_rng(3))
    masks = permuted(blocks, 20, 99, np.random.default_rng(3))
    null = mmd_squares(kernel, torch.from_numpy(masks), blocks).numpy()
    assert (null > found.high).sum() == (null < found.low).sum() == 5  # of 99


def test_few_splits_are_all_taken():
    """Of five blocks beside five, only the split itself and its mirror image are as far apart."""
    blocks, random = np.arange(20) // 2, np.random.default_rng(0)
    masks = splits(blocks, 5, 99, random)
    assert len(np.unique(masks, axis=0)) == len(masks) == math.comb(10, 5)
    assert (masks[:, ::2] == masks[:, 1::2]).all()
    assert (masks.sum(1) == 10).all()
    rows = torch.cat([normal(10, 2, 0), normal(10, 2, 1, shift=5.0)])
    found = distance(gaussian_kernel(rows, 2.0), 10, blocks, blocks, 99, random)
    assert found.p == pytest.approx(3 / 253)
    assert len(splits(np.arange(20), 10, 99, random)) == 99


def mmd_of_pairs(kernel: torch.Tensor, first: list[int], second: list[int], modes) -> float:
    """Return MMD² by a double loop; pairs of one mode do not count."""

    def mean(some: list[int], others: list[int]) -> float:
        return np.mean([kernel[i, j] for i in some for j in others if modes[i] != modes[j]])

    return mean(first, first) + mean(second, second) - 2 * mean(first, second)


def test_the_jackknife_leaves_out_each_mode_of_the_second_side():
    """Beside double loops over rows; modes of both sides have different sizes."""
    first, second = np.repeat([0, 1, 2], [1, 3, 2]), np.repeat([0, 1, 2, 3], [4, 1, 2, 3])
    modes = number_modes(first, second)
    kernel = gaussian_kernel(torch.cat([normal(6, 2, 0), normal(10, 2, 1, shift=0.7)]), 2.0)
    left = [
        mmd_of_pairs(kernel, list(range(6)), [j for j in range(6, 16) if modes[j] != out], modes)
        for out in (3, 4, 5, 6)
    ]
    expected = math.sqrt(3 / 4 * sum((each - sum(left) / 4) ** 2 for each in left))
    assert jackknife_error(kernel, 6, modes) == pytest.approx(expected, rel=1e-9)
    order = np.r_[:6, 6 + np.random.default_rng(0).permutation(10)]  # a mode's rows need not adjoin
    assert jackknife_error(kernel[order][:, order], 6, modes[order]) == pytest.approx(expected)
    few = np.flatnonzero(modes < 5)  # two modes on the second side
    assert np.isnan(jackknife_error(kernel[few][:, few], 6, modes[few]))


def test_the_jackknife_is_the_deviation_between_second_sides():
    """The first side stays; fifteen modes of the second have two rows each that are nearly equal.

    The ratio of the variance of 400 trials to the mean squared error has a standard error of 0.074,
    so a false alarm has a probability of 5e-5 (by resampling 30,000 trials).
    """
    first, trials = normal(10, 2, 0), 400
    modes = number_modes(np.arange(10), np.arange(30) // 2)
    values, squares = np.empty(trials), np.empty(trials)
    for seed in range(trials):
        centres = normal(15, 2, 2 * seed + 1, shift=1.5).repeat_interleave(2, 0)
        rows = torch.cat([first, centres + 0.1 * normal(30, 2, 2 * seed + 2)])
        kernel = gaussian_kernel(rows, 8.0)
        values[seed] = mmd_squares(kernel, first_of(10, 40), modes).item()
        squares[seed] = jackknife_error(kernel, 10, modes) ** 2
    assert values.var(ddof=1) / squares.mean() == pytest.approx(1, abs=0.3)
