"""Files that are whole or absent, checkpoints, and files that grow while a run goes on."""

import errno
import json
import math
import os
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from utils.settings.errors import UserError

import numpy as np
import torch
import yaml
from torch import Tensor

# Raised on reading a file that is missing, truncated, or of another format: an archive in place of
# an array has no shape, for example.
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, NotImplementedError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


# ---- whole or absent


def write_atomically(path: Path, write: Callable) -> None:
    """Let `write(file)` fill a file that then appears at `path` whole, or not at all."""
    _write_beside(path, write, os.replace)


def write_once(path: Path, write: Callable) -> None:
    """Let `write(file)` fill a file that then appears whole at `path`, unless one is there.

    Of several processes that do this at once, the first one's file stays.
    """
    with suppress(FileExistsError):
        _write_beside(path, write, os.link)


def _write_beside(path: Path, write: Callable, put: Callable[[Path, Path], None]) -> None:
    # Processes of several machines can have the same number.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        put(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        if error.errno is None:  # numpy does not say why the disk took only part of an array
            raise OSError(errno.ENOSPC, str(error)) from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    """Put names on disk, so that after a power failure the new file is there and not the old."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Yield a folder that appears at `place` when all is written, or not at all."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{place} exists already: remove it, or give another --out_dir.")
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f".{place.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    unfinished.mkdir()
    try:
        yield unfinished
        unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_mapping(path: Path, parse: Callable[[str], dict] = json.loads) -> dict:
    """Read a mapping that a run has written; return {} if the file does not exist."""
    try:
        content = parse(path.read_text()) if path.exists() else {}
    except (ValueError, yaml.YAMLError):
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: move {path.parent} away and run it again.")
    return content


def save_json(path: Path, content) -> None:
    text = json.dumps(jsonable(content), indent=2) + "\n"
    write_atomically(path, lambda f: f.write(text.encode()))


def save_yaml(path: Path, content: dict, write_file: Callable = write_atomically) -> None:
    text = yaml.safe_dump(content, sort_keys=False)
    write_file(path, lambda f: f.write(text.encode()))


def save_arrays(path: Path, /, **arrays) -> None:
    write_atomically(path, lambda f: np.savez(f, **{k: as_numpy(v) for k, v in arrays.items()}))


def save_figure(path: Path, figure) -> None:
    """Save `figure` as <path>.png and <path>.pdf, with one layout for both."""
    for suffix in ("png", "pdf"):
        file = path.with_name(f"{path.name}.{suffix}")
        write_atomically(file, lambda f, s=suffix: figure.savefig(f, format=s))
        figure.set_layout_engine("none")  # what the PNG has found stays: it takes most of the time


def as_numpy(array) -> np.ndarray:
    return array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


def jsonable(value):
    """Convert to plain Python types; NaN and infinity, which JSON lacks, become null."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return jsonable(value.tolist())
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# ---- checkpoints: named arrays and counters in one .npz file, from which a run continues


def save_checkpoint(path: Path, counters: dict, arrays: dict) -> None:
    """Save arrays by name, and `counters`: anything that JSON can hold."""
    header = np.frombuffer(json.dumps(counters).encode(), dtype=np.uint8)
    save_arrays(path, header=header, **arrays)


def load_checkpoint(
    path: Path, shapes: dict[str, tuple], device: torch.device
) -> tuple[dict, dict[str, Tensor]] | None:
    """Return (counters, arrays), or None without a file; refuse arrays of other shapes."""
    if not path.exists():
        return None
    try:
        with np.load(path) as archive:
            arrays = {name: torch.from_numpy(archive[name]).to(device) for name in archive.files}
        counters = json.loads(bytes(arrays.pop("header").tolist()))
    except UNREADABLE as error:
        raise UserError(
            f"The checkpoint {path} is damaged ({error}): start again with --overwrite."
        ) from None
    for name, expected in shapes.items():
        if name not in arrays:
            raise UserError(
                f"{path} was made by another version of this program (it has no {name}): resume "
                "with that version, or start again with --overwrite."
            )
        shape = tuple(arrays[name].shape)
        if shape != tuple(expected):
            raise UserError(
                f"{path} is a checkpoint of another network: {name} has the shape {shape}, "
                f"this config needs {tuple(expected)}. Give another --run_name, or --overwrite."
            )
    return counters, arrays


