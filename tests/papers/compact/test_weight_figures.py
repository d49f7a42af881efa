"""Figures of weights and of pruning show what their result files say."""

import json
from itertools import combinations

from papers.compact import weight_figures
from tests.drawn import assert_readable, line_of

import numpy as np
import pytest

METHODS = ("hmc", "ensemble", "vi")
MORE = (*METHODS, "swag", "long")  # a method of this repository, and a name that is no method's
NAMES = {"hmc": "HMC", "ensemble": "ensemble", "vi": "VI", "swag": "SWAG", "long": "VI, long"}
PERCENT = [100, 50, 10, 1]


@pytest.fixture(params=[MORE, METHODS, ("hmc", "vi"), ("hmc",)], ids=len)
def there(request) -> tuple[str, ...]:
    return request.param


def weight_space(there, tmp_path):
    """Made-up weights; after rebasin every method's are a multiple of HMC's."""
    random = np.random.default_rng(0)
    common = random.normal(size=500).astype(np.float32)
    arrays = {"alive": np.arange(500) < 400}
    for k, method in enumerate(there, start=1):
        arrays[f"{method}_before_mean"] = random.normal(size=500)
        arrays[f"{method}_before_std"] = random.random(500)
        arrays[f"{method}_after_mean"] = k * common
        arrays[f"{method}_after_std"] = np.where(arrays["alive"], k * np.abs(common), 0)
    np.savez(tmp_path / "weight_space.npz", **arrays)
    return tmp_path / "weight_space.npz"


