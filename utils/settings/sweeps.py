"""Sweep files in the format of `wandb sweep`, and the points that a grid or random search visits.

A file names a script (`program`), a search (`method`: grid or random), the number to compare runs
by (`metric`) and the script's settings (`parameters`): each one `value`, several `values`, or a
range from `min` to `max` with a `distribution`. Whatever needs wandb's server is refused.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from utils.settings.errors import UserError
from utils.settings.values import read_yaml
from utils.settings.wording import plural

import numpy as np

REQUIRED = ("program", "method", "metric", "parameters")
KNOWN_KEYS = (*REQUIRED, "name", "description", "project", "entity", "run_cap", "command")
PARAMETER = (
    "must be {value: …}, {values: [several]} or {min: …, max: …} with min below max; distribution "
    "can be int_uniform (from whole numbers), uniform or log_uniform_values (min above 0)"
)
SET_BY_THE_SWEEP = ("run_name", "resume", "overwrite")
SAME_FOR_ALL_RUNS = ("run_batch_name", "out_dir")
MAX_REPEATS = 1000  # after so many draws in a row without a new point, assume there is none
DIGITS = 4  # of the numbers drawn, so that run names stay readable


@dataclass(frozen=True)
class Axis:
    """A setting that varies: over `values`, or over the real numbers from `low` to `high`."""

    values: Sequence = ()
    low: float = 0
    high: float = 0
    log: bool = False

    def draw(self, random: np.random.Generator):
        if self.values:
            return self.values[random.integers(len(self.values))]
        if self.log:
            number = math.exp(random.uniform(math.log(self.low), math.log(self.high)))
        else:
            number = random.uniform(self.low, self.high)
        return min(max(float(f"{number:.{DIGITS}g}"), float(self.low)), float(self.high))


@dataclass(frozen=True)
class Sweep:
    """The content of a sweep file."""

    path: Path
    program: str
    method: str
    metric: str
    goal: str  # minimize or maximize
    axes: dict[str, Axis]
    fixed: dict  # settings that all runs share
    arguments: list[str]  # further words for the script's command line
    run_cap: int | None
    environment: dict[str, str]

    @property
    def name(self) -> str:
        return self.path.stem


# ---- reading a file


def read_sweep(path: Path) -> Sweep:
    """Return the sweep in a file; raise a `UserError` that says what is wrong with it."""
    content = read_yaml(path)
    _check_keys(content, path)
    metric, run_cap = content["metric"], content.get("run_cap")
    axes, fixed = _read_parameters(content["parameters"], path)
    for name, axis in axes.items() if content["method"] == "grid" else ():
        where = f"parameters.{name} in {path}"
        _require(axis.values, f"{where} is a range without end for a grid: list values, or write "
                              "method: random.")  # fmt: skip
    whole = run_cap is None or (isinstance(run_cap, int) and run_cap >= 1)
    _require(whole, f"run_cap in {path} must be a whole number of runs, got {run_cap!r}.")
    command = content.get("command", ["${program}", "${args}"])
    listed = isinstance(command, list) and "${program}" in command
    _require(
        listed, f"command in {path} must be a list with ${{program}} and, after it, ${{args}}."
    )
    after = [str(word) for word in command[command.index("${program}") + 1 :]]
    owner = {key: content[key] for key in ("project", "entity") if content.get(key)}
    return Sweep(
        path, str(Path(str(content["program"]))), content["method"],
        metric["name"], metric.get("goal", "minimize"), axes, fixed,
        arguments=[word for word in after if not word.startswith("${args")],
        run_cap=run_cap,
        environment={f"WANDB_{key.upper()}": str(value) for key, value in owner.items()},
    )  # fmt: skip


def _require(condition, sentence: str) -> None:
    if not condition:
        raise UserError(sentence)


def _check_keys(content: dict, path: Path) -> None:
    known = content.keys() & KNOWN_KEYS
    _require(known, f"{path} is not a sweep file: see configs/sweeps for examples.")
    for key in content:
        _require(
            key in KNOWN_KEYS,
            f"Unknown key {key} in {path}; there are {', '.join(KNOWN_KEYS)}. What else wandb "
            f"knows needs its server: run `wandb sweep {path}`.",
        )
    for key in REQUIRED:
        _require(content.get(key), f"{path} lacks {key!r}: see configs/sweeps for examples.")
    _one_of(("grid", "random"), content["method"], f"method in {path}")
    metric = content["metric"]
    named = isinstance(metric, dict) and {"name"} <= metric.keys() <= {"name", "goal"}
    _require(named, f"metric in {path} must be written {{name: test_accuracy, goal: maximize}}.")
    _one_of(("minimize", "maximize"), metric.get("goal", "minimize"), f"metric.goal in {path}")


def _one_of(allowed, value, where: str) -> None:
    _require(value in allowed, f"{where} must be one of {', '.join(allowed)}, got {value!r}.")


def _read_parameters(parameters, path: Path) -> tuple[dict[str, Axis], dict]:
    """Return the settings that vary, and those that all runs share."""
    lines = isinstance(parameters, dict)
    _require(lines, f"parameters in {path} must hold lines 'setting: {{values: [...]}}'.")
    axes, fixed = {}, {}
    for name, given in parameters.items():
        where = f"parameters.{name} in {path}"
        _require(name not in SET_BY_THE_SWEEP, f"{where} is set by the sweep itself: remove it.")
        axis = _read_axis(given, where)
        if "value" in given:
            fixed[name] = given["value"]
        else:
            _require(name not in SAME_FOR_ALL_RUNS, f"{where} must have one value for all runs.")
            axes[name] = axis
    _require(axes, f"Nothing varies in {path}: give a parameter several values, or a range.")
    return axes, fixed


def _read_axis(given, where: str) -> Axis:
    try:
        return _axis(**given)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where} {PARAMETER}; got {given!r}.") from None


def _axis(distribution: str | None = None, **given) -> Axis:
    """Return what a parameter's keys describe, or raise a ValueError or TypeError."""
    if given.keys() == {"value"} and distribution in (None, "constant"):
        return Axis([given["value"]])
    if given.keys() == {"values"} and distribution in (None, "categorical"):
        if isinstance(given["values"], list) and given["values"]:
            return Axis(given["values"])
    elif given.keys() == {"min", "max"}:
        low, high = _number(given["min"]), _number(given["max"])
        whole = isinstance(low, int) and isinstance(high, int)
        distribution = distribution or ("int_uniform" if whole else "uniform")  # as wandb does
        if distribution == "int_uniform" and whole and low < high:
            return Axis(range(low, high + 1))
        log = distribution == "log_uniform_values"
        if (distribution == "uniform" or (log and low > 0)) and low < high:
            return Axis(low=low, high=high, log=log)
    raise ValueError


