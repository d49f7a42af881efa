"""Files of named tensors in the safetensors format.

    8 bytes: N, little-endian · N bytes of JSON · the numbers of all tensors, without gaps

The JSON says for each name its dtype, shape and data_offsets [begin, end), counted from its end.
`__metadata__` maps texts to texts. The bytes are those that the safetensors package writes.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from utils.settings.errors import UserError, reason

import numpy as np
import torch
from torch import Tensor

LENGTH_BYTES = 8
ALIGNMENT = 8  # of the first number
LONGEST_HEADER = 100_000_000  # bytes, as the format's own reader has it
# In the order in which tensors are written: the last one first, and by name within one.
DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16,
    "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "F32": torch.float32,
    "F64": torch.float64, "I64": torch.int64,
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class StoredTensor(NamedTuple):
    """A tensor in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int = 0  # of its bytes, counted from the header's end

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def end(self) -> int:
        return self.begin + self.num_bytes


# ---- writing


def arrange(entries: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors in the order of the file, each with its place."""
    ranks = {dtype: rank for rank, dtype in enumerate(DTYPE_NAMES)}
    placed, begin = {}, 0
    for name in sorted(entries, key=lambda name: (-ranks[entries[name].dtype], name)):
        placed[name] = entries[name]._replace(begin=begin)
        begin = placed[name].end
    return placed


def header(entries: Mapping[str, StoredTensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return what stands before the numbers of these `arrange`d tensors."""
    content = {"__metadata__": dict(metadata)} if metadata else {}
    for name, entry in entries.items():
        places = [entry.begin, entry.end]
        shape = list(entry.shape)
        content[name] = {"dtype": DTYPE_NAMES[entry.dtype], "shape": shape, "data_offsets": places}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def to_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor]) -> None:
    """Write all tensors into a file that is open for writing, as those of PyTorch."""
    entries = {name: StoredTensor(each.dtype, tuple(each.shape)) for name, each in tensors.items()}
    entries = arrange(entries)
    file.write(header(entries, {"format": "pt"}))
    for name in entries:
        file.write(to_bytes(tensors[name]))


# ---- reading


class TensorFile:
    """The tensors in the bytes of a file, read when they are asked for."""

    def __init__(self, content: np.ndarray, source: str):
        """Check a file's bytes [length]; `source` names it in errors."""
        self._source = source
        if len(content) < LENGTH_BYTES:
            raise self._damaged("it is too short")
        length = int.from_bytes(content[:LENGTH_BYTES].tobytes(), "little")
        start = LENGTH_BYTES + length
        if length > min(LONGEST_HEADER, len(content) - LENGTH_BYTES):
            raise self._damaged("its header does not fit into it")
        try:
            described = json.loads(content[LENGTH_BYTES:start].tobytes())
            metadata = dict(described.pop("__metadata__", {}))
            self.metadata = {str(name): str(text) for name, text in metadata.items()}
            self.entries = {str(name): _entry(each) for name, each in described.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._damaged("its header cannot be read") from None
        self._numbers = content[start:]
        places = sorted((entry.begin, entry.end) for entry in self.entries.values())
        ends = [0, *(end for _, end in places)]
        if [begin for begin, _ in places] != ends[:-1] or ends[-1] != len(self._numbers):
            raise self._damaged("its tensors do not fill it")

    def _damaged(self, why: str) -> UserError:
        return UserError(f"{self._source} is damaged, or no safetensors file: {why}.")

    def tensor(self, name: str) -> Tensor:
        """Return a copy of a tensor."""
        entry = self.entries[name]
        return self._read(entry.dtype, entry.shape, entry.begin)

    def item(self, name: str, position: int) -> Tensor:
        """Return a copy of tensor[position]; nothing else is read."""
        dtype, shape, begin = self.entries[name]
        size = StoredTensor(dtype, shape[1:]).num_bytes
        return self._read(dtype, shape[1:], begin + position * size)

    def _read(self, dtype: torch.dtype, shape: Sequence[int], begin: int) -> Tensor:
        tensor = torch.empty(tuple(shape), dtype=dtype)
        if tensor.numel():
            end = begin + tensor.nbytes
            tensor.view(-1).view(torch.uint8).numpy()[:] = self._numbers[begin:end]
        return tensor


def _entry(described: dict) -> StoredTensor:
    shape = tuple(described["shape"])
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("a shape has whole numbers")
    begin, end = described["data_offsets"]
    entry = StoredTensor(DTYPES[described["dtype"]], shape, begin)
    if type(begin) is not int or entry.end != end:
        raise ValueError("a tensor's bytes are as many as its shape says")
    return entry


def open_tensors(path: Path) -> TensorFile:
    """Open a file; its numbers stay on the disk until they are asked for."""
    try:
        content = np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise UserError(f"Cannot read {path}: {reason(error)}.") from None
    except ValueError:  # an empty file
        content = np.empty(0, np.uint8)
    return TensorFile(content, str(path))
