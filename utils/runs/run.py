"""A run directory: what was asked, what was measured, what came out, and how to continue.

`open_run` makes `<out_dir>/<batch>/<kind>-<dataset>-<config_name>[-<run_name>]/` with

    config.yaml      the resolved config
    meta.json        kind, network, data, inputs (the runs it is made of), total seconds, and
                     core_seconds of all processes; for each session: command, commit, versions,
                     machine
    metrics.jsonl    one JSON record per measurement
    checkpoint.npz   everything needed to continue; of a finished run only if it can be extended
    summary.json     the final numbers
    DONE             when finished

Every file but metrics.jsonl is written whole or not at all. On resume, metrics.jsonl is cut back
to the checkpoint, so that no record appears twice.
"""

import dataclasses
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from utils.runs import compute, files, wandb_run
from utils.runs.files import read_mapping, save_yaml, write_atomically
from utils.runs.locks import lock_directory
from utils.runs.lookup import check_inputs, run_directory
from utils.runs.progress import peak_memory
from utils.runs.script import Finished, Stoppable, Stopped
from utils.settings.config import changes, reopening_fields
from utils.settings.errors import UserError

import numpy as np
import torch
import yaml

PACKAGES = ("torch", "numpy", "scipy", "matplotlib", "wandb")
# Files of weights that --wandb_samples uploads, where a run leaves them.
WEIGHT_FILES = ("samples.npy", "posterior.npz", "compact.npz", "network.json")
SETTING_THE_BITS = ("device", "processor", "threads", "processes", "versions", "compiler")


def open_run(
    config, kind: str, device: torch.device, inputs: dict[str, dict] | None = None,
    lock: TextIO | None = None, **data,
) -> "Run":  # fmt: skip
    """Begin the run, or continue it with `config.resume`; otherwise refuse an existing one.

    `lock` is the directory's, if this process holds it already.
    `inputs` identifies, by kind, the runs that it is made of. `data` says what the config does not
    about its data: num_train.
    """
    inputs = inputs or {}
    wandb_mode = wandb_run.choose_mode(config)
    directory = run_directory(config, kind)
    directory.mkdir(parents=True, exist_ok=True)
    check_is_a_run(directory)
    lock = lock or lock_directory(directory)
    if config.overwrite:
        _clear(directory)
    recorded = _settings_of_run(config, directory, inputs)
    if not recorded:
        save_yaml(directory / "config.yaml", dataclasses.asdict(config))
    run = Run(config, kind, directory, lock, device, recorded)
    run.finished = _says_finished(config, directory, recorded)
    if not run.finished:
        run.begin_session(inputs, data, wandb_mode)
    return run


def begin(config, kind: str, inputs: dict[str, dict] | None = None) -> torch.device:
    """Return the device for a script to compute on; end it here if nothing is left to do."""
    device = compute.choose_device(config.device)
    if already_finished(config, kind, inputs):
        raise Finished
    return device


def already_finished(config, kind: str, inputs: dict[str, dict] | None = None) -> bool:
    """Return whether nothing is left to do, before data are loaded; refuse as `open_run` does."""
    directory = run_directory(config, kind)
    recorded = {} if config.overwrite else _settings_of_run(config, directory, inputs or {})
    return bool(recorded) and _says_finished(config, directory, recorded)


def _settings_of_run(config, directory: Path, inputs: dict[str, dict]) -> dict:
    """Return what a run was begun with, {} if there is none; refuse one that cannot go on."""
    recorded = read_mapping(directory / "config.yaml", yaml.safe_load)
    if recorded:
        check_reusable(config, directory, recorded)
        check_inputs(directory, inputs)
    return recorded


def _says_finished(config, directory: Path, recorded: dict) -> bool:
    finished = (directory / "DONE").exists() and not reopening_fields(config, recorded)
    if finished:
        print(f"{directory} is finished already; nothing to do.")
    return finished


def check_is_a_run(directory: Path) -> None:
    """Refuse a non-empty directory that is not a run."""
    names = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    if names and "config.yaml" not in names:
        raise UserError(
            f"{directory} has {names[0]}, but no config.yaml as runs have: "
            "move it away, or give another --run_name."
        )


