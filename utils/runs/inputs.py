"""Which runs a run is made of: an evaluation of samples, a pruning of an evaluation.

A run's meta.json remembers them, by what stays with a run wherever its directory is moved to.
"""

import json
from pathlib import Path

from utils.runs.errors import UserError
from utils.runs.files import read_mapping


def identify(path: Path) -> dict:
    """Which run a directory, or a file in it, is of, wherever it lies, and how far it has come."""
    directory = path if path.is_dir() else path.parent
    meta = read_mapping(directory / "meta.json", json.loads)
    return {
        # An id is drawn whenever a run is begun, with wandb or without; other samples have none.
        "run": meta.get("wandb_id") or directory.resolve().name,
        "seconds": meta.get("seconds"),
        "finished": (directory / "DONE").exists(),
    }


def other_inputs(recorded: dict[str, dict], now: dict[str, dict]) -> dict[str, str]:
    """By kind, what sets the runs that a run was made of apart from those now; as `identify`."""
    told = {}
    for kind in {**recorded, **now}:
        before, after = recorded.get(kind), now.get(kind)
        if before == after:
            continue
        if before is None:
            told[kind] = f"it does not say which {kind} it is of"
        elif after is None:
            told[kind] = f"there is no {kind} now"
        elif before["run"] != after["run"]:
            told[kind] = f"{kind} is another one now"
        else:
            told[kind] = f"{kind} has gone on since"
    return told


def check_inputs(directory: Path, inputs: dict[str, dict]) -> None:
    meta = read_mapping(directory / "meta.json", json.loads)
    told = other_inputs(meta.get("inputs", {}), inputs) if meta else {}
    if told:
        raise UserError(
            f"{directory} was begun with other runs ({', '.join(told.values())}): give --overwrite "
            "to make it anew, another --run_name, or the paths of the runs it was begun with."
        )
