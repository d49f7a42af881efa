"""Checkpoints: named arrays and counters in one .npz file, from which a run continues."""

import json
import zipfile
from pathlib import Path

from utils.runs.errors import UserError
from utils.runs.files import save_arrays

import numpy as np
import torch
from torch import Tensor


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
    except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"The checkpoint {path} is damaged ({error}): start again with --overwrite."
        ) from None
    for name, expected in shapes.items():
        shape = tuple(arrays[name].shape) if name in arrays else None
        if shape != tuple(expected):
            raise UserError(
                f"{path} is a checkpoint of another network: {name} has the shape {shape}, "
                f"this config needs {tuple(expected)}. Give another --run_name, or --overwrite."
            )
    return counters, arrays
