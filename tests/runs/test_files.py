"""Files: whole or absent, growing, and JSON that every program can read."""

import errno
import json
import os
import resource
import stat

from utils.runs.files import ArrayFile, RecordFile, save_json, write_atomically, write_once
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch


def test_a_file_appears_by_being_renamed(tmp_path):
    """A reader of the old file keeps it: the new one takes its name only when it is whole."""
    path = tmp_path / "numbers"
    path.write_bytes(b"old")
    with open(path, "rb") as reader:
        write_atomically(path, lambda f: f.write(b"new"))
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_the_name_is_on_disk_after_the_content(tmp_path, monkeypatch):
    """Else a machine that goes down could come back with the old checkpoint and a newer trace."""
    synced, fsync = [], os.fsync

    def watch(descriptor):
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append((is_directory, (tmp_path / "numbers").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    write_atomically(tmp_path / "numbers", lambda f: f.write(b"new"))
    assert synced == [(False, False), (True, True)]


def test_a_file_is_whole_or_absent(tmp_path):
    path = tmp_path / "numbers.npy"

    def fail_half_way(file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomically(path, fail_half_way)
    assert list(tmp_path.iterdir()) == []
    write_atomically(path, lambda f: np.save(f, np.ones(3)))
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, fail_half_way)
    assert np.load(path).tolist() == [1, 1, 1]


def test_an_array_that_the_disk_takes_in_part_says_that_it_is_full(tmp_path):
    """numpy's own error for this has no number."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="written") as raised:
            write_atomically(tmp_path / "numbers.npy", lambda f: np.save(f, np.ones(10_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_json_has_no_nan(tmp_path):
    save_json(tmp_path / "x.json", {"a": float("nan"), "b": [np.float32(1.5), torch.ones(1)]})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": None, "b": [1.5, [1.0]]}


def test_rows_are_where_numpy_looks_for_them(tmp_path):
    path = tmp_path / "samples.npy"
    rows = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    file = ArrayFile(path, (5, 7))
    for row in (3, 0, 4):
        file.write(row, rows[row])
    again = ArrayFile(path, (5, 7))  # as a resumed run opens it
    again.write(1, rows[1])
    again.sync()
    found = np.load(path, mmap_mode="r")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[[0, 1, 3, 4]], rows[[0, 1, 3, 4]])
    assert not found[2].any()


def test_the_disk_space_is_taken_at_the_start(tmp_path):
    path = tmp_path / "samples.npy"
    ArrayFile(path, (1000, 500), "float64")
    assert path.stat().st_blocks * 512 >= 4_000_000


def test_too_little_space_leaves_no_file(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        ArrayFile(tmp_path / "samples.npy", (5, 7))
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_the_disk_takes_in_parts_is_whole(tmp_path, monkeypatch):
    """As a disk does that is nearly full, where space cannot be taken at the start."""
    write, path = os.pwrite, tmp_path / "samples.npy"
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:5], at))
    rows = np.arange(21, dtype=np.float32).reshape(3, 7)
    file = ArrayFile(path, (3, 7))
    for number, row in enumerate(rows):
        file.write(number, row)
    np.testing.assert_array_equal(np.load(path), rows)


@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "other shape", "other dtype"])
def test_a_resumed_array_must_be_there_and_whole(tmp_path, damage):
    path = tmp_path / "samples.npy"
    rows, dtype = (4 if damage == "other shape" else 5), "float64"
    ArrayFile(path, (rows, 7), "float32" if damage == "other dtype" else dtype)
    if damage == "missing":
        path.unlink()
    elif damage in ("cut", "empty"):
        os.truncate(path, 0 if damage == "empty" else path.stat().st_size - 1)
    with pytest.raises(UserError, match="missing or damaged"):
        ArrayFile(path, (5, 7), dtype, resumed=True)


@pytest.mark.parametrize("content", [None, b"{}"])
def test_resumed_records_must_reach_to_the_checkpoint(tmp_path, content):
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="missing or damaged"):
        RecordFile(path, keep=100)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{"])
def test_records_that_cannot_be_read_are_noticed(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match="missing or damaged"):
        list(RecordFile(path).records())


def test_records_after_the_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "trace.jsonl"
    file = RecordFile(path, keep=0)
    file.append({"iteration": 1, "delta_energy": float("nan")})
    position = file.sync()
    file.append({"iteration": 2})
    file.sync()
    again = RecordFile(path, keep=position)
    again.append({"iteration": 3})
    again.sync()
    assert path.read_text() == '{"iteration": 1, "delta_energy": null}\n{"iteration": 3}\n'


def test_the_position_after_records_were_dropped_is_that_of_the_file(tmp_path):
    """A run that ends before it has appended again must not ask for more than there is."""
    path = tmp_path / "trace.jsonl"
    file = RecordFile(path, keep=0)
    file.append({"iteration": 1})
    position = file.sync()
    file.append({"iteration": 2})
    file.sync()
    assert RecordFile(path, keep=position).sync() == position == path.stat().st_size
    assert RecordFile(path, keep=position).sync() == position


def test_the_first_of_several_writers_stays(tmp_path):
    path = tmp_path / "a.txt"
    for content in (b"first", b"second"):
        write_once(path, lambda file, content=content: file.write(content))
    assert path.read_bytes() == b"first"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]
