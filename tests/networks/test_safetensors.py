"""The safetensors format: bytes of the safetensors package 0.8.0, and damaged files."""

import io

from utils.networks.safetensors import (
    StoredTensor,
    TensorFile,
    arrange,
    header,
    open_tensors,
    write_tensors,
)
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch

TENSORS = {
    "fc.weight": torch.arange(6, dtype=torch.float16).reshape(2, 3),
    "fc.bias": torch.tensor([0.5, -2], dtype=torch.float16),
    "bn.num_batches_tracked": torch.tensor(3),
}
WRITTEN_BY_THE_PACKAGE = (
    b'\xe8\x00\x00\x00\x00\x00\x00\x00{"__metadata__":{"format":"pt"},'
    b'"bn.num_batches_tracked":{"dtype":"I64","shape":[],"data_offsets":[0,8]},'
    b'"fc.bias":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},'
    b'"fc.weight":{"dtype":"F16","shape":[2,3],"data_offsets":[12,24]}}  '
    b"\x03\x00\x00\x00\x00\x00\x00\x00\x008\x00\xc0\x00\x00\x00<\x00@\x00B\x00D\x00E"
)
ORDER_OF_THE_PACKAGE = ["i64", "f64", "f32", "i32", "f16", "i16", "i8", "u8", "bool"]


def written(tensors) -> bytes:
    file = io.BytesIO()
    write_tensors(file, tensors)
    return file.getvalue()


def read(content: bytes) -> TensorFile:
    return TensorFile(np.frombuffer(content, np.uint8), "mine.safetensors")


def test_the_bytes_are_those_of_the_package():
    assert written(TENSORS) == WRITTEN_BY_THE_PACKAGE
    one = b'8\x00\x00\x00\x00\x00\x00\x00{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  '
    assert header(arrange({"a": StoredTensor(torch.float32, (1,))})) == one


def test_tensors_are_in_the_order_of_the_package():
    names = {"i64": "int64", "f64": "float64", "f32": "float32", "i32": "int32", "f16": "float16",
             "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool"}  # fmt: skip
    tensors = {key: torch.zeros(1, dtype=getattr(torch, names[key])) for key in sorted(names)}
    assert list(read(written(tensors)).entries) == ORDER_OF_THE_PACKAGE


def test_files_of_the_package_are_read(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(WRITTEN_BY_THE_PACKAGE)
    for file in (open_tensors(path), read(WRITTEN_BY_THE_PACKAGE)):
        assert file.metadata == {"format": "pt"}
        assert file.entries.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert file.tensor(name).dtype == tensor.dtype
            assert torch.equal(file.tensor(name), tensor)
        assert torch.equal(file.item("fc.weight", 1), TENSORS["fc.weight"][1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_number_comes_back(dtype):
    tensors = {"a": torch.randn(3, 4, 5).to(dtype), "empty": torch.empty(0, 2, dtype=dtype)}
    file = read(written(tensors))
    assert all(torch.equal(file.tensor(name), tensor) for name, tensor in tensors.items())


def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path):
    for length in range(len(WRITTEN_BY_THE_PACKAGE)):
        with pytest.raises(UserError, match=r"mine.safetensors is damaged"):
            read(WRITTEN_BY_THE_PACKAGE[:length])
    (tmp_path / "empty").touch()
    with pytest.raises(UserError, match="empty is damaged"):
        open_tensors(tmp_path / "empty")
    with pytest.raises(UserError, match=r"Cannot read .*missing: No such file"):
        open_tensors(tmp_path / "missing")


def test_a_changed_header_is_refused_or_harmless():
    """No change of a byte leads to an error other than the sentence."""
    refused = 0
    for place in range(8, WRITTEN_BY_THE_PACKAGE.index(b"}}  ")):
        content = bytearray(WRITTEN_BY_THE_PACKAGE)
        content[place] ^= 0x11
        try:
            file = read(bytes(content))
        except UserError:
            refused += 1
            continue
        assert all(file.tensor(name).numel() for name in file.entries)
    assert refused > 150


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}',  # too many bytes
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',  # a gap
        b'{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,-8]}}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'  # overlapping
        b'"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,8]}}',
        b"[1, 2]",
    ],
)
def test_headers_that_do_not_fit_are_refused(header):
    with pytest.raises(UserError, match="damaged, or no safetensors file"):
        read(len(header).to_bytes(8, "little") + header + bytes(8))
