"""Chains of toy size for tests of MNIST_HMC.py, and what they have left so far."""

import json
import time
from pathlib import Path

TOY = (
    "--config_name", "quick", "--hidden_sizes", "12", "--num_train", "600", "--num_burnin", "4",
    "--num_samples", "8", "--trajectory_length", "none", "--num_steps", "12",
    "--step_size", "0.003", "--anchored_epochs", "1",
)  # fmt: skip
FIXED = (*TOY, "--no-grow_trajectories", "--jitter", 0)  # 12 steps per transition
WEIGHTS = 785 * 12 + 13 * 10


def records(directory: Path) -> list[dict]:
    """The trace, without how long things took."""
    lines = (directory / "trace.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def wait_for_records(path: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_text().count("\n") < count:
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.01)


def stored(directory: Path) -> int:
    return json.loads((directory / "chains.json").read_text())["stored_per_chain"]
