"""Let a run go on with more modes than it was begun with, or with another choice among them.

A network does not depend on which others are trained, so those that are there stay. Only the last
group of modes is trained anew if it gets larger, because a network in a larger stack is the same up
to rounding only.
"""

import dataclasses
import shutil
from pathlib import Path

from utils.methods.method import Method
from utils.methods.processes import ModeGroup, mode_groups
from utils.posteriors.files import move_posterior, remove_posterior
from utils.runs.config import reopening_fields
from utils.runs.files import load_checkpoint, read_mapping, save_checkpoint, save_yaml
from utils.runs.run import check_reusable

import torch
import yaml


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
            _remove(group, directory)
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


def _remove(group: ModeGroup, run: Path) -> None:
    remove_posterior(group.place)
    if group.place != run:
        shutil.rmtree(group.place, ignore_errors=True)
