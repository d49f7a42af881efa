"""Locks on directories; the kernel releases them however a process ends."""

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from utils.settings.errors import UserError

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def lock_directory(directory: Path, instead: str = "--run_name") -> TextIO:
    """Hold the directory for this process alone; refuse if another one holds it."""
    lock = _lock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if lock is None:
        raise UserError(
            f"Another process is working in {directory}: wait for it, or give another {instead}."
        )
    return lock


def lock_together(directory: Path) -> TextIO:
    """Hold the directory together with others that do so; wait for one that holds it alone."""
    return _wait(directory, fcntl.LOCK_SH)


def lock_when_free(directory: Path) -> TextIO:
    """Hold the directory for this process alone; wait for all that hold it."""
    return _wait(directory, fcntl.LOCK_EX)


@contextmanager
def claimed(directory: Path) -> Iterator[bool]:
    """Hold the directory for this process alone; yield whether it does, or another one."""
    lock = _lock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield lock is not None
    finally:
        if lock:
            lock.close()


def _wait(directory: Path, operation: int) -> TextIO:
    lock = _lock(directory, operation | fcntl.LOCK_NB)
    if lock is None:
        print(f"Waiting for another process in {directory}", flush=True)
        lock = _lock(directory, operation)
    return lock


def _lock(directory: Path, operation: int) -> TextIO | None:
    lock = open(directory / ".lock", "w")  # noqa: SIM115 (open as long as it is held)
    try:
        fcntl.flock(lock, operation)
    except OSError as error:
        lock.close()
        if error.errno in UNSUPPORTED:
            raise UserError(
                f"The file system of {directory} has no locks, so that two processes could spoil "
                "each other's files: give an --out_dir on another one."
            ) from None
        return None
    return lock
