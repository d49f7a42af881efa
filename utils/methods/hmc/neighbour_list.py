"""A neighbour list of training points, as molecular dynamics has of atoms (Verlet 1967)."""

import math

import torch
from torch import Tensor

# If more than this share of points is due, selecting rows costs more than computing them all.
WORTHWHILE_SHARE = 0.7
SAFE_MARGIN = 18.0  # a point above it may be skipped: what is skipped is below 1.4e-7
LONGEST_SLEEP = 200  # most steps for which a point is skipped
SLACK = 1.25  # assumed fastest fall of a margin / fastest fall seen


class NeighbourList:
    """When to look at each training point again, along one trajectory.

    Margins move smoothly. Let v be the fastest fall of a margin per step that was seen lately,
    times a slack, and let the path length be the sum of v over the steps. A point of margin m
    cannot come below the safe margin s before the path has grown by m − s. It is woken one step
    before that. When v rises, all sleeping points wake earlier. So a point near s is looked at in
    every step and a distant one rarely; early in burn-in, when most points are near s, the list
    holds all of them.

    A point found below s after sleeping for more than one step is a violation: it fell faster than
    was assumed, so the gradient may have missed its error, about exp(−margin), in some of these
    steps. Points that fell below s and rose again while they slept are not counted.
    """

    def __init__(self, margins: Tensor, safe_margin: float = SAFE_MARGIN):
        self._safe_margin = safe_margin
        self._margins = margins.clone()
        self._seen = torch.zeros(len(margins), dtype=torch.int32, device=margins.device)
        # Path lengths at which to look again. Step 1 looks at all points, which gives a first v.
        self._deadlines = torch.full_like(margins, -torch.inf)
        self._speed, self._path = 0.0, 0.0
        self.violations, self.lowest_margin = 0, math.inf  # how many, and how near

    def due(self, step: int) -> Tensor | None:
        """Return the rows to look at in this step; None means all."""
        due = self._deadlines <= self._path + 2 * self._speed  # by the end of the next step
        due.logical_or_(self._seen <= step - LONGEST_SLEEP)
        rows = due.nonzero().squeeze(1)
        return None if len(rows) > WORTHWHILE_SHARE * len(due) else rows

    def update(self, step: int, rows: Tensor | None, margins: Tensor) -> None:
        """Record the margins of these rows (None: all) and decide how long they sleep.

        To be called in every step.
        """
        rows = slice(None) if rows is None else rows
        slept = step - self._seen[rows]
        if len(margins):
            fall = (self._margins[rows] - margins) / slept
            self._speed = max(0.98 * self._speed, SLACK * fall.max().item())
        self._path += self._speed
        overlooked = margins[(margins < self._safe_margin) & (slept > 1)]
        if len(overlooked):
            self.violations += len(overlooked)
            self.lowest_margin = min(self.lowest_margin, overlooked.min().item())
        deadlines = margins + (self._path - self._safe_margin)
        self._margins[rows] = margins
        self._seen[rows] = step
        self._deadlines[rows] = deadlines.nan_to_num(-torch.inf, posinf=torch.inf)
