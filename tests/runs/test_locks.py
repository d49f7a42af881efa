"""Locks on directories: alone, together, claimed, and where there are none."""

import errno
import fcntl
import threading

from utils.runs.locks import claimed, lock_directory, lock_together, lock_when_free
from utils.settings.errors import UserError

import pytest


def test_one_alone_or_several_together(tmp_path):
    with lock_directory(tmp_path), pytest.raises(UserError, match="Another process is working in"):
        lock_directory(tmp_path)
    with lock_together(tmp_path), lock_together(tmp_path):
        with pytest.raises(UserError, match="give another --run_batch_name"):
            lock_directory(tmp_path, "--run_batch_name")
        with claimed(tmp_path) as is_ours:
            assert not is_ours
    with claimed(tmp_path) as is_ours, claimed(tmp_path) as is_ours_again:
        assert (is_ours, is_ours_again) == (True, False)
    lock_directory(tmp_path).close()


def test_who_waits_gets_it_when_the_others_have_ended(tmp_path, capsys):
    first, second, got = lock_together(tmp_path), lock_together(tmp_path), []
    waiting = threading.Thread(target=lambda: got.append(lock_when_free(tmp_path)))
    waiting.start()
    first.close()
    waiting.join(0.2)
    assert not got
    second.close()
    waiting.join(10)
    assert len(got) == 1
    assert "Waiting for another process" in capsys.readouterr().out
    got[0].close()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for lock in (lock_directory, lock_together, lock_when_free):
        with pytest.raises(UserError, match="has no locks"):
            lock(tmp_path)
