"""Processes side by side: how many, what they leave, and how they end when the user wants it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

from tests.conftest import REPOSITORY
from utils.runs import jobs
from utils.runs.jobs import interrupt_held, run_jobs, start_child, threads_for_each
from utils.runs.script import STOPPED_BY_USER, Stopped

import pytest

# A process that says when it runs, saves its work when asked to end, however often, and ends at
# once by Ctrl-C; without anybody's asking it ends when the file `go` is there.
WORKER = """
import os, signal, sys, time
name, folder = sys.argv[1:]
def stop(*_):
    asked = f"{folder}/{name}.asked"
    if not os.path.exists(asked):
        open(asked, "w").close()
        time.sleep(30 * (name == "endless"))
        print(name, "saved", flush=True)
        sys.exit(130)
signal.signal(signal.SIGTERM, stop)
open(f"{folder}/{name}.runs", "w").close()
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.01)
os.remove(f"{folder}/{name}.runs")
print(name, "done", flush=True)
"""


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch):
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.01)


@pytest.fixture
def worker(tmp_path):
    def make(*names: str) -> dict:
        start = (sys.executable, "-S", "-c", WORKER)
        return {tmp_path / f"{name}.log": (*start, name, str(tmp_path)) for name in names}

    return make


def when(condition, act) -> threading.Thread:
    """Do something as soon as a condition holds."""

    def watch():
        deadline = time.monotonic() + 30
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_so_many_run_at_a_time_and_all_are_heard_of(tmp_path, worker):
    together, ended = [], []

    def running():
        return len(list(tmp_path.glob("*.runs")))

    def let_go():
        time.sleep(0.2)  # if more than two were started, the third would run by now
        together.append(running())
        (tmp_path / "go").touch()

    thread = when(lambda: running() == 2, let_go)
    run_jobs(worker(*"abcd"), 2, {}, ended.append)
    thread.join()
    assert together == [2]
    assert sorted(log.name for log in ended) == ["a.log", "b.log", "c.log", "d.log"]
    assert (tmp_path / "a.log").read_text() == "a done\n"


def test_a_log_is_added_to(tmp_path, worker):
    (tmp_path / "go").touch()
    for _ in range(2):
        run_jobs(worker("a"), 1, {}, lambda log: None)
    assert (tmp_path / "a.log").read_text() == "a done\na done\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_users_end_is_handed_on_once_and_nothing_more_is_started(tmp_path, worker, how, capsys):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    thread = when(
        lambda: len(list(tmp_path.glob("*.runs"))) == 2, lambda: os.kill(os.getpid(), how)
    )
    ended = []
    with pytest.raises(Stopped):
        run_jobs(worker(*"abc"), 2, {}, ended.append)
    thread.join()
    assert [(tmp_path / f"{name}.log").read_text() for name in "ab"] == ["a saved\n", "b saved\n"]
    assert not (tmp_path / "c.log").exists()
    assert ended == []
    assert len(capsys.readouterr().err.splitlines()) == 2  # blank, then what happens
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_ctrl_c_after_the_users_end_stops_at_once(tmp_path, worker, capsys):
    def end(how):
        return lambda: os.kill(os.getpid(), how)

    threads = [
        when((tmp_path / "endless.runs").exists, end(signal.SIGTERM)),
        when((tmp_path / "endless.asked").exists, end(signal.SIGINT)),
    ]
    with pytest.raises(Stopped):
        run_jobs(worker("endless"), 2, {}, print)
    for thread in threads:
        thread.join()
    assert "KeyboardInterrupt" in (tmp_path / "endless.log").read_text()


def test_what_on_end_raises_ends_the_others(tmp_path, worker):
    def refuse(log):
        raise ValueError("no")

    started = str(tmp_path / "slow.runs")
    wait = f"import os, time\nwhile not os.path.exists({started!r}): time.sleep(.01)"
    first = {tmp_path / "first.log": (sys.executable, "-S", "-c", wait)}
    with pytest.raises(ValueError, match="no"):
        run_jobs(worker("slow") | first, 2, {}, refuse)
    assert (tmp_path / "slow.log").read_text() == "slow saved\n"


def test_cores_are_shared_out_unless_the_user_has_said_how(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    shares = [threads_for_each(number)["OMP_NUM_THREADS"] for number in (1, 2, 3, 16)]
    assert shares == ["8", "4", "2", "1"]
    show = (sys.executable, "-S", "-c", "import os; print(os.environ['OMP_NUM_THREADS'])")
    run_jobs({tmp_path / "log": show}, 1, threads_for_each(3), lambda log: None)
    assert (tmp_path / "log").read_text() == "2\n"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads_for_each(2) == {}


# A script that is told to stop while it imports.
IMPORTING = """
import sys, time
open(sys.argv[1], "w").close()
while not __import__("os").path.exists(sys.argv[2]):
    time.sleep(0.01)
from utils.runs.script import ends_in_a_sentence
with ends_in_a_sentence("toy", "the same command"):
    time.sleep(30)
"""


def test_ctrl_c_while_a_script_imports_ends_in_a_sentence(tmp_path):
    begun, go = tmp_path / "begun", tmp_path / "go"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with interrupt_held():
        command = [sys.executable, "-c", IMPORTING, str(begun), str(go)]
        child = start_child(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    when(begun.exists, lambda: child.send_signal(signal.SIGINT)).join()
    go.touch()
    said = child.communicate(timeout=120)[1]
    assert child.returncode == STOPPED_BY_USER
    assert said == "\nStopped. Go on with: the same command\n"


only_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children")


@only_linux
def test_a_job_does_not_outlive_a_parent_that_is_killed(tmp_path, worker):
    """Its threads end one after the other, and each end is a SIGTERM for the child."""
    log = tmp_path / "child.log"

    def run_with_threads():
        for _ in range(8):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        run_jobs(worker("child"), 1, {}, print)

    fork = multiprocessing.get_context("fork")  # which has nothing to import first
    parent = fork.Process(target=run_with_threads)
    parent.start()
    try:
        when((tmp_path / "child.runs").exists, parent.kill).join()
        parent.join()
        assert parent.exitcode == -signal.SIGKILL
        when(log.read_text, lambda: None).join()
        assert log.read_text() == "child saved\n"
    finally:
        (tmp_path / "go").touch()


@only_linux
def test_a_child_whose_parent_has_ended_first_does_not_begin(tmp_path, monkeypatch):
    """Even where the parent had a handler of its own, which the child has until it begins."""
    monkeypatch.setattr(os, "getpid", lambda: 0)  # so that the child finds another parent
    before = signal.signal(signal.SIGTERM, lambda signum, frame: None)
    try:
        child = start_child(["touch", str(tmp_path / "begun")])
        assert child.wait() == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "begun").exists()
