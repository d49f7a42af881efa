"""Run the experiments of both papers in order, and write a report with the published numbers.

    python reproduce.py                      the quick preset: smaller, the same in kind; minutes
    python reproduce.py --preset laptop      the papers' networks, data and posteriors; a night
    python reproduce.py --preset paper       exactly paper A's settings; paper B as laptop, and its
                                             ResNet-18 on a GPU; days. Without a GPU add
                                             --paper compact symmetry
    python reproduce.py --paper symmetry     one paper
    python reproduce.py --only figure5       one artefact, with the runs it needs
    python reproduce.py --paper symmetry --only table1    for names that both papers have
    python reproduce.py --only report        the report again, from the runs that exist

Runs are kept in <out_dir>/<preset>/, where papers share them. Finished runs are not repeated,
interrupted ones are resumed, and a script that fails stops only those that need its run. One report
shows all papers that have runs: <out_dir>/<preset>/report/ has report.html, numbers.json and
figures/, or with --results_dir <results_dir>/<preset>/. Data sets other than MNIST are added to the
directory's name.
"""

import argparse
import os
import shlex
import sys
from collections import Counter
from pathlib import Path

from papers import CONCLUSIONS, PAPERS
from papers.tasks import SCRIPTS, Task, artefacts_of, find_results, plan_tasks, seconds_left, to_do
from utils.data.sources import SOURCES
from utils.report.page import write_report
from utils.report.paper import UNKNOWN, Paper, Step, judge
from utils.report.results import Results
from utils.runs.compute import choose_device
from utils.runs.jobs import interrupt_held, start_child, wait_for
from utils.runs.progress import duration
from utils.runs.script import RESUME_COMMAND, ends_in_a_sentence
from utils.settings.config import Parser, add_shared_flags
from utils.settings.errors import UserError
from utils.settings.wording import plural

SHARED_OPTIONS = {  # passed on to every script, with their defaults
    "out_dir": "runs", "data_dir": "data", "device": "auto", "wandb": "auto",
}  # fmt: skip
# TinyImageNet comes as a folder, whose files are not listed; others have test images only.
TRAINABLE = [name for name, each in SOURCES.items() if each.train or each.read_folder]
STEPS = tuple(step for paper in PAPERS for step in paper.steps)
PRESETS = tuple(dict.fromkeys(preset for step in STEPS for preset in step.plans))


def main() -> None:
    with ends_in_a_sentence("reproduce.py", command()):
        reproduce(read_options())


def command(*more: str) -> str:
    return shlex.join(["python", *sys.argv, *more])


def reproduce(options: argparse.Namespace) -> None:
    wanted = wanted_steps(options)
    batch = options.out_dir, options.preset, options.dataset
    papers = [(paper, find_results(paper, *batch)) for paper in PAPERS]
    check_places(options)
    if options.only == ["report"] and not any(results.begun() for _, results in papers):
        raise UserError(
            f"There are no runs to report in {Path(options.out_dir) / options.preset}: make them "
            "by leaving --only out, or give the --out_dir that they are in."
        )
    shared = {name: getattr(options, name) for name in SHARED_OPTIONS}
    tasks = plan_tasks(papers, wanted, shared)
    todo = check_to_do(tasks, options)
    check_gpu(tasks, todo, options)
    announce(tasks, todo, options)
    failed = run_all(tasks, options)
    reported = papers_with_runs(papers, options)
    print_findings(reported)
    report = write_report(reported, report_directory(options), CONCLUSIONS)
    print(f"\nThe report: {report}")
    if failed:
        names = ", ".join(task.title for task in failed)
        raise UserError(f"failed, see above: {names}. The same command tries again.")


def read_options() -> argparse.Namespace:
    parser = Parser(prog="reproduce.py", description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="quick", help="default: quick")
    parser.add_argument(
        "--paper", nargs="+", choices=[paper.name for paper in PAPERS], metavar="PAPER",
        help=f"{', '.join(p.name for p in PAPERS)} (default: all)",
    )  # fmt: skip
    listed = "; ".join(f"{paper.name}: {', '.join(artefacts_of([paper]))}" for paper in PAPERS)
    parser.add_argument(
        "--only", nargs="+", metavar="ARTEFACT",
        help="only these, with what they need; of names that several papers have, without --paper "
        f"the first paper's. {listed}",
    )  # fmt: skip
    parser.add_argument(
        "--dataset", choices=TRAINABLE, default="MNIST", help="default: MNIST, as in the papers"
    )
    parser.add_argument(
        "--results_dir", metavar="DIR",
        help="write the report to DIR/<preset>/ instead of beside the runs",
    )  # fmt: skip
    parser.add_argument(
        "--overwrite", action="store_true",
        help="redo runs whose settings or inputs have changed since",
    )  # fmt: skip
    add_shared_flags(parser, SHARED_OPTIONS)
    parser.set_defaults(**SHARED_OPTIONS)
    return parser.parse_args()


# ---- what to do


def wanted_steps(options: argparse.Namespace) -> dict[str, list[Step]]:
    """Return the steps to run, by paper."""
    chosen = [paper for paper in PAPERS if not options.paper or paper.name in options.paper]
    for paper in chosen:
        if options.paper and not any(options.preset in step.plans for step in paper.steps):
            raise UserError(f"{paper.name} has no {options.preset} preset: give --preset paper.")
    if options.only is None:
        return {paper.name: list(paper.steps) for paper in chosen}
    known = artefacts_of(chosen)
    named: dict[str, list[str]] = {paper.name: [] for paper in chosen}
    for name in options.only:
        if name not in known:
            raise UserError(
                f"{' and '.join(named)} {'has' if len(named) == 1 else 'have'} no artefact "
                f"{name!r}: choose from {', '.join(known)}, or give another --paper."
            )
        owners = [paper.name for paper in chosen if name in artefacts_of([paper])]
        for owner in owners if options.paper else owners[:1]:
            named[owner].append(name)
    return {paper.name: paper.steps_for(named[paper.name]) for paper in chosen}


