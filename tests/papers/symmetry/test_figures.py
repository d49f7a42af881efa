"""The figures on symmetry show what their result files say."""

import json

from papers.symmetry import figures
from papers.symmetry.quality_figures import looks_of
from tests.drawn import assert_readable, line_of

import numpy as np
import pytest

SETTINGS = ("network", "optimizer", "learning_rate", "momentum", "weight_decay", "projected")


def balance_cell(network: str, decay: float, projected: bool, optimizer: str = "SGD") -> dict:
    """Return a cell that follows the law, with an imbalance that noise has doubled."""
    times = np.linspace(0, 30 * decay, 4)
    share = 2 * np.exp(-2 * times)[:, None].repeat(2, 1)
    return {
        "network": network, "optimizer": optimizer, "learning_rate": 0.1, "momentum": 0.0,
        "weight_decay": decay, "projected": projected, "decay_time": times.tolist(),
        "share_left": share.tolist(), "excess": (0.2 * share).tolist(),
        "mass": (10 * share).tolist(), "minimum": (5 * share).tolist(),
        "accuracy": [0.8 + 0.1 * projected, 0.8], "nll": [0.5, 0.5],
        "calibration_error": [0.1, 0.1], "barrier": [0.3 - 0.1 * projected],
    }  # fmt: skip


@pytest.fixture
def cells(tmp_path):
    made = [
        balance_cell(network, decay, projected)
        for network in ("mlp", "lenet")
        for decay in (0.0, 0.01)
        for projected in (False, True)
    ]
    made.append(balance_cell("lenet", 0.01, False, "Adam"))
    path = tmp_path / "cells.jsonl"
    path.write_text("".join(json.dumps(cell) + "\n" for cell in made))
    return path


def test_balance_draws_the_share_left_relative_to_no_decay(cells):
    drawn = figures.balance.draw(cells)
    assert_readable(drawn)
    assert len(drawn.axes) == 6
    law = line_of(drawn.axes[0], "exp(−2x)")
    (flat, decaying) = (line.get_ydata() for line in drawn.axes[0].lines[:2])
    np.testing.assert_allclose(flat, 1)
    np.testing.assert_allclose(decaying, np.exp(-2 * np.linspace(0, 0.3, 4)))
    assert law[-1] == pytest.approx(np.exp(-0.6))
    np.testing.assert_allclose(drawn.axes[1].lines[0].get_ydata(), 40)  # per cent
    beside, after = (line.get_xdata() for line in drawn.axes[1].lines[:2])
    assert beside[0] == after[0] == 0
    assert (np.diff(beside) < 0).all()  # without weight decay, an epoch per point
    np.testing.assert_allclose(after, np.linspace(0, 0.3, 4))


def test_intervention_draws_changes(cells):
    drawn = figures.intervention.draw(cells)
    assert_readable(drawn)
    points = drawn.axes[0].collections[0].get_offsets()
    np.testing.assert_allclose(points, [[0.8, 0.1], [0.8, 0]], atol=1e-12)
    np.testing.assert_allclose(drawn.axes[3].collections[0].get_offsets(), [[0.3, -0.1]])
    assert all(axis.get_legend() is None for axis in drawn.axes)  # it would cover points
    explained = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert explained == ["mlp", "lenet", "SGD", "SGD with momentum"]


def test_posteriors_differ_in_marker_and_colour():
    looks = looks_of(["networks", "hmc", *"abcdefgh"])
    others = [look for name, look in looks.items() if len(name) == 1]
    assert len({marker for marker, _ in looks.values()}) == 10
    assert len({color for _, color in others}) == 8
    many = looks_of([str(k) for k in range(88)])
    assert len(set(many.values())) == 88


