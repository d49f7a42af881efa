"""C code of this package, compiled where it runs and kept in build/.

It serves networks so small that PyTorch spends its time between operations. Where there is no C
compiler PyTorch computes the same, up to rounding.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from utils.runs.compute import processor

BUILD = Path(__file__).parents[2] / "build"
# The processor's own instructions, under the names that compilers have for them.
FOR_THIS_MACHINE = (["-march=native"], ["-mcpu=native"], [])
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC", "-Wno-psabi"]


@cache
def library(name: str, **constants: int) -> ctypes.CDLL | None:
    """Return the library compiled from NAME.c with these constants, or None without a compiler."""
    source = Path(__file__).with_name(f"{name}.c")
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        print(
            f"There is no C compiler (cc), so PyTorch computes {name}: slower by a factor of four "
            "or more.",
            file=sys.stderr,
        )
        return None
    defined = [f"-D{key}={value}" for key, value in constants.items()]
    return ctypes.CDLL(str(_built(source, compiler, defined)))


def _built(source: Path, compiler: str, defined: list[str]) -> Path:
    """Return the compiled file, which other processes may be making at the same time."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    headers = [path.read_text() for path in sorted(source.parent.glob("*.h"))]
    made_of = [source.read_text(), *headers, version, processor(), *FLAGS, *defined]
    digest = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    folder = BUILD if _writable(BUILD) else Path(tempfile.mkdtemp())
    path = folder / f"{source.stem}-{digest}.so"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / path.name
        for native in FOR_THIS_MACHINE:
            command = [compiler, *FLAGS, *native, *defined, str(source), "-o", str(made)]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode == 0:
                made.replace(path)
                return path
    raise RuntimeError(f"{compiler} cannot compile {source.name}:\n{result.stderr}")


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
