"""Run a sweep on this machine: a script at every point of a grid, or at random points.

    python sweep.py configs/sweeps/hmc_step_size.yaml
    python sweep.py configs/sweeps/vi_learning_rate.yaml --jobs 2
    python sweep.py configs/sweeps/ensemble_prior.yaml --num_runs 8

FILE has the format of `wandb sweep FILE`. Every point is a run of the script, in its own process
and run directory. The same command continues a sweep: finished runs are kept, interrupted ones
are resumed, and a run that fails does not stop the others.

Writes to runs/<batch>/sweep-<file's name>/ (the batch is the file's name, unless the file or
--run_batch_name gives another): sweep.json (settings, metric and seconds of every run), sweep.png
and .pdf (the metric against the settings), and the output of every run as .log.
"""

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

from utils.report.sweep_figure import sweep_figure
from utils.report.tables import Table
from utils.runs.files import save_figure
from utils.runs.jobs import run_jobs, threads_for_each
from utils.runs.locks import lock_directory
from utils.runs.lookup import run_directory
from utils.runs.points import Point, save_progress
from utils.runs.progress import duration, progress_bar
from utils.runs.script import ends_in_a_sentence, settings_for
from utils.settings.config import Parser, add_shared_flags, config_names
from utils.settings.errors import UserError
from utils.settings.sweeps import Sweep, as_arguments, choose_points, point_label, read_sweep
from utils.settings.wording import plural

ROOT = Path(__file__).resolve().parent
SHARED_OPTIONS = {  # passed on to every run, with their defaults
    "run_batch_name": "the file's, or else its name", "out_dir": "the file's, or else runs",
    "data_dir": "data", "wandb": "auto",
}  # fmt: skip


def main(options: argparse.Namespace) -> None:
    sweep = read_sweep(find_file(options.file))
    points = plan_points(sweep, options)
    directory = points[0].directory.parent / f"sweep-{sweep.name}"
    directory.mkdir(parents=True, exist_ok=True)
    with lock_directory(directory, "--run_batch_name"):
        failed = run_points(sweep, points, directory, options.jobs)
        report(sweep, points, directory)
    if failed:
        sys.exit(f"\n{failed} of {len(points)} runs failed: {again()} tries them again.")


