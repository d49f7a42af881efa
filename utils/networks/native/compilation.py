"""C code of this package, compiled where it runs and kept in build/.

It serves networks so small that PyTorch spends its time between operations. Where there is no C
compiler PyTorch computes the same, up to rounding.
"""

import atexit
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from utils.runs.compute import c_compiler, c_compiler_version, processor

import torch
from torch import Tensor

LANES, CACHE_LINE = 16, 64  # images side by side (lanes.h), and bytes of a cache line
BUILD = Path(__file__).parents[3] / "build"
# The processor's own instructions, under the names that compilers have for them.
FOR_THIS_MACHINE = (["-march=native"], ["-mcpu=native"], [])
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC", "-Wno-psabi"]


@cache
def library(name: str, **constants: int) -> ctypes.CDLL | None:
    """Return the library compiled from NAME.c with these constants, or None, and say why."""
    source = Path(__file__).with_name(f"{name}.c")
    try:
        defined = [f"-D{key}={value}" for key, value in constants.items()]
        return ctypes.CDLL(str(_built(source, defined)))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        print(
            f"{name} is not computed in C but by PyTorch, four times slower or more, because "
            f"{source.name} cannot be compiled: {said[0] if said else error}",
            file=sys.stderr,
        )
        return None


def _built(source: Path, defined: list[str]) -> Path:
    """Return the compiled file, which other processes may be making at the same time.

    Its name has the digests of what it is made of and of what it is. To load a damaged file would
    kill the process.
    """
    version = c_compiler_version() or ""
    headers = [path.read_text() for path in sorted(source.parent.glob("*.h"))]
    made_of = "\n".join([source.read_text(), *headers, version, processor(), *FLAGS, *defined])
    name = f"{source.stem}-{_digest(made_of.encode())}"
    folder = BUILD if _writable(BUILD) else _temporary_folder()
    for path in folder.glob(f"{name}-*.so"):
        if path.name == f"{name}-{_digest(path.read_bytes())}.so":
            return path
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / f"{name}.so"
        for native in FOR_THIS_MACHINE:
            command = [*c_compiler(), *FLAGS, *native, *defined, str(source), "-o", str(made)]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode == 0:
                break
        result.check_returncode()
        path = folder / f"{name}-{_digest(made.read_bytes())}.so"
        made.replace(path)
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


class Buffer:
    """Memory that starts at a cache line, and grows when more is needed."""

    def __init__(self):
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def hold(self, size: int) -> None:
        if len(self._bytes) < size + CACHE_LINE:
            self._bytes = torch.empty(size + CACHE_LINE, dtype=torch.uint8)

    @property
    def address(self) -> ctypes.c_void_p:
        start = self._bytes.data_ptr()
        return ctypes.c_void_p(start + -start % CACHE_LINE)


def address(tensor: Tensor | None) -> ctypes.c_void_p | None:
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())
