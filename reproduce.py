"""Run the paper's experiments in order, and write a report of them beside the published numbers.

    python reproduce.py                      the quick preset: smaller, the same in kind; minutes
    python reproduce.py --preset laptop      the paper's network, data and posterior; hours
    python reproduce.py --preset paper       the paper's settings to the letter: days
    python reproduce.py --only figure3       one artefact, with the runs it needs
    python reproduce.py --only report        the report again, of the runs that are there

Runs are kept in <out_dir>/<preset>/. What is finished is not run again, what was interrupted goes
on where it was, and an experiment that fails stops only those that need it. Leaves
<results_dir>/<preset>/report.html with numbers.json and figures/; where that holds the report of
more than was run here, it is kept and ours is in <preset>-partial/.
"""

import argparse
import importlib
import json
import shlex
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from papers.compact.claims import DAMAGED, UNKNOWN, judge_all
from utils.data.datasets import FILES
from utils.report.page import write_report
from utils.report.results import Results, RunResult, open_results
from utils.runs.compute import choose_device
from utils.runs.config import Config, Parser, changes, grown_fields, load_config
from utils.runs.errors import UserError
from utils.runs.jobs import start_child
from utils.runs.progress import duration
from utils.runs.script import Stopped, ends_in_a_sentence

STOPPED_BY_USER = 130  # a script's exit code after Ctrl-C
ROOT = Path(__file__).resolve().parent
MINUTE, HOUR = 60, 3600
SECONDS_BETWEEN_LINES = 10 * MINUTE  # that tell how far all is while a script runs


@dataclass(frozen=True)
class Plan:
    """A script's config in a preset, and what it takes on two idle cores of a Zen 5."""

    config: str
    seconds: float


@dataclass(frozen=True)
class Step:
    script: str
    kind: str  # how its run directory begins
    plans: dict[str, Plan]  # by preset
    inputs: tuple[tuple[str, str], ...] = ()  # its options that take runs, and their kinds

    @property
    def needs(self) -> tuple[str, ...]:
        """Kinds of runs."""
        return tuple(kind for option, kind in self.inputs)


@dataclass(frozen=True)
class Task:
    """A step of this call."""

    step: Step
    run: RunResult
    config: Config
    arguments: list[str]

    @property
    def kind(self) -> str:
        return self.step.kind

    @property
    def finished(self) -> bool:
        """With all that is asked for now, if it is what is asked for."""
        return self.run.finished and not grown_fields(self.config, self.run.config)

    @property
    def changes(self) -> list[str]:
        """Settings that make the run that is there another one than is asked for."""
        return changes(self.config, self.run.config)


PRESETS = ("quick", "laptop", "paper")


def plans(quick: Plan, laptop: Plan, paper: Plan | None = None) -> dict[str, Plan]:
    """By preset; without a plan of its own the paper preset has the laptop's."""
    return dict(zip(PRESETS, (quick, laptop, paper or laptop), strict=True))


STEPS = (
    Step("MNIST_Ensemble", "ensemble", plans(Plan("quick", 6), Plan("paper", 2 * MINUTE))),
    Step("MNIST_VI", "VI", plans(Plan("quick", 6), Plan("paper", 2 * MINUTE))),
    Step(
        "MNIST_net_matching", "net_matching",
        plans(Plan("quick", 6), Plan("paper", 5 * MINUTE)),
    ),
    Step(
        "MNIST_number_of_transpositions", "transpositions",
        plans(Plan("quick", 12), Plan("paper", 34 * MINUTE), Plan("bands", 5 * 34 * MINUTE)),
    ),
    Step(
        "MNIST_HMC", "HMC",
        plans(Plan("quick", 57), Plan("laptop", 1.6 * HOUR), Plan("test3.2", 20 * HOUR)),
    ),
    Step(
        "MNIST_eval", "eval",
        plans(Plan("quick", 20), Plan("laptop", 5 * MINUTE), Plan("paper", 11 * MINUTE)),
        inputs=(("hmc", "HMC"), ("ensemble", "ensemble"), ("vi", "VI")),
    ),
    Step(
        "MNIST_eval_pruning", "eval_pruning",
        plans(Plan("quick", 9), Plan("paper", MINUTE)),
        inputs=(("eval", "eval"),),
    ),
)  # fmt: skip