def test_cells_that_diverged_are_not_drawn(cells):
    """Of the first pair, as usual and projected, and with it what is relative to it."""
    first, *rest = cells.read_text().splitlines()
    settings = {name: value for name, value in json.loads(first).items() if name in SETTINGS}
    lost = json.dumps(settings | {"diverged": True})
    cells.write_text("\n".join([lost, *rest]) + "\n")
    assert len(figures.balance.draw(cells).axes[0].lines) == 1  # the law
    points = figures.intervention.draw(cells).axes[0].collections
    assert sum(len(each.get_offsets()) == 2 for each in points) == 3


@pytest.mark.parametrize("network", ["optunet", None])
def test_representation_cost(tmp_path, network):
    """The paper's clusters are drawn beside OptuNets only."""
    mass, steps = np.array([150.0, 200, 210]), np.linspace(-1, 1, 5)
    curves = np.exp(steps**2) * np.ones((2, 3, 1))
    np.savez(tmp_path / "mass.npz", mass=mass, minimum=mass / 1.25, curves=curves, steps=steps)
    (tmp_path / "network.json").write_text(json.dumps({"network": network} if network else {}))
    drawn = figures.representation_cost.draw(tmp_path / "mass.npz")
    assert_readable(drawn)
    scatters = [each.get_offsets() for each in drawn.axes[0].collections]
    np.testing.assert_allclose(scatters[0], np.stack([mass, mass / 1.25], 1))
    assert len(scatters) == (2 if network else 1)
    np.testing.assert_allclose(drawn.axes[2].lines[0].get_ydata(), steps**2)


def test_largest_weights(tmp_path):
    """The layer with most units is drawn, with ticks at units."""
    views = {
        view: {"counts": [1, 2, 6], "corrected_chi_square": 1.0, "p": 0.5}
        for view in ("as they are", "shuffled", "rebased")
    }
    small = {view: test | {"counts": [4, 5]} for view, test in views.items()}
    content = {name: {"groups": {"c1": small, "c2": views}} for name in ("HMC", "sgd")}
    path = tmp_path / "marginals.json"
    path.write_text(json.dumps(content))
    drawn = figures.largest_weights.draw(path)
    drawn.draw_without_rendering()
    assert [bar.get_height() for bar in drawn.axes[0].patches] == [1, 2, 6]
    assert drawn.axes[0].lines[0].get_ydata()[0] == 3
    assert all(tick % 1 == 0 for tick in drawn.axes[0].get_xticks())


def test_toy_and_order(tmp_path):
    layers = np.random.default_rng(0).normal(size=(3, 50, 2))
    np.savez(tmp_path / "toy.npz", last_layers=layers, panels=["a", "b", "c"])
    drawn = figures.toy.draw(tmp_path / "toy.npz")
    for axis, points in zip(drawn.axes, layers, strict=True):
        np.testing.assert_allclose(axis.collections[0].get_offsets(), points)
    values = np.linspace(0, 1, 12).reshape(3, 2, 2)
    moves = {
        f"not_by_{method}_{part}": factor * values
        for method in ("activation", "weight") for part, factor in (("step", 1), ("end", 2))
    }  # fmt: skip
    tau = {f"{key}_{part}": values for key in ("norm", "mean") for part in ("step", "end")}
    np.savez(tmp_path / "order.npz", epochs=range(4), **moves, **tau)
    with pytest.raises(ValueError, match="zip"):  # of four keys two are missing
        figures.order.draw(tmp_path / "order.npz")
    tau |= {
        f"{key}_{part}": values for key in ("largest", "last_layer") for part in ("step", "end")
    }
    np.savez(tmp_path / "order.npz", epochs=range(4), **moves, **tau)
    drawn = figures.order.draw(tmp_path / "order.npz")
    assert_readable(drawn)
    np.testing.assert_allclose(line_of(drawn.axes[0], "last layer"), values.mean((1, 2)))
    moved = line_of(drawn.axes[2], "by weight, to the end")
    np.testing.assert_allclose(moved, 2 * values.sum(-1).mean(-1))
