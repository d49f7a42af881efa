"""What running and finished chains show in the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from utils.evaluation.diagnostics import FOLLOW_LABELS, LABELS_REMARK, MAX_RHAT, slow_groups
from utils.methods.hmc.adaptation import HMCSettings
from utils.methods.hmc.chains import Chains, Transition
from utils.methods.hmc.neighbour_list import WORTHWHILE_SHARE
from utils.methods.hmc.potential import Potential
from utils.methods.hmc.record import ChainRecord, Schedule
from utils.runs.progress import progress_bar

FEW_VIOLATIONS = 0.01  # per leapfrog step
SHOWN = (  # beside the progress bar: label, name among the averages, format
    ("accept", "accept_prob", ".2f"), ("ΔH", "delta_energy", "+.2f"), ("NLL", "nll", ".0f"),
    ("images/step", "list_rows", ".0f"), ("acc_last", "sample_test_accuracy", ".4f"),
    ("acc_avg", "test_accuracy", ".4f"),
)  # fmt: skip


class Monitor:
    """Records chains and shows a progress bar over their leapfrog steps, with the time left."""

    def __init__(self, record: ChainRecord, bar, settings: HMCSettings, schedule: Schedule):
        self._record, self._bar = record, bar
        self._settings, self._schedule = settings, schedule

    def step(self) -> None:
        """To be called before every leapfrog step: a run that was asked to stop ends here."""
        self._record.stop_if_asked()
        self._bar.update()

    def add(self, chains: Chains, transitions: list[Transition]) -> None:
        """Record a transition of every chain, and show it."""
        averages = self._record.add(chains, transitions)
        shown = {
            label: f"{averages[name]:{form}}" for label, name, form in SHOWN if name in averages
        }
        self._bar.set_postfix(shown, refresh=False)
        # Among the steps are those of other ranks, and those that a divergence has skipped.
        steps = self._record.counters["steps"]
        self._bar.update(steps - self._bar.n)
        if chains.iteration == self._schedule.num_burnin:  # step sizes are settled
            self._bar.total = steps + steps_left(chains, self._settings, self._schedule)


@contextmanager
def monitored(
    record: ChainRecord | None, chains: Chains, settings: HMCSettings, schedule: Schedule
) -> Iterator[Monitor | SimpleNamespace]:
    """Open the files of these chains and a progress bar; ranks that record nothing have neither."""
    if record is None:
        yield SimpleNamespace(step=lambda: None, add=lambda chains, transitions: None)
        return
    steps = record.counters["steps"]
    total = steps + steps_left(chains, settings, schedule)
    with record.open(chains), progress_bar(total, "HMC", initial=steps, unit="step") as bar:
        yield Monitor(record, bar, settings, schedule)


def steps_left(chains: Chains, settings: HMCSettings, schedule: Schedule) -> int:
    """Return the leapfrog steps that all chains together are expected to make yet."""
    return round(
        sum(
            settings.expected_steps(adaptation, iteration)
            for made, adaptation in zip(chains.iterations, chains.adaptations, strict=True)
            for iteration in range(made, schedule.num_iterations)
        )
    )


def print_summary(
    summary: dict, settings: HMCSettings, schedule: Schedule, potential: Potential
) -> None:
    print(f"\ntest accuracy of the average {100 * summary['test_accuracy']:.2f} %, "
          f"NLL {summary['test_nll']:.4f}, acceptance {summary['accept_prob']:.2f}")  # fmt: skip
    print_diagnostics(summary["diagnostics"])
    for warning in warnings(summary, settings, schedule, potential):
        print(warning)


def print_diagnostics(groups: dict) -> None:
    rows = {name: numbers for name, numbers in groups.items() if numbers}
    if rows:
        print(f"{'':20} largest R-hat   smallest ESS (bulk, tail, squares)   "
              "median bulk ESS per hour")  # fmt: skip
    for name, numbers in rows.items():
        print(
            f"{name:20} {numbers['largest_rhat']:13.3f}   {numbers['smallest_ess_bulk']:17.0f} "
            f"{numbers['smallest_ess_tail']:7.0f} {numbers['smallest_ess_squares']:8.0f}   "
            f"{numbers['median_ess_bulk_per_hour']:24.0f}"
        )
    if rows.keys() & FOLLOW_LABELS:
        print(LABELS_REMARK)


def warnings(
    summary: dict, settings: HMCSettings, schedule: Schedule, potential: Potential
) -> Iterator[str]:
    divergences, made = summary["divergences"], schedule.num_chains * schedule.num_sampling
    if divergences:
        remedy = f"give a smaller --step_size than {settings.step_size:g}"
        if settings.adapt_step_size:
            remedy = "raise --target_acceptance"
        yield (
            f"{divergences} of {made} trajectories after burn-in diverged and were rejected, so "
            f"a part of the posterior may be missing: {remedy}."
        )
    if summary["left_out"]:
        yield (
            f"Left out: {len(summary['left_out'])} of {schedule.num_chains} chains. They are in "
            "regions of other potential, which annealed importance sampling estimates to hold "
            f"e^−{summary['log_weight_gap']:.0f} of the posterior or less; log weights of the "
            f"chains that agree have a standard deviation of {summary['log_weight_spread']:.1f} "
            "nats (chains.json)."
        )
    missed, followed = summary["not_returned"], summary["followed_back"]
    if missed:
        yield (
            f"{missed} of {followed} trajectories that were followed back missed their start and "
            "were rejected, and about as large a share of the others is not reversible: give a "
            "smaller --step_size or a shorter --trajectory_length, or --reversal_every 1."
        )
    slow = slow_groups(summary["diagnostics"])
    if slow:
        yield (
            f"The chain has not mixed in every respect: R-hat is above {MAX_RHAT} for "
            f"{', '.join(slow)}. Give more --num_samples, or --num_chains."
        )
    images, points = summary["images_per_step"], potential.num_points
    if potential.method == "listed" and images > WORTHWHILE_SHARE * points:
        yield (
            f"Neighbour lists did not pay, as few margins are large: {images:.0f} of {points} "
            "images were computed in each step, about as by --force dense."
        )
    violations, steps = summary["violations"], summary["leapfrog_steps"]
    if violations > FEW_VIOLATIONS * steps:
        yield (
            f"The listed force overlooked points {violations} times in {steps} steps, too often "
            f"to be trusted: raise --safe_margin from "
            f"{potential.safe_margin:g}, or give --force active."
        )