# What --only takes, and the runs it is made from.
ARTEFACTS = {
    "table1": ("eval",),
    "figure2": ("net_matching",),
    "figure3": ("net_matching", "transpositions"),
    "figure4": ("eval",),
    "figure5": ("eval_pruning",),
    "report": (),
} | {step.kind: (step.kind,) for step in STEPS}


def main() -> None:
    with ends_in_a_sentence("reproduce.py", shlex.join(["python", *sys.argv])):
        reproduce(read_options())


def reproduce(options: argparse.Namespace) -> None:
    results = find_results(options)
    check_places(options)
    if options.only == ["report"] and not results.begun():
        raise UserError(
            f"There are no runs to report in {Path(options.out_dir) / options.preset}: make them "
            "by leaving --only out, or give the --out_dir that they are in."
        )
    tasks = plan(steps_for(options.only), results, options)
    announce(tasks, results, asked_for(tasks, results, options))
    failed = run_all(tasks, results, options)
    tell(results, write_report(results, report_directory(results, options)))
    if failed:
        names = ", ".join(task.step.script for task in failed)
        raise UserError(f"failed, see above: {names}. The same command tries again.")


def read_options() -> argparse.Namespace:
    parser = Parser(prog="reproduce.py", description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="quick", help="default: quick")
    parser.add_argument(
        "--only", nargs="+", choices=ARTEFACTS, metavar="ARTEFACT",
        help=f"only these, with what they need: {', '.join(ARTEFACTS)}",
    )  # fmt: skip
    parser.add_argument(
        "--dataset", choices=FILES, default="MNIST", help="default: MNIST, as in the paper"
    )
    parser.add_argument("--out_dir", default="runs", help="where runs are kept (default: runs)")
    parser.add_argument(
        "--results_dir", default="results", help="where reports are kept (default: results)"
    )
    parser.add_argument("--data_dir", default="data", help="where data is kept (default: data)")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="run anew what was run with other settings or other runs than it has now",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument("--wandb", default="auto", help="auto, online, offline or disabled")
    return parser.parse_args()


# ---- what is to be done


def steps_for(artefacts: Iterable[str] | None) -> list[Step]:
    """Those that make the artefacts, with all they need, in order; without artefacts all."""
    if artefacts is None:
        return list(STEPS)
    wanted = {kind for name in artefacts for kind in ARTEFACTS[name]}
    for step in reversed(STEPS):  # a step needs only earlier ones
        if step.kind in wanted:
            wanted |= set(step.needs)
    return [step for step in STEPS if step.kind in wanted]


def find_results(options: argparse.Namespace) -> Results:
    names = {
        step.kind: f"{step.kind}-{options.dataset}-{step.plans[options.preset].config}"
        for step in STEPS
    }
    batch = Path(options.out_dir) / options.preset
    return open_results(batch, options.preset, options.dataset, names)


def check_places(options: argparse.Namespace) -> None:
    """Find now what would otherwise stop the last step, hours later."""
    choose_device(options.device)
    for option, path in (("out_dir", options.out_dir), ("results_dir", options.results_dir)):
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"Cannot use {path}: {error.strerror}. Give another --{option}."
            ) from None


def plan(steps: list[Step], results: Results, options: argparse.Namespace) -> list[Task]:
    tasks = []
    for step in steps:
        arguments = arguments_of(step, results, options)
        config = config_of(step, arguments)
        tasks.append(Task(step, results.runs[step.kind], config, arguments))
    return tasks