def _clear(directory: Path) -> None:
    entries = [path for path in directory.iterdir() if path.name != ".lock"]
    # config.yaml goes last: without it a half-cleared directory would not be recognised as a run.
    for path in sorted(entries, key=lambda path: path.name == "config.yaml"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def check_reusable(config, directory: Path, recorded: dict) -> None:
    """Refuse an existing run unless it is resumed with the settings it was begun with."""
    changed = changes(config, recorded)
    if config.resume and not changed:
        return
    finished = (directory / "DONE").exists()
    state = f"{directory} holds a {'finished' if finished else 'begun'} run"
    if changed:
        raise UserError(
            f"{state} of other settings ({', '.join(changed)}): give another --run_name to keep "
            "it, or --overwrite to replace it."
        )
    more = not finished or reopening_fields(config, recorded)
    resume = "--resume to go on with it, " if more else ""
    raise UserError(f"{state}: give {resume}another --run_name, or --overwrite to replace it.")


class Run(Stoppable):
    """An open run directory. `finished` says that nothing is left to do.

    If more is asked of a finished run, `finished_config` has the settings it was finished with.
    """

    def __init__(
        self, config, kind: str, directory: Path, lock, device: torch.device, recorded: dict
    ):
        self.config, self.kind, self.directory, self.device = config, kind, directory, device
        self._lock = lock
        self.finished_config = recorded if (directory / "DONE").exists() else {}
        self._extended = bool(reopening_fields(config, recorded))
        self.finished = False
        self.meta = read_mapping(directory / "meta.json")

    def begin_session(self, inputs: dict[str, dict], data: dict, wandb_mode: str) -> None:
        for leftover in self.directory.glob(".*.tmp"):  # of a process killed while writing
            leftover.unlink()
        begun = bool(self.meta)
        self._started, self._seconds_before = time.monotonic(), self.meta.get("seconds", 0)
        self._core_started = time.process_time()
        self._core_seconds_before = self.meta.get("core_seconds", 0)
        chosen = {"num_train": self.config.num_train} if hasattr(self.config, "num_train") else {}
        self.meta = {
            "kind": self.kind,
            "network": {},
            "data": {"name": self.config.dataset, **chosen, **data},
            "wandb_id": wandb_run.new_id(),
            "matmul": self.config.matmul,
            **self.meta,
            "inputs": inputs,
            "sessions": [*self.meta.get("sessions", []), _provenance(self.device)],
        }
        self._warn_of_other_bits()
        self._select_matmul()
        self._write_meta()
        self._wandb = wandb_run.start(
            self.config, self.kind, self.directory, self.meta["wandb_id"], wandb_mode, begun
        )
        self._metrics = files.RecordFile(self.path("metrics.jsonl"))

    def _warn_of_other_bits(self) -> None:
        """Say why a resumed run will not give the bits of an uninterrupted one."""
        *earlier, now = self.meta["sessions"]
        for name in SETTING_THE_BITS if earlier else ():
            if earlier[-1].get(name, now[name]) != now[name]:
                print(f"Resuming with other {name}: equal to rounding, not to the bit.")

    def _select_matmul(self) -> None:
        """Multiply with the kernel that the run was begun with, and record which that is."""
        self.meta["matmul"] = compute.choose_matmul(self.device, self.meta["matmul"])
        if self.config.matmul not in ("auto", self.meta["matmul"]):
            print(f"The run was begun with matmul {self.meta['matmul']} and keeps it.")

    # -- records and results

    def log(self, **record) -> None:
        """Append a record; its first entry (epoch, iteration, …) is the axis it is drawn over."""
        self._metrics.append(record)
        self._wandb.log(record)

    def path(self, name: str) -> Path:
        return self.directory / name

    def save_json(self, name: str, content) -> None:
        files.save_json(self.path(name), content)

    def save_array(self, name: str, array) -> None:
        write_atomically(self.path(name), lambda f: np.save(f, files.as_numpy(array)))

    def save_arrays(self, name: str, /, **arrays) -> None:
        files.save_arrays(self.path(name), **arrays)

    def save_figure(self, name: str, figure) -> None:
        files.save_figure(self.path(name), figure)
        self._wandb.log_image(name, self.path(f"{name}.png"))

    def log_records(self, name: str, records: list[dict] | dict[str, dict]) -> None:
        """Send the numbers and texts of records, which may be nested, as a table; see `flat`."""
        if isinstance(records, dict):
            records = [{"name": key} | record for key, record in records.items()]
        lines = [flat(record) for record in records]
        columns = list(dict.fromkeys(column for line in lines for column in line))
        rows = [[line.get(column) for column in columns] for line in lines]
        self._wandb.log_table(name, columns, rows)

    # -- checkpoints

    def save_checkpoint(self, counters: dict, /, **arrays) -> None:
        """Save everything needed to continue: arrays, and numbers or texts in `counters`.

        A run that was asked to stop ends here.
        """
        state = {"counters": counters, "metrics_bytes": self._metrics.sync()}
        files.save_checkpoint(self.path("checkpoint.npz"), state, arrays)
        if self._extended:  # a finished run becomes a begun one
            self.path("DONE").unlink(missing_ok=True)
            save_yaml(self.path("config.yaml"), dataclasses.asdict(self.config))
            self._extended = False
        self._write_meta()
        self.stop_if_asked()

    def stop_if_asked(self) -> None:
        """End the run here if it was asked to; what is not saved is repeated on resume."""
        if self.stop_requested:
            self._wandb.close()
            raise Stopped

    def load_checkpoint(self, *progress: str, **shapes: tuple) -> tuple[dict, dict] | None:
        """Return (counters, arrays) of the last checkpoint, or None; `shapes` must be in it.

        Counters of the names in `progress` tell the user how far the run has come.
        Records written after the checkpoint are dropped, since they will be written again; those
        of a finished run are kept.
        """
        loaded = files.load_checkpoint(self.path("checkpoint.npz"), shapes, self.device)
        if loaded is None:
            self._go_on(None if self.finished_config else 0)
            return None
        state, arrays = loaded
        counters = state["counters"]
        self._go_on(state["metrics_bytes"])
        done = ", ".join(f"{name} {counters[name]}" for name in progress if name in counters)
        print(f"Resuming {self.directory} after {done}")
        return counters, arrays

    def _go_on(self, length: int | None) -> None:
        """Keep the first `length` bytes of earlier records (None: all) and send them to wandb."""
        if length is not None:
            self._metrics.truncate(length)
        self._wandb.catch_up(self._metrics.records())

    def record_parts(self, core_seconds: float) -> None:
        """Record what processes have spent that made parts of the run, in all sessions."""
        self.meta["core_seconds_of_parts"] = round(core_seconds, 1)

    # -- finishing

    def finish(self, summary: dict, keep_checkpoint: bool = False) -> None:
        """Write the final numbers and mark the run as finished."""
        self.save_json("summary.json", summary)
        self._write_meta()
        if self.config.wandb_samples:
            self._upload_weights()
        self._wandb.finish(summary)
        self._metrics.close()
        write_atomically(self.path("DONE"), lambda f: None)
        if not keep_checkpoint:
            self.path("checkpoint.npz").unlink(missing_ok=True)
        self._lock.close()
        self.finished = True

    def _upload_weights(self) -> None:
        paths = [path for name in WEIGHT_FILES if (path := self.path(name)).exists()]
        if paths:
            self._wandb.log_weights(paths)
        else:
            print("--wandb_samples: this run leaves no weights that could go to wandb.")

    def _write_meta(self) -> None:
        elapsed = self._seconds_before + time.monotonic() - self._started
        self.meta["network"] = read_mapping(self.path("network.json"))
        self.meta["seconds"] = round(elapsed, 1)
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        busy = ranks * (time.process_time() - self._core_started)
        self.meta["core_seconds"] = round(self._core_seconds_before + busy, 1)
        self.meta["peak_memory"] = peak_memory()
        self.save_json("meta.json", self.meta)


def flat(record: dict, separator: str = "/") -> dict:
    """Return {"a/b": value} of nested mappings, without the lists in them."""
    line = {}
    for key, value in record.items():
        if isinstance(value, dict):
            line |= {f"{key}{separator}{k}": v for k, v in flat(value, separator).items()}
        elif not isinstance(value, list | tuple):
            line[key] = value
    return line


def _provenance(device: torch.device) -> dict:
    """Describe where a session's numbers come from: command, code, packages, machine."""
    repository = Path(__file__).resolve().parents[2]

    def git(*arguments):
        try:
            done = subprocess.run(
                ["git", "-C", repository, *arguments], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    # Reports in results/ are made from runs, so a new one does not change the code.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
    return {
        "command": shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
        "git_commit": git("rev-parse", "HEAD"),
        "git_uncommitted_changes": None if changed is None else bool(changed),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "compiler": compute.c_compiler_version(),
        "host": platform.node(),
        "processor": compute.processor(),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "processes": os.environ.get("WORLD_SIZE", "1"),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }
