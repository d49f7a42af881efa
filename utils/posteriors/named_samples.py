"""Sets of networks in a safetensors file: tensors [K, …] under the names of a state_dict."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from utils.networks.network import Network
from utils.networks.registry import network_from
from utils.networks.safetensors import (
    StoredTensor,
    TensorFile,
    arrange,
    header,
    open_tensors,
    to_bytes,
)
from utils.networks.state_dicts import Layout, default_layout, read_layout, state_dict_in
from utils.posteriors.samples import (
    Samples,
    checksum,
    read_checksums,
    read_network,
    save_checksums,
    save_kind,
)
from utils.runs.files import write_atomically
from utils.settings.errors import UserError

import numpy as np
import torch
from torch import Tensor

FILE = "networks.safetensors"
NAMED_SAMPLES = "NamedSamples"  # in posterior.json
LARGEST_HALF = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class NamedSamples(Samples):
    """Weight vectors of which each tensor lies in a part of the file of its own."""

    layout: Layout | None = None

    def read(self, number: int) -> Tensor:
        file, weights = open_tensors(self.path), torch.zeros(self.network.num_weights)
        for slot, key in zip(self.network.slots, self.layout.keys, strict=True):
            if key in file.entries:  # layers may have no bias
                slot.of(weights).copy_(file.item(key, number).reshape(slot.shape))
        return weights


def open_named_samples(path: Path) -> NamedSamples:
    """Open the networks in a directory, or in a safetensors file of several networks."""
    path = path / FILE if path.is_dir() else path
    file = open_tensors(path)
    count = number_of_networks(file)
    if count is None:
        raise UserError(
            f"{path} does not say that it has several networks: import it first, by the command "
            "in docs/networks.md."
        )
    network = network_in(file) or read_network(path)
    try:
        layout = read_layout(state_dict_in(file, 0), network=network)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    checksums = read_checksums(path, count)
    return NamedSamples(path, network, np.arange(count)[None], None, checksums, layout)


def number_of_networks(file: TensorFile) -> int | None:
    """Return how many networks lie side by side in a file; None: it is a single one's."""
    text = file.metadata.get("networks", "")
    if not text.isdigit() or int(text) < 1:
        return None
    if any(entry.shape[:1] != (int(text),) for entry in file.entries.values()):
        return None
    return int(text)


def network_in(file: TensorFile) -> Network | None:
    """Return the network that a file describes in its metadata."""
    try:
        return network_from(json.loads(file.metadata["network"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


# ---- writing


def save_named_samples(
    directory: Path, network: Network, rows: Iterable[Tensor], count: int, dtype: torch.dtype
) -> None:
    """Write `count` weight vectors into a directory, one after the other.

    Its checksums are of the weights as they are written.
    """
    layout, checksums = default_layout(network), []

    def numbered():
        for number, row in enumerate(rows):
            stored = rounded(row, dtype, number)
            checksums.append(checksum(stored))
            yield stored

    write_atomically(
        directory / FILE, lambda file: write_stack(file, layout, numbered(), count, dtype)
    )
    save_checksums(directory, checksums)
    save_kind(directory, NAMED_SAMPLES, network)


def write_stack(
    file: BinaryIO, layout: Layout, rows: Iterable[Tensor], count: int, dtype: torch.dtype
) -> None:
    """Write networks [d] as stacked tensors into a file that is open for writing."""
    single = stored_tensors(layout, torch.zeros(layout.network.num_weights), dtype)
    stacked = {key: StoredTensor(each.dtype, (count, *each.shape)) for key, each in single.items()}
    places = arrange(stacked)
    described = json.dumps(layout.network.describe())
    metadata = {"format": "pt", "networks": str(count), "network": described}
    start = file.write(header(places, metadata))
    for number, row in enumerate(rows):
        for key, tensor in stored_tensors(layout, row, dtype).items():
            data = to_bytes(tensor)
            file.seek(start + places[key].begin + number * len(data))
            file.write(data)


def stored_tensors(layout: Layout, weights: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors of a network [d] in another type; counters keep theirs."""
    tensors = layout.state_dict(weights)
    return {
        key: each.to(dtype) if each.is_floating_point() else each for key, each in tensors.items()
    }


def rounded(weights: Tensor, dtype: torch.dtype, number: int) -> Tensor:
    """Return weights as they will be read from a file of this type; refuse what it cannot hold."""
    if dtype == torch.float16 and not bool((weights.abs() <= LARGEST_HALF).all()):
        raise UserError(
            f"Network {number} has weights beyond {LARGEST_HALF:g}, the largest number of float16: "
            "give --dtype float32."
        )
    return weights.to(dtype).float()