@pytest.mark.parametrize("part", ["mean", "std"])
@pytest.mark.parametrize("there", [MORE, METHODS, ("hmc", "vi")], ids=len)
def test_weight_pairs(tmp_path, there, part):
    names = NAMES | {"hmc": "samples"}
    figure = weight_figures.weight_pairs(weight_space(there, tmp_path), names, part=part)
    assert figure.axes[0].get_xlabel().endswith(" of samples")
    pairs = min(len(there) * (len(there) - 1) // 2, 4)  # of five, those with the first
    assert_readable(figure)
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert len(panels) == 2 * pairs
    arrays = np.load(tmp_path / "weight_space.npz")
    last = arrays[f"{there[-1]}_after_{part}"][arrays["alive"]]
    for axis in panels[-2:]:  # one range for both frames, that holds the weights of either
        assert axis.get_ylim()[1] > np.quantile(last, 0.99)
    for axis in panels:
        shown = axis.collections[0].get_array()
        assert shown.max() == 1  # relative to the densest bin
        assert shown.shape == (120, 120)
        after = axis.get_title().startswith("after")
        assert axis.get_title().endswith("correlation 1.000") == after


def test_densities_lie_where_the_weights_do(tmp_path):
    """HMC's μ on the x axis are about 1 or 3, VI's on the y axis are 10 where HMC's are 1."""
    first = np.repeat([1.0, 3.0], 50)
    arrays = {f"hmc_{frame}_mean": first for frame in ("before", "after")}
    arrays |= {f"vi_{frame}_mean": 13 - 3 * first for frame in ("before", "after")}
    np.savez(tmp_path / "weight_space.npz", alive=np.ones(100, bool), **arrays)
    figure = weight_figures.weight_means.draw(tmp_path / "weight_space.npz")
    shown = figure.axes[0].collections[0].get_array().filled(0)  # [y, x]
    assert shown[60:, :60].max() == 1  # μ of HMC 1, of VI 10: above, to the left
    assert shown[:60, :60].max() == 0


def test_no_deviation_is_shown_as_the_smallest(tmp_path):
    std = np.concatenate([np.zeros(50), np.geomspace(1e-3, 1, 50)])
    arrays = {f"{m}_{frame}_std": std for m in ("hmc", "vi") for frame in ("before", "after")}
    np.savez(tmp_path / "weight_space.npz", alive=np.ones(100, bool), **arrays)
    figure = weight_figures.weight_deviations.draw(tmp_path / "weight_space.npz")
    shown = figure.axes[0].collections[0].get_array().filled(0)
    assert shown[:20, :20].max() == 1  # half of all weights


@pytest.mark.parametrize("largest", [1.05, 9, 11, 20, 90, 110, 1e5])
def test_tick_labels_of_sigma_keep_off_each_other(tmp_path, largest):
    alive = np.ones(500, bool)
    std = np.geomspace(3e-5, 3e-5 * largest, 500)
    arrays = {f"{m}_{frame}_std": std for m in ("hmc", "vi") for frame in ("before", "after")}
    np.savez(tmp_path / "weight_space.npz", alive=alive, **arrays)
    figure = weight_figures.weight_deviations.draw(tmp_path / "weight_space.npz")
    figure.draw_without_rendering()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        low, high = axis.get_view_interval()
        places = [
            tick.label1.get_window_extent()
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
            if low <= tick.get_loc() <= high and tick.label1.get_text()
        ]
        assert len(places) >= 2
        assert not any(one.overlaps(other) for one, other in combinations(places, 2))


def along_chain(tmp_path, chains: list[list[int]], null: list[int], random: float, label="HMC"):
    found = {
        "label": label,
        "num_chains": len(chains),
        "transpositions": {"along_chain": np.concatenate(chains).tolist(), "random": random},
        "prior_networks": {"transpositions": null},
    }
    (tmp_path / "diagnostics.json").write_text(json.dumps(found))
    return weight_figures.transpositions_along_chain.draw(tmp_path / "diagnostics.json")


def test_transpositions_along_chain(tmp_path):
    figure = along_chain(tmp_path, [[0, 3, 7]], [25, 30], 26.0)
    assert_readable(figure)
    for axis in figure.axes:
        assert line_of(axis, "HMC samples").tolist() == [0, 3, 7]
        assert line_of(axis, "networks from the prior").tolist() == [25, 30]
        assert axis.get_ylim()[1] > 30  # of small layers chance has more than 8 % over its mean
        assert line_of(axis, "random permutations: 26.0")[0] == 26
    assert figure.axes[0].get_ylim()[0] == 0


def test_what_is_near_chance_can_be_told_from_it(tmp_path):
    figure = along_chain(tmp_path, [[0, 300, 480, 501, 499, 502]], [505, 507], 505.2, "samples")
    whole, close = figure.axes
    low, high = close.get_ylim()
    assert 490 < low < 499 < 507 < high < 515
    assert "does not begin at 0" in close.get_title()
    assert whole.get_ylim()[0] == 0
    assert line_of(close, "random permutations: 505")[0] == 505.2
    assert line_of(close, "samples")[-1] == 502


def test_every_chain_has_a_line_of_its_own(tmp_path):
    figure = along_chain(tmp_path, [[0, 3, 7], [20, 21, 22], [19, 23, 20]], [25, 30], 26.0)
    assert_readable(figure)
    for axis in figure.axes:
        assert line_of(axis, "HMC samples, first chain").tolist() == [0, 3, 7]
        assert line_of(axis, "other chains").tolist() == [20, 21, 22]
        assert axis.lines[2].get_ydata().tolist() == [19, 23, 20]
        assert len({line.get_color() for line in axis.lines[:3]}) == 2
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 4


def test_a_single_hidden_unit_leaves_something_to_draw(tmp_path, recwarn):
    along_chain(tmp_path, [[0, 0, 0]], [0, 0], 0.0)
    assert not recwarn.list


def test_sigma_histograms(there, tmp_path):
    path = tmp_path / "sigma_histograms.npz"
    counts = {
        f"{method}_{frame}_{part}": np.array([0, 5, 9, 2, 0])
        for method in there for frame in ("before", "after") for part in ("all", "alive")
    }  # fmt: skip
    np.savez(path, edges=np.linspace(-3, 1, 6), **counts)
    figure = weight_figures.sigma_histograms.draw(path, NAMES)
    assert_readable(figure)
    assert len(figure.axes) == len(there)
    for axis in figure.axes:
        low, high = axis.get_xlim()
        assert low == pytest.approx(10**-2.2)
        assert high == pytest.approx(10**0.2)
        assert all(p.get_data().values.tolist() == [5, 9, 2] for p in axis.patches)


@pytest.fixture
def pruning(there, tmp_path):
    """Made-up curves; each falls to a number of its own, and lower without dead pixels."""
    curves = {"all": {}, "alive": {}}
    cases = [(f"{m} mean", m, c) for m in there for c in weight_figures.ORDER_STYLES]
    cases += [("hmc single", by, "std") for by in there] + [("hmc single", "hmc", "random")]
    for k, (network, by, criterion) in enumerate(cases):
        for part, less in (("all", 0), ("alive", 0.01)):
            curves[part][f"{network}, {criterion} of {by}"] = {
                "network": network, "by": by, "criterion": criterion,
                "accuracy": [0.9, 0.8, 0.5, 0.02 * k - less],
            }  # fmt: skip
            if criterion == "random":
                curves[part][f"{network}, {criterion} of {by}"]["deviation"] = [0, 0.1, 0.2, 0.01]
    path = tmp_path / "pruning.json"
    path.write_text(json.dumps({"names": NAMES, "kept_percent": PERCENT, "curves": curves}))
    return path


def test_pruning(pruning, there):
    figure = weight_figures.pruning.draw(pruning)
    assert_readable(figure)
    means, singles, alive_means, _ = figure.axes
    assert len(means.lines) == 2 * len(there)  # each by σ and at random
    assert len(singles.lines) == len(there) + 1
    assert line_of(means, "HMC, σ of HMC") == pytest.approx([90, 80, 50, 0])
    assert line_of(alive_means, "HMC, σ of HMC") == pytest.approx([90, 80, 50, -1])
    by_std = [line for line in means.lines if "σ of" in line.get_label()]
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in by_std}
    assert len(looks) == len(by_std) == len(there)
    for line in (*means.lines, *singles.lines):
        stands_out = line.get_linewidth() > 2 and line.get_zorder() > 2
        assert stands_out == line.get_label().endswith("σ of HMC")
    for axis, count in ((means, len(there)), (singles, 1)):
        assert len(axis.collections) == count  # the bands of chance
    chance = line_of(means, "HMC, chance")
    (path,) = means.collections[0].get_paths()
    ends = {tuple(point) for point in path.vertices.round(6).tolist()}
    assert {(50, chance[1] - 10), (50, chance[1] + 10)} <= ends
    single = 2 * 4 * len(there)  # it is the first case after four criteria for each mean
    assert line_of(singles, "HMC, σ of HMC") == pytest.approx([90, 80, 50, single])


def test_criteria(pruning, there):
    figure = weight_figures.pruning_criteria.draw(pruning)
    assert_readable(figure)
    assert len(figure.axes) == 2 * len(there)
    first = figure.axes[0]
    labels = [line.get_label() for line in first.lines]
    assert labels == ["lowest σ", "largest |μ|", "largest |μ|/σ", "chance"]
    assert [line.get_ydata()[-1] for line in first.lines] == pytest.approx([0, 2, 4, 6])
    (band,) = first.collections  # chance ± its deviation
    (path,) = band.get_paths()
    ends = {tuple(point) for point in path.vertices.round(6).tolist()}
    assert {(50, 70), (50, 90), (10, 30), (10, 70), (1, 5), (1, 7)} <= ends
