"""Rank correlations beside scipy, by brute force, and with known rates of false alarms."""

from utils.quality.correlation import (
    _jackknife_error,
    _of_pairs,
    correlate,
    distances_and_scores,
    grouped_correlation,
    grouped_kendall,
    kendall_within,
    orders_by_reference,
    pair_correlation,
    partial_spearman,
)

import numpy as np
import pytest
from scipy.stats import kendalltau, rankdata, spearmanr


def test_ranks_are_those_of_scipy():
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, 30)).round(1)  # with ties
    expected = spearmanr(first, second)[0]
    assert partial_spearman(first, second, [0] * 30) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(partial_spearman(np.ones(5), second[:5], [0] * 5))


def test_differences_between_groups_make_no_correlation():
    """Two groups far apart: all rows together correlate, rows within groups do not."""
    random = np.random.default_rng(1)
    groups = np.repeat([0, 1], 30)
    first, second = 10 * groups + random.normal(size=(2, 60))
    assert spearmanr(first, second)[0] > 0.6
    result = grouped_correlation(first, second, groups, range(60), random, draws=300)
    assert result.low < 0 < result.high
    assert result.p > 0.05
    assert abs(result.rho) < 0.3


def test_a_planted_correlation_is_found():
    random = np.random.default_rng(2)
    first = random.normal(size=40)
    second = first + 0.5 * random.normal(size=40)
    result = grouped_correlation(first, second, [0] * 40, range(40), random, draws=300)
    assert 0 < result.low < result.rho < result.high
    assert result.p == pytest.approx(1 / 3001)


def test_false_alarms_of_methods_with_two_rows_each():
    """At 5 %, at most 12 of 100 tests are false alarms (probability 0.998)."""
    random, alarms = np.random.default_rng(6), 0
    groups, clusters = np.repeat(["one", "multi"], 8), np.tile(np.arange(8), 2)
    for _ in range(100):
        first, second = random.normal(size=(2, 8))[:, clusters] + 0.1 * random.normal(size=(2, 16))
        alarms += grouped_correlation(first, second, groups, clusters, random, draws=60).p <= 0.05
    assert alarms <= 12


def symmetric(random, size: int) -> np.ndarray:
    """Return a matrix whose pairs depend on both networks, as those of divergences do."""
    own, noise = random.normal(size=size), random.normal(size=(size, size))
    matrix = own[:, None] + own + noise + noise.T
    return matrix - np.diag(np.diag(matrix))


def test_a_pair_correlation_is_that_of_its_pairs():
    random = np.random.default_rng(3)
    first, second = symmetric(random, 12), symmetric(random, 12)
    pairs = np.triu_indices(12, 1)
    result = pair_correlation(first, second, random, draws=50)
    expected = spearmanr(first[pairs], second[pairs])[0]
    assert result.rho == pytest.approx(expected, abs=1e-12)
    assert result.low < result.rho < result.high
    same = pair_correlation(first, first**3, random, draws=50)
    assert same.rho == pytest.approx(1)
    assert same.p == pytest.approx(1 / 51)


def test_the_jackknife_leaves_out_each_network():
    """Beside the loop over networks, of ranks that stay."""
    random = np.random.default_rng(4)
    pairs, ranks = np.triu_indices(9, 1), []
    for _ in range(2):
        matrix = np.zeros((9, 9))
        matrix[pairs] = rankdata(random.normal(size=36))
        matrix[pairs] -= matrix[pairs].mean()
        ranks.append(matrix + matrix.T)
    left = []
    for out in range(9):
        rest = [each for each in range(9) if each != out]
        inner = np.triu_indices(8, 1)
        left.append(np.corrcoef(*(matrix[np.ix_(rest, rest)][inner] for matrix in ranks))[0, 1])
    expected = np.sqrt(8 * np.arctanh(left).var())
    assert _jackknife_error(*ranks) == pytest.approx(expected, rel=1e-9)
    assert -1 < _of_pairs(*ranks) < 1