def read_options(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog="sweep.py", description=__doc__)
    parser.add_argument("file", metavar="FILE", help="a sweep file, or its name in configs/sweeps")
    for name, default, text in (
        ("jobs", 1, "runs at a time, which share the cores (default: 1)"),
        ("num_runs", None, "at most so many runs; random search needs it, or the file's run_cap"),
        ("seed", 0, "seed of a random search (default: 0)"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="INT", help=text)
    add_shared_flags(parser, SHARED_OPTIONS)
    options = parser.parse_args(arguments)
    num_runs = 1 if options.num_runs is None else options.num_runs
    if min(options.jobs, num_runs) < 1 or options.seed < 0:
        raise UserError("--jobs and --num_runs must be at least 1, and --seed at least 0.")
    return options


# ---- before the runs


def find_file(name: str) -> Path:
    folder = ROOT / "configs" / "sweeps"
    for path in (Path(name), Path(f"{name}.yaml"), folder / f"{name}.yaml"):
        if path.is_file():
            return path
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    raise UserError(f"There is no sweep file {name}; configs/sweeps has {', '.join(names)}.")


def plan_points(sweep: Sweep, options: argparse.Namespace) -> list[Point]:
    """Return all runs of the sweep, after checking the settings of each."""
    script = find_script(sweep)
    given = {name: getattr(options, name) for name in SHARED_OPTIONS}
    given = {name: value for name, value in given.items() if value is not None}
    points = {}
    for settings in choose_points(sweep, options.num_runs, options.seed):
        label = point_label(settings)
        fixed = {"run_batch_name": sweep.name} | sweep.fixed | given | {"run_name": label}
        arguments = [*sweep.arguments, *as_arguments(fixed | settings), "--resume"]
        try:
            config, kind = settings_for(script, arguments)
        except UserError as error:
            raise UserError(f"{sweep.path}, {label}: {error}") from None
        if label in points:
            raise UserError(f"{sweep.path} has a point twice: {label}. Keep one of them.")
        points[label] = Point(settings, arguments, config, run_directory(config, kind))
        points[label].check_unchanged()
        check_metric(sweep, points[label])
    return list(points.values())


def find_script(sweep: Sweep) -> Path:
    """Return the script that is swept; scripts have their settings in configs/<script>/."""
    scripts = [file.name for file in sorted(ROOT.glob("*.py")) if config_names(file.stem)]
    if sweep.program not in scripts:
        raise UserError(
            f"program in {sweep.path} must be one of {', '.join(scripts)}, got {sweep.program!r}."
        )
    return ROOT / sweep.program


# ---- the runs


def run_points(sweep: Sweep, points: list[Point], directory: Path, at_a_time: int) -> int:
    """Run the points that are not finished, and return how many failed."""
    waiting = {directory / f"{point.label}.log": point for point in points if not point.finished}
    program = (sys.executable, str(ROOT / sweep.program))
    commands = {log: (*program, *point.arguments) for log, point in waiting.items()}
    environment = threads_for_each(at_a_time) | sweep.environment | {"PYTHONUNBUFFERED": "1"}
    done, failed = len(points) - len(waiting), []
    print(
        f"{plural(len(points), 'run')} of {sweep.program}, {done} of them finished already; "
        f"{at_a_time} at a time. Their output is in {directory}."
    )
    save_progress(directory / "sweep.json", sweep, points)
    with progress_bar(len(points), "sweep", done, unit="run") as bar:

        def on_end(log: Path) -> None:
            check_metric(sweep, waiting[log])
            if not waiting[log].finished:
                failed.append(log)
                bar.write(f"{log.stem} failed: {last_line(log)} (see {log})")
            best = save_progress(directory / "sweep.json", sweep, points)[0]
            bar.set_postfix({"best": metric_text(best["value"])}, refresh=False)
            bar.update()

        run_jobs(commands, at_a_time, environment, on_end)
    return len(failed)


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def check_metric(sweep: Sweep, point: Point) -> None:
    """Report a metric that the script does not have after the first run, not after the last."""
    if point.finished and sweep.metric not in point.metrics:
        known = ", ".join(point.metrics) or "none at all"
        raise UserError(
            f"{point.directory} has no number {sweep.metric!r}, the metric of {sweep.path}, but "
            f"{known}. Name one of them and continue with: {again()}"
        )


# ---- the results


def report(sweep: Sweep, points: list[Point], directory: Path) -> None:
    """Print a table of the runs, the best first, and draw the figure."""
    rows = []
    for run in save_progress(directory / "sweep.json", sweep, points):
        value = metric_text(run["value"]) if run["finished"] else "failed"
        time = "–" if run["seconds"] is None else duration(run["seconds"])
        rows.append([*map(str, run["settings"].values()), value, time])
    save_figure(directory / "sweep", sweep_figure(directory / "sweep.json"))
    Table([*sweep.axes, f"{sweep.metric} ({sweep.goal})", "time"], rows).print()
    if re.search("test|accuracy", sweep.metric.rpartition(".")[2]):
        print(
            f"\n{sweep.metric} is a test score. The run with the best one was chosen by it, so its "
            "score is biased: do not report it as an estimate for unseen data."
        )
    batch = directory.parent
    if any(batch.glob("*/wandb/offline-run-*")):
        print(f"To send the runs to wandb: wandb sync {shlex.quote(str(batch))}/*/wandb/latest-run")
    print(f"Saved in {directory}")


def metric_text(value: float | None) -> str:
    return "none" if value is None else f"{value:.5g}"


def again() -> str:
    return shlex.join(["python", os.path.basename(sys.argv[0]), *sys.argv[1:]])


if __name__ == "__main__":
    with ends_in_a_sentence("sweep", again()):
        main(read_options(sys.argv[1:]))
