"""Several processes, on one machine or on many, that make different parts of one run.

They hold the run's directory together and agree on its settings. Each part is a directory of its
own, which the process that makes it claims. When all parts are there, one process at a time holds
the run alone, and the first one finishes it.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.runs.config import reopening_fields
from utils.runs.errors import UserError
from utils.runs.files import read_mapping, save_yaml, write_once
from utils.runs.locks import claimed, lock_together
from utils.runs.lookup import run_directory
from utils.runs.run import check_is_a_run, check_reusable

import yaml

POLL_EVERY = 1.0  # seconds between looks at a run that others hold


def shares_its_run(config) -> bool:
    """Return whether a process works together with others: with --share, and under torchrun."""
    return hasattr(config, "share") and (config.share or os.environ.get("WORLD_SIZE", "1") != "1")


@contextmanager
def joined_run(config, kind: str, reopen: Callable[[Path], None]) -> Iterator[Path]:
    """Yield the directory of a run that this process makes parts of; begin it if there is none.

    `reopen` lets a run of other settings go on with these, if it can. That waits for all processes
    that work with the others.
    """
    if config.overwrite:
        raise UserError(
            "--overwrite would delete what other processes of a shared run have made: remove its "
            "directory yourself, or give another --run_name."
        )
    if config.matmul == "auto":
        raise UserError(
            "--matmul auto may choose another kernel on every machine of a shared run: give "
            "--matmul default or onednn."
        )
    directory = run_directory(config, kind)
    directory.mkdir(parents=True, exist_ok=True)
    check_is_a_run(directory)
    _reopen_alone(config, directory, reopen)
    with lock_together(directory):
        save_yaml(directory / "config.yaml", dataclasses.asdict(config), write_once)
        check_reusable(config, directory, read_mapping(directory / "config.yaml", yaml.safe_load))
        yield directory


def _reopen_alone(config, directory: Path, reopen: Callable[[Path], None]) -> None:
    """Reopen a run while no other process is in it, unless one has done so meanwhile."""
    path, waiting = directory / "config.yaml", False
    while reopening_fields(config, read_mapping(path, yaml.safe_load)):
        with claimed(directory) as is_ours:
            if is_ours:
                reopen(directory)
                return
        if not waiting:
            print(f"Waiting for other processes in {directory} to end, to go on with it.")
        waiting = True
        time.sleep(POLL_EVERY)
