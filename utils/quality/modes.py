"""The modes of a posterior, and equal shares of samples of some of them.

A mode is what one training run leaves: a component of a mixture, one of several independent
networks, or a chain. Samples of a mode depend on each other; those of two modes do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from utils.posteriors.posterior import Mixture, Posterior, is_set
from utils.posteriors.samples import Points, Samples
from utils.runs.seeding import generator

import numpy as np
import torch
from torch import Tensor


def modes_of(posterior: Posterior, unnumbered_are_one: bool = False) -> list[Posterior]:
    """Return a posterior's modes.

    Weight vectors that are stored with numbers of modes (members.npz) belong to these, and those of
    a chain (chains.json) to one mode. Others are independent networks, as users import them, unless
    `unnumbered_are_one`: then those of each part are of one mode, as earlier versions saved draws.
    """
    parts = posterior.components if isinstance(posterior, Mixture) else [posterior]
    return [mode for part in parts for mode in _modes_within(part, unnumbered_are_one)]


def _modes_within(part: Posterior, unnumbered_are_one: bool) -> list[Posterior]:
    if not isinstance(part, Points | Samples):
        return [part]
    if part.is_chain:
        several = part.num_chains > 1
        return [replace(part, indices=c[None]) for c in part.indices] if several else [part]
    numbers = part.known("modes")
    if numbers is None:
        numbers = np.zeros(len(part)) if unnumbered_are_one else np.arange(len(part))
    values = np.unique(numbers)
    return [_chosen(part, numbers == each) for each in values] if len(values) > 1 else [part]


def _chosen(part: Points | Samples, mask: np.ndarray) -> Points | Samples:
    if isinstance(part, Points):
        return Points(part.weights[torch.from_numpy(mask)], part.network)
    return replace(part, indices=part.indices[:, mask])


def pieces_of(chains: Sequence[Posterior], count: int) -> list[Samples]:
    """Cut chains into contiguous pieces, `count` of all chains together or one of each."""
    each = max(1, count // len(chains))
    return [
        replace(chain, indices=indices[None])
        for chain in chains
        for indices in np.array_split(chain.indices.ravel(), min(each, chain.indices.size))
    ]


@dataclass(frozen=True)
class SampleSet:
    """Samples of some modes, the same number of each. They are drawn again when they are needed."""

    name: str
    modes: Sequence[Posterior]
    share: int  # samples of each mode
    seed: int = 0

    def __len__(self) -> int:
        return self.share * len(self.modes)

    @property
    def blocks(self) -> np.ndarray:
        """The number of every sample's mode."""
        return np.arange(len(self)) // self.share

    def __iter__(self):
        for number, mode in enumerate(self.modes):
            yield from mode.draw(self.share, generator(self.seed, "samples", self.name, number))

    def weights(self) -> Tensor:
        """Return all samples [n, d]."""
        return torch.stack([each.cpu() for each in self])


def sample_modes(name: str, modes: Sequence[Posterior], most: int, seed: int) -> SampleSet:
    """Return at most so many samples of some modes.

    A set of weight vectors gives each of them at most once. There is at least one sample of every
    mode, and of more modes than samples the first are taken.
    """
    modes = modes[:most]
    stored = [len(mode) for mode in modes if is_set(mode)]
    return SampleSet(name, modes, min(most // len(modes), *stored, most), seed)


def alike(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the rows' blocks on two sides, put together so that they can permute.

    Blocks of one size are left as they are. Otherwise neighbours are put together on the side with
    more, until there are as many on both: a mode of samples and a group of independent networks
    vary differently, and only with as many of both does permuting them hold its level. Numbers of
    the second side go on after those of the first.
    """
    sides = [np.unique(each, return_inverse=True, return_counts=True) for each in (first, second)]
    numbers = [each for _, each, _ in sides]
    if len(np.unique(np.concatenate([sizes for *_, sizes in sides]))) > 1:
        count = 1 + min(each.max() for each in numbers)
        numbers = [each * count // (each.max() + 1) for each in numbers]
    return numbers[0], numbers[1] + numbers[0].max() + 1