def check_places(options: argparse.Namespace) -> None:
    """Find now what would otherwise stop the last step, hours later."""
    choose_device(options.device)
    places = {"out_dir": options.out_dir, "results_dir": options.results_dir}
    for option, path in places.items():
        try:
            Path(path or ".").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            advice = f"Give another --{option}"
            raise UserError(f"Cannot use {path}: {error.strerror}. {advice}.") from None


def check_gpu(tasks: list[Task], todo: dict[Path, str], options: argparse.Namespace) -> None:
    """Refuse steps that need a GPU where there is none, or where --device leaves it unused."""
    steps = [task.title for task in tasks if task.step.needs_gpu and task.run.directory in todo]
    if steps and choose_device(options.device).type != "cuda":
        raise UserError(
            f"{', '.join(steps)} need a GPU with CUDA, as they are about paper B's ResNet-18, and "
            f"--device {options.device} finds none: leave them out by --paper compact symmetry."
        )


def check_to_do(tasks: list[Task], options: argparse.Namespace) -> dict[Path, str]:
    """Return `to_do`, unless that redoes runs and the user has not asked for it."""
    todo = to_do(tasks)
    outdated = [f"{directory.name}: {reason}" for directory, reason in todo.items() if reason]
    if outdated and not options.overwrite:
        raise UserError(
            f"Some runs are outdated ({'; '.join(outdated)}). To redo them: "
            f"{command('--overwrite')}. To keep them, give another --out_dir."
        )
    return todo


def announce(tasks: list[Task], todo: dict[Path, str], options: argparse.Namespace) -> None:
    """Print the plan: what is finished, begun and to do, and how long it will take."""
    left = seconds_left(tasks, todo)
    for task in tasks:
        directory = task.run.directory
        state = "begun" if task.run.begun else ""
        state = state if directory in todo else "finished"
        state = f"again: {todo[directory]}" if todo.get(directory) else state
        print(f"{task.title:34} {duration(left[directory]):>12}  {state}".rstrip())
    print(f"{'in total about':34} {duration(sum(left.values())):>12}")
    if todo and (len(todo) == len(tasks) or options.dataset != "MNIST"):
        print("The times are for MNIST on two idle cores of a Zen 5; others may take much longer.")
    sys.stdout.flush()


# ---- doing it


def run_all(tasks: list[Task], options: argparse.Namespace) -> list[Task]:
    """Run what is not finished; return the tasks that failed or lacked an input."""
    failed: list[Task] = []
    for number, task in enumerate(tasks):
        title = f"[{number + 1} of {len(tasks)}] {task.title}"
        todo = check_to_do(tasks, options)  # runs made just now count
        if task.run.directory not in todo:
            print(f"{title}: finished before")
            continue
        missing = [run.kind for run in task.inputs if run.directory in todo]
        if missing:
            print(f"{title}: left out, because it needs {', '.join(missing)}", file=sys.stderr)
            failed.append(task)
            continue
        left = seconds_left(tasks, todo)
        own, rest = left[task.run.directory], sum(left[t.run.directory] for t in tasks[number:])
        print(f"\n{title}: about {duration(own)}; to the end {duration(rest)}", flush=True)
        if run_task(task, overwrite=bool(todo[task.run.directory])) != 0:
            failed.append(task)
    return failed


def run_task(task: Task, overwrite: bool) -> int:
    """Run a script from the start or from where it was interrupted; return its exit code."""
    script = SCRIPTS / f"{task.step.script}.py"
    words = [sys.executable, str(script), "--overwrite" if overwrite else "--resume"]
    # A script that is stopped says how to go on: with our command, not with its own.
    environment = os.environ | {RESUME_COMMAND: command()}
    with interrupt_held():
        child = start_child([*words, *task.arguments], env=environment)
    return wait_for(child)


# ---- reporting


def papers_with_runs(
    papers: list[tuple[Paper, Results]], options: argparse.Namespace
) -> list[tuple[Paper, Results]]:
    """Return the papers that were asked for or have runs that no other paper has."""
    uses = Counter(run.directory for _, results in papers for run in results.runs.values())
    return [
        (paper, results)
        for paper, results in papers
        if paper.name in (options.paper or ())
        or any(uses[run.directory] == 1 for run in results.begun())
    ] or papers[:1]


def report_directory(options: argparse.Namespace) -> Path:
    suffix = "" if options.dataset == "MNIST" else f"-{options.dataset}"
    if options.results_dir:
        return Path(options.results_dir) / f"{options.preset}{suffix}"
    return Path(options.out_dir) / options.preset / f"report{suffix}"


def print_findings(papers: list[tuple[Paper, Results]]) -> None:
    """Print how the papers' claims fare, and which runs are outdated."""
    for paper, results in papers:
        verdicts = [judge(claim, results) for claim in paper.claims]
        judged = [verdict for verdict in verdicts if verdict.mark != UNKNOWN]
        print(f"\n{paper.title}")
        for verdict in judged:
            print(f"  {verdict.mark:13} {verdict.claim.text}")
        if len(judged) < len(verdicts):
            missing = plural(len(verdicts) - len(judged), "claim")
            print(f"  Not measured: {missing}. The report says why.")
        for sentence in filter(None, map(results.outdated, results.runs)):
            print(f"  {sentence}")


if __name__ == "__main__":
    main()