def arguments_of(step: Step, results: Results, options: argparse.Namespace) -> list[str]:
    shared = ("dataset", "out_dir", "data_dir", "device", "wandb")
    settings = {
        "config_name": step.plans[options.preset].config, "run_batch_name": options.preset,
        **{name: getattr(options, name) for name in shared},
        **{option: results.runs[kind].directory for option, kind in step.inputs},
    }  # fmt: skip
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def config_of(step: Step, arguments: list[str]) -> Config:
    """The settings that the step's script would have."""
    config_class = typing.get_type_hints(importlib.import_module(step.script).main)["config"]
    return load_config(config_class, step.script, arguments)


def asked_for(tasks: list[Task], results: Results, options: argparse.Namespace) -> dict[str, str]:
    """`to_run`, where the user wants all that is to be made anew to be so."""
    todo = to_run(tasks, results)
    told = [
        f"{task.run.directory.name}: {todo[task.kind]}" for task in tasks if todo.get(task.kind)
    ]
    if told and not options.overwrite:
        raise UserError(
            f"Some runs are not what is asked for now ({'; '.join(told)}). To make them anew: "
            f"{shlex.join(['python', *sys.argv, '--overwrite'])}. To keep them, give another "
            "--out_dir."
        )
    return todo


def to_run(tasks: list[Task], results: Results) -> dict[str, str]:
    """Kinds of runs that are still to be made, and why anew; "" where they begin or go on."""
    todo: dict[str, str] = {}
    for task in tasks:
        why = why_anew(task, results, ahead=set(todo))
        if why or not task.finished:
            todo[task.kind] = why
    return todo


def why_anew(task: Task, results: Results, ahead: set[str]) -> str:
    """Empty where the run, if there is one, is of these settings and of the inputs that it has.

    Inputs of the kinds `ahead` will be others than they are.
    """
    if not task.run.begun:
        return ""
    inputs = results.other_inputs(task.kind, task.step.needs)
    inputs |= {
        kind: f"{kind} has yet to be run to its end" for kind in task.step.needs if kind in ahead
    }
    return ", ".join([*task.changes, *inputs.values()])


def announce(tasks: list[Task], results: Results, todo: dict[str, str]) -> None:
    """The plan: what is finished, begun and to do, and how long it takes."""
    left = seconds_left(tasks, results, todo)
    for task in tasks:
        state = "finished" if task.kind not in todo else "begun" if task.run.begun else ""
        state = f"anew, for {todo[task.kind]}" if todo.get(task.kind) else state
        print(f"{task.step.script:34} {duration(left[task.kind]):>12}  {state}")
    print(f"{'in total about':34} {duration(sum(left.values())):>12}", flush=True)


def seconds_left(tasks: list[Task], results: Results, todo: dict[str, str]) -> dict[str, float]:
    """Of every step: as planned, by the pace that finished steps have had here."""
    planned = {task.kind: task.step.plans[results.preset].seconds for task in tasks}
    done = {task.kind: task.run.seconds for task in tasks if task.kind not in todo}
    spent = {task.kind: 0.0 if todo.get(task.kind) else task.run.seconds for task in tasks}
    pace = sum(done.values()) / sum(planned[kind] for kind in done) if done else 1.0
    return {
        kind: 0.0 if kind in done else max(pace * seconds - spent[kind], 0.0)
        for kind, seconds in planned.items()
    }


# ---- doing it


def run_all(tasks: list[Task], results: Results, options: argparse.Namespace) -> list[Task]:
    """Run what is not finished; the tasks that failed."""
    failed: list[Task] = []
    for number, task in enumerate(tasks):
        title = f"[{number + 1} of {len(tasks)}] {task.step.script}"
        todo = asked_for(tasks, results, options)  # runs made just now count
        if task.kind not in todo:
            print(f"{title}: finished before")
            continue
        lacking = [kind for kind in task.step.needs if kind in todo]
        if lacking:
            print(f"{title}: left out, for it needs {', '.join(lacking)}", file=sys.stderr)
            failed.append(task)
            continue
        left = seconds_left(tasks, results, todo)
        later = sum(left[other.kind] for other in tasks[number + 1 :])
        pace = Pace(title, left[task.kind], later)
        print(f"\n{pace.before}", flush=True)
        if run_script(task, anew=bool(todo[task.kind]), on_wait=pace.tell) != 0:
            failed.append(task)
    return failed


