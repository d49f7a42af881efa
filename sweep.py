"""Run a sweep on this machine: a script at every point of a grid, or at random points.

    python sweep.py configs/sweeps/hmc_step_size.yaml
    python sweep.py configs/sweeps/vi_learning_rate.yaml --jobs 2
    python sweep.py configs/sweeps/ensemble_prior.yaml --num_runs 8

FILE is a sweep file of wandb's, which serves `wandb sweep FILE` as well. Every point is a run of
the script in a process and a run directory of its own, named after the point. What is finished is
not run again and what was interrupted goes on, so the same command continues a sweep; a run that
fails does not stop the others.

Leaves in runs/<batch>/sweep-<file's name>/ (the batch is the file's name, unless it or
--run_batch_name says otherwise) sweep.json (settings, metric and seconds of every run), sweep.png
and .pdf (the metric against every setting that varies), and what each run printed, as .log.
"""

import argparse
import json
import os
import runpy
import shlex
import sys
import typing
from dataclasses import dataclass, fields
from pathlib import Path

from utils.report import figures
from utils.report.tables import print_table
from utils.runs.config import Config, Parser, changes, grown_fields, load_config
from utils.runs.errors import UserError
from utils.runs.files import read_mapping, save_figure, save_json
from utils.runs.jobs import Job, run_jobs, threads_for_each
from utils.runs.progress import duration, progress_bar
from utils.runs.run import lock_directory, run_directory
from utils.runs.script import ends_in_a_sentence
from utils.runs.sweeps import Sweep, as_arguments, choose_points, point_label, read_sweep

import yaml

ROOT = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Point:
    """A run of the sweep."""

    chosen: dict  # the settings that vary
    arguments: tuple[str, ...]
    config: Config
    directory: Path

    @property
    def label(self) -> str:
        return point_label(self.chosen)

    @property
    def recorded(self) -> dict:
        """The settings that its run was begun with; none if it has not begun."""
        return read_mapping(self.directory / "config.yaml", yaml.safe_load)

    @property
    def finished(self) -> bool:
        done = (self.directory / "DONE").exists()
        return done and not grown_fields(self.config, self.recorded)


def main(options: argparse.Namespace) -> None:
    sweep = read_sweep(options.file)
    points = plan(sweep, options)
    directory = directory_of(sweep, points)
    directory.mkdir(parents=True, exist_ok=True)
    with lock_directory(directory, "--run_batch_name"):
        announce(sweep, points, directory, options.jobs)
        failures = run_points(sweep, points, directory, options.jobs)
        report(sweep, points, directory, failures)
    if failures:
        sys.exit(f"\n{len(failures)} of {len(points)} runs failed: {again()} tries them again.")


def read_options(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog="sweep.py", description=__doc__)
    parser.add_argument("file", metavar="FILE", type=Path, help="a sweep file: configs/sweeps/*")
    parser.add_argument(
        "--jobs", type=count, default=1, metavar="N",
        help="runs side by side, which share the cores (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--num_runs", type=count, metavar="N",
        help="at most so many runs; a random search needs it, or run_cap in the file",
    )  # fmt: skip
    parser.add_argument("--seed", type=seed, default=0, help="of a random search (default: 0)")
    for name, text in (
        ("run_batch_name", "batch of the runs (default: the file's name)"),
        ("out_dir", "where run directories are made (default: runs)"),
        ("data_dir", "where data sets are kept (default: data)"),
        ("wandb", "auto, online, offline or disabled (default: auto)"),
    ):
        parser.add_argument(f"--{name}", metavar="VALUE", help=text)
    return parser.parse_args(arguments)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, got {text!r}")
    return int(text)


def seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of 0 or more, got {text!r}")
    return int(text)


# ---- before the runs


def plan(sweep: Sweep, options: argparse.Namespace) -> list[Point]:
    """Every run of the sweep; whatever is wrong with one of them is said before the first."""
    config_class, kind = script_of(sweep)
    names = ("run_batch_name", "out_dir", "data_dir", "wandb")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    fixed = {"run_batch_name": sweep.name} | sweep.fixed | given
    points = [
        make_point(sweep, config_class, kind, fixed, chosen)
        for chosen in choose_points(sweep, options.num_runs, options.seed)
    ]
    check_distinct(sweep, points)
    for point in points:
        check_unchanged(sweep, point)
        if point.finished:
            check_metric(sweep, point)
    return points


