"""Several processes, on one machine or on many, that make different parts of one run.

They hold the run's directory together and agree on its settings. Each part is a directory of its
own, which the process that makes it claims. When all parts are there, one process at a time holds
the run alone, and the first one finishes it.
"""

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.runs.errors import UserError
from utils.runs.files import read_mapping, save_yaml, write_once
from utils.runs.locks import lock_together
from utils.runs.lookup import run_directory
from utils.runs.run import check_is_a_run, check_reusable

import yaml


def shares_its_run(config) -> bool:
    """Return whether a process works together with others: with --share, and under torchrun."""
    return hasattr(config, "share") and (config.share or os.environ.get("WORLD_SIZE", "1") != "1")


@contextmanager
def joined_run(config, kind: str) -> Iterator[Path]:
    """Yield the directory of a run that this process makes parts of; begin it if there is none."""
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
    with lock_together(directory):
        save_yaml(directory / "config.yaml", dataclasses.asdict(config), write_once)
        check_reusable(config, directory, read_mapping(directory / "config.yaml", yaml.safe_load))
        yield directory
