"""Progress bars, which show the time left, and checks of memory and disk before the start."""

import math
import resource
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from utils.settings.errors import UserError
from utils.settings.wording import megabytes

from tqdm import tqdm


def progress_bar(
    total: int | None, description: str, initial: int = 0, unit: str = "epoch",
    items: Iterable | None = None,
) -> tqdm:  # fmt: skip
    """Return a bar with the time left; in a log file, a line every half minute.

    If it is given items, it yields them and counts them itself.
    """
    interactive = sys.stderr.isatty()
    return tqdm(
        items, total=total, initial=initial, desc=description, unit=unit,
        dynamic_ncols=interactive, mininterval=0.2 if interactive else 30,
    )  # fmt: skip


def check_space(
    directory: Path, memory_bytes: float, disk_bytes: float, disk_bytes_written: float = 0
) -> None:
    """Say how much memory and disk the work needs; refuse what the disk cannot hold.

    `memory_bytes` come on top of what the process has used so far. Of `disk_bytes`, a resumed run
    has written `disk_bytes_written` before.
    """
    memory = peak_memory() + memory_bytes
    print(f"Needs {memory / 1e9:.1f} GB of memory and {megabytes(disk_bytes)} in {directory}")
    free = shutil.disk_usage(directory).free
    if disk_bytes - disk_bytes_written > free:
        raise UserError(
            f"This needs {megabytes(disk_bytes)} of disk, but only {megabytes(free)} are free at "
            f"{directory}: free some, or give another --out_dir."
        )
    if memory_bytes > available_memory():
        print(
            f"Warning: {memory_bytes / 1e9:.1f} GB more memory are needed, and "
            f"{available_memory() / 1e9:.1f} GB are free: the system may end this run. "
            "A smaller network, or fewer of them at once, would need less.",
            file=sys.stderr,
        )


def available_memory() -> float:
    """Return the bytes of memory that are free; infinity if the system does not say."""
    table = Path("/proc/meminfo")
    lines = table.read_text().splitlines() if table.exists() else []
    available = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * float(available[0]) if available else math.inf


def peak_memory() -> int:
    """Return the most memory this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def duration(seconds: float) -> str:
    """Write seconds as people say them: '40 s', '3 min 20 s', '2 h 5 min'."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
