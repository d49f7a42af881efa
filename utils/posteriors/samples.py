"""Posteriors that are sets of weight vectors, on disk or in memory."""

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from utils.networks.network import Network
from utils.networks.registry import NETWORK_EXAMPLES, load_network
from utils.runs.files import UNREADABLE, as_numpy, save_arrays, save_json, write_atomically
from utils.settings.errors import UserError, reason
from utils.settings.wording import plural
from utils.symmetry.transformation import Transformation

import numpy as np
import torch
from torch import Tensor

MEMBERS = "members.npz"  # arrays [K] of what is known of the weight vectors beside it
GAUSSIAN_MEAN = "gaussian_mean.npy"  # the mean [d] of the Gaussian that they were drawn from
CHAINS = "chains.json"  # how many chains the vectors beside it form, if they do
KEPT = "kept"  # the one that says which vectors count; without it all do


@dataclass(frozen=True)
class Points:
    """Weight vectors in memory, each as probable as the others."""

    weights: Tensor  # [K, d]
    network: Network
    members: dict[str, Tensor] | None = None  # [K] each: what is known of every vector
    is_chain: bool = False  # one state after the other of a trajectory
    mean: Tensor | None = None  # [d]: of the Gaussian that they were drawn from, if there is one

    num_chains = 1

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, position: int) -> Tensor:
        return self.weights[position]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.weights)

    def known(self, name: str) -> np.ndarray | None:
        """Return what is known of the vectors under this name, if anything is."""
        values = (self.members or {}).get(name)
        return None if values is None else as_numpy(values)

    def draw(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        return draw_members(self.weights, count, generator)

    def moved(self, transformation: Transformation) -> "Points":
        mean = None if self.mean is None else transformation.apply(self.mean)
        return replace(self, weights=transformation.apply(self.weights), mean=mean)

    def save(self, directory: Path) -> None:
        """Write samples.npy [K, d], and beside it checksums.npy and what else is known.

        That may be chains.json, members.npz and gaussian_mean.npy.
        """
        weights = as_numpy(self.weights)
        write_atomically(directory / "samples.npy", lambda file: np.save(file, weights))
        save_checksums(directory, map(checksum, self.weights))
        if self.is_chain:
            save_json(directory / CHAINS, {"num_chains": 1})
        if self.members:
            save_arrays(directory / MEMBERS, **self.members)
        if self.mean is not None:
            mean = as_numpy(self.mean)
            write_atomically(directory / GAUSSIAN_MEAN, lambda file: np.save(file, mean))
        save_kind(directory, "Samples", self.network)


@dataclass(frozen=True)
class Samples:
    """Weight vectors in a samples.npy, of which those at `indices` are used."""

    path: Path
    network: Network
    indices: np.ndarray  # [chains, samples of each]
    transformation: Transformation | None = None  # applied to each as it is read
    checksums: np.ndarray | None = None  # of all vectors in the file, if they were saved

    def __len__(self) -> int:
        return self.indices.size

    @property
    def num_chains(self) -> int:
        return len(self.indices)

    @property
    def is_chain(self) -> bool:
        return self.path.with_name(CHAINS).exists()

    @property
    def mean(self) -> Tensor | None:
        """The mean [d] of the Gaussian that the vectors were drawn from, if it was saved."""
        path = self.path.with_name(GAUSSIAN_MEAN)
        if not path.exists():
            return None
        try:
            mean = torch.from_numpy(np.load(path))
        except UNREADABLE as error:
            why = reason(error)
            raise UserError(f"Cannot read {path} ({why}): copy or make it again.") from None
        self.network.check(mean)
        return self.transformation.apply(mean) if self.transformation else mean

    def __getitem__(self, position: int) -> Tensor:
        """Read one weight vector from the disk, and check it."""
        number = self.indices.flat[position]
        row = self.read(number)
        if self.checksums is not None and checksum(row) != self.checksums[number]:
            raise UserError(
                f"Weight vector {number} in {self.path} is not the one that was saved: the file is "
                f"damaged. {_remedy(self.path.parent)}"
            )
        if not row.isfinite().all():
            raise UserError(f"Sample {number} of {self.path} has NaN or infinite weights.")
        return self.transformation.apply(row) if self.transformation else row

    def read(self, number: int) -> Tensor:
        """Read a row in float32; a mapping held open would fill the memory."""
        return torch.from_numpy(np.load(self.path, mmap_mode="r")[number].astype(np.float32))

    def __iter__(self) -> Iterator[Tensor]:
        return (self[position] for position in range(len(self)))

    def known(self, name: str) -> np.ndarray | None:
        """Return what members.npz says under this name of the vectors used, if it does."""
        values = read_members(self.path).get(name)
        return None if values is None else values[self.indices.ravel()]

    def draw(self, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        return draw_members(self, count, generator)

    def moved(self, transformation: Transformation) -> "Samples":
        earlier = self.transformation
        both = earlier.then(transformation) if earlier else transformation
        return replace(self, transformation=both)

    def save(self, directory: Path) -> None:
        rows = self.indices.ravel()
        members = {name: values[rows] for name, values in read_members(self.path).items()}
        Points(torch.stack(list(self)), self.network, members, mean=self.mean).save(directory)


def checksum(weights: Tensor) -> int:
    """Return the CRC32 of a weight vector in float32."""
    return zlib.crc32(as_numpy(weights).astype("<f4").tobytes())


def save_checksums(directory: Path, checksums: Iterator[int]) -> None:
    array = np.fromiter(checksums, np.uint32)
    write_atomically(directory / "checksums.npy", lambda file: np.save(file, array))


def read_checksums(beside: Path, count: int) -> np.ndarray | None:
    """Read the checksums beside a file of weight vectors; runs of earlier versions have none."""
    path = beside.with_name("checksums.npy")
    if not path.exists():
        return None
    try:
        checksums = np.load(path)
        shape = checksums.shape
    except UNREADABLE as error:
        raise UserError(f"Cannot read {path} ({reason(error)}): remove it to do without.") from None
    if shape != (count,):
        raise UserError(
            f"{path} has {math.prod(shape)} checksums, but {beside} {count} weight vectors: if you "
            "have changed these, remove the checksums."
        )
    return checksums


def read_members(beside: Path) -> dict[str, np.ndarray]:
    """Read what is known of every vector in a file, {} if nothing is."""
    path = beside.with_name(MEMBERS)
    try:
        with np.load(path) as archive:
            return dict(archive)
    except FileNotFoundError:
        return {}
    except UNREADABLE as error:
        raise UserError(f"Cannot read {path} ({reason(error)}): copy or make it again.") from None


def mark_members(directory: Path, name: str, least: float) -> None:
    """Mark the vectors of which members.npz says less than this: they are left out when opened."""
    members = read_members(directory / MEMBERS)
    kept = members[name] >= members[name].dtype.type(least)
    if not np.array_equal(kept, members.get(KEPT, np.ones_like(kept))):
        save_arrays(directory / MEMBERS, **members | {KEPT: kept})


def num_blocks(samples, most: int) -> int:
    """Return how many contiguous blocks to cut samples into, so that none spans two chains.

    There are at most `most` of them, but at least one of every chain.
    """
    chains = samples.num_chains
    return chains * min(max(most // chains, 1), len(samples) // chains)


def draw_members(members, count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield `count` members: each as often as any other, to within one."""
    while count > 0:
        order = torch.randperm(len(members), generator=generator)[:count]
        yield from (members[int(position)] for position in order)
        count -= len(order)


def save_kind(directory: Path, kind: str, network: Network | None, **more) -> None:
    """Write network.json and, last of all, posterior.json, which names the class."""
    if network:
        network.save(directory / "network.json")
    save_json(directory / "posterior.json", {"class": kind, **more})


def open_samples(
    path: Path, discard: float = 0.0, most: int | None = None, fewest: int = 2
) -> Samples:
    """Open the samples in a run directory, or in a samples.npy with network.json beside it.

    The first `discard`, a share, of each chain are left out, and so are vectors that members.npz
    marks and chains that chains.json says are left out. At most `most` of the rest are used, over
    all chains together, evenly spaced. Fewer than `fewest` are refused: a Gaussian needs two.
    """
    path = path / "samples.npy" if path.is_dir() else path
    try:
        array = np.load(path, mmap_mode="r")
        shape, kind = array.shape, array.dtype.kind
    except UNREADABLE as error:  # an archive of arrays has no shape
        advice = "Give a run that leaves some, or a samples.npy of [samples, weights]."
        if (path.parent / "posterior.json").exists():  # a run did leave some
            advice = _remedy(path.parent)
        raise UserError(f"Cannot read the samples {path}: {reason(error)}. {advice}") from None
    network = read_network(path)
    if len(shape) != 2 or shape[1] != network.num_weights or kind not in "fiu":
        raise UserError(
            f"{path} has {array.dtype} of the shape {list(shape)}: network.json beside it needs "
            f"numbers [samples, {network.num_weights}]; for several chains put one after the other "
            'and write {"num_chains": C} to chains.json beside it.'
        )
    layout = _read_layout(path, shape[0])
    num_chains, stored = layout["num_chains"], layout["stored_per_chain"]
    if shape[0] % num_chains:
        raise UserError(
            f"{path} has {plural(shape[0], 'sample')}, which are not {num_chains} chains of "
            "equal length, as chains.json beside it says."
        )
    chains = np.arange(shape[0]).reshape(num_chains, -1)[:, :stored]
    chains = _unmarked(path, np.delete(chains, layout.get("left_out", []), axis=0))
    kept = chains[:, round(discard * chains.shape[1]) :]
    if not chains.size and fewest:
        raise UserError(f"{path} has no networks: all {shape[0]} were left out.")
    if kept.size < fewest:
        remedy = "more samples" if chains.size < 2 else "a smaller --discard, or more samples"
        raise UserError(
            f"{path} has {plural(chains.size, 'sample')}, of which {kept.size} are left, and a "
            f"Gaussian needs two: give {remedy}."
        )
    count = min(kept.shape[1], max(1, most // num_chains)) if most else kept.shape[1]
    chosen = np.linspace(0, kept.shape[1] - 1, count).round().astype(int)
    return Samples(path, network, kept[:, chosen], checksums=read_checksums(path, shape[0]))


def _remedy(place: Path) -> str:
    """Say what to do about a damaged file in a directory: runs can make their modes again."""
    if place.name.startswith("mode-") and (place.parent / "config.yaml").exists():
        return f"Remove {place} and DONE beside it, and make it again with --resume."
    return f"Copy or make {place} again."


def _unmarked(path: Path, chains: np.ndarray) -> np.ndarray:
    """Return the indices that members.npz does not mark as left out; chains have no such marks."""
    kept = read_members(path).get(KEPT)
    if kept is None:
        return chains
    if kept.shape != chains.shape[1:]:
        raise UserError(
            f"{path.with_name(MEMBERS)} marks {kept.size} weight vectors, but {path} has "
            f"{chains.size}: if you have changed these, remove {MEMBERS}."
        )
    return chains[:, kept]


def _read_layout(path: Path, num_rows: int) -> dict:
    """Return how many chains the samples form, and how many each has stored so far."""
    layout = path.with_name(CHAINS)
    try:
        recorded = json.loads(layout.read_text()) if layout.exists() else {"num_chains": 1}
        num_chains = int(recorded["num_chains"])
    except UNREADABLE as error:
        why = reason(error)
        raise UserError(f"Cannot read {layout}: {why}. Mend it, or move it away.") from None
    if num_chains < 1:
        raise UserError(f"{layout} says {num_chains} chains; there must be at least one.")
    whole = num_rows // num_chains
    stored = recorded.setdefault("stored_per_chain", whole)
    if not isinstance(stored, int):
        raise UserError(f"{layout} needs a whole number stored_per_chain, and not {stored!r}.")
    if stored < whole:
        so_far = plural(stored, "sample")
        print(f"{path.parent} is not finished: using its {so_far} so far, of {whole}.")
    return recorded


def read_network(beside: Path) -> Network:
    """Read the network.json beside a file of weights."""
    path = beside.with_name("network.json")
    if not path.exists():
        raise UserError(
            f"{path} is missing: it says which network the weights beside it are of, "
            f"for example {NETWORK_EXAMPLES}"
        )
    return load_network(path)
