"""What to run for the papers: their steps as tasks, what is left of them, and for how long."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from utils.report.paper import Paper, Step
from utils.report.results import Results, RunResult, open_results
from utils.runs.script import settings_for
from utils.settings.config import Config, changes, reopening_fields

SCRIPTS = Path(__file__).resolve().parents[1]  # the folder that they are in


@dataclass(frozen=True)
class Task:
    """A step to run now, and its run among those of its paper."""

    step: Step
    results: Results
    config: Config
    arguments: list[str]

    @property
    def run(self) -> RunResult:
        return self.results.runs[self.step.kind]

    @property
    def title(self) -> str:
        return " ".join([self.step.script, *self.step.arguments[:2]])

    @property
    def inputs(self) -> list[RunResult]:
        return [self.results.runs[kind] for kind in self.step.needs]

    @property
    def seconds(self) -> float:
        """Return the time planned."""
        return self.step.plans[self.results.preset].seconds

    @property
    def finished(self) -> bool:
        """Tell whether the run is finished with as much as is asked for now."""
        return self.run.finished and not reopening_fields(self.config, self.run.config)


# ---- steps


def artefacts_of(papers: Iterable[Paper]) -> list[str]:
    """Return all that can be asked for by name: tables, figures, the report, kinds of runs."""
    names = [name for paper in papers for name in paper.artefacts]
    kinds = [step.kind for paper in papers for step in paper.steps]
    return list(dict.fromkeys([*names, "report", *kinds]))


def find_results(paper: Paper, out_dir: str, preset: str, dataset: str) -> Results:
    """Return the paper's runs, whether they exist or not."""
    names = {
        step.kind: f"{step.prefix or step.kind}-{step.dataset or dataset}-"
        f"{step.plans[preset].config}"
        for step in paper.steps
        if preset in step.plans
    }
    return open_results(Path(out_dir) / preset, preset, dataset, names)


# ---- tasks


def plan_tasks(
    papers: list[tuple[Paper, Results]], wanted: dict[str, list[Step]], shared: dict[str, str]
) -> list[Task]:
    """Return the tasks of all papers in order; a run that two papers share is made once.

    `wanted` has the steps by paper, and `shared` the options that every script is given.
    """
    tasks: dict[Path, Task] = {}
    for paper, results in papers:
        for step in wanted.get(paper.name, ()):
            if results.preset in step.plans:
                arguments = arguments_of(step, results, shared)
                task = Task(step, results, config_of(step, arguments), arguments)
                tasks.setdefault(task.run.directory, task)
    return list(tasks.values())


def arguments_of(step: Step, results: Results, shared: dict[str, str]) -> list[str]:
    settings = {
        "config_name": step.plans[results.preset].config, "run_batch_name": results.preset,
        "dataset": step.dataset or results.dataset, **shared,
        **{option: results.runs[kind].directory for option, kind in step.inputs},
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    posteriors = [f"{kind}={results.runs[kind].directory}" for kind in step.posteriors]
    return [*step.arguments, *words, *(["--posteriors", *posteriors] if posteriors else [])]


def config_of(step: Step, arguments: list[str]) -> Config:
    """Return the settings that the step's script will have with these arguments."""
    return settings_for(SCRIPTS / f"{step.script}.py", arguments)[0]


# ---- what is left of them


def to_do(tasks: list[Task]) -> dict[Path, str]:
    """Return the directories of runs to make, each with the reason to redo it, or ""."""
    todo: dict[Path, str] = {}
    for task in tasks:
        reason = why_outdated(task, todo)
        if reason or not task.finished:
            todo[task.run.directory] = reason
    return todo


def why_outdated(task: Task, todo: dict[Path, str]) -> str:
    """Say why a run must be redone: other settings, or other inputs than it was made from."""
    if not task.run.begun:
        return ""
    reasons = task.results.other_inputs(task.step.kind, task.step.needs)
    for run in task.inputs:
        if run.directory in todo:
            unfinished = "an unfinished" if run.begun else "a deleted"
            which = "the old" if todo[run.directory] else unfinished
            reasons[run.kind] = f"made from {which} {run.directory.name}"
    return ", ".join([*changes(task.config, task.run.config), *reasons.values()])


def seconds_left(tasks: list[Task], todo: dict[Path, str]) -> dict[Path, float]:
    """Return the planned seconds, times the pace of what is finished, less those spent already."""
    done = [task for task in tasks if task.run.directory not in todo]
    planned = sum(task.seconds for task in done)
    pace = sum(task.run.seconds for task in done) / planned if done else 1.0
    left = {}
    for task in tasks:
        spent = 0.0 if todo.get(task.run.directory) else task.run.seconds
        left[task.run.directory] = max(pace * task.seconds - spent, 0.0)
    return left | {task.run.directory: 0.0 for task in done}
