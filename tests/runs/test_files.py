"""Files: whole or absent, and JSON that every program can read."""

import errno
import json
import os
import stat

from utils.runs.files import save_json, write_atomically

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


def test_json_has_no_nan(tmp_path):
    save_json(tmp_path / "x.json", {"a": float("nan"), "b": [np.float32(1.5), torch.ones(1)]})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": None, "b": [1.5, [1.0]]}
