"""Telling what work will take before it begins, and how far it is."""

import math
import resource
import shutil
import sys
from pathlib import Path

from utils.runs.errors import UserError

from tqdm import tqdm


def progress_bar(total: int, description: str, initial: int = 0, unit: str = "epoch") -> tqdm:
    """A bar with the time left; in a log file a line every half minute."""
    interactive = sys.stderr.isatty()
    return tqdm(
        total=total, initial=initial, desc=description, unit=unit,
        dynamic_ncols=interactive, mininterval=0.2 if interactive else 30,
    )  # fmt: skip


def announce(
    directory: Path,
    seconds: float,
    more_memory: float,
    disk_bytes: float,
    disk_bytes_there: float = 0,
) -> None:
    """Say what the work ahead will take; refuse to begin what the disk cannot hold.

    `more_memory` is in bytes and comes on top of what the process has needed so far; of
    `disk_bytes` so many may be there already, when the run is resumed.
    """
    memory = peak_memory() + more_memory
    print(
        f"Estimate: {duration(seconds)}, {memory / 1e9:.1f} GB of memory, "
        f"{disk_bytes / 1e6:.0f} MB of disk in {directory}"
    )
    check_disk(directory, disk_bytes, disk_bytes_there)
    if more_memory > available_memory():
        print(
            f"Warning: {more_memory / 1e9:.1f} GB more memory are needed, and "
            f"{available_memory() / 1e9:.1f} GB are free: the system may end this run. "
            "A smaller network, or fewer of them at once, would need less.",
            file=sys.stderr,
        )


def check_disk(directory: Path, disk_bytes: float, disk_bytes_there: float = 0) -> None:
    """Refuse to begin what the disk cannot hold, beside what is there of it already."""
    free = shutil.disk_usage(directory).free
    if disk_bytes - disk_bytes_there > free:
        raise UserError(
            f"This needs {disk_bytes / 1e6:.0f} MB of disk, but only {free / 1e6:.0f} MB are "
            f"free at {directory}: free some, or give another --out_dir."
        )


def available_memory() -> float:
    """Bytes that programs can still have; infinite where the system does not tell."""
    table = Path("/proc/meminfo")
    lines = table.read_text().splitlines() if table.exists() else []
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * float(found[0]) if found else math.inf


def peak_memory() -> int:
    """The most memory this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def duration(seconds: float) -> str:
    """Seconds as people say them: '40 s', '3 min 20 s', '2 h 5 min'."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
