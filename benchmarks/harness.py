"""What the benchmarks share: fair timing, and the record of what was measured.

Machines are noisy, so claims are ratios: the ways to do a thing are timed in turn, several times
over, and the fastest time of each counts.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from utils.runs.compute import processor  # noqa: E402
from utils.runs.files import save_json, write_atomically  # noqa: E402

# Before each timing: the threads of a peer in another process go on spinning for a while after its
# last step, and were seen to cost whoever came next 40 ms.
PAUSE_SECONDS = 0.2
RESULTS = ROOT / "benchmarks" / "results.json"
README = ROOT / "benchmarks" / "README.md"
INTRODUCTION = """# Benchmarks

Written by `make bench`; each table is one run, its ways timed in turn and the fastest of several
repeats taken. Seconds depend on the machine, the ratios much less.
"""
PICTURES = """## Pictures

Cost of a leapfrog step against size, after short burn-ins (`hmc.py`):

![Dense steps cost in proportion to images and units; listed ones far less](hmc_sizes.png)

Units put back in place by rebasin, against noise on the weights (`recovery.py`):

![All units are recovered up to a noise that depends on method and depth](recovery.png)
"""


def fastest(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each way: the least over `repeats` rounds in which each is called once."""
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, way in ways.items():
            time.sleep(PAUSE_SECONDS)
            start = time.perf_counter()
            way()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def record(
    title: str, unit: str, seconds: dict[str, float], baseline: str, notes: list[str]
) -> None:
    """Print a table of `seconds` and each way's speed against `baseline`, and keep it."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[title] = {
        "unit": unit,
        "seconds": {name: float(f"{value:.4g}") for name, value in seconds.items()},
        "times_faster": {n: round(seconds[baseline] / value, 2) for n, value in seconds.items()},
        "baseline": baseline,
        "notes": notes,
        "machine": _machine(),
    }
    save_json(RESULTS, results)
    print(_table(title, results[title]))
    text = "\n".join(
        [INTRODUCTION, *(_table(name, table) for name, table in results.items()), PICTURES]
    )
    write_atomically(README, lambda file: file.write(text.encode()))


def _machine() -> str:
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    threads = torch.get_num_threads()
    return (
        f"{processor()}, {threads} threads, PyTorch {torch.__version__}, "
        f"{time.strftime('%Y-%m-%d')}, commit {commit or 'unknown'}"
    )


def _table(title: str, table: dict) -> str:
    lines = [
        f"## {title}",
        "",
        f"| way | seconds per {table['unit']} | times as fast as {table['baseline']} |",
        "|---|---|---|",
    ]
    for name, seconds in table["seconds"].items():
        lines.append(f"| {name} | {seconds:.4g} | {table['times_faster'][name]:.2f} |")
    lines += ["", *(f"- {note}" for note in table["notes"]), f"- {table['machine']}", ""]
    return "\n".join(lines)
