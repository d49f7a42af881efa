"""Figures show what their result files say; how they look is for people to judge."""

import json
from itertools import combinations

from papers.compact import permutation_figures
from tests.drawn import assert_readable, line_of
from utils.symmetry.permutation import expected_transpositions

import numpy as np
import pytest

EPOCHS, FRACTIONS, SIZE = 4, 5, 30
ALIGNMENTS = ("as is", "by activation", "by weight", "many to one")
SECOND_NETWORKS = (
    "W₁ as is", "W₁ rebased by activation", "W₁ rebased by weight", "W₁ matched many to one",
)  # fmt: skip
HEIGHTS = (0.8, 0.1, 0.2, 0.3)


@pytest.fixture(params=[1, 2], ids=ALIGNMENTS[1:3])
def dynamics(request, tmp_path):
    """A made-up training_dynamics.npz: losses fall, with a bump of known height as is."""
    fractions = np.linspace(0, 1, FRACTIONS)
    falling = np.geomspace(2, 0.1, EPOCHS)[:, None, None]
    bumps = np.array(HEIGHTS)[:, None] * [0, 1, 0.5, 0.2, 0]  # highest before the middle
    losses = falling + bumps
    ramp = np.ones((EPOCHS, 4, 1, 1)) * fractions[:, None]
    of_each = 1 + np.arange(EPOCHS * 4).reshape(EPOCHS, 4)  # of every epoch and alignment its own
    path = tmp_path / "training_dynamics.npz"
    np.savez(
        path,
        epochs=np.arange(EPOCHS),
        fractions=fractions,
        alignments=ALIGNMENTS,
        rebased=request.param,
        hidden_sizes=[SIZE],
        random_transpositions=[expected_transpositions(SIZE)],
        tensors=["W1", "b1", "W2", "b2", "total"],
        distance=ramp * np.arange(1, 6) * of_each[:, :, None, None],
        transpositions=(ramp[:, :2] * 20 * of_each[:, :2, None, None]).astype(int),
        alignment_transpositions=[[[25 - epoch], [27 + epoch]] for epoch in range(EPOCHS)],
        undecided=np.zeros((EPOCHS, 4), int),
        **{f"{part}_{kind}": losses for part in ("train", "test") for kind in ("loss", "error")},
    )
    return path


@pytest.fixture
def records(tmp_path):
    """Made-up transpositions.jsonl of two runs of three pairs."""
    path = tmp_path / "transpositions.jsonl"
    with path.open("w") as file:
        for run in (0, 1):
            for pair, planted in enumerate((1, 15, 29)):
                for stage in ("initial", "trained", "undone"):
                    record = {
                        "run": run, "pair": pair, "stage": stage, "hidden_sizes": [SIZE],
                        "random_transpositions": expected_transpositions(SIZE),
                        "planted": [planted], "found": [planted + 2 * run - 1],
                        "distance": {"total": 3.0 * planted},
                        "train_loss_barrier": 0.2 * planted, "test_loss_barrier": 0.1 * planted,
                    }  # fmt: skip
                    file.write(json.dumps(record) + "\n")
    return path


def ticks_of(bar) -> list[float]:
    """The ticks of a colour bar that are seen."""
    low, high = bar.get_ylim()
    return [tick for tick in bar.get_yticks() if low <= tick <= high]


def ticks_are_whole(ticks) -> bool:
    return all(tick == round(tick) for tick in ticks)


def test_losses_along_the_line(dynamics):
    figure = permutation_figures.loss_along_line.draw(dynamics)
    assert_readable(figure)
    assert all(ticks_are_whole(axis.get_yticks()) for axis in figure.axes[:8])
    results = np.load(dynamics)
    surfaces = [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]
    assert len(surfaces) == 8
    for axis, alignment in zip(surfaces, [0, 1, 2, 3] * 2, strict=True):
        shown = axis.collections[0].get_array().reshape(EPOCHS, FRACTIONS)
        assert np.array_equal(shown, results["test_loss"][:, alignment])
        assert ALIGNMENTS[alignment] in axis.get_title()
        height = HEIGHTS[alignment]
        assert f"largest barrier, trained: {height:.3f} nats" in axis.get_title()
    scales = {axis.collections[0].norm for axis in surfaces[:4]}
    assert len(scales) == 1
    # the untrained networks' losses do not take the colours of all that comes after
    assert scales.pop().vmax == results["test_loss"][1:].max() < results["test_loss"].max()


