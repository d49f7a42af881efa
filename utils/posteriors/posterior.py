"""What evaluation sees of a posterior approximation, whatever it is: weights that can be drawn.

    Samples        weight vectors on disk: a chain, an ensemble, thousands of networks
    Points         weight vectors in memory
    Gaussian       independent weights
    LowRank        weights that vary together, as far as the rank allows
    BlockGaussian  weights that vary together within blocks, such as layers
    DropoutMasks   one network, with random hidden units dropped
    Mixture        equal shares of several of these: modes, chains, parts of a large set

`utils.posteriors.files.open_posterior` reads any of them from a run directory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Protocol

from utils.networks.network import Network
from utils.posteriors.samples import save_kind
from utils.symmetry.transformation import Transformation

import numpy as np
import torch
from torch import Tensor


class Posterior(Protocol):
    network: Network
    mean: Tensor | None  # [d], where the approximation has one

    def draw(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield `count` weight vectors [d], one after the other."""
        ...

    def moved(self, transformation: Transformation) -> "Posterior":
        """Return the posterior of weights transformed by an element of the symmetry group."""
        ...

    def save(self, directory: Path) -> None:
        """Write its arrays, with network.json and posterior.json."""
        ...


@dataclass(frozen=True)
class Mixture:
    components: Sequence[Posterior]

    mean = None
    is_chain = False  # its components are independent of one another

    @property
    def network(self) -> Network:
        return self.components[0].network

    def __len__(self) -> int:
        """Return the number of weight vectors, if all components are sets of them."""
        return sum(map(len, self.components))

    def __iter__(self) -> Iterator[Tensor]:
        return chain.from_iterable(self.components)

    def __getitem__(self, position: int) -> Tensor:
        for component in self.components:
            if position < len(component):
                return component[position]
            position -= len(component)
        raise IndexError(position)

    def known(self, name: str) -> np.ndarray | None:
        """Return what is known of all vectors under this name, if all components know it."""
        values = [each.known(name) for each in self.components]
        return None if any(each is None for each in values) else np.concatenate(values)

    @property
    def num_chains(self) -> int:
        """The number of chains in all components, or 1 if chains differ in length."""
        lengths = {len(each) / each.num_chains for each in self.components}
        return sum(each.num_chains for each in self.components) if len(lengths) == 1 else 1

    def draw(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield equal shares of every component, to within one draw.

        Of parts of a set, every weight vector has an equal share, however long the parts are.
        """
        sizes = (
            [len(each) for each in self.components] if is_set(self) else [1] * len(self.components)
        )
        ends = [-(-count * end // sum(sizes)) for end in accumulate(sizes, initial=0)]
        for component, (first, last) in zip(self.components, pairwise(ends), strict=True):
            yield from component.draw(last - first, generator)

    def moved(self, transformation: Transformation) -> "Mixture":
        return Mixture([component.moved(transformation) for component in self.components])

    def save(self, directory: Path) -> None:
        """Write every component into a directory of its own: mode-000, mode-001, …"""
        for number, component in enumerate(self.components):
            place = mode_directory(directory, number)
            place.mkdir(exist_ok=True)
            component.save(place)
        self.save_kind(directory)

    def save_kind(self, directory: Path) -> None:
        """Mark a directory whose modes are written already."""
        save_kind(directory, "Mixture", self.network, parts=len(self.components))


def is_set(posterior: Posterior) -> bool:
    """Return whether a posterior is a set of weight vectors rather than a distribution.

    Sets have a length, items, num_chains and is_chain.
    """
    if isinstance(posterior, Mixture):
        return all(map(is_set, posterior.components))
    return hasattr(posterior, "num_chains")


def mode_directory(directory: Path, number: int) -> Path:
    return directory / f"mode-{number:03}"
