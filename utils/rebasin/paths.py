"""Losses along the straight line between two networks, and the barrier in between.

W_λ = (1 − λ) W_0 + λ W_1. The barrier at W_λ is how far the loss rises there above the straight
line between the losses of the two ends; two networks in one basin have none. The barrier between
two networks is the largest over λ, or in some studies the one at λ = ½.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from utils.networks.network import Network
from utils.networks.predictions import recompute_statistics
from utils.rebasin.response_matching import Stack

import torch
from torch import Tensor

REPAIR_IMAGES = 5000  # training images that running statistics are recomputed from


@dataclass(frozen=True)
class Line:
    """The networks W_λ; they can be scored and matched like any other `response_matching.Stack`.

    Lines from W_0 to several W_1 come one after the other.
    """

    network: Network
    first: Tensor  # W_0 [d]
    second: Tensor  # W_1 [d], or several [K, d]
    fractions: Sequence[float]  # the λ

    @cached_property
    def weights(self) -> Tensor:
        """[λ, d], or [K λ, d]"""
        ends = torch.atleast_2d(self.second)
        lines = [torch.lerp(self.first, end, at) for end in ends for at in self.fractions]
        return torch.stack(lines)

    def traces(self, rows: Tensor) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Yield activations and logits of each W_λ on some images."""
        for end in torch.atleast_2d(self.second):
            yield from self.network.trace_line(self.first, end, self.fractions, rows)


class LineScores(NamedTuple):
    """Of K networks, in float64."""

    loss: Tensor  # [K]: mean cross-entropy [nats]
    error: Tensor  # [K]: share of points classified wrongly


def score(
    networks, images: Tensor, labels: Tensor, train_images: Tensor | None = None
) -> LineScores:
    """Return loss and error of each network of a `Line` or `Stack` on all images.

    Networks with batch normalisation get new running statistics first, from the training images:
    the average of two networks' statistics are not those of their average (REPAIR, Jordan et al.
    2022).
    """
    network = networks.network
    if network.has_buffers:
        networks = repair(networks, images if train_images is None else train_images)
    loss = torch.zeros(len(networks.weights), dtype=torch.float64, device=images.device)
    wrong = torch.zeros_like(loss)
    chunks = images.split(network.chunk_rows), labels.split(network.chunk_rows)
    for rows, answers in zip(*chunks, strict=True):
        for k, (_, logits) in enumerate(networks.traces(rows)):
            nll = torch.nn.functional.cross_entropy(logits, answers, reduction="none")
            loss[k] += nll.double().sum()
            wrong[k] += (logits.argmax(-1) != answers).sum()
    return LineScores(loss / len(images), wrong / len(images))


def repair_note(num_train: int) -> str:
    """Say what `repair` has done to the networks of lines, given so many training images."""
    images = f"the first {REPAIR_IMAGES:,}" if num_train > REPAIR_IMAGES else f"all {num_train:,}"
    return (
        "Batch normalisation: running statistics of every network scored on a line were recomputed "
        f"from {images} training images (REPAIR)."
    )


def repair(networks, images: Tensor) -> Stack:
    """Return the networks of a `Line` or `Stack` with running statistics of some of these images.

    The images are taken from the beginning.
    """
    images = images[:REPAIR_IMAGES]
    repaired = [recompute_statistics(networks.network, each, images) for each in networks.weights]
    return Stack(networks.network, torch.stack(repaired))


def barrier(values: Tensor, fractions: Sequence[float]) -> Tensor:
    """Return how far `values` [..., λ], λ from 0 to 1, rise above the line between the ends."""
    at = torch.as_tensor(fractions, dtype=values.dtype, device=values.device)
    return values - torch.lerp(values[..., :1], values[..., -1:], at)


def tensor_names(network: Network) -> list[str]:
    """Return the names of all tensors, then "total": the entries of `tensor_distances`."""
    return [*(slot.name for slot in network.slots), "total"]


def tensor_distances(network: Network, first: Tensor, second: Tensor) -> Tensor:
    """Return the Euclidean distance of two networks, for every tensor and then in total."""
    difference = (first - second).double()
    tensors = [slot.of(difference) for slot in network.slots]
    return torch.stack([tensor.norm() for tensor in (*tensors, difference)])
