"""MNIST and its siblings as tensors in memory.

Files are looked for in the data directory and otherwise fetched (`download.py`). Each is checked
against its MD5 whenever it is read, and put in place whole or not at all.
"""

import gzip
import hashlib
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from utils.data.download import fetchers
from utils.runs.errors import UserError
from utils.runs.files import write_atomically

import numpy as np
import torch
from torch import Tensor

GZIP_MAGIC = b"\x1f\x8b"
PARTS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class Files:
    """The names under which a data set's four files are kept, and their MD5s."""

    suffix: str
    md5: tuple[str, str, str, str]
    num_classes: int = 10


FILES = {
    "MNIST": Files(
        "",
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    "FashionMNIST": Files(
        "",
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
    # Only its compressed files have published MD5s, so it is kept compressed.
    "KMNIST": Files(
        ".gz",
        (
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
    ),
}


@dataclass(frozen=True)
class Dataset:
    """Images as rows of pixels in [0, 1], labels as class numbers."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int = 10

    @property
    def num_pixels(self) -> int:
        return self.train_images.shape[1]

    def to(self, device: torch.device) -> "Dataset":
        tensors = (self.train_images, self.train_labels, self.test_images, self.test_labels)
        return Dataset(self.name, *(tensor.to(device) for tensor in tensors), self.num_classes)


def load_dataset(name: str, data_dir: str | Path, num_train: int | None = None) -> Dataset:
    """The data set, fetched if need be; with `num_train` only its first training images."""
    if name not in FILES:
        raise UserError(f"Unknown data set {name!r}; there are: {', '.join(FILES)}.")
    files = read_files(name, Path(data_dir))
    train_images, train_labels, test_images, test_labels = map(_parse_idx, files)
    if num_train is not None and num_train > len(train_labels):
        raise UserError(
            f"num_train is {num_train}, but {name} has {len(train_labels)} training images."
        )
    return Dataset(
        name,
        _pixels(train_images[:num_train]),
        _classes(train_labels[:num_train]),
        _pixels(test_images),
        _classes(test_labels),
        FILES[name].num_classes,
    )


def _parse_idx(content: bytes) -> np.ndarray:
    """The array of an IDX file: 2 zero bytes, type, number of dimensions, sizes, then the bytes."""
    num_dimensions = content[3]
    shape = np.frombuffer(content, ">i4", num_dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * num_dimensions).reshape(shape)


def _pixels(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images.reshape(len(images), -1).astype(np.float32)).div_(255)


def _classes(labels: np.ndarray) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


def read_files(name: str, data_dir: Path) -> list[bytes]:
    """The uncompressed contents of the four PARTS, from the first source that has each."""
    home = data_dir / name / "raw"  # as torchvision lays them out, whose downloads serve as well
    contents = {}
    _collect(contents, name, home)
    _collect(contents, name, data_dir)
    failures = []
    for source, fetch in fetchers(name).items():
        if len(contents) == len(PARTS):
            break
        print(f"{name}: fetching from {source} …", file=sys.stderr)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                fetch(Path(scratch))
            except (UserError, OSError, subprocess.TimeoutExpired) as error:
                failures.append(f"{source}: {error}")
            _collect(contents, name, Path(scratch), store_in=home)
    if len(contents) < len(PARTS):
        raise UserError(_how_to_provide(name, home, failures))
    return [contents[part] for part in PARTS]


def _collect(contents: dict, name: str, folder: Path, store_in: Path | None = None) -> None:
    """Add to `contents` the parts that are still missing and lie, undamaged, in `folder`."""
    kept = FILES[name]
    for part, md5 in zip(PARTS, kept.md5, strict=True):
        for path in (folder / part, folder / f"{part}.gz"):
            if part in contents or not path.is_file():
                continue
            forms = _both_forms(_read(path))
            if hashlib.md5(forms.get(kept.suffix, b"")).hexdigest() != md5:
                continue
            contents[part] = forms[""]
            if store_in:
                _store(store_in / f"{part}{kept.suffix}", forms[kept.suffix])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}. Give another --data_dir.") from None


def _store(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write(content))
    except OSError as error:
        raise UserError(
            f"Cannot write {path}: {error.strerror}. Give another --data_dir."
        ) from None


def _both_forms(content: bytes) -> dict[str, bytes]:
    """A file's content by suffix: "" uncompressed and, if that is what it is, ".gz"."""
    if not content.startswith(GZIP_MAGIC):
        return {"": content}
    try:
        return {"": gzip.decompress(content), ".gz": content}
    except (OSError, EOFError, zlib.error):
        return {".gz": b""}  # damaged or half there


def _how_to_provide(name: str, home: Path, failures: list[str]) -> str:
    files = FILES[name]
    lines = [f"{name} is not complete, and no source has what is missing. In {home}:"]
    for part, md5 in zip(PARTS, files.md5, strict=True):
        path = home / f"{part}{files.suffix}"
        if not path.exists():
            state = "missing"
        elif hashlib.md5(path.read_bytes()).hexdigest() == md5:
            state = "good"
        else:
            state = f"damaged ({path.stat().st_size:,} bytes, and not of MD5 {md5})"
        lines.append(f"  {path.name}: {state}")
    lines += [f"Tried {failure}" for failure in failures]
    ways = [
        f"put the files there{' (plain or .gz)' * (not files.suffix)}",
        "point --data_dir to a folder that has them",
    ]
    if fetchers(name):
        ways.append(f"with a network, let them be fetched from {' or '.join(fetchers(name))}")
    lines.append(f"Ways to provide it: {'; or '.join(ways)}.")
    return "\n".join(lines)