def _number(value) -> float:
    number = value if type(value) in (int, float) else float(value)  # YAML reads 1e-3 as text
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError
    return number


# ---- the points


def choose_points(sweep: Sweep, num_runs: int | None, seed: int) -> list[dict]:
    """Return the varying settings of every run: the whole grid, or so many draws."""
    count = num_runs or sweep.run_cap
    if sweep.method == "grid":
        grid = itertools.product(*(axis.values for axis in sweep.axes.values()))
        return [
            dict(zip(sweep.axes, point, strict=True)) for point in itertools.islice(grid, count)
        ]
    _require(count, f"A random search needs --num_runs, or run_cap in {sweep.path}.")
    points = list(itertools.islice(_draws(sweep.axes, seed), count))
    if len(points) < count:
        print(f"{sweep.path} has only {plural(len(points), 'different point')}.")
    return points


def _draws(axes: dict[str, Axis], seed: int) -> Iterator[dict]:
    """Draw different points, since a run would give the same result again."""
    random, labels, repeats = np.random.default_rng(seed), set(), 0
    while repeats < MAX_REPEATS:
        point = {name: axis.draw(random) for name, axis in axes.items()}
        repeats += 1
        if point_label(point) not in labels:
            labels.add(point_label(point))
            repeats = 0
            yield point


def point_label(settings: dict) -> str:
    """Return the name of a point, which is also that of its run."""
    return ",".join(f"{key}={value}" for key, value in settings.items()).replace("/", "_")


def as_arguments(settings: dict) -> list[str]:
    """Return settings as words of a command line, written as a wandb agent writes them."""
    return [f"--{name}={value}" for name, value in settings.items()]
