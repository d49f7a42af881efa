"""When the neighbour list looks at points, on margins made up for it."""

import math

from utils.methods.hmc import neighbour_list
from utils.methods.hmc.neighbour_list import NeighbourList

import pytest
import torch


@pytest.fixture
def constants(monkeypatch):
    """Set how long points sleep at most, and the slack of speeds."""

    def change(longest_sleep, slack):
        monkeypatch.setattr(neighbour_list, "LONGEST_SLEEP", longest_sleep)
        monkeypatch.setattr(neighbour_list, "SLACK", slack)

    return change


def lists(margins, first_margins):
    """A list after step 1, in which all points are looked at."""
    points = NeighbourList(torch.tensor(margins), safe_margin=10.0)
    assert points.due(1) is None
    points.update(1, None, torch.tensor(first_margins))
    return points


def wakes(points, point, step, others=(), margin=0.0):
    """The first step from `step` on in which the list wakes this point, if it sees no others than
    these, which stay at this margin."""
    others = torch.tensor(others, dtype=torch.int64)
    while (rows := points.due(step)) is not None and point not in rows:
        points.update(step, others, torch.full(others.shape, margin))
        step += 1
    return step


@pytest.mark.parametrize(("point", "step"), [(0, 51), (1, 11), (2, 2), (3, 51)])
def test_a_point_sleeps_until_it_could_have_come_near(constants, point, step):
    """Point 1 is safe for ten steps more, and looked at in the last of them; 0 and 3 are for so
    long that they sleep for the longest there is."""
    margins = [101.0, 21.5, 5.0, 1000.0, 1000.0], [100.0, 20.5, 4.0, 1000.0, 1000.0]
    constants(longest_sleep=50, slack=1.0)
    points = lists(*margins)
    assert wakes(points, point, 2) == step


def test_all_wake_earlier_when_one_falls_faster(constants):
    constants(longest_sleep=50, slack=1.0)
    points = lists([31.5] * 9, [30.5] * 9)
    points.update(2, torch.tensor([0]), torch.tensor([26.5]))  # by 4 in a step, not 1
    assert wakes(points, 1, 3) == 6  # 30.5 − 4 − 4 × 4 > 10; at the old speed 21


def test_speed_follows_what_is_seen(constants):
    constants(longest_sleep=50, slack=1.0)
    points = lists([30.0] * 9, [29.0] * 9)
    points.update(2, torch.tensor([0]), torch.tensor([19.0]))  # fell by 10: asleep no more
    assert wakes(points, 0, 3) == 3


def test_speed_is_per_step_of_sleep_and_gets_a_slack(constants):
    constants(longest_sleep=1000, slack=2.0)
    points = lists([110.5, 110.5], [110.5, 110.5])
    points.update(11, torch.tensor([0]), torch.tensor([90.5]))  # by 2 per step, taken for 4
    assert wakes(points, 0, 12) == 31  # 90.5 − 20 × 4 > 10


def test_a_fall_is_remembered_for_dozens_of_steps(constants):
    """At 4 per step the way of 100 takes 25 steps; with 2 % less in each of them it takes 35."""
    constants(longest_sleep=500, slack=1.0)
    points = lists([114.0] * 8 + [5.0], [110.0] * 8 + [5.0])
    assert wakes(points, 0, 2, others=[8], margin=5.0) in range(33, 38)


def test_by_default_a_point_sleeps_only_if_float32_misses_its_error():
    """About exp(−margin): 1.6e-8 here, and 1.4e-8 of the others. They do not move."""
    margins = torch.tensor([-math.log(1.6e-8)] + [-math.log(1.4e-8)] * 8)
    points = NeighbourList(margins)
    points.update(1, None, margins)
    assert points.due(2).tolist() == [0]


@pytest.mark.parametrize("step", [3, 11])
def test_a_violation_is_counted_once_per_point_that_came_near_asleep(constants, step):
    """Whether it was left alone in a single step or in nine."""
    constants(longest_sleep=50, slack=1.0)
    points = lists([21.0, 21.0, 10.5, 50.0], [20.0, 20.0, 9.5, 50.0])
    assert points.violations == 0  # 9.5 was looked at in every step
    points.update(step, torch.tensor([0, 1]), torch.tensor([9.0, 11.0]))
    assert points.violations == 1


def test_nan_margins_are_looked_at_in_every_step():
    points = NeighbourList(torch.full((4,), torch.nan))
    points.update(1, None, torch.full((4,), torch.nan))
    assert points.due(2) is None