def script_of(sweep: Sweep) -> tuple[type[Config], str]:
    """The settings that the sweep's script has, and the kind of its runs."""
    path, given = ROOT / sweep.program, f"program in {sweep.path} is {sweep.program!r}"
    others = ", ".join(sorted(other.name for other in ROOT.glob("MNIST_*.py") if other != path))
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"{given}, and there is no such script; it can be: {others}.")
    module = runpy.run_path(str(path))
    if "KIND" not in module:
        kind = path.stem.removeprefix("MNIST_")
        raise UserError(
            f"{given}, which lacks KIND, the constant that says of what kind its runs are: write "
            f'KIND = "{kind}" there, or give another program: {others}.'
        )
    return typing.get_type_hints(module["main"])["config"], module["KIND"]


def make_point(
    sweep: Sweep, config_class: type[Config], kind: str, fixed: dict, chosen: dict
) -> Point:
    settings = fixed | chosen | {"run_name": point_label(chosen)}
    arguments = [*sweep.arguments, *as_arguments(settings), "--resume"]
    try:
        config = load_config(config_class, Path(sweep.program).stem, arguments)
    except UserError as error:
        raise UserError(f"{sweep.path}, {point_label(chosen)}: {error}") from None
    return Point(chosen, tuple(arguments), config, run_directory(config, kind))


def check_distinct(sweep: Sweep, points: list[Point]) -> None:
    directories = [point.directory for point in points]
    for directory in directories:
        if directories.count(directory) > 1:
            raise UserError(f"{sweep.path} has a point twice: {directory.name}. Keep one of them.")


def check_unchanged(sweep: Sweep, point: Point) -> None:
    """A run is not taken for this point's if it was begun with other settings."""
    was = point.recorded
    told = changes(point.config, was) + changed_inputs(sweep, point) if was else []
    if told:
        raise UserError(
            f"{point.directory} was begun with other settings ({', '.join(told)}): "
            "give this sweep another --run_batch_name."
        )


def changed_inputs(sweep: Sweep, point: Point) -> list[str]:
    """Of what the script reads, such as an evaluation's runs, what the file names anew.

    Runs remember such inputs themselves, but those that are finished are not asked.
    """
    shared = {field.name for field in fields(Config)}
    names = [
        field.name
        for field in fields(point.config)
        if field.metadata["changeable"] and field.name in sweep.fixed.keys() - shared
    ]
    was, now = point.recorded, point.config
    return [
        f"{name} was {was.get(name)} and is {getattr(now, name)}"
        for name in names
        if was.get(name) != getattr(now, name)
    ]


def directory_of(sweep: Sweep, points: list[Point]) -> Path:
    return points[0].directory.parent / f"sweep-{sweep.name}"


def announce(sweep: Sweep, points: list[Point], directory: Path, jobs: int) -> None:
    finished = sum(point.finished for point in points)
    print(
        f"{len(points)} runs of {sweep.program}, {finished} of them finished already; "
        f"{jobs} at a time. What they print is in {directory}."
    )


# ---- the runs


def run_points(sweep: Sweep, points: list[Point], directory: Path, jobs: int) -> list[Point]:
    """Run what is not finished; the points that failed."""
    by_job = {job_for(sweep, point, directory): point for point in points if not point.finished}
    failures = []
    save_results(sweep, points, directory)
    with progress_bar(len(points), "sweep", len(points) - len(by_job), unit="run") as bar:

        def on_end(job: Job) -> None:
            point = by_job[job]
            if point.finished:
                check_metric(sweep, point)
                bar.write(f"{point.label}: {sweep.metric} {show(metric_of(sweep, point))}")
            else:
                failures.append(point)
                bar.write(f"{point.label} failed: {last_line(job.log)}")
            save_results(sweep, points, directory)
            best = min(points, key=lambda point: rank(sweep, point))
            bar.set_postfix({"best": show(metric_of(sweep, best))}, refresh=False)
            bar.update()

        environment = threads_for_each(jobs) | sweep.environment | {"PYTHONUNBUFFERED": "1"}
        run_jobs(list(by_job), jobs, environment, on_end)
    return failures


