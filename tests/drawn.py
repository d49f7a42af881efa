"""What tests ask of every figure, and how they read it back."""

from itertools import combinations

import numpy as np
from matplotlib.figure import Figure


def line_of(axis, label: str) -> np.ndarray:
    (line,) = [line for line in axis.lines if line.get_label() == label]
    return line.get_ydata()


def assert_readable(figure: Figure) -> None:
    """Every panel says what its axes are, keeps off the others, and the PNG is sharp in print."""
    figure.draw_without_rendering()
    assert figure.dpi >= 200
    places = [axis.get_tightbbox().padded(0.05 * figure.dpi) for axis in figure.axes]
    assert not any(one.overlaps(other) for one, other in combinations(places, 2))
    for axis in figure.axes:
        assert axis.get_ylabel()
        label = axis.yaxis.label.get_window_extent()
        assert 0 <= label.y0 <= label.y1 <= figure.bbox.height  # all of it
        assert axis.get_xlabel() or axis.get_label() == "<colorbar>"