def test_false_alarms_of_unrelated_matrices():
    """At 5 %, at most 12 of 100 tests are false alarms (probability 0.998)."""
    random = np.random.default_rng(5)
    alarms = intervals = 0
    for _ in range(100):
        first, second = symmetric(random, 15), symmetric(random, 15)
        result = pair_correlation(first, second, random, draws=60)
        alarms += result.p < 0.05
        intervals += result.low > 0 or result.high < 0
    assert alarms <= 12
    assert intervals <= 20  # the jackknife of few networks is a little short


def test_two_orders_by_kendall():
    """τ is scipy's; rows of a method are resampled together, so few methods make it uncertain."""
    group = np.zeros(12)
    random = np.random.default_rng(0)
    first = np.arange(12.0)
    second = first.copy()
    second[[0, 1, 5, 6]] = second[[1, 0, 6, 5]]
    found = grouped_kendall(first, second, group, range(12), random, draws=200)
    assert found.tau == pytest.approx(kendalltau(first, second).statistic)
    assert 0.5 < found.low < found.tau < found.high
    halves = [0] * 6 + [1] * 6
    assert grouped_kendall(first, first, group, halves, random, 20) == pytest.approx((1, 1, 1))
    shuffled = random.permutation(first)
    noise = grouped_kendall(first, shuffled, group, range(12), random, draws=200)
    assert noise.low < 0 < noise.high


def test_kendall_counts_pairs_within_groups():
    """Between two groups all pairs are in the same order, and within them in the opposite one."""
    first = np.array([1, 2, 3, 11, 12, 13.0])
    second = np.array([3, 2, 1, 13, 12, 11.0])
    groups = np.array(["one"] * 3 + ["multi"] * 3)
    assert kendall_within(first, second, groups) == -1
    assert kendall_within(first, second, np.zeros(6)) == pytest.approx((9 - 6) / 15)
    ties = np.array([1, 1, 2, 5, 6, 7.0])
    expected = kendalltau(ties[:3], second[:3]).statistic
    assert kendall_within(ties[:3], second[:3], groups[:3]) == pytest.approx(expected)
    assert np.isnan(kendall_within(np.ones(3), second[:3], groups[:3]))


@pytest.mark.filterwarnings("error")
def test_pairs_that_are_all_equal_have_no_correlation():
    equal = np.ones((6, 6)) - np.eye(6)
    distances = np.abs(np.subtract.outer(np.arange(6), np.arange(6))).astype(float)
    assert np.isnan(pair_correlation(equal, distances, np.random.default_rng(0), draws=5).rho)


# ---- rows of the table

UP, DOWN, SWAPPED, MIXED = (1, 2, 3, 4, 5), (5, 4, 3, 2, 1), (2, 1, 3, 4, 5), (2, 1, 5, 3, 4)
MEASURES, SCORES = ("weights", "units", "inside"), ("brier", "ece")  # no units are known


def item(weights: float, inside: float, brier: float, ece: float) -> dict:
    """Return distances to the networks and scores; distances to HMC are in other orders."""
    distances = {"networks": (weights, inside), "hmc": (ece, -brier)}
    return {
        "distances": {
            name: {"weights": {"value": first}, "inside": {"value": second}}
            for name, (first, second) in distances.items()
        },
        "scores": {"brier": brier, "ece": ece, "nll": 0.0},
    }


LOW = [item(*each) for each in zip(UP, SWAPPED, UP, MIXED, strict=True)]
HIGH = [  # distances are larger by 100, and scores smaller
    item(100 + weights, 100 + inside, brier - 100, ece - 100)
    for weights, inside, brier, ece in zip(UP, MIXED, SWAPPED, DOWN, strict=True)
]
# ρ = 1 − Σ d² / 20 of five ranks; of both groups together it is the mean, as they are equally large
EXPECTED = {
    "weights/brier": (1 + 0.9) / 2,
    "weights/ece": (0.6 - 1) / 2,
    "inside/brier": (0.9 + 0.7) / 2,
    "inside/ece": (0.7 - 0.6) / 2,
}
ABSURD = [item(1e6, 1e6, -1e6, 1e6), item(-1e6, -1e6, 1e6, -1e6)]


def row(name: str, modes: str, own: dict, **more) -> dict:
    return {"name": name, "source": name, "modes": modes} | own | more


