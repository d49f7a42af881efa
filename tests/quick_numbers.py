"""Run the quick preset and compare every number with an earlier numbers.json, to the last digit.

    python -m tests.quick_numbers                        against results/quick/numbers.json
    python -m tests.quick_numbers --baseline FILE        against another one
    python -m tests.quick_numbers --new FILE             compare two files, run nothing

This is the check for a change that should not alter any result. It uses one thread, as results
depend on their number. They also depend on the processor, so make the baseline on the machine where
you compare: OMP_NUM_THREADS=1 python reproduce.py. Times, commits, machines and
places on disk are left out, and sentences are compared by the numbers in them.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# Keys whose values differ between two equal runs.
NOT_COMPARED = {
    "seconds", "sampling_seconds", "training_seconds", "prediction_seconds", "core_seconds",
    "hours", "ess_per_hour", "median_ess_bulk_per_hour", "peak_memory", "wandb_id", "sessions",
    "sources", "out_dir", "data_dir", "wandb", "paper",
}  # fmt: skip
SENTENCES = {"claim", "where", "rule", "in_short", "evidence"}


def main() -> None:
    options = read_options()
    if options.new:
        differences = compare(read(options.baseline), read(options.new))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            differences = compare(read(options.baseline), run_quick(Path(scratch)))
    print(*differences, sep="\n")
    print(f"{len(differences)} differences from {options.baseline}")
    sys.exit(bool(differences))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    baseline = REPOSITORY / "results" / "quick" / "numbers.json"
    parser.add_argument("--baseline", type=Path, default=baseline, metavar="FILE")
    parser.add_argument("--new", type=Path, metavar="FILE")
    return parser.parse_args()


def run_quick(scratch: Path) -> dict:
    """Return the numbers of a quick preset that runs now."""
    command = [
        sys.executable, str(REPOSITORY / "reproduce.py"), "--wandb", "disabled",
        "--out_dir", str(scratch / "runs"), "--results_dir", str(scratch / "results"),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # sums depend on the number of threads
    subprocess.run(command, check=True, cwd=REPOSITORY, env=environment)
    return read(scratch / "results" / "quick" / "numbers.json")


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def compare(old: dict, new: dict) -> list[str]:
    """Return a line for every value that is not the same in both."""
    before, after = dict(values_in(old)), dict(values_in(new))
    return [
        f"{place}: {before.get(place, 'absent')} -> {after.get(place, 'absent')}"
        for place in {**before, **after}
        if before.get(place, "absent") != after.get(place, "absent")
    ]


def values_in(content, place: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value in nested dicts and lists with the path that leads to it."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key in SENTENCES:
                numbers = re.findall(r"[-+]?\d+(?:\.\d+)?", value.replace("−", "-"))
                yield f"{place}/{key}", sorted(numbers)
            elif key not in NOT_COMPARED:
                yield from values_in(value, f"{place}/{key}")
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from values_in(value, f"{place}/{number}")
    elif isinstance(content, str):
        yield place, content.rpartition("/")[2]  # runs lie in other places
    else:
        yield place, content


if __name__ == "__main__":
    main()
