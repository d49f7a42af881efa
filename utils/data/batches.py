"""Training batches for a stack of networks, each with an order and augmentation of its own.

A network gets the same batches alone as in any stack: its order, crops and flips depend only on the
seed, its stream's name and the epoch.
"""

from collections.abc import Hashable, Iterator, Sequence

from utils.data.datasets import Normalisation, network_inputs
from utils.runs.seeding import generator

import torch
import torch.nn.functional as F
from torch import Tensor


def data_order(num_points: int, seed: int, stream: Hashable, epoch: int) -> Tensor:
    """Return the order in which a network visits the training points in an epoch."""
    return torch.randperm(num_points, generator=generator(seed, "data_order", stream, epoch))


class PlainBatches:
    """The training inputs as they are."""

    def __init__(self, inputs: Tensor, labels: Tensor):
        self._inputs, self._labels = inputs, labels

    def epoch(
        self, batch_size: int, *, seed: int, streams: Sequence[Hashable], epoch: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs [K, batch, *input_shape], in a buffer, and labels [K, batch]."""
        num_points = len(self._inputs)
        orders = [data_order(num_points, seed, stream, epoch) for stream in streams]
        rows = len(orders) * min(batch_size, num_points)
        buffer = self._inputs.new_empty(rows, *self._inputs.shape[1:])
        for indices in torch.stack(orders).to(self._labels.device).split(batch_size, dim=1):
            inputs = buffer[: indices.numel()]
            torch.index_select(self._inputs, 0, indices.flatten(), out=inputs)
            yield inputs.unflatten(0, indices.shape), self._labels[indices]


class Batches:
    """Augmented training images, as inputs of a network.

    With `padding`, every image is padded with black pixels on each side and cropped to its size at
    a random place. With `flips`, every other image on average is mirrored left to right. Images
    [N, C, H, W] are uint8 or floats in [0, 1]; normalisation follows augmentation.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, input_shape: Sequence[int],
        normalisation: Normalisation | None = None, *, padding: int = 0, flips: bool = False,
    ):  # fmt: skip
        self._labels, self._padding, self._flips = labels, padding, flips
        self._input_shape, self._normalisation = input_shape, normalisation
        self._size = images.shape[-2:]
        padded = F.pad(images, (padding,) * 4)
        self._padded_shape, numbers = padded.shape[1:], padded[0].numel()
        # A crop is part of as many numbers as an image has, from the crop's first number on. Those
        # are copied at once, four times as fast as the crop's rows.
        flat = torch.cat([padded.flatten(), padded.new_zeros(numbers)])
        self._from_everywhere = flat.as_strided((len(images) * numbers, numbers), (1, 1))

    def epoch(
        self, batch_size: int, *, seed: int, streams: Sequence[Hashable], epoch: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs [K, batch, *input_shape] and labels [K, batch] for the K named streams."""
        num_points, device = len(self._labels), self._labels.device

        def draw(member_draw) -> Tensor:
            return torch.stack([member_draw(stream) for stream in streams]).to(device)

        orders = draw(lambda stream: data_order(num_points, seed, stream, epoch))
        rows, columns = draw(lambda s: self._crop_places(num_points, seed, s, epoch)).unbind(1)
        flipped = draw(lambda stream: self._choose_flips(num_points, seed, stream, epoch))
        for start in range(0, num_points, batch_size):
            now = slice(start, start + batch_size)
            images = self._cropped(orders[:, now], rows[:, now], columns[:, now])
            if self._flips:
                mirrored = flipped[:, now, None, None, None]
                images = torch.where(mirrored, images.flip(-1), images)
            inputs = network_inputs(images, self._input_shape, self._normalisation)
            yield inputs, self._labels[orders[:, now]]

    def _cropped(self, numbers: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return crops [K, batch, C, H, W] of these images, with these top left corners."""
        (height, width), (*_, padded_width) = self._size, self._padded_shape
        starts = numbers * self._from_everywhere.shape[1] + rows * padded_width + columns
        pieces = self._from_everywhere.index_select(0, starts.flatten())
        return pieces.view(*starts.shape, *self._padded_shape)[..., :height, :width]

    def _crop_places(self, count: int, seed: int, stream: Hashable, epoch: int) -> Tensor:
        """Draw the top left corners [2, count] of the crops."""
        if not self._padding:
            return torch.zeros(2, count, dtype=torch.long)
        random = generator(seed, "crops", stream, epoch)
        return torch.randint(2 * self._padding + 1, (2, count), generator=random)

    def _choose_flips(self, count: int, seed: int, stream: Hashable, epoch: int) -> Tensor:
        """Draw which images [count] are mirrored."""
        if not self._flips:
            return torch.zeros(count, dtype=torch.bool)
        return torch.rand(count, generator=generator(seed, "flips", stream, epoch)) < 0.5
