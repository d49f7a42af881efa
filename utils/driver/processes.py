"""Groups of modes, each trained in a process of one thread and left in a directory of its own.

A group is the same whichever process makes it, when and beside which others. A kill costs the
groups under way.
"""

import dataclasses
import multiprocessing
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from utils.methods.method import Method, Problem, set_up
from utils.posteriors.posterior import Posterior, mode_directory
from utils.runs.compute import choose_matmul
from utils.runs.files import save_json
from utils.runs.jobs import end_with_parent
from utils.runs.locks import claimed
from utils.settings.errors import UserError

import torch

RECORD = "record.json"  # the last record of a group
POLL_EVERY = 1.0  # seconds between looks at what others do, and whether to stop


class ModeGroup(NamedTuple):
    """Modes that are trained side by side, and where their posterior goes."""

    place: Path
    modes: Sequence[int]

    @property
    def ready(self) -> bool:
        return (self.place / "posterior.json").exists()  # written last

    def save(self, posterior: Posterior, record: dict | None = None) -> None:
        self.place.mkdir(exist_ok=True)
        if record:
            save_json(self.place / RECORD, record)
        posterior.save(self.place)


def mode_groups(method: Method, config, directory: Path) -> list[ModeGroup]:
    """Return the modes in groups, each with a directory of its own; one group has the run's."""
    modes = method.modes(config)
    if len(modes) == 1:
        return [ModeGroup(directory, modes[0])]
    return [ModeGroup(mode_directory(directory, k), group) for k, group in enumerate(modes)]


# ---- in the first process


@contextmanager
def process_pool(method: Method, config, matmul: str) -> Iterator[ProcessPoolExecutor]:
    """Yield `config.jobs` processes; end them at once if there is an error or a stop."""
    context = multiprocessing.get_context("spawn")
    arguments = (os.getpid(), method, dataclasses.asdict(config), matmul)
    pool = ProcessPoolExecutor(config.jobs, context, begin_process, arguments)
    try:
        yield pool
        pool.shutdown()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()


def train_in(
    pool: ProcessPoolExecutor, groups: Sequence[ModeGroup], stopping: Callable[[], bool]
) -> Iterator[dict | None]:
    """Yield the last record of every group when it is ready; None if another process makes it."""
    running = {pool.submit(train_apart, group) for group in groups}
    while running and not stopping():
        done, running = wait(running, timeout=POLL_EVERY, return_when=FIRST_COMPLETED)
        for each in done:
            try:
                yield each.result()
            except BrokenProcessPool:
                raise UserError(
                    "A process that trained networks was ended, perhaps for lack of memory: go on "
                    "with --resume, and fewer --jobs if so."
                ) from None


# ---- in each process of the pool


worker: tuple[Method, object, Problem]  # method and config, kept from one group to the next


def begin_process(parent: int, method: Method, settings: dict, matmul: str) -> None:
    """Set up a process that trains groups: one thread, and its own copy of the data."""
    global worker
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides
    torch.set_num_threads(1)
    fields = {field.name for field in dataclasses.fields(method.Config)}
    config = method.Config(**{key: value for key, value in settings.items() if key in fields})
    problem = set_up(method, config)
    choose_matmul(problem.device, matmul)
    worker = method, config, problem


def train_apart(group: ModeGroup) -> dict | None:
    """Train a group without checkpoints, save it, and return its last record.

    Return None if another process has it, or has made it.
    """
    method, config, problem = worker
    group.place.mkdir(exist_ok=True)
    with claimed(group.place) as is_ours:
        if not is_ours or group.ready:
            return None
        for leftover in group.place.glob(".*.tmp"):  # of a process killed while writing
            leftover.unlink()
        start, spent, newest = time.monotonic(), time.process_time(), {}
        state = method.init(problem, config, group.modes)
        while state.epoch < config.num_epochs:
            state, records = method.step(problem, state, config)
            newest = {name: value for record in records for name, value in record.items()}
        posterior = method.posterior(problem, state, config)
        number = int(group.place.name.rpartition("-")[2])
        record = {
            "group": number, **newest,
            "seconds": round(time.monotonic() - start, 1),
            "core_seconds": round(time.process_time() - spent, 1),
            "host": platform.node(),
        }  # fmt: skip
        group.save(posterior, record)
    return record
