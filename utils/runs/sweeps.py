"""Sweep files as `wandb sweep` takes them, and the points that a grid or random search visits.

A file names a script (`program`), how to search (`method`: grid or random), what to compare runs
by (`metric`) and the script's settings (`parameters`): each one `value`, several `values`, or a
range from `min` to `max` with a `distribution`. What only wandb's server can do is refused.
"""

import difflib
import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from utils.runs.config import read_yaml
from utils.runs.errors import UserError

import numpy as np

METHODS = ("grid", "random")
GOALS = ("minimize", "maximize")
KEYS = (
    "program", "method", "metric", "parameters", "name", "description", "project", "entity",
    "run_cap", "command",
)  # fmt: skip
ONLY_ON_THE_SERVER = ("early_terminate", "controller", "scheduler", "metrics", "job", "image_uri")
# What each distribution is given by; those of ranges are drawn from in `Axis.draw`.
DISTRIBUTIONS = {
    "constant": {"value"},
    "categorical": {"values"},
    "int_uniform": {"min", "max"},
    "uniform": {"min", "max"},
    "log_uniform_values": {"min", "max"},
    "q_uniform": {"min", "max", "q"},
}
SET_BY_THE_SWEEP = ("run_name", "resume", "overwrite")
SAME_FOR_ALL_RUNS = ("run_batch_name", "out_dir")
MOST_REPEATS = 1000  # draws in a row that give no new point: then there are no more
DIGITS = 4  # of numbers drawn, for names that people can read


@dataclass(frozen=True)
class Axis:
    """A setting that varies: over a list, or over a range."""

    distribution: str
    values: list = field(default_factory=list)
    low: float = 0
    high: float = 0
    step: float = 1

    def draw(self, random: np.random.Generator):
        if self.distribution == "categorical":
            return self.values[random.integers(len(self.values))]
        if self.distribution == "int_uniform":
            return int(random.integers(self.low, self.high + 1))
        if self.distribution == "log_uniform_values":
            return self._readable(math.exp(random.uniform(math.log(self.low), math.log(self.high))))
        if self.distribution == "q_uniform":
            factors = self.factors
            drawn = int(random.integers(factors.start, factors.stop)) * _exact(self.step)
            return int(drawn) if isinstance(self.step, int) else float(drawn)
        return self._readable(random.uniform(self.low, self.high))

    @property
    def factors(self) -> range:
        """Those of `step` that stay in the range, which wandb's rounding may leave."""
        low, high, step = _exact(self.low), _exact(self.high), _exact(self.step)
        return range(math.ceil(low / step), math.floor(high / step) + 1)

    def _readable(self, number: float) -> float:
        """With few digits, and still between `low` and `high`."""
        return min(max(float(f"{number:.{DIGITS}g}"), float(self.low)), float(self.high))


def _exact(number: float) -> Fraction:
    """The number as it is written: as floats, 0.7 is less than 7 times 0.1."""
    return Fraction(str(number))


@dataclass(frozen=True)
class Sweep:
    """What a sweep file says."""

    path: Path
    program: str
    method: str
    metric: str
    goal: str
    axes: dict[str, Axis]
    fixed: dict  # settings that are the same for all runs
    arguments: list[str]  # further words of the command line
    run_cap: int | None
    environment: dict[str, str]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def maximize(self) -> bool:
        return self.goal == "maximize"


# ---- reading a file


def read_sweep(path: Path) -> Sweep:
    """The sweep in a file; what is wrong with it is a `UserError`."""
    content = read_yaml(path)
    _check_keys(content, path)
    method = _method(content["method"], path)
    metric, goal = _metric(content["metric"], path)
    axes, fixed = _parameters(content["parameters"], path)
    if method == "grid":
        _check_grid(axes, path)
    project = {"WANDB_PROJECT": content.get("project"), "WANDB_ENTITY": content.get("entity")}
    return Sweep(
        path, str(content["program"]), method, metric, goal, axes, fixed,
        arguments=_arguments(content.get("command"), path),
        run_cap=_run_cap(content.get("run_cap"), path),
        environment={name: str(value) for name, value in project.items() if value},
    )  # fmt: skip


