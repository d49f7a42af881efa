"""Run the paper's experiments in order, and write a report of them beside the published numbers.

    python reproduce.py                      the quick preset: smaller, the same in kind; 5 minutes
    python reproduce.py --preset laptop      the paper's network, data and posterior; hours
    python reproduce.py --preset paper       the paper's settings to the letter: HMC takes days
    python reproduce.py --only figure3       one artefact, with the runs it needs
    python reproduce.py --only report        the report again, of the runs that are there

Runs are kept in <out_dir>/<preset>/. What is finished is not run again, what was interrupted goes
on where it was, and an experiment that fails stops only those that need it. Leaves
<results_dir>/<preset>/report.html with numbers.json and figures/.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from utils.claims import judge_all
from utils.data import FILES
from utils.progress import duration
from utils.report import write_report
from utils.results import Results, open_results

STOPPED_BY_USER = 130  # a script's exit code after Ctrl-C
ROOT = Path(__file__).resolve().parent
MINUTE, HOUR = 60, 3600


@dataclass(frozen=True)
class Plan:
    """A script's config in a preset, and what it takes on an idle machine of 2 cores."""

    config: str
    seconds: float


@dataclass(frozen=True)
class Step:
    script: str
    kind: str  # how its run directory begins
    plans: dict[str, Plan]  # by preset
    needs: tuple[str, ...] = ()  # kinds of runs


PRESETS = ("quick", "laptop", "paper")


def plans(quick: Plan, laptop: Plan, paper: Plan | None = None) -> dict[str, Plan]:
    """By preset; without a plan of its own the paper preset has the laptop's."""
    return dict(zip(PRESETS, (quick, laptop, paper or laptop), strict=True))


STEPS = (
    Step("MNIST_Ensemble", "ensemble", plans(Plan("quick", 8), Plan("paper", 4 * MINUTE))),
    Step("MNIST_VI", "VI", plans(Plan("quick", 13), Plan("paper", 2 * MINUTE))),
    Step(
        "MNIST_net_matching", "net_matching",
        plans(Plan("quick", 15), Plan("paper", 12 * MINUTE)),
    ),
    Step(
        "MNIST_number_of_transpositions", "transpositions",
        plans(Plan("quick", 24), Plan("paper", 70 * MINUTE)),
    ),
    Step(
        "MNIST_HMC", "HMC",
        plans(Plan("quick", 147), Plan("laptop", 3.3 * HOUR), Plan("test3.2", 54 * HOUR)),
    ),
    Step(
        "MNIST_eval", "eval",
        plans(Plan("quick", 26), Plan("laptop", 8 * MINUTE), Plan("paper", 15 * MINUTE)),
        needs=("HMC", "ensemble", "VI"),
    ),
    Step(
        "MNIST_eval_pruning", "eval_pruning",
        plans(Plan("quick", 13), Plan("paper", MINUTE)),
        needs=("eval",),
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
    options = read_options()
    steps = steps_for(options.only)
    results = find_results(options)
    announce(steps, results)
    failed = run_steps(steps, results, options)
    tell(results, options)
    if failed:
        names = ", ".join(step.script for step in failed)
        sys.exit(f"\nFailed, see above: {names}. Run the same command to try again.")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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


def announce(steps: list[Step], results: Results) -> None:
    """The plan: what is finished, begun and to do, and how long it takes."""
    left = seconds_left(steps, results)
    for step in steps:
        run = results.runs[step.kind]
        state = "finished" if run.finished else "begun" if run.begun else ""
        print(f"{step.script:34} {duration(left[step.kind]):>12}  {state}")
    print(f"{'in total about':34} {duration(sum(left.values())):>12}", flush=True)


def seconds_left(steps: list[Step], results: Results) -> dict[str, float]:
    """Of every step: as planned, by the pace that finished steps have had here."""
    planned = {step.kind: step.plans[results.preset].seconds for step in steps}
    done = [kind for kind in planned if results.runs[kind].finished]
    pace = 1.0
    if done:
        pace = sum(results.runs[k].seconds for k in done) / sum(planned[k] for k in done)
    return {
        kind: 0.0 if kind in done else max(pace * seconds - results.runs[kind].seconds, 0.0)
        for kind, seconds in planned.items()
    }


# ---- doing it


def run_steps(steps: list[Step], results: Results, options: argparse.Namespace) -> list[Step]:
    """Run what is not finished; the steps that failed."""
    failed: list[Step] = []
    for number, step in enumerate(steps):
        run = results.runs[step.kind]
        title = f"[{number + 1} of {len(steps)}] {step.script}"
        if run.finished:
            print(f"{title}: finished before")
            continue
        lacking = [kind for kind in step.needs if not results.runs[kind].finished]
        if lacking:
            print(f"{title}: left out, for it needs {', '.join(lacking)}", file=sys.stderr)
            failed.append(step)
            continue
        left = seconds_left(steps, results)
        rest = sum(left[later.kind] for later in steps[number:])
        print(
            f"\n{title}: about {duration(left[step.kind])}; to the end {duration(rest)}",
            flush=True,
        )
        if not run_step(step, options):
            failed.append(step)
    return failed


def run_step(step: Step, options: argparse.Namespace) -> bool:
    """Run a script to its end, from wherever it stands; whether that worked."""
    command = [
        sys.executable, str(ROOT / f"{step.script}.py"), "--resume",
        "--config_name", step.plans[options.preset].config, "--run_batch_name", options.preset,
        "--dataset", options.dataset, "--out_dir", options.out_dir, "--data_dir", options.data_dir,
        "--device", options.device, "--wandb", options.wandb,
    ]  # fmt: skip
    code = wait_for(subprocess.Popen(command))
    if code == STOPPED_BY_USER:
        print("\nStopped. Run the same command again to go on.", file=sys.stderr)
        sys.exit(STOPPED_BY_USER)
    return code == 0


def wait_for(process: subprocess.Popen) -> int:
    """Its exit code. Ctrl-C reaches the script as well, which saves its work and then ends."""
    before = signal.signal(signal.SIGTERM, lambda signum, frame: process.terminate())
    stopped = False
    try:
        while True:
            try:
                code = process.wait()
                return STOPPED_BY_USER if stopped else code
            except KeyboardInterrupt:
                stopped = True
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- telling


def results_directory(options: argparse.Namespace) -> Path:
    name = options.preset if options.dataset == "MNIST" else f"{options.preset}-{options.dataset}"
    return Path(options.results_dir) / name


def tell(results: Results, options: argparse.Namespace) -> None:
    """Write the report; say how the paper's claims have fared and where it is."""
    print(f"\nThe paper's claims, preset {options.preset} on {options.dataset}")
    for verdict in judge_all(results):
        print(f"{verdict.mark:15} {verdict.claim.where:10} {verdict.claim.text}")
    print(f"\nThe report: {write_report(results, results_directory(options))}")


if __name__ == "__main__":
    main()