def references(**more) -> list[dict]:
    """Return rows of the networks and of HMC, of one mode and of several, with absurd values."""
    return [
        row(name, modes, each, **more)
        for name in ("networks", "hmc")
        for modes in ("one", "multi")
        for each in ABSURD
    ]


def rhos(cells: dict[str, dict]) -> dict[str, float]:
    return {name: cell["rho"] for name, cell in cells.items()}


def check_cell(cells: dict, groups: list, clusters: list) -> None:
    """Compare the interval and p with those of the values themselves."""
    random = np.random.default_rng(0)
    inside, ece = [*SWAPPED, *MIXED], [*MIXED, *DOWN]
    expected = grouped_correlation(inside, ece, groups, clusters, random, draws=20)
    about = {"count": 10, "least_p": 1 / 201}
    assert cells["inside/ece"] == pytest.approx(expected._asdict() | about)


def test_rows_correlate_within_those_of_equally_many_modes():
    """The references would turn the correlation round; rows without distances do not count."""
    names = [f"method {number}" for number in range(5)]
    rows = [row(name, "one", own) for name, own in zip(names, LOW, strict=True)]
    rows += [row(name, "multi", own) for name, own in zip(names, HIGH, strict=True)]
    everything = [*references()[:4], *rows, *references()[4:]]
    linearised = row("linearised", "one", ABSURD[0] | {"distances": {}})
    cells = distances_and_scores([*everything, linearised], MEASURES, SCORES, draws=20, seed=0)
    assert cells["modes"] == {}
    assert rhos(cells["rows"]) == pytest.approx(EXPECTED)
    check_cell(cells["rows"], ["one"] * 5 + ["multi"] * 5, names * 2)
    for name in ("networks", "hmc"):  # each alone would do so
        some = rows + [each for each in references() if each["name"] == name]
        clusters = [each["name"] for each in some]
        wrong = dict(correlate(some, "modes", clusters, MEASURES, SCORES, 5, 0))
        assert wrong["weights/brier"]["rho"] < -0.2
        assert wrong["weights/ece"]["rho"] > 0.2
    few = distances_and_scores(rows[:3] + references(), MEASURES, SCORES, draws=5, seed=0)
    assert few == {"rows": {}, "modes": {}}


def test_distances_to_hmc_correlate_by_themselves():
    """To HMC "weights" are the ECE and "inside" is minus the Brier score, so ρ is 1 and −1."""
    names = [f"method {number}" for number in range(5)]
    rows = [row(name, "one", own, points=LOW) for name, own in zip(names, LOW, strict=True)]
    cells = distances_and_scores(references() + rows, MEASURES, SCORES, 20, 0, "hmc")
    for over in ("rows", "modes"):
        assert cells[over]["weights/ece"]["rho"] == pytest.approx(1)
        assert cells[over]["inside/brier"]["rho"] == pytest.approx(-1)
        assert abs(cells[over]["weights/brier"]["rho"]) < 0.9
    assert cells["modes"]["weights/ece"]["p"] == pytest.approx(1 / 201)
    assert cells["modes"]["weights/ece"]["least_p"] == pytest.approx(1 / 201)
    for each in rows:
        del each["distances"]["hmc"]
    without = distances_and_scores(rows, MEASURES, SCORES, 20, 0, "hmc")
    assert without["rows"] == {}


def test_modes_correlate_within_their_method():
    """Modes of one method are far from those of the other, whose distances and scores differ."""
    rows = [row("near", "one", LOW[0], points=LOW), row("far", "one", HIGH[0], points=HIGH)]
    rows += [row("near", "multi", HIGH[0])]  # of several modes there are no points
    cells = distances_and_scores(
        references(points=ABSURD) + rows, MEASURES, SCORES, draws=20, seed=0
    )
    assert cells["rows"] == {}  # of two methods
    assert rhos(cells["modes"]) == pytest.approx(EXPECTED)
    check_cell(cells["modes"], ["near"] * 5 + ["far"] * 5, list(range(10)))


