"""Networks from and to other programs: safetensors files, state_dicts, folders and tars of them.

The published sets of Laurent et al. (2024) are tars of 1,024 safetensors files in float16. Files
are read one after the other, so memory holds a part of a set only, however large it is.
"""

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from utils.data.formats import GZIP_MAGIC
from utils.networks.network import Network
from utils.networks.safetensors import TensorFile, open_tensors, write_tensors
from utils.networks.state_dicts import (
    Layout,
    default_layout,
    read_layout,
    read_state_dict,
    state_dict_in,
)
from utils.posteriors.named_samples import network_in, number_of_networks, rounded, stored_tensors
from utils.posteriors.posterior import mode_directory
from utils.posteriors.samples import Points, save_kind
from utils.runs.files import write_atomically
from utils.settings.errors import UserError, reason
from utils.settings.wording import plural

import numpy as np
import torch
from torch import Tensor

TAR_ENDINGS = (".tar", ".tgz", ".tar.gz")
PER_TAR = 1024  # networks, as in the published sets
PART_BYTES = 2**28  # of the weights that an import holds in memory at a time
RANGE = re.compile(r"-(\d+)-(\d+)$")  # the networks in a tar, as its name has them


class NamedNetwork(NamedTuple):
    source: str  # file, for errors
    state_dict: Mapping[str, Tensor]
    network: Network | None = None  # if the file says which it is


# ---- reading


def read_all(paths: Iterable[Path]) -> Iterator[NamedNetwork]:
    """Yield the networks in files, in the files of folders, and in tars."""
    for path in paths:
        if path.is_dir():
            inside = [each for each in path.iterdir() if each.suffix in (".safetensors", ".pt")]
            if not inside:
                raise UserError(f"{path} has no safetensors or .pt files.")
            yield from read_all(sorted(inside, key=natural))
        elif path.name.endswith(TAR_ENDINGS):
            yield from read_tar(path)
        elif path.suffix == ".safetensors":
            yield from networks_in(open_tensors(path), str(path))
        else:
            yield NamedNetwork(str(path), read_state_dict(path))


def natural(path: Path) -> list:
    """Return a key that sorts numbers in names by size."""
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", str(path))]


def networks_in(file: TensorFile, source: str) -> Iterator[NamedNetwork]:
    """Yield the networks of a file: one, or several in stacked tensors."""
    network, count = network_in(file), number_of_networks(file)
    if count is None:
        yield NamedNetwork(source, state_dict_in(file), network)
        return
    for number in range(count):
        yield NamedNetwork(f"{source}, network {number}", state_dict_in(file, number), network)


def read_tar(path: Path) -> Iterator[NamedNetwork]:
    """Yield the networks of a tar, compressed or not."""
    count = 0
    try:
        with _uncompressed(path) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(".safetensors"):
                    content = np.frombuffer(archive.extractfile(member).read(), np.uint8)
                    source = f"{member.name} in {path}"
                    for network in networks_in(TensorFile(content, source), source):
                        yield network
                        count += 1
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise UserError(
            f"Cannot read {path} to its end ({reason(error)}): download or copy it again."
        ) from None
    if not count:
        raise UserError(f"{path} has no safetensors files in it.")
    check_count(path, count)


def _uncompressed(path: Path) -> BinaryIO:
    """Open a tar. A compressed one is read up to its checksum first: damage would else look like a
    network that is not finite.
    """
    file = open(path, "rb")  # noqa: SIM115 (its reader closes it)
    is_gzip = file.read(2) == GZIP_MAGIC
    file.seek(0)
    if not is_gzip:
        return file
    file = gzip.GzipFile(fileobj=file)
    while file.read(2**20):
        pass
    file.seek(0)
    return file


def check_count(path: Path, count: int) -> None:
    """Refuse a tar that has fewer networks than its name says."""
    numbers = RANGE.search(path.name.removesuffix(".gz").rpartition(".")[0])
    expected = int(numbers[2]) - int(numbers[1]) + 1 if numbers else count
    if count != expected:
        raise UserError(
            f"{path} has {plural(count, 'network')}, but {expected} by its name: download or "
            "copy it again, or rename it if that is right."
        )


# ---- importing


class Imported(NamedTuple):
    network: Network
    count: int
    dtype: torch.dtype  # of the weights on disk


def import_networks(
    networks: Iterator[NamedNetwork], directory: Path, network: Network | None, activation: str
) -> Imported:
    """Write networks as a posterior into an empty directory, in as many parts as they need.

    Weights that are float16 stay so on disk. Without a network, the first file has to say which it
    is, or is read as an MLP of this activation.
    """
    first = next(networks, None)
    if first is None:
        raise UserError("There are no networks to import.")
    try:
        layout = read_layout(first.state_dict, activation, network or first.network)
    except UserError as error:
        raise UserError(f"{first.source}: {error}") from None
    dtypes = {dtype for dtype in layout.dtypes.values() if dtype.is_floating_point}
    dtype = torch.float16 if dtypes == {torch.float16} else torch.float32
    rows = _rows(first, networks, layout, dtype)
    per_part = max(1, PART_BYTES // (4 * layout.network.num_weights))
    count = part = 0
    while stack := list(islice(rows, per_part)):
        place = mode_directory(directory, part)
        place.mkdir()
        Points(torch.stack(stack), layout.network).save(place)
        count, part = count + len(stack), part + 1
    save_kind(directory, "Mixture", layout.network, parts=part)
    return Imported(layout.network, count, dtype)


def _rows(
    first: NamedNetwork, others: Iterator[NamedNetwork], layout: Layout, dtype: torch.dtype
) -> Iterator[Tensor]:
    for each in chain([first], others):
        try:
            weights = layout.flatten(each.state_dict).float()
        except UserError as error:
            raise UserError(f"{each.source}: {error}") from None
        if not weights.to(dtype).float().equal(weights):
            raise UserError(
                f"{each.source} is not of float16 as the networks before it: import it separately."
            )
        yield weights.to(dtype)


# ---- exporting


def export_tars(
    directory: Path, name: str, posterior, dtype: torch.dtype, per_tar: int = PER_TAR
) -> list[Path]:
    """Write a file for each network of a set, in tars NAME-0-1023.tgz, NAME-1024-2047.tgz, …"""
    paths = []
    for start in range(0, len(posterior), per_tar):
        numbers = range(start, min(start + per_tar, len(posterior)))
        paths.append(directory / f"{name}-{numbers[0]}-{numbers[-1]}.tgz")
        write_atomically(
            paths[-1],
            lambda file, numbers=numbers: _write_tar(file, name, posterior, numbers, dtype),
        )
    return paths


def _write_tar(file: BinaryIO, name: str, posterior, numbers: range, dtype: torch.dtype) -> None:
    layout = default_layout(posterior.network)
    # Without times in it, the same networks make the same bytes.
    with (
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for number in numbers:
            weights = rounded(posterior[number], dtype, number)
            content = io.BytesIO()
            write_tensors(content, stored_tensors(layout, weights, dtype))
            member = tarfile.TarInfo(f"{name}-{number}.safetensors")
            member.size = content.tell()
            content.seek(0)
            archive.addfile(member, content)
