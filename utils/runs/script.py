"""How a script begins and ends: with its settings, and with a sentence if something is wrong.

Exit code 2 is for what the user can mend, 130 for a run that was asked to stop and can go on.
"""

import errno
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.runs.config import load_config
from utils.runs.errors import UserError

import torch

OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_MEMORY = ("not enough memory", "can't allocate memory")  # torch's words, in a RuntimeError
UNUSABLE_PATH = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOENT, errno.ENOTDIR,
    errno.ENAMETOOLONG,
)  # fmt: skip


class Stopped(Exception):
    """The user asked the run to stop, and it has saved what it needs to go on."""


def run_script(main: Callable, config_class, script_file: str, description: str) -> None:
    """Call `main` with the settings on the command line; report errors in a sentence."""
    script = Path(script_file).stem
    with ends_in_a_sentence(script, resume_command()):
        main(load_config(config_class, script, sys.argv[1:], description))


@contextmanager
def ends_in_a_sentence(script: str, again: str) -> Iterator[None]:
    """Within it, what the user can mend ends the script; the command `again` goes on."""
    try:
        yield
    except BrokenPipeError:
        sys.exit(1)  # whoever was reading the output has gone
    except (UserError, OSError, MemoryError, RuntimeError) as error:
        print(f"{script}: {explain(error, again)}", file=sys.stderr)
        sys.exit(2)
    except (Stopped, KeyboardInterrupt):
        print(f"\nStopped. Go on with: {again}", file=sys.stderr)
        sys.exit(130)


def explain(error: Exception, again: str) -> str:
    """The error in a sentence; one that no user could cause or mend is raised again."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "The GPU has not enough memory for that: make the network smaller, or --device cpu."
    if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
        return "This machine has not enough memory for that: make the network or its stack smaller."
    if not isinstance(error, OSError):
        raise error
    if error.errno in OUT_OF_SPACE:
        return (
            "The disk is full, or what you may have of it. What was saved is safe: free some space "
            f"and go on with: {again}"
        )
    if error.errno in UNUSABLE_PATH:
        return (
            f"Cannot use {error.filename}: {error.strerror}. Give another --out_dir or --run_name."
        )
    raise error


def resume_command() -> str:
    arguments = [a for a in sys.argv if a not in ("--overwrite", "--resume")]
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    launcher = ["python"] if ranks == "1" else ["torchrun", "--nproc-per-node", ranks]
    return shlex.join([*launcher, *arguments, "--resume"])
