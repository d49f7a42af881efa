"""Run commands as processes, side by side with log files of their own or one at a time."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from utils.runs.script import STOPPED_BY_USER, Stopped

POLL_SECONDS = 0.1
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def run_jobs(
    commands: dict[Path, Sequence[str]], at_a_time: int, environment: dict,
    on_end: Callable[[Path], None],
) -> None:  # fmt: skip
    """Run every command, append its output to its log file, and call `on_end(log)` when it ends.

    Ctrl-C and SIGTERM are passed on to the running jobs as SIGTERM, so that they save their work;
    when they have ended, Stopped is raised. Ctrl-C after that is passed on as it is. If `on_end`
    raises, the other jobs are ended likewise.
    """
    waiting, running, signals = list(commands), {}, []

    def pass_on(signum, frame):
        if not signals:
            print("\nStopping: the running jobs save their work first. Press Ctrl-C again to stop "
                  "them at once.", file=sys.stderr)  # fmt: skip
            _send(signal.SIGTERM, running)
        elif signum == signal.SIGINT:
            _send(signal.SIGINT, running)
        signals.append(signum)

    handlers = {s: signal.signal(s, pass_on) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        while running or (waiting and not signals):
            while waiting and len(running) < at_a_time and not signals:
                log = waiting.pop(0)
                with open(log, "ab") as output:
                    # Outside the terminal's process group Ctrl-C reaches it only once.
                    running[log] = start_child(
                        commands[log], stdin=subprocess.DEVNULL, stdout=output,
                        stderr=subprocess.STDOUT, env=os.environ | environment,
                        start_new_session=True,
                    )  # fmt: skip
                if signals:  # one that came before this process was in `running`
                    running[log].send_signal(signal.SIGTERM)
            time.sleep(POLL_SECONDS)
            for log in [log for log, process in running.items() if process.poll() is not None]:
                del running[log]
                if not signals:
                    on_end(log)
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        _send(signal.SIGTERM, running)
        for process in running.values():
            process.wait()
    if signals:
        raise Stopped


def _send(signum: int, running: dict[Path, subprocess.Popen]) -> None:
    for process in running.values():
        process.send_signal(signum)


def start_child(command: Sequence[str], **popen_options) -> subprocess.Popen:
    """Start a process that on Linux receives SIGTERM when this one ends, even by kill -9.

    Call it in the main thread: the signal is sent when the calling thread ends.
    """
    prepare = partial(end_with_parent, os.getpid()) if sys.platform == "linux" else None
    return subprocess.Popen(command, preexec_fn=prepare, **popen_options)


@contextmanager
def interrupt_held() -> Iterator[None]:
    """Let a child that starts within it receive Ctrl-C only when it calls `ends_in_a_sentence`.

    Until then, while it imports, it could answer only with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(parent: int) -> None:
    """On Linux, let this process receive SIGTERM when its parent ends, even by kill -9.

    It comes once or several times: when a thread of the parent ends, Linux hands the child to
    another thread of the parent, until that ends.
    """
    # The parent's own handler, inherited by a child, would swallow the signal.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before prctl was called
        signal.raise_signal(signal.SIGTERM)


def wait_for(process: subprocess.Popen) -> int:
    """Return a child's exit code; if the user stops it, end this process once it has ended.

    The terminal sends Ctrl-C to the child as well, so only SIGTERM is passed on. A child that exits
    with STOPPED_BY_USER has said how to continue; after any other code, Stopped lets us say it.
    """
    stopped = False

    def stop(signum, frame) -> None:
        nonlocal stopped
        stopped = True
        process.terminate()

    code, before = None, signal.signal(signal.SIGTERM, stop)
    try:
        while code is None:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                stopped = True
    finally:
        signal.signal(signal.SIGTERM, before)
    if code == STOPPED_BY_USER:
        sys.exit(code)
    if stopped:
        raise Stopped
    return code


def threads_for_each(at_a_time: int) -> dict[str, str]:
    """Return the environment that divides the cores among jobs, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"OMP_NUM_THREADS": str(max(1, cores // at_a_time))}
