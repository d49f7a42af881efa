"""Commands run side by side, each as a process of its own with a log file of its own."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from utils.runs.script import Stopped

SECONDS_BETWEEN_LOOKS = 0.1
PR_SET_PDEATHSIG = 1  # of Linux's prctl


@dataclass(frozen=True)
class Job:
    command: tuple[str, ...]
    log: Path  # what it prints is added here


class Interruption:
    """How often the user has asked for the end."""

    times = 0


def run_jobs(
    jobs: list[Job], at_a_time: int, environment: dict, on_end: Callable[[Job], None]
) -> None:
    """Run jobs to their ends; `on_end` hears of each.

    Ctrl-C and SIGTERM are handed on to the jobs that run, so that they save their work and end;
    then Stopped is raised. What `on_end` raises stops the others in the same way.
    """
    waiting, running = list(jobs), {}
    try:
        with _handed_on(running) as interruption:
            while running or (waiting and not interruption.times):
                while waiting and len(running) < at_a_time and not interruption.times:
                    job = waiting.pop(0)
                    running[job] = _start(job, environment)
                    if interruption.times:  # that came while this one was not among the running
                        running[job].send_signal(signal.SIGTERM)
                time.sleep(SECONDS_BETWEEN_LOOKS)
                for job in [job for job, process in running.items() if process.poll() is not None]:
                    running.pop(job)
                    if not interruption.times:
                        on_end(job)
            if interruption.times:
                raise Stopped
    finally:
        _end(running)


def _start(job: Job, environment: dict) -> subprocess.Popen:
    """The job's process, which does not get the terminal's Ctrl-C: it is handed on, once."""
    with open(job.log, "ab") as log:
        return start_child(
            job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env=os.environ | environment, start_new_session=True,
        )  # fmt: skip


def start_child(command: Sequence[str], **popen_options) -> subprocess.Popen:
    """A process that on Linux is sent SIGTERM when this one ends, even by kill -9.

    To be called in the main thread: the signal comes when the thread that called this ends.
    """
    parent = os.getpid()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def end_with_parent() -> None:
        # Until the command itself runs, a handler of ours would take the signal, and it be lost.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has ended before that call
            signal.raise_signal(signal.SIGTERM)

    prepare = end_with_parent if libc else None
    return subprocess.Popen(command, preexec_fn=prepare, **popen_options)


@contextmanager
def _handed_on(running: dict[Job, subprocess.Popen]) -> Iterator[Interruption]:
    """Within it, Ctrl-C and SIGTERM go to the running processes."""
    interruption = Interruption()

    def hand_on(signum, frame):
        interruption.times += 1
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        if interruption.times == 1:
            print(
                "\nStopping; what runs saves its work first. Again to stop it at once.",
                file=sys.stderr,
            )

    before = {s: signal.signal(s, hand_on) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _end(running: dict[Job, subprocess.Popen]) -> None:
    for process in running.values():
        process.send_signal(signal.SIGTERM)
    for process in running.values():
        process.wait()


def threads_for_each(at_a_time: int) -> dict[str, str]:
    """The environment that shares the cores out, unless the user has said how many threads."""
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"OMP_NUM_THREADS": str(max(1, cores // at_a_time))}