def _check_keys(content: dict, path: Path) -> None:
    for key in content:
        if key in ONLY_ON_THE_SERVER:
            raise _needs_server(key, path)
        if key not in KEYS:
            nearest = difflib.get_close_matches(str(key), KEYS, n=1, cutoff=0)[0]
            raise UserError(f"Unknown key {key} in {path}; the nearest there is: {nearest}.")
    for key in ("program", "method", "metric", "parameters"):
        if not content.get(key):
            raise UserError(f"{path} lacks {key!r}: see configs/sweeps for how it is written.")


def _needs_server(what: str, path: Path) -> UserError:
    return UserError(
        f"{what} in {path} needs wandb's server: take it out, or search there with "
        f"`wandb sweep {path}` and the `wandb agent` command that this prints."
    )


def _method(method, path: Path) -> str:
    if method == "bayes":
        raise UserError(
            f"method bayes in {path} needs wandb's server: write method: random, or search there "
            f"with `wandb sweep {path}` and the `wandb agent` command that this prints."
        )
    return _one_of(METHODS, method, f"method in {path}")


def _one_of(allowed: tuple[str, ...], value, where: str) -> str:
    if value not in allowed:
        raise UserError(f"{where} must be {' or '.join(allowed)}, got {value!r}.")
    return value


def _metric(metric, path: Path) -> tuple[str, str]:
    """Name and goal."""
    if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
        raise UserError(
            f"metric in {path} must have a name, that of a number in the runs' summary.json, "
            "and a goal: {name: test_accuracy, goal: maximize}."
        )
    for key in metric.keys() - {"name", "goal"}:
        raise _needs_server(f"metric.{key}", path)
    return metric["name"], _one_of(GOALS, metric.get("goal", "minimize"), f"metric.goal in {path}")


def _run_cap(number, path: Path) -> int | None:
    if number is not None and (not isinstance(number, int) or number < 1):
        raise UserError(f"run_cap in {path} must be a whole number of runs, got {number!r}.")
    return number


def _arguments(command, path: Path) -> list[str]:
    """The words of `command` that go to the script besides ${args}."""
    if command is None:
        return []
    wanted = f"command in {path} must be a list with ${{program}} and, after it, ${{args}}"
    if not isinstance(command, list) or not {"${program}", "${args}"} <= {str(w) for w in command}:
        raise UserError(f"{wanted}: other forms of the arguments leave some of them out.")
    words = [str(word) for word in command]
    after = [word for word in words[words.index("${program}") + 1 :] if word != "${args}"]
    for word in after:
        if "${" in word:
            raise UserError(f"{wanted}; {word} has no meaning here.")
    return after


# ---- its parameters


def _parameters(parameters, path: Path) -> tuple[dict[str, Axis], dict]:
    """What varies, and what is the same for all runs."""
    if not isinstance(parameters, dict):
        raise UserError(f"parameters in {path} must hold lines 'setting: {{values: [...]}}'.")
    axes, fixed = {}, {}
    for name, given in parameters.items():
        where = f"parameters.{name} in {path}"
        if name in SET_BY_THE_SWEEP:
            raise UserError(f"{where} is set by the sweep itself: take it out.")
        distribution = _distribution(given, where)
        if distribution == "constant":
            fixed[name] = given["value"]
        elif name in SAME_FOR_ALL_RUNS:
            raise UserError(f"{where} must be the same for all runs: give it one value.")
        else:
            axes[name] = _axis(distribution, given, where)
    if not axes:
        raise UserError(f"Nothing varies in {path}: give a parameter several values, or a range.")
    return axes, fixed


def _distribution(given, where: str) -> str:
    """The kind of parameter that is given, with no key too many or too few."""
    if not isinstance(given, dict):
        raise UserError(f"{where} must be {{value: …}}, {{values: […]}} or {{min: …, max: …}}.")
    if "parameters" in given:
        raise UserError(f"{where} is nested, but settings are flat: write its parts beside others.")
    name = given.get("distribution") or _usual_distribution(given)
    if name not in DISTRIBUTIONS:
        raise UserError(f"{where}: the distribution is one of {', '.join(DISTRIBUTIONS)}.")
    keys, optional = DISTRIBUTIONS[name], {"distribution", "q"}
    if not keys - optional <= given.keys() <= keys | {"distribution"}:
        raise UserError(
            f"{where}: {name} is given by {' and '.join(sorted(keys))}, "
            f"not by {', '.join(sorted(given.keys() - {'distribution'})) or 'nothing'}."
        )
    return name


