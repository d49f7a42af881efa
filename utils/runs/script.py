"""How a script begins and ends: with its settings, and with a sentence if something is wrong.

Exit code 2 means a mistake that the user can correct, 130 a run that was stopped and can continue.
"""

import errno
import os
import runpy
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from utils.settings.config import Config, load_config, unnamed_settings
from utils.settings.errors import UserError

import torch

OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_MEMORY = ("not enough memory", "can't allocate memory")  # torch's words, in a RuntimeError
STOPPED_BY_USER = 130  # exit code of a script whose run can continue
RESUME_COMMAND = "RESUME_COMMAND"  # a caller's environment variable: the command that goes on
UNUSABLE_PATH = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOENT, errno.ENOTDIR,
    errno.EISDIR, errno.ENAMETOOLONG,
)  # fmt: skip


class Finished(Exception):
    """An earlier call of the script has finished the run."""


class Stopped(Exception):
    """The user asked the run to stop, and it has saved what it needs to continue."""


class Stoppable:
    """Work that ends in good order when it is asked to."""

    stop_requested = False

    @contextmanager
    def graceful_stop(self) -> Iterator[None]:
        """Within it, Ctrl-C or SIGTERM sets `stop_requested`; Ctrl-C after that stops at once.

        SIGTERM may come several times for one reason: Linux sends it when each of a parent's
        threads ends (see `end_with_parent`).
        """

        def request(signum, frame):
            if not self.stop_requested:
                self.stop_requested = True
                print("\nStopping at the next checkpoint. Press Ctrl-C to stop at once.",
                      file=sys.stderr)  # fmt: skip
            elif signum == signal.SIGINT:
                raise KeyboardInterrupt

        before = {s: signal.signal(s, request) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


def run_script(main: Callable, config_class, script_file: str, description: str) -> None:
    """Call `main` with the settings on the command line; report errors in a sentence."""
    script = Path(script_file).stem
    with ends_in_a_sentence(script, resume_command()):
        config = load_config(config_class, script, sys.argv[1:], description)
        print_unnamed_settings(config, script)
        with suppress(Finished):
            main(config)


def settings_for(script: Path, arguments: list[str]) -> tuple[Config, str]:
    """Return the settings that a script will have with these arguments, and the kind of its run.

    A script defines both as CONFIG and KIND. If its arguments decide, its `choose_settings` does.
    """
    defined = _run_once(str(script))
    if "choose_settings" in defined:
        config_class, kind = defined["choose_settings"](arguments)
    else:
        config_class, kind = defined["CONFIG"], defined["KIND"]
    return load_config(config_class, script.stem, arguments), kind


_run_once = cache(runpy.run_path)  # a sweep asks for each of its runs


def print_unnamed_settings(config, script: str) -> None:
    """Name the settings that the run's directory, named after its config, does not tell."""
    if config.run_name or os.environ.get("RANK", "0") != "0":
        return
    settings = unnamed_settings(config, script)
    if settings:
        values = ", ".join(f"{name} {now}, not {named}" for name, (named, now) in settings.items())
        print(
            f"Not the settings of config {config.config_name!r} ({values}): --run_name gives the "
            "run a name of its own."
        )


@contextmanager
def ends_in_a_sentence(script: str, again: str) -> Iterator[None]:
    """End the script with a sentence on errors the user can correct; `again` is how to continue."""
    try:
        # A Ctrl-C that the caller has held back (see `interrupt_held`) is received here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield
    except BrokenPipeError:
        sys.exit(1)  # whoever was reading the output has gone
    except (UserError, OSError, MemoryError, RuntimeError) as error:
        print(f"{script}: {explain(error, again)}", file=sys.stderr)
        sys.exit(2)
    except (Stopped, KeyboardInterrupt):
        print(f"\nStopped. Go on with: {again}", file=sys.stderr)
        sys.exit(STOPPED_BY_USER)


def explain(error: Exception, again: str) -> str:
    """Explain the error in a sentence; raise one again that no user could cause or correct."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "The GPU does not have enough memory: make the network smaller, or --device cpu."
    if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
        return "This machine does not have enough memory: make the network or its stack smaller."
    if not isinstance(error, OSError):
        raise error
    if error.errno in OUT_OF_SPACE:
        return (
            "The disk, or your quota, is full. What was saved is safe: free some space and go on "
            f"with: {again}"
        )
    if error.errno in UNUSABLE_PATH:
        return (
            f"Cannot use {error.filename}: {error.strerror}. Give another --out_dir, --data_dir or "
            "--run_name."
        )
    raise error


def resume_command() -> str:
    """Return this command with --resume, or the command that a caller has named instead."""
    if RESUME_COMMAND in os.environ:
        return os.environ[RESUME_COMMAND]
    arguments = [a for a in sys.argv if a not in ("--overwrite", "--resume")]
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    launcher = ["python"] if ranks == "1" else ["torchrun", "--nproc-per-node", ranks]
    return shlex.join([*launcher, *arguments, "--resume"])