# ---- growing
#
# Written in place by plain writes at known positions, not through a memory map: on a full disk a
# write fails with an error that can be reported, whereas a memory map kills the process.


class RecordFile:
    """A file of one JSON record per line; whatever follows byte `keep` is dropped."""

    def __init__(self, path: Path, keep: int | None = None):
        if keep and not path.exists():
            raise _damaged(path)
        self._path = path
        self._file = open(path, "a+b")  # noqa: SIM115 (open as long as the run)
        if keep is not None:
            self.truncate(keep)

    def append(self, record: dict) -> None:
        self._file.write(json.dumps(jsonable(record)).encode() + b"\n")
        self._file.flush()

    def records(self) -> Iterator[dict]:
        for line in self._path.read_bytes().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                raise _damaged(self._path) from None

    def sync(self) -> int:
        """Put everything on disk and return the file's length."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def truncate(self, length: int) -> None:
        """Drop whatever the file holds beyond `length` bytes."""
        if self._path.stat().st_size < length:
            raise _damaged(self._path)
        self._file.truncate(length)
        self._file.seek(0, os.SEEK_END)  # until the next write tell() would return the old end

    def close(self) -> None:
        self._file.close()


class ArrayFile:
    """A .npy file [rows, columns] of one dtype, filled row by row.

    Its disk space is allocated on creation, so a full disk shows at the start. With `resumed` it
    must exist: in a new file the rows written so far would read as zeros.
    """

    def __init__(
        self, path: Path, shape: tuple[int, int], dtype: str = "float32", resumed: bool = False
    ):
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        self._dtype, self._row_bytes = np.dtype(dtype), shape[1] * np.dtype(dtype).itemsize

        def create(file):
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            start, length = file.tell(), shape[0] * self._row_bytes
            if hasattr(os, "posix_fallocate"):  # not on macOS
                os.posix_fallocate(file.fileno(), start, length)
            else:
                os.ftruncate(file.fileno(), start + length)

        if not path.exists() and not resumed:
            write_atomically(path, create)
        self._start = _array_start(path, shape, self._dtype)
        self._file = open(path, "r+b")  # noqa: SIM115 (open as long as the run)

    def write(self, row: int, values: torch.Tensor | np.ndarray) -> None:
        data = as_numpy(values).astype(self._dtype, copy=False).tobytes()
        assert len(data) == self._row_bytes
        position = self._start + row * self._row_bytes
        while data:  # a disk that fills up takes part of the data, then refuses the rest
            written = os.pwrite(self._file.fileno(), data, position)
            data, position = data[written:], position + written

    def sync(self) -> None:
        os.fsync(self._file.fileno())


def _array_start(path: Path, shape: tuple[int, int], dtype: np.dtype) -> int:
    """Return the position of the first row in an array file, which must be whole."""
    with suppress(*UNREADABLE):
        array = np.load(path, mmap_mode="r")
        if (array.shape, array.dtype) == (shape, dtype):
            return array.offset
    raise _damaged(path)


def _damaged(path: Path) -> UserError:
    return UserError(
        f"{path} is missing or damaged, and the run cannot continue without it: "
        "put it back, or start again with --overwrite."
    )


def read_records(path: Path) -> list[dict]:
    """Return the records of a file of one JSON object a line."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def save_records(path: Path, records: list[dict]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records)
    write_atomically(path, lambda f: f.write(text.encode()))


def last_values(records: str) -> dict:
    """Return the last value of every name in records of one JSON object a line."""
    return {name: v for line in records.splitlines() for name, v in json.loads(line).items()}