def _usual_distribution(given: dict) -> str:
    """As wandb has it: a range between whole numbers has whole numbers."""
    if "value" in given:
        return "constant"
    if "values" in given:
        return "categorical"
    whole = all(type(given.get(key)) is int for key in ("min", "max"))
    return "int_uniform" if whole else "uniform"


def _axis(distribution: str, given: dict, where: str) -> Axis:
    if distribution == "categorical":
        values = given["values"]
        if not isinstance(values, list) or not values:
            raise UserError(f"{where}: values must be a list with something in it, got {values!r}.")
        return Axis(distribution, values)
    low, high, step = (_number(given, key, where) for key in ("min", "max", "q"))
    if not low < high:
        raise UserError(f"{where}: min must be less than max, got {low} and {high}.")
    if distribution == "int_uniform" and not all(type(end) is int for end in (low, high)):
        raise UserError(f"{where}: int_uniform goes from a whole number to a whole number.")
    if distribution == "log_uniform_values" and not low > 0:
        raise UserError(f"{where}: log_uniform_values must begin above 0, got {low}.")
    if not step > 0:
        raise UserError(f"{where}: q must be greater than 0, got {step}.")
    axis = Axis(distribution, low=low, high=high, step=step)
    if distribution == "q_uniform" and not axis.factors:
        raise UserError(f"{where}: there is no multiple of q, {step}, from {low} to {high}.")
    return axis


def _number(given: dict, key: str, where: str) -> float:
    value = given.get(key, 1)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        hint = ""
        if isinstance(value, str) and "e" in value.lower():
            hint = " (in YAML, 1e-3 is a text and 1.0e-3 a number)"
        raise UserError(f"{where}: {key} must be a number, got {value!r}{hint}.")
    return value


def _check_grid(axes: dict[str, Axis], path: Path) -> None:
    for name, axis in axes.items():
        if axis.distribution not in ("categorical", "int_uniform"):
            raise UserError(
                f"parameters.{name} in {path}: a grid has no end of points in a range; "
                "list values, or write method: random."
            )


# ---- the points


def choose_points(sweep: Sweep, num_runs: int | None, seed: int) -> list[dict]:
    """The settings that vary, of each run: the whole grid, or as many draws as asked for."""
    count = num_runs or sweep.run_cap
    if sweep.method == "grid":
        return list(itertools.islice(_grid(sweep.axes), count))
    if count is None:
        raise UserError(
            f"A random search needs an end: give --num_runs, or write run_cap in {sweep.path}."
        )
    points = list(itertools.islice(_draws(sweep.axes, seed), count))
    if len(points) < count:
        print(f"{sweep.path} has no more than {len(points)} different points.")
    return points


def _grid(axes: dict[str, Axis]):
    values = [axis.values or range(axis.low, axis.high + 1) for axis in axes.values()]
    for point in itertools.product(*values):
        yield dict(zip(axes, point, strict=True))


def _draws(axes: dict[str, Axis], seed: int):
    """Different points: with its seed, a run would only repeat what it gave before."""
    random, seen, repeats = np.random.default_rng(seed), set(), 0
    while repeats < MOST_REPEATS:
        point = {name: axis.draw(random) for name, axis in axes.items()}
        repeats += 1
        if point_label(point) not in seen:
            seen.add(point_label(point))
            repeats = 0
            yield point


def point_label(chosen: dict) -> str:
    """Return the name of a point, which is that of its run."""
    return ",".join(f"{key}={value}" for key, value in chosen.items()).replace("/", "_")


def as_arguments(settings: dict) -> list[str]:
    """Settings as words of a command line, in the form that a wandb agent gives them."""
    return [f"--{name}={value}" for name, value in settings.items()]
