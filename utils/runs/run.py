"""A run's directory: what was asked, what was measured, what came out, and how to go on.

`open_run` makes `<out_dir>/<batch>/<kind>-<dataset>-<config_name>[-<run_name>]/` with

    config.yaml      the resolved config
    meta.json        for each session: command, commit, versions, machine; seconds in total; which
                     runs this one is made of
    metrics.jsonl    one JSON record per measurement
    checkpoint.npz   while unfinished: everything needed to go on
    summary.json     the final numbers
    DONE             when finished

and logs the same records to wandb. Every file but metrics.jsonl is written whole or not at all;
metrics.jsonl is cut back to the checkpoint on resume, so that no record is there twice.
"""

import dataclasses
import fcntl
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from utils.runs import compute, wandb_log
from utils.runs.config import changes, config_names, grown_fields
from utils.runs.errors import UserError
from utils.runs.files import (
    as_numpy,
    cut,
    jsonable,
    read_mapping,
    save_arrays,
    save_figure,
    save_json,
    write_atomically,
)
from utils.runs.inputs import check_inputs
from utils.runs.progress import peak_memory
from utils.runs.script import Stopped

import numpy as np
import torch
import yaml

WEIGHTS = ("samples.npy", "posterior.npz", "compact.npz", "network.json")  # of whatever kind
PACKAGES = ("torch", "numpy", "scipy", "matplotlib", "wandb")
PROGRESS = ("run", "epoch", "iteration", "rebased")  # counters that tell how far a run has come
SETTING_THE_BITS = ("device", "processor", "threads", "processes", "versions")


def run_directory(config, kind: str) -> Path:
    parts = [kind, config.dataset, config.config_name, config.run_name]
    return Path(config.out_dir) / config.run_batch_name / "-".join(filter(None, parts))


def find_run(config, kind: str, script: str, instead: str = "give the path of one") -> Path:
    """The newest finished run of this kind in the config's batch, on its data set.

    `instead` says what else a user can do where there is none.
    """
    batch = Path(config.out_dir) / config.run_batch_name
    ended = list(batch.glob(f"{kind}-{config.dataset}-*/DONE"))
    if not ended:
        raise UserError(
            f"There is no finished {kind} run on {config.dataset} in {batch}: make one with "
            f"{_command_for(config, script)}, or {instead}."
        )
    return max(ended, key=lambda path: path.stat().st_mtime).parent


def _command_for(config, script: str) -> str:
    """The command that makes a run where this config looks for it, by settings of its name."""
    words = ["python", script, "--run_batch_name", config.run_batch_name]
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name in ("config_name", "dataset", "out_dir", "data_dir"):
        value, known = getattr(config, name), config_names(script.removesuffix(".py"))
        if value != defaults[name] and (name != "config_name" or value in known):
            words += [f"--{name}", value]
    return shlex.join(words)


def open_run(
    config, kind: str, device: torch.device, inputs: dict[str, dict] | None = None
) -> "Run":
    """Begin the run, or with `config.resume` go on with it; refuse to touch what is there else.

    `inputs` identifies the runs that it is made of, by kind.
    """
    inputs = inputs or {}
    directory = run_directory(config, kind)
    directory.mkdir(parents=True, exist_ok=True)
    _check_is_a_run(directory)
    lock = lock_directory(directory)
    if config.overwrite:
        _clear(directory)
    recorded = read_mapping(directory / "config.yaml", yaml.safe_load)
    if (directory / "config.yaml").exists():
        _check_reusable(config, directory, recorded)
        check_inputs(directory, inputs)
    else:
        _write_config(config, directory)
    return Run(config, kind, directory, lock, device, recorded, inputs)


def _write_config(config, directory: Path) -> None:
    content = yaml.safe_dump(dataclasses.asdict(config), sort_keys=False)
    write_atomically(directory / "config.yaml", lambda f: f.write(content.encode()))


def _check_reusable(config, directory: Path, recorded: dict) -> None:
    grown = grown_fields(config, recorded)
    finished = (directory / "DONE").exists()
    complete = finished and not grown
    if not config.resume:
        ways = "--overwrite to replace it" if complete else "--resume to go on with it"
        raise UserError(
            f"{directory} holds a {'finished' if finished else 'begun'} run: "
            f"give {ways}, or another --run_name{'' if complete else ', or --overwrite'}."
        )
    changed = changes(config, recorded)
    if changed:
        raise UserError(
            f"{directory} was begun with another config ({', '.join(changed)}): "
            "resume with the same one, or give another --run_name."
        )