def job_for(sweep: Sweep, point: Point, directory: Path) -> Job:
    command = (sys.executable, str(ROOT / sweep.program), *point.arguments)
    return Job(command, directory / f"{point.label}.log")


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'it printed nothing'} (see {log})"


def check_metric(sweep: Sweep, point: Point) -> None:
    """A metric that the script does not have is said after the first run, not after the last."""
    summary = summary_of(point)
    if not summary:
        raise UserError(
            f"{point.directory} is damaged: it is finished, and has no numbers in summary.json. "
            f"Move it away, and go on with: {again()}"
        )
    if sweep.metric not in flat(summary):
        numbers = [name for name, value in flat(summary).items() if isinstance(value, (int, float))]
        raise UserError(
            f"{point.directory}/summary.json has no {sweep.metric!r}, the metric of {sweep.path}; "
            f"it has: {', '.join(numbers)}. Name one of them, and go on with: {again()}"
        )


def metric_of(sweep: Sweep, point: Point) -> float | None:
    """What a finished run has reached; None for one that has no number there, and before."""
    value = flat(summary_of(point)).get(sweep.metric) if point.finished else None
    return value if isinstance(value, (int, float)) else None


def summary_of(point: Point) -> dict:
    return read_mapping(point.directory / "summary.json", json.loads)


def flat(summary: dict, prefix: str = "") -> dict:
    """{"a.b": value} of {"a": {"b": value}}."""
    entries = {}
    for name, value in summary.items():
        entries |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {}
        entries |= {} if isinstance(value, dict) else {f"{prefix}{name}": value}
    return entries


# ---- the results


def save_results(sweep: Sweep, points: list[Point], directory: Path) -> None:
    results = {
        "file": str(sweep.path), "program": sweep.program, "method": sweep.method,
        "metric": sweep.metric, "goal": sweep.goal, "varied": list(sweep.axes),
        "runs": [
            {
                "directory": point.directory.name,
                "settings": point.chosen,
                "finished": point.finished,
                "value": metric_of(sweep, point),
                "seconds": seconds_of(point),
            }
            for point in points
        ],
    }  # fmt: skip
    save_json(directory / "sweep.json", results)


def seconds_of(point: Point) -> float | None:
    meta = read_mapping(point.directory / "meta.json", json.loads)
    return meta.get("seconds") if point.finished else None


def report(sweep: Sweep, points: list[Point], directory: Path, failures: list[Point]) -> None:
    """The runs as a table, the best first; the figure; and how to send them to wandb."""
    lines = [[*sweep.axes, f"{sweep.metric} ({sweep.goal})", "time"]]
    for point in sorted(points, key=lambda point: rank(sweep, point)):
        value = "failed" if point in failures else show(metric_of(sweep, point))
        seconds = seconds_of(point)
        lines.append([
            *(str(setting) for setting in point.chosen.values()),
            value,
            "–" if seconds is None else duration(seconds),
        ])  # fmt: skip
    save_figure(directory / "sweep", figures.sweep(directory / "sweep.json"))
    print()
    print_table(lines)
    batch = directory.parent
    if any(batch.glob("*/wandb/offline-run-*")):
        print(f"To send the runs to wandb: wandb sync {shlex.quote(str(batch))}/*/wandb/latest-run")
    print(f"Saved in {directory}")


def rank(sweep: Sweep, point: Point) -> tuple[bool, float]:
    """Sorts the best value first, and what has none last."""
    value = metric_of(sweep, point)
    return value is None, 0 if value is None else -value if sweep.maximize else value


def show(value: float | None) -> str:
    return "none" if value is None else f"{value:.5g}"


def again() -> str:
    return shlex.join(["python", os.path.basename(sys.argv[0]), *sys.argv[1:]])


if __name__ == "__main__":
    with ends_in_a_sentence("sweep", again()):
        main(read_options(sys.argv[1:]))
