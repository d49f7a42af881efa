"""Runs that go on with other settings than they were begun with, or that several processes make.

A run can go on with more modes, or with another choice among them. A network does not depend on
which others are trained, so those that are there stay. Only the last group of modes is trained
again if it gets larger, because a network in a larger stack is the same up to rounding only.

Processes that make different groups of modes, on one machine or on many, hold the run's directory
together and agree on its settings. Each group is a directory of its own, which the process that
makes it claims. When all are there, one process at a time holds the run alone, and the first one
finishes it.
"""

import dataclasses
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from utils.driver.processes import POLL_EVERY, ModeGroup, mode_groups
from utils.methods.method import Method
from utils.posteriors.files import move_posterior, remove_posterior
from utils.runs.files import load_checkpoint, read_mapping, save_checkpoint, save_yaml, write_once
from utils.runs.locks import claimed, lock_directory, lock_together
from utils.runs.lookup import run_directory
from utils.runs.run import check_is_a_run, check_reusable
from utils.settings.config import reopening_fields
from utils.settings.errors import UserError

import torch
import yaml


def shares_its_run(config) -> bool:
    """Return whether a process works together with others: with --share, and under torchrun."""
    return hasattr(config, "share") and (config.share or os.environ.get("WORLD_SIZE", "1") != "1")


@contextmanager
def joined_run(method: Method, config) -> Iterator[Path]:
    """Yield the directory of a run that this process makes parts of; begin it if there is none.

    A run of other settings goes on with these, if it can. That waits for all processes in it.
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
    directory = run_directory(config, method.kind)
    directory.mkdir(parents=True, exist_ok=True)
    check_is_a_run(directory)
    _reopen_when_free(method, config, directory)
    with lock_together(directory):
        save_yaml(directory / "config.yaml", dataclasses.asdict(config), write_once)
        check_reusable(config, directory, recorded_settings(directory))
        yield directory


def _reopen_when_free(method: Method, config, directory: Path) -> None:
    """Reopen a run while no other process is in it, unless one has done so meanwhile."""
    waiting = False
    while reopens(config, directory):
        with claimed(directory) as is_ours:
            if is_ours:
                reopen(method, config, directory)
                return
        if not waiting:
            print(f"Waiting for other processes in {directory} to end, to go on with it.")
        waiting = True
        time.sleep(POLL_EVERY)


def reopen_alone(method: Method, config) -> TextIO | None:
    """Let a run of other settings go on with these; return its lock if it does."""
    directory = run_directory(config, method.kind)
    if config.overwrite or not reopens(config, directory):
        return None
    lock = lock_directory(directory)
    reopen(method, config, directory)
    return lock


def reopens(config, directory: Path) -> bool:
    """Return whether these settings let the run in a directory go on, even if it is finished."""
    return bool(reopening_fields(config, recorded_settings(directory)))


def recorded_settings(directory: Path) -> dict:
    return read_mapping(directory / "config.yaml", yaml.safe_load)


def reopen(method: Method, config, directory: Path) -> None:
    """Change the run in a directory, which this process holds alone, to these settings.

    config.yaml changes last: if the process is killed before, the same command repeats the change,
    and the earlier command finishes the run as it was.
    """
    recorded = recorded_settings(directory)
    if not reopens(config, directory):
        return
    check_reusable(config, directory, recorded)
    before = dataclasses.replace(config, num_modes=recorded["num_modes"])
    old, new = (mode_groups(method, each, directory) for each in (before, config))
    same = [a for a, b in zip(old, new, strict=False) if a.modes == b.modes]
    _keep_records(directory, same)
    (directory / "DONE").unlink(missing_ok=True)
    if len(old) > 1:
        (directory / "posterior.json").unlink(missing_ok=True)  # it says how many modes there are
    if old[0].place != new[0].place and old[0].ready and old[0] in same:
        new[0].place.mkdir(exist_ok=True)
        move_posterior(old[0].place, new[0].place)
    for group in old:
        if group not in same:
            remove_posterior(group.place)
            if group.place != directory:
                shutil.rmtree(group.place, ignore_errors=True)
    save_yaml(directory / "config.yaml", dataclasses.asdict(config))


def _keep_records(directory: Path, groups: list[ModeGroup]) -> None:
    """Keep metrics.jsonl, and the state in the checkpoint if it is of one of these groups."""
    path, size = directory / "checkpoint.npz", 0
    saved = load_checkpoint(path, {}, torch.device("cpu"))
    if saved:
        progress, _ = saved
        begun = progress["counters"].get("first_mode", 0)
        if begun in [group.modes[0] for group in groups]:
            return
        size = progress["metrics_bytes"]
    elif (directory / "DONE").exists():
        size = (directory / "metrics.jsonl").stat().st_size
    counters = {"groups": sum(group.ready for group in groups), "first_mode": None}
    save_checkpoint(path, {"counters": counters, "metrics_bytes": size}, {})
