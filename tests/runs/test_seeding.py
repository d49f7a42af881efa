"""Named random streams."""

from utils.runs.seeding import generator

import torch


def draw(*stream):
    return torch.rand(4, generator=generator(*stream)).tolist()


def test_a_stream_depends_on_its_name_alone():
    assert draw(1, "noise", 2) == draw(1, "noise", 2)
    streams = [(1, "noise", 2), (2, "noise", 2), (1, "order", 2), (1, "noise", 3), (1, "noise")]
    assert len({tuple(draw(*stream)) for stream in streams}) == len(streams)


def test_streams_stay_what_they_were():
    # Published seeds must keep giving the same runs.
    expected = torch.tensor([0.6317, 0.2969, 0.5222, 0.0486])
    torch.testing.assert_close(
        torch.tensor(draw(0, "initial_weights", 0)), expected, atol=1e-4, rtol=0
    )