def lock_directory(directory: Path, instead: str = "--run_name"):
    """Hold the directory for this process; the kernel lets go of it however the process ends."""
    lock = open(directory / ".lock", "w")  # noqa: SIM115 (held open as long as the run lives)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise UserError(
            f"Another process is working in {directory}: wait for it, or give another {instead}."
        ) from None
    return lock


def _check_is_a_run(directory: Path) -> None:
    """Or empty: what it holds else is not to be overwritten, nor written into."""
    there = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    if there and "config.yaml" not in there:
        raise UserError(
            f"{directory} has {there[0]}, but no config.yaml as runs have: "
            "move it away, or give another --run_name."
        )


def _clear(directory: Path) -> None:
    entries = [path for path in directory.iterdir() if path.name != ".lock"]
    # config.yaml goes last: without it a half-cleared directory would be no run's any more.
    for path in sorted(entries, key=lambda path: path.name == "config.yaml"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


class Run:
    """An open run directory. `finished` tells that there is nothing left to do.

    Where a finished run is asked for more, `finished_config` has the settings it was finished with.
    """

    def __init__(
        self, config, kind: str, directory: Path, lock, device: torch.device, recorded: dict,
        inputs: dict[str, dict],
    ):  # fmt: skip
        self.config, self.kind, self.directory, self._lock = config, kind, directory, lock
        self.device = device
        self.finished_config = recorded if (directory / "DONE").exists() else {}
        self._extended = bool(grown_fields(config, recorded))
        self.finished = bool(self.finished_config) and not self._extended
        if self.finished:
            print(f"{directory} is finished already; nothing to do.")
            return
        for leftover in directory.glob(".*.tmp"):  # of a process that was killed while writing
            leftover.unlink()
        self._previous = read_mapping(directory / "meta.json", json.loads)
        self.meta = {
            "wandb_id": self._previous.get("wandb_id", wandb_log.new_id()),
            "inputs": inputs,
            "matmul": compute.choose_matmul(device, self._previous.get("matmul", config.matmul)),
            "sessions": [*self._previous.get("sessions", []), _provenance(device)],
        }
        self._tell_what_changed()
        self._started = time.monotonic()
        self._write_meta()
        self._metrics = open(directory / "metrics.jsonl", "a+b")  # noqa: SIM115 (as the lock)
        begun = bool(self._previous)
        self._wandb = wandb_log.start(config, kind, directory, self.meta["wandb_id"], begun)
        self.stop_requested = False

    def _tell_what_changed(self) -> None:
        """Say what keeps a resumed run from giving the bits of an uninterrupted one."""
        *earlier, now = self.meta["sessions"]
        for name in SETTING_THE_BITS if earlier else ():
            if earlier[-1].get(name, now[name]) != now[name]:
                print(f"Resuming with other {name}: equal to rounding, not to the bit.")
        if self.config.matmul not in ("auto", self.meta["matmul"]):
            print(f"The run was begun with matmul {self.meta['matmul']} and keeps it.")

    # -- records and results

    def log(self, **record) -> None:
        """Append a record; its first entry (epoch, iteration, …) is the axis it is drawn over."""
        self._metrics.write(json.dumps(jsonable(record)).encode() + b"\n")
        self._metrics.flush()
        self._wandb.log(record)

    def _records(self) -> Iterator[dict]:
        """What metrics.jsonl holds."""
        path = self.path("metrics.jsonl")
        for line in path.read_bytes().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                raise UserError(f"{path} is damaged: start again with --overwrite.") from None

    def path(self, name: str) -> Path:
        return self.directory / name

    def save_json(self, name: str, content) -> None:
        save_json(self.path(name), content)

    def save_array(self, name: str, array) -> None:
        write_atomically(self.path(name), lambda f: np.save(f, as_numpy(array)))

    def save_arrays(self, name: str, **arrays) -> None:
        save_arrays(self.path(name), **arrays)

    def save_figure(self, name: str, figure) -> None:
        save_figure(self.path(name), figure)
        self._wandb.log_image(name, self.path(f"{name}.png"))

    def log_table(self, name: str, columns: list[str], rows: list[list]) -> None:
        self._wandb.log_table(name, columns, rows)

    # -- checkpoints

    def save_checkpoint(self, counters: dict, **arrays) -> None:
        """Everything needed to go on: named arrays, and numbers or texts in `counters`.

        This is where a run ends that was asked to stop.
        """
        os.fsync(self._metrics.fileno())
        header = json.dumps({"counters": counters, "metrics_bytes": self._metrics.tell()})
        encoded = np.frombuffer(header.encode(), dtype=np.uint8)
        save_arrays(self.path("checkpoint.npz"), header=encoded, **arrays)
        if self._extended:  # a finished run is from here on a begun one
            self.path("DONE").unlink(missing_ok=True)
            _write_config(self.config, self.directory)
            self._extended = False
        self._write_meta()
        self.stop_if_asked()

    def stop_if_asked(self) -> None:
        """End the run here if it was asked to; what is not saved is done again on resume."""
        if self.stop_requested:
            self._wandb.close()
            raise Stopped

    def load_checkpoint(self, **shapes: tuple) -> tuple[dict, dict] | None:
        """(counters, arrays) of the last checkpoint, or None; `shapes` is what must be in it.

        Records written after that checkpoint are dropped, for they will be written again; those
        of a finished run are kept.
        """
        path = self.path("checkpoint.npz")
        if not path.exists():
            if self.finished_config:
                self._wandb.catch_up(self._records())
            else:
                cut(self._metrics, 0)
            return None
        try:
            with np.load(path) as archive:
                arrays = {n: torch.from_numpy(archive[n]).to(self.device) for n in archive.files}
            header = json.loads(bytes(arrays.pop("header").tolist()))
        except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(
                f"The checkpoint {path} is damaged ({error}): start again with --overwrite."
            ) from None
        for name, shape in shapes.items():
            there = tuple(arrays[name].shape) if name in arrays else None
            if there != tuple(shape):
                raise UserError(
                    f"{path} is a checkpoint of another network: {name} has the shape {there}, "
                    f"this config needs {tuple(shape)}. Give another --run_name, or --overwrite."
                )
        if self.path("metrics.jsonl").stat().st_size < header["metrics_bytes"]:
            raise UserError(
                f"{self.path('metrics.jsonl')} is damaged: start again with --overwrite."
            )
        cut(self._metrics, header["metrics_bytes"])
        self._wandb.catch_up(self._records())
        counters = header["counters"]
        done = ", ".join(f"{name} {counters[name]}" for name in PROGRESS if name in counters)
        print(f"Resuming {self.directory} after {done}")
        return counters, arrays

    # -- stopping and finishing

    @contextmanager
    def graceful_stop(self):
        """Within it, Ctrl-C or SIGTERM sets `stop_requested`; a second one stops at once."""

        def request(signum, frame):
            if self.stop_requested:
                raise KeyboardInterrupt
            self.stop_requested = True
            print("\nStopping at the next checkpoint; again to stop at once.", file=sys.stderr)

        before = {s: signal.signal(s, request) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def finish(self, summary: dict) -> None:
        """Write the final numbers and mark the run as finished."""
        self.save_json("summary.json", summary)
        self._write_meta()
        if self.config.wandb_samples:
            self._upload_weights()
        self._wandb.finish(summary)
        write_atomically(self.path("DONE"), lambda f: None)
        self.path("checkpoint.npz").unlink(missing_ok=True)
        self._metrics.close()
        self._lock.close()
        self.finished = True

    def _upload_weights(self) -> None:
        files = [self.path(name) for name in WEIGHTS if self.path(name).exists()]
        if files:
            self._wandb.log_weights(files)
        else:
            print("--wandb_samples: this run leaves no weights that could go to wandb.")

    def _write_meta(self) -> None:
        elapsed = self._previous.get("seconds", 0) + time.monotonic() - self._started
        self.meta["seconds"] = round(elapsed, 1)
        self.meta["peak_memory"] = peak_memory()
        self.save_json("meta.json", self.meta)


def _provenance(device: torch.device) -> dict:
    """Where the numbers of a session come from: command, code, packages, machine."""
    repository = Path(__file__).resolve().parents[2]

    def git(*arguments):
        try:
            done = subprocess.run(
                ["git", "-C", repository, *arguments], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    # Reports are made of runs, and no run of them: a new one is no change of the code.
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
    return {
        "command": shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
        "git_commit": git("rev-parse", "HEAD"),
        "git_uncommitted_changes": None if changes is None else bool(changes),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "host": platform.node(),
        "processor": compute.processor(),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "processes": os.environ.get("WORLD_SIZE", "1"),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }
