"""Inputs and labels that users give as arrays."""

from pathlib import Path

from utils.runs.files import UNREADABLE
from utils.settings.errors import UserError, reason

import numpy as np
import torch
from torch import Tensor


def read_inputs(path: Path, num_inputs: int) -> Tensor:
    """Read inputs [N, num_inputs] from an array [N, …] with as many numbers for each."""
    array = _read_numbers(path, kinds="fiub")
    if array.ndim < 2 or not len(array) or array[0].size != num_inputs:
        raise UserError(
            f"{path} has the shape {list(array.shape)}, but these networks need inputs "
            f"[N, {num_inputs}]."
        )
    inputs = torch.from_numpy(array.astype(np.float32)).flatten(1)
    not_finite = int((~inputs.isfinite()).any(1).sum())
    if not_finite:
        raise UserError(
            f"{path} has NaN or infinite numbers in {not_finite} inputs: leave them out."
        )
    return inputs


def read_labels(path: Path, count: int, num_classes: int) -> Tensor:
    """Read the class numbers [N] of `count` inputs."""
    array = _read_numbers(path, kinds="iu")
    if array.shape != (count,):
        raise UserError(
            f"{path} has the shape {list(array.shape)}, but {count} inputs have labels [{count}]."
        )
    if array.min() < 0 or array.max() >= num_classes:
        raise UserError(
            f"{path} has labels from {array.min()} to {array.max()}, but the networks have "
            f"{num_classes} outputs: classes are numbered from 0 to {num_classes - 1}."
        )
    return torch.from_numpy(array.astype(np.int64))


def _read_numbers(path: Path, kinds: str) -> np.ndarray:
    try:
        array = np.load(path)
    except UNREADABLE as error:
        raise UserError(f"Cannot read the array {path}: {reason(error)}.") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
        kind = "whole numbers" if "f" not in kinds else "numbers"
        raise UserError(f"{path} must be an array of {kind}, written with numpy.save.")
    return array