@pytest.mark.parametrize("dynamics", [1], indirect=True)
def test_losses_of_zero_can_be_drawn(dynamics):
    """Few images are soon learnt by heart."""
    with np.load(dynamics) as archive:
        results = dict(archive)
    results["train_loss"][-1, :, [0, -1]] = 0
    np.savez(dynamics, **results)
    figure = permutation_figures.loss_along_line.draw(dynamics)
    assert_readable(figure)
    bars = [axis for axis in figure.axes if axis.get_label() == "<colorbar>"]
    many, few = (ticks_of(bar) for bar in bars)  # decades
    assert all(np.log10(tick) == pytest.approx(round(np.log10(tick))) for tick in many)
    assert len(many) >= 3
    assert few == pytest.approx([0.1, 0.2, 0.5, 1])
    for bar in bars:
        places = [label.get_window_extent() for label in bar.get_yticklabels()]
        assert not any(one.overlaps(other) for one, other in combinations(places, 2))


def test_barriers(dynamics):
    figure = permutation_figures.barriers.draw(dynamics)
    assert_readable(figure)
    loss, error, moves = figure.axes
    assert loss.get_ylabel() == "largest test loss barrier over λ [nats]"
    assert error.get_ylabel() == "largest test error barrier over λ [points]"
    for name, height in zip(SECOND_NETWORKS, HEIGHTS, strict=True):
        assert line_of(loss, name) == pytest.approx([height] * EPOCHS)
        assert line_of(error, name) == pytest.approx([100 * height] * EPOCHS)
    assert line_of(moves, "W₁ rebased by activation").tolist() == [25, 24, 23, 22]
    assert line_of(moves, "W₁ rebased by weight").tolist() == [27, 28, 29, 30]
    assert ticks_are_whole(loss.get_xticks())
    (legend,) = figure.legends  # off the panels, where lines are
    told = [text.get_text() for text in legend.get_texts()]
    assert told == [*SECOND_NETWORKS, "random: n − Hₙ = 26", "identity: 0"]
    assert not any(axis.get_legend() for axis in figure.axes)
    assert line_of(moves, "identity: 0")[0] == 0 > moves.get_ylim()[0]
    assert line_of(moves, "random: n − Hₙ = 26")[0] == pytest.approx(26.005, abs=1e-3)


@pytest.mark.parametrize("dynamics", [1], indirect=True)
def test_blocks_of_units_have_a_chance_level_of_their_own(dynamics):
    with np.load(dynamics) as archive:
        results = dict(archive) | {"hidden_sizes": [2, 1, 1, 5, 5]}
    np.savez(dynamics, **results | {"random_transpositions": [0.5, 0.5, 6.6]})
    _, _, moves = permutation_figures.barriers.draw(dynamics).axes
    assert line_of(moves, "random: 7.6 on average")[0] == pytest.approx(7.6)


def test_along_the_line(dynamics):
    figure = permutation_figures.along_line.draw(dynamics)
    assert_readable(figure)
    distance, moves = figure.axes
    results = np.load(dynamics)
    rebased = int(results["rebased"])
    shown = [
        (0, 0, "W₁ as is, untrained"),
        (0, rebased, f"{SECOND_NETWORKS[rebased]}, untrained"),
        (EPOCHS - 1, 0, "W₁ as is, trained"),
        (EPOCHS - 1, rebased, f"{SECOND_NETWORKS[rebased]}, trained"),
    ]
    for number, (epoch, alignment, label) in enumerate(shown):
        total = results["distance"][epoch, alignment, :, -1]
        assert np.array_equal(line_of(distance, label), total)
        found = results["transpositions"][epoch, min(alignment, 1), :, 0]
        assert np.array_equal(moves.lines[number].get_ydata(), found)
    assert line_of(moves, "identity: 0")[0] == 0
    assert line_of(moves, "random: n − Hₙ = 26")[0] == pytest.approx(26.005, abs=1e-3)


