"""Files that appear whole or not at all, in the forms that runs and reports are kept in."""

import json
import math
import os
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from utils.runs.errors import UserError

import numpy as np
import torch
import yaml

# What reading a file raises that is missing, cut off, or not what it should be.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)


def write_atomically(path: Path, write: Callable) -> None:
    """Let `write(file)` fill a file that appears at `path` whole, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    """Put names on disk: when the machine goes down, the new file is to be there, not the old."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_mapping(path: Path, parse: Callable[[str], dict]) -> dict:
    """A mapping that a run has written, or {} where there is none yet."""
    try:
        content = parse(path.read_text()) if path.exists() else {}
    except (ValueError, yaml.YAMLError):
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: move {path.parent} away, and make it again.")
    return content


def cut(file: BinaryIO, length: int) -> None:
    """Drop what a file that is being appended to has beyond `length` bytes."""
    file.truncate(length)
    file.seek(0, os.SEEK_END)  # until the next write tell() would give the old end


def save_json(path: Path, content) -> None:
    text = json.dumps(jsonable(content), indent=2) + "\n"
    write_atomically(path, lambda f: f.write(text.encode()))


def save_arrays(path: Path, **arrays) -> None:
    write_atomically(path, lambda f: np.savez(f, **{k: as_numpy(v) for k, v in arrays.items()}))


def save_figure(path: Path, figure) -> None:
    """`figure` as <path>.png and <path>.pdf."""
    for suffix in ("png", "pdf"):
        file = path.with_name(f"{path.name}.{suffix}")
        write_atomically(file, lambda f, s=suffix: figure.savefig(f, format=s))


def as_numpy(array) -> np.ndarray:
    return array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


def jsonable(value):
    """`value` in plain Python types; JSON has no NaN and no infinity, so these become null."""
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