def ordered(
    name: str, networks: float, hmc: float, agreements: tuple = (0.5, 0.5), modes: str = "multi"
) -> dict:
    """Return a row with total variations to both references, and to published predictions.

    Distances of predictions are in the opposite order to HMC, those of units are not known.
    """
    beside = {
        reference: {"agreement": agreement, "total_variation": value}
        for reference, value, agreement in zip(
            ("networks", "hmc"), (networks, hmc), agreements, strict=True
        )
    }
    beside["published"] = {"agreement": 0.5, "total_variation": -networks}
    distances = {"networks": {"inside": {"value": networks}}, "hmc": {"inside": {"value": -hmc}}}
    return {"name": name, "source": name, "modes": modes, "beside": beside, "distances": distances}


def averages(rows: list[dict]) -> dict | None:
    return orders_by_reference(rows, MEASURES, draws=50, seed=0).get("total_variation")


@pytest.mark.parametrize(
    ("hmc", "discordant"),
    [(UP, 0), (DOWN, 10), ((3, 5, 1, 2, 4), 5), (MIXED, 3), ((1, 4, 2, 3, 5), 2)],
)
def test_orders_by_both_references(hmc, discordant):
    """τ = 1 − 2 · discordant / 10 of five methods, in whatever order rows come.

    The orders by agreement have 7 discordant pairs; the references' own rows would make many more.
    """
    agreements = list(zip(UP, (4, 3, 5, 1, 2), strict=True))
    rows = [
        ordered(f"method {k}", 0.1 * UP[k], 0.01 * hmc[k], agreements[k]) for k in (3, 0, 4, 1, 2)
    ]
    own = [ordered("networks", 0.0, 0.9), ordered("hmc", 0.9, 0.0)]
    orders = orders_by_reference([own[0], *rows, own[1]], MEASURES, draws=50, seed=0)
    assert set(orders) == {"total_variation", "inside"}
    found = orders["total_variation"]
    assert found["tau"] == pytest.approx(1 - 2 * discordant / 10)
    assert found["low"] - 1e-12 <= found["tau"] <= found["high"] + 1e-12
    assert found["count"] == 5
    assert orders["inside"]["tau"] == pytest.approx(-found["tau"])
    if discordant in (0, 10):
        assert found["low"] == pytest.approx(found["high"])
    turned = [ordered(f"method {k}", 0.01 * hmc[k], 0.1 * UP[k]) for k in (3, 0, 4, 1, 2)]
    assert averages(turned)["tau"] == pytest.approx(found["tau"])


def test_rows_of_several_modes_have_an_order_of_their_own():
    """With one mode no pair is discordant, with several 3 of 10 are: together 3 of 20."""
    rows = [ordered(f"method {k}", UP[k], UP[k], modes="one") for k in range(5)]
    rows += [ordered(f"method {k}", UP[k], MIXED[k]) for k in range(5)]
    found = averages(rows)
    assert found["tau"] == pytest.approx(1 - 2 * 3 / 20)
    assert found["several"]["tau"] == pytest.approx(1 - 2 * 3 / 10)
    assert (found["count"], found["several"]["count"]) == (10, 5)
    assert averages(rows[:9])["several"] is None


def test_rows_without_distances_still_have_averages():
    rows = [ordered(f"method {k}", 0.1 * k, 0.2 * k) for k in range(6)]
    rows[0]["distances"] = {}
    found = orders_by_reference(rows, MEASURES, draws=20, seed=0)
    assert found["total_variation"]["count"] == 6
    assert found["inside"]["count"] == 5


def test_rows_of_the_same_modes_are_one_method():
    rows = [ordered(f"method {k}", 0.1 * k, 0.2 * k) for k in range(5)]
    rows[1]["source"] = "method 0"
    assert averages(rows) is None


def test_orders_need_hmc_and_five_methods():
    rows = [ordered(f"method {k}", 0.1 * k, 0.2 * k) for k in range(5)]
    own = [ordered("networks", 0.0, 0.9), ordered("hmc", 0.9, 0.0)]
    assert averages(rows + own)["tau"] == 1
    assert averages(rows[:4] + own) is None
    for each in rows:
        del each["beside"]["hmc"], each["distances"]["hmc"]
    assert orders_by_reference(rows, MEASURES, draws=20, seed=0) == {}
