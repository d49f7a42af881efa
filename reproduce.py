"""Run the experiments of the paper in order and print the results beside the published ones.

    python reproduce.py                     the quick preset: smaller, the same in kind
    python reproduce.py --preset laptop     the paper's settings, but for HMC's long trajectories
    python reproduce.py --preset paper      the paper's settings to the letter: HMC takes days

Runs are kept in <out_dir>/<preset>/. What is finished is not run again, what was interrupted goes
on where it was, and an experiment that fails does not stop those that do not need it.
"""

import argparse
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

STOPPED_BY_USER = 130  # a script's exit code after Ctrl-C
ROOT = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Step:
    script: str
    kind: str  # how its run directory begins
    configs: dict[str, str]  # preset: config_name


PRESETS = ("quick", "laptop", "paper")
AS_IN_THE_PAPER = {"quick": "quick", "laptop": "paper", "paper": "paper"}
STEPS = (
    Step("MNIST_Ensemble", "ensemble", AS_IN_THE_PAPER),
    Step("MNIST_VI", "VI", AS_IN_THE_PAPER),
    Step("MNIST_net_matching", "net_matching", AS_IN_THE_PAPER),
    Step("MNIST_number_of_transpositions", "transpositions", AS_IN_THE_PAPER),
    Step("MNIST_HMC", "HMC", {"quick": "quick", "laptop": "laptop", "paper": "test3.2"}),
    Step("MNIST_eval", "eval", {"quick": "quick", "laptop": "laptop", "paper": "paper"}),
    Step("MNIST_eval_pruning", "eval_pruning", AS_IN_THE_PAPER),
)

# Row of the final table: run kind, entry of its summary.json, column and row of Table 1.
COMPARISONS = {
    "ensemble, average of members": (
        "ensemble", "test_accuracy", "ensemble_sample", "sample_accuracy",
    ),
    "HMC, average of samples": ("HMC", "test_accuracy", "hmc_sample", "sample_accuracy"),
    "VI, average of draws": ("VI", "test_accuracy", "vi", "sample_accuracy"),
    "VI, network at the mean": ("VI", "mean_test_accuracy", "vi", "mean_accuracy"),
}  # fmt: skip


def main() -> None:
    options = read_options()
    failed = [step.script for step in STEPS if not run_step(step, options)]
    print_results(options)
    if failed:
        sys.exit(f"\nFailed, see above: {', '.join(failed)}. Run the same command to try again.")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=PRESETS, default="quick", help="default: quick")
    parser.add_argument("--dataset", default="MNIST", help="default: MNIST, as in the paper")
    parser.add_argument("--out_dir", default="runs", help="where runs are kept (default: runs)")
    parser.add_argument("--data_dir", default="data", help="where data is kept (default: data)")
    parser.add_argument("--wandb", default="auto", help="auto, online, offline or disabled")
    return parser.parse_args()


def run_step(step: Step, options: argparse.Namespace) -> bool:
    """Run a script to its end, from wherever it stands; whether that worked."""
    command = [
        sys.executable, str(ROOT / f"{step.script}.py"), "--resume",
        "--config_name", step.configs[options.preset], "--run_batch_name", options.preset,
        "--dataset", options.dataset, "--out_dir", options.out_dir,
        "--data_dir", options.data_dir, "--wandb", options.wandb,
    ]  # fmt: skip
    position = f"{STEPS.index(step) + 1} of {len(STEPS)}"
    print(f"\n[{position}] {step.script}, config {step.configs[options.preset]}", flush=True)
    code = wait_for(subprocess.Popen(command))
    if code == STOPPED_BY_USER:
        print("\nStopped. Run the same command again to go on.", file=sys.stderr)
        sys.exit(STOPPED_BY_USER)
    return code == 0


def wait_for(process: subprocess.Popen) -> int:
    """Its exit code. Ctrl-C reaches the script as well, which saves its work and then ends."""
    signal.signal(signal.SIGTERM, lambda signum, frame: process.terminate())
    stopped = False
    while True:
        try:
            code = process.wait()
            return STOPPED_BY_USER if stopped else code
        except KeyboardInterrupt:
            stopped = True


def read_summary(step: Step, options: argparse.Namespace) -> dict:
    name = f"{step.kind}-{options.dataset}-{step.configs[options.preset]}"
    path = Path(options.out_dir) / options.preset / name / "summary.json"
    return json.loads(path.read_text()) if path.exists() else {}


def print_results(options: argparse.Namespace) -> None:
    paper = yaml.safe_load((ROOT / "configs" / "paper_values.yaml").read_text())["table1"]
    summaries = {step.kind: read_summary(step, options) for step in STEPS}
    print(f"\nTest accuracy on {options.dataset}, preset {options.preset}")
    print(f"{'':30} {'ours':>9} {'paper':>9}")
    for label, (kind, entry, column, row) in COMPARISONS.items():
        ours = summaries[kind].get(entry)
        shown = f"{100 * ours:7.2f} %" if ours is not None else "not run"
        print(f"{label:30} {shown:>9} {100 * paper[column][row]:7.2f} %")
    if options.preset == "quick":
        print("The quick preset is a smaller net on part of the data: alike in kind, not in value.")
    if options.dataset != "MNIST":
        print("The paper's numbers are for MNIST.")


if __name__ == "__main__":
    main()
