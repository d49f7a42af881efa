"""Batches against a plain loop over images, and a stack's against those of networks alone."""

from utils.data.batches import Batches, data_order
from utils.data.datasets import Normalisation
from utils.runs.seeding import generator

import numpy as np
import pytest
import torch

STREAMS = (0, "second", ("shard", 3))


def toy(channels=3, count=11, size=(6, 5)):
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, channels, *size), dtype=torch.uint8, generator=random)
    return images, torch.arange(count)


def whole_epoch(batches, streams, epoch=2, batch_size=4):
    """An epoch's inputs and labels, put together again: [K, N, ...]."""
    parts = list(batches.epoch(batch_size, seed=7, streams=streams, epoch=epoch))
    assert [labels.shape[1] for _, labels in parts] == [4, 4, 3]
    return tuple(torch.cat(part, 1) for part in zip(*parts, strict=True))


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize("floats", [False, True])
def test_batches_are_those_of_a_plain_loop(padding, flips, floats):
    images, labels = toy()
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    given = images / 255 if floats else images
    batches = Batches(
        given, labels, images.shape[1:], Normalisation(mean, std), padding=padding, flips=flips
    )
    inputs, targets = whole_epoch(batches, STREAMS)
    for member, stream in enumerate(STREAMS):
        order = data_order(11, 7, stream, 2)
        assert targets[member].tolist() == order.tolist()
        places = torch.randint(
            2 * padding + 1, (2, 11), generator=generator(7, "crops", stream, 2)
        ).T  # fmt: skip
        mirrored = torch.rand(11, generator=generator(7, "flips", stream, 2)) < 0.5
        for position, index in enumerate(order):
            row, column = places[position] if padding else (0, 0)
            padded = np.pad(images[index].numpy() / 255, [(0, 0), (padding,) * 2, (padding,) * 2])
            expected = padded[:, row : row + 6, column : column + 5]
            if flips and mirrored[position]:
                expected = expected[:, :, ::-1]
            expected = (expected - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
            assert inputs[member, position].numpy() == pytest.approx(expected, abs=1e-5)


def test_a_network_gets_the_same_batches_alone_and_in_a_stack():
    images, labels = toy()
    batches = Batches(images, labels, (90,), padding=2, flips=True)
    stack = whole_epoch(batches, STREAMS)
    assert stack[0].shape == (3, 11, 90)
    for member, stream in enumerate(STREAMS):
        alone = whole_epoch(batches, [stream])
        assert alone[0][0].equal(stack[0][member])
        assert alone[1][0].equal(stack[1][member])
    assert not stack[0][0].equal(stack[0][1])
    assert not whole_epoch(batches, STREAMS, epoch=3)[0].equal(stack[0])


def test_every_crop_and_flip_is_as_likely():
    """One image with one white pixel, which shows where the crop was and if it was mirrored."""
    images = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    images[0, 0, 1, 0] = 255
    count = 4000
    batches = Batches(
        images.expand(count, -1, -1, -1), torch.zeros(count), (9,), padding=1, flips=True
    )
    ((inputs, _),) = batches.epoch(count, seed=0, streams=[0], epoch=0)
    # Rows are uniform. The column is 1, 0 or outside, mirrored 1, 2 or outside.
    counts = inputs[0].sum(0).view(3, 3)
    assert counts.sum(1).tolist() == pytest.approx([count * 2 / 9] * 3, rel=0.15)
    expected = torch.tensor([1 / 6, 1 / 3, 1 / 6]).expand(3, 3) * count / 3
    assert (counts - expected).abs().max() < 5 * expected.max().sqrt()
