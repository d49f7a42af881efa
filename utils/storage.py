"""Files that grow while a chain runs, and survive its end at any moment.

Both are written in place, by plain writes at known positions, and not through a mapping: on a
full disk a write fails with an error that can be told, where a mapping kills the process.
"""

import json
import os
from pathlib import Path

from utils.runs import as_numpy, jsonable, write_atomically

import numpy as np
from torch import Tensor


class ArrayFile:
    """A .npy file [rows, columns] of one dtype, filled row by row.

    Its space is taken from the disk when it is made, so that a disk too full shows at the start.
    """

    def __init__(self, path: Path, shape: tuple[int, int], dtype: str = "float32"):
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        self._dtype, self._row_bytes = np.dtype(dtype), shape[1] * np.dtype(dtype).itemsize

        def create(file):
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            _allocate(file.fileno(), file.tell(), shape[0] * self._row_bytes)

        if not path.exists():
            write_atomically(path, create)
        self._file = open(path, "r+b")  # noqa: SIM115 (open as long as the chain runs)
        self._start = os.path.getsize(path) - shape[0] * self._row_bytes

    def write(self, row: int, values: Tensor | np.ndarray) -> None:
        data = as_numpy(values).astype(self._dtype, copy=False).tobytes()
        assert len(data) == self._row_bytes
        os.pwrite(self._file.fileno(), data, self._start + row * self._row_bytes)

    def sync(self) -> None:
        os.fsync(self._file.fileno())


class RecordFile:
    """One JSON record per line; what was written after position `keep` is dropped."""

    def __init__(self, path: Path, keep: int):
        self._file = open(path, "a+b")  # noqa: SIM115 (open as long as the chain runs)
        self._file.truncate(keep)

    def append(self, record: dict) -> None:
        self._file.write(json.dumps(jsonable(record)).encode() + b"\n")

    def sync(self) -> int:
        """Put everything on disk; the position up to which the file is complete."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()


def _allocate(descriptor: int, start: int, length: int) -> None:
    if hasattr(os, "posix_fallocate"):  # not on macOS
        os.posix_fallocate(descriptor, start, length)
    else:
        os.ftruncate(descriptor, start + length)
