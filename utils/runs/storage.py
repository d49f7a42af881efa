"""Files that grow while a chain runs, and survive its end at any moment.

Both are written in place, by plain writes at known positions, and not through a mapping: on a
full disk a write fails with an error that can be told, where a mapping kills the process.
"""

import json
import os
from pathlib import Path

from utils.runs.errors import UserError
from utils.runs.files import as_numpy, cut, jsonable, write_atomically

import numpy as np
from torch import Tensor


class ArrayFile:
    """A .npy file [rows, columns] of one dtype, filled row by row.

    Its space is taken from the disk when it is made, so that a disk too full shows at the start.
    With `resumed` it must be there: made anew, the rows written so far would read as zeros.
    """

    def __init__(
        self, path: Path, shape: tuple[int, int], dtype: str = "float32", resumed: bool = False
    ):
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        self._dtype, self._row_bytes = np.dtype(dtype), shape[1] * np.dtype(dtype).itemsize

        def create(file):
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            _allocate(file.fileno(), file.tell(), shape[0] * self._row_bytes)

        if not path.exists() and not resumed:
            write_atomically(path, create)
        self._start = _array_start(path, shape, self._dtype)
        self._file = open(path, "r+b")  # noqa: SIM115 (open as long as the chain runs)

    def write(self, row: int, values: Tensor | np.ndarray) -> None:
        data = as_numpy(values).astype(self._dtype, copy=False).tobytes()
        assert len(data) == self._row_bytes
        position = self._start + row * self._row_bytes
        while data:  # a disk that fills up takes a part, and then refuses the rest
            written = os.pwrite(self._file.fileno(), data, position)
            data, position = data[written:], position + written

    def sync(self) -> None:
        os.fsync(self._file.fileno())


class RecordFile:
    """One JSON record per line; what was written after position `keep` is dropped."""

    def __init__(self, path: Path, keep: int):
        if keep and (not path.exists() or path.stat().st_size < keep):
            raise _damaged(path)
        self._file = open(path, "a+b")  # noqa: SIM115 (open as long as the chain runs)
        cut(self._file, keep)

    def append(self, record: dict) -> None:
        self._file.write(json.dumps(jsonable(record)).encode() + b"\n")

    def sync(self) -> int:
        """Put everything on disk; the position up to which the file is complete."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()


def _array_start(path: Path, shape: tuple[int, int], dtype: np.dtype) -> int:
    """Where the first row of the array is in its file, which must be whole."""
    try:
        there = np.load(path, mmap_mode="r")
    except (FileNotFoundError, ValueError, EOFError):
        raise _damaged(path) from None
    if (there.shape, there.dtype) != (shape, dtype):
        raise _damaged(path)
    return there.offset


def _damaged(path: Path) -> UserError:
    return UserError(
        f"{path} is missing or damaged, and the run cannot go on without it: "
        "put it back, or start again with --overwrite."
    )


def _allocate(descriptor: int, start: int, length: int) -> None:
    if hasattr(os, "posix_fallocate"):  # not on macOS
        os.posix_fallocate(descriptor, start, length)
    else:
        os.ftruncate(descriptor, start + length)