def test_the_baseline_of_several_layers_is_named_as_the_sum_it_is(dynamics):
    with np.load(dynamics) as archive:
        results = dict(archive) | {"hidden_sizes": [SIZE, SIZE]}
    results["random_transpositions"] = [expected_transpositions(SIZE)] * 2
    np.savez(dynamics, **results)
    moves = permutation_figures.along_line.draw(dynamics).axes[1]
    assert line_of(moves, "random: Σ (n − Hₙ) = 52")[0] == pytest.approx(52.01, abs=1e-2)


def test_transpositions(records):
    figure = permutation_figures.transpositions.draw(records)
    assert_readable(figure)
    moves, distance, height = figure.axes
    assert height.get_ylabel() == "test loss barrier at λ = ½ [nats]"
    assert line_of(moves, "after training").tolist() == [1, 15, 29]  # mean over runs
    assert line_of(moves, "unchanged: y = x").tolist() == [0, 29]
    assert line_of(moves, "random: n − Hₙ = 26")[0] == pytest.approx(26.005, abs=1e-3)
    assert line_of(moves, "identity: 0")[0] == 0
    drawn = {line.get_label(): line.get_zorder() for line in moves.lines}
    assert drawn["unchanged: y = x"] > drawn["after training"]  # which often lies upon it
    assert line_of(distance, "after training") == pytest.approx([3, 45, 87])
    assert line_of(height, "after training") == pytest.approx([0.1, 1.5, 2.9])
    assert line_of(height, "after training, train loss") == pytest.approx([0.2, 3, 5.8])
    edges = moves.collections[1].get_paths()[0].vertices  # the band of "after training"
    at_15 = edges[edges[:, 0] == 15, 1]
    # found in two runs: 14 and 16, whose standard deviation is √2
    assert (at_15.min(), at_15.max()) == pytest.approx((15 - 2**0.5, 15 + 2**0.5))


def test_bands_are_over_runs_alone(records):
    """One run has none, though two of its pairs have the same planted NoT."""
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    run = [record for record in lines if record["run"] == 0]
    again = [r | {"pair": 3, "found": [20]} for r in run if r["pair"] == 1]
    records.write_text("".join(json.dumps(record) + "\n" for record in run + again))
    for axis in permutation_figures.transpositions.draw(records).axes:
        assert len(axis.collections) == 0


def test_a_line_goes_once_through_pairs_of_the_same_planted_transpositions(records):
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    again = [r | {"pair": 3, "found": [20 + 4 * r["run"]]} for r in lines if r["pair"] == 1]
    records.write_text("".join(json.dumps(record) + "\n" for record in lines + again))
    moves = permutation_figures.transpositions.draw(records).axes[0]
    (line,) = [line for line in moves.lines if line.get_label() == "after training"]
    # of 14 and 20 in the first run, 16 and 24 in the second
    assert line.get_xydata().tolist() == [[1, 1], [15, 18.5], [29, 29]]
    points = moves.lines[moves.lines.index(line) + 1]
    assert points.get_linestyle() == "None"
    assert points.get_xydata().tolist() == [[1, 1], [15, 15], [15, 22], [29, 29]]
    edges = moves.collections[1].get_paths()[0].vertices
    at_15 = edges[edges[:, 0] == 15, 1]
    # the runs' means are 17 and 20
    assert (at_15.min(), at_15.max()) == pytest.approx((18.5 - 4.5**0.5, 18.5 + 4.5**0.5))