@dataclass(frozen=True)
class Pace:
    """How long a step and all after it will take."""

    title: str
    expected: float  # seconds of the step
    later: float  # seconds of the steps after it

    @property
    def before(self) -> str:
        whole = duration(self.expected + self.later)
        return f"{self.title}: about {duration(self.expected)}; to the end {whole}"

    def after(self, seconds: float) -> str:
        told = f"{self.title}: {duration(seconds)} so far"
        if seconds > self.expected:
            return f"{told}, longer than thought; the steps after it {duration(self.later)}"
        whole = duration(self.expected - seconds + self.later)
        return f"{told}, of about {duration(self.expected)}; to the end {whole}"

    def tell(self, seconds: float) -> None:
        """On a line of its own: the script's progress bar goes on in the line after it."""
        print(f"\n{self.after(seconds)}", file=sys.stderr, flush=True)


def run_script(task: Task, anew: bool, on_wait: Callable[[float], None]) -> int:
    """Run a script to its end, anew or from wherever it stands; its exit code."""
    script, how = ROOT / f"{task.step.script}.py", "--overwrite" if anew else "--resume"
    return wait_for(start_child([sys.executable, str(script), how, *task.arguments]), on_wait)


def wait_for(process: subprocess.Popen, on_wait: Callable[[float], None]) -> int:
    """Its exit code. Ctrl-C reaches the script as well, which saves its work and then ends."""
    stopped, started = False, time.monotonic()

    def stop(signum, frame) -> None:
        nonlocal stopped
        stopped = True
        process.terminate()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        while True:
            try:
                code = wait_patiently(process, started, on_wait)
                break
            except KeyboardInterrupt:
                stopped = True
    finally:
        signal.signal(signal.SIGTERM, before)
    if stopped or code == STOPPED_BY_USER:
        raise Stopped
    return code


def wait_patiently(
    process: subprocess.Popen, started: float, on_wait: Callable[[float], None]
) -> int:
    """Its exit code; `on_wait` hears now and then for how many seconds it has run."""
    while True:
        try:
            return process.wait(timeout=SECONDS_BETWEEN_LINES)
        except subprocess.TimeoutExpired:
            on_wait(time.monotonic() - started)


# ---- telling


def report_directory(results: Results, options: argparse.Namespace) -> Path:
    """Where the report goes: not over one of more runs than there are now."""
    name = options.preset if options.dataset == "MNIST" else f"{options.preset}-{options.dataset}"
    directory = Path(options.results_dir) / name
    finished = {kind for kind, run in results.runs.items() if run.finished}
    return (
        directory if finished_in(directory) <= finished else directory.with_name(f"{name}-partial")
    )


def finished_in(directory: Path) -> set[str]:
    """Kinds of the finished runs that a report in this directory tells of.

    All of them, where that cannot be read: it shall not be lost for one of fewer.
    """
    path = directory / "numbers.json"
    if not path.exists():
        return set()
    try:
        runs = json.loads(path.read_text())["runs"]
        return {kind for kind, run in runs.items() if run and run["finished"]}  # null: was damaged
    except DAMAGED:
        return {step.kind for step in STEPS}


def tell(results: Results, report: Path) -> None:
    """How the paper's claims have fared, what to read that with, and where the report is."""
    verdicts = judge_all(results)
    judged = [verdict for verdict in verdicts if verdict.mark != UNKNOWN]
    for verdict in judged:
        print(f"\n{verdict.claim.text}\n    {verdict.mark}: {verdict.evidence}")
    if len(judged) < len(verdicts):
        print(f"\n{len(verdicts) - len(judged)} not measured: the report says why.")
    for outdated in filter(None, map(results.outdated, results.runs)):
        print(f"\n{outdated}")
    print(f"\nThe report: {report}")


if __name__ == "__main__":
    main()
