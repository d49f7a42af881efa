"""Sample the posterior of a network by full-batch Hamiltonian Monte Carlo.

The HMC columns of the paper's Table 1 and Figures 4 and 5 start from it.

    python MNIST_HMC.py                          1 to 3 hours: the paper's posterior, 250 samples
    python MNIST_HMC.py --config_name test3.2    the paper's settings, exactly: days
    python MNIST_HMC.py --config_name quick      1 or 2 minutes: a smaller net, part of the data
    torchrun --nproc-per-node 2 MNIST_HMC.py --parallel data      the images over 2 processes

Leaves in its run directory samples.npy [chains · samples, weights], one chain after the other,
with network.json and chains.json (how many chains of how many samples), trace.jsonl (a record per
transition, burn-in included), quantities.npy (what is diagnosed, per sample), diagnostics.json
(R-hat and effective sample sizes), metrics.jsonl (test accuracies along the way) and summary.json
(scores, acceptance, violations of neighbour lists, divergences after burn-in, and ess_per_hour:
effective samples of the test log-likelihood).
"""

import math
import sys
import time
from dataclasses import dataclass

from utils.data.datasets import Dataset, load_pixels
from utils.evaluation.diagnostics import LARGEST_RHAT, slow_groups
from utils.methods.hmc.anchored import LEARNING_RATES, anchored_maps
from utils.methods.hmc.chain_record import ChainRecord, Pace
from utils.methods.hmc.hmc import (
    Chains,
    HMCSettings,
    StepSizeAdaptation,
    Transition,
    advance,
    leapfrog,
    start_chains,
)
from utils.methods.hmc.potential import FORCES, ListSettings, Posterior
from utils.networks.network import Network
from utils.networks.registry import network_for
from utils.runs import ranks as parallel
from utils.runs.compute import CANDIDATES, choose_device, choose_matmul
from utils.runs.config import NetworkConfig, option
from utils.runs.errors import UserError
from utils.runs.progress import progress_bar
from utils.runs.ranks import Ranks
from utils.runs.run import Run, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator

import torch
from torch import Tensor

KIND = "HMC"  # of its runs: what their directories begin with
# The time of a step is measured at the end of so many: a neighbour list is short where a chain
# begins, and has its usual length after some hundred steps. Where they are slow, of fewer.
MEASURED_STEPS = 400
FEWEST_MEASURED_STEPS = 20
MEASURING_SECONDS = 15.0
FEW_VIOLATIONS = 0.01  # per leapfrog step
LARGEST_STEP_SIZE = 1e30  # adaptation may change it by a factor of 100: still a float32
MOST_STEPS = 10_000_000  # of a trajectory: weeks
REFUSED, FINISHED, OPEN = range(3)  # what the first rank says of the run


@dataclass(frozen=True, kw_only=True)
class HMCConfig(NetworkConfig):
    config_name: str = option("laptop", "named settings: configs/MNIST_HMC/NAME.yaml")
    num_samples: int = option(250, "samples stored of each chain", minimum=1)
    num_burnin: int = option(30, "transitions of each chain before the first sample", minimum=0)
    store_every: int = option(1, "transitions from one stored sample to the next", minimum=1)
    num_chains: int = option(1, "independent chains", minimum=1)
    step_size: float = option(0.0012, "of the leapfrog integrator; at first, if adapted", above=0)
    num_steps: int | None = option(None, "leapfrog steps per transition", minimum=1)
    trajectory_length: float | None = option(
        None, "step size × steps of a transition, instead of num_steps", above=0
    )
    jitter: float = option(
        0.0, "random share by which trajectories differ in length", minimum=0, below=1
    )
    adapt_step_size: bool = option(False, "in burn-in, by dual averaging")
    target_acceptance: float = option(0.8, "that the step size is adapted to", above=0, below=1)
    grow_trajectories: bool = option(False, "in burn-in, from short ones to full length")
    start: str = option(
        "anchored", "of chains: PyTorch's initialisation, or a MAP near a draw from the prior",
        choices=("initialisation", "anchored"),
    )  # fmt: skip
    anchored_epochs: int = option(8, "at each of 3 learning rates, for that MAP", minimum=1)
    force: str = option("auto", "how the gradient along trajectories is found", choices=FORCES)
    safe_margin: float = option(
        18.0, "above it a point's gradient may be left out of a listed force", unit="nats", above=0
    )
    longest_sleep: int = option(
        200, "steps for which a listed force may leave a point alone", unit="steps", minimum=1
    )
    parallel: str = option(
        "none", "what several processes under torchrun share out",
        choices=("none", "data", "chains"), changeable=True,
    )  # fmt: skip
    checkpoint_seconds: float = option(
        20.0,
        "between checkpoints; with several processes a transition, if that is longer",
        minimum=0,
        changeable=True,
    )

    @property
    def num_sampling(self) -> int:
        """Transitions of each chain after burn-in."""
        return self.num_samples * self.store_every

    @property
    def num_iterations(self) -> int:
        """Transitions of each chain in all."""
        return self.num_burnin + self.num_sampling

    def hmc_settings(self) -> HMCSettings:
        if (self.num_steps is None) == (self.trajectory_length is None):
            raise UserError(
                "A trajectory has either num_steps or a trajectory_length: "
                "give one of them, and 'none' for the other if the config has it."
            )
        if self.adapt_step_size and not self.num_burnin:
            raise UserError(
                "The step size is adapted in burn-in, and this run has none: give --num_burnin, "
                "or --no-adapt_step_size."
            )
        if not 1 / LARGEST_STEP_SIZE <= self.step_size <= LARGEST_STEP_SIZE:
            raise UserError(
                f"A --step_size of {self.step_size:g} is beyond float32, in which weights move: "
                f"give one from {1 / LARGEST_STEP_SIZE:g} to {LARGEST_STEP_SIZE:g}, 0.001 or so."
            )
        if (self.num_steps or self.trajectory_length / self.step_size) > MOST_STEPS:
            raise UserError(
                f"A trajectory would have more than {MOST_STEPS:,} leapfrog steps: give fewer "
                "--num_steps, a shorter --trajectory_length or a larger --step_size."
            )
        return HMCSettings(
            self.step_size, self.num_burnin, self.num_steps, self.trajectory_length, self.jitter,
            self.grow_trajectories, self.adapt_step_size, self.target_acceptance,
        )  # fmt: skip


def main(config: HMCConfig) -> None:
    device = choose_device(config.device)
    with parallel.connected(device) as ranks:
        check_sharing(config, ranks)
        data = load_pixels(config.dataset, config.data_dir, config.num_train).to(device)
        ranks.sum(torch.zeros(1))  # all have their data: before, no earlier run is touched
        run, to_do = open_together(config, device, ranks)
        if to_do:
            share_matmul(ranks, device, run)
            run_chains(config, data, ranks, run)


def open_together(config: HMCConfig, device: torch.device, ranks: Ranks) -> tuple[Run | None, bool]:
    """The run, which only the first rank has, and whether there is something left to do."""
    run, state = None, REFUSED
    try:
        run = open_run(config, KIND, device) if ranks.first else None
        state = FINISHED if run is None or run.finished else OPEN
    finally:
        state = share_number(ranks, state)
    if state == REFUSED:
        sys.exit(2)  # the first rank says why
    return run, state == OPEN


def run_chains(config: HMCConfig, data: Dataset, ranks: Ranks, run: Run | None) -> None:
    """The whole of a run; only the first rank has a run directory and writes."""
    settings = config.hmc_settings()
    network = network_for(config, data)
    target = build_posterior(config, network, data, ranks)
    record = ChainRecord(run, network, data, settings) if ranks.first else None
    chains = resume_or_start(config, network, data, settings, ranks, record)
    pace = measure_pace(target, chains.weights[0], settings.step_size)
    if not ranks.first:
        sample(config, settings, target, chains, ranks)
        return
    record.announce(chains, pace._replace(side_by_side=chains_side_by_side(config, ranks)))
    with record.open(chains):
        chains = sample(config, settings, target, chains, ranks, record)
    report(run, record.finish(chains))


def check_sharing(config: HMCConfig, ranks: Ranks) -> None:
    config.hmc_settings()
    if ranks.size > 1 and config.parallel == "none":
        raise UserError("Several processes need to know what to share: give --parallel data.")
    if ranks.size == 1 and config.parallel != "none":
        print(f"--parallel {config.parallel}: this is the only process; torchrun starts several.")
    if config.parallel == "chains" and config.num_chains < ranks.size:
        raise UserError(
            f"--parallel chains gives every process a chain: {ranks.size} processes need "
            f"--num_chains {ranks.size} or more, not {config.num_chains}."
        )


def share_number(ranks: Ranks, number: float) -> float:
    return ranks.share(torch.tensor([number], dtype=torch.float64)).item()


def share_matmul(ranks: Ranks, device: torch.device, run: Run | None) -> None:
    """All ranks multiply with the kernel that the first one's run was begun with."""
    names = list(CANDIDATES)
    if ranks.first:
        run.select_matmul()
    chosen = names.index(run.meta["matmul"]) if ranks.first else 0
    choose_matmul(device, names[int(share_number(ranks, chosen))])


def build_posterior(config: HMCConfig, network: Network, data: Dataset, ranks: Ranks) -> Posterior:
    lists = ListSettings(config.safe_margin, config.longest_sleep)
    images, labels = data.train_images, data.train_labels
    if config.parallel == "data":
        return Posterior(
            network, ranks.part(images), ranks.part(labels), config.force, lists, ranks
        )
    return Posterior(network, images, labels, config.force, lists)


def resume_or_start(
    config: HMCConfig,
    network: Network,
    data: Dataset,
    settings: HMCSettings,
    ranks: Ranks,
    record: ChainRecord | None,
) -> Chains:
    """The chains as the first rank has them: as a checkpoint holds them, or new ones."""
    shape = (config.num_chains, network.num_weights)
    chains = record.chains if ranks.first else None
    if ranks.first and chains is None:
        chains = start_chains(start_weights(config, network, data), settings)
    if not ranks.first:
        chains = start_chains(torch.zeros(shape, device=data.train_images.device), settings)
    if ranks.size == 1:
        return chains
    adaptations = torch.tensor(chains.adaptations, dtype=torch.float64)
    count = int(share_number(ranks, len(chains.ahead)))
    ahead = torch.zeros(count, len(Transition._fields), dtype=torch.float64)
    if chains.ahead:
        ahead = torch.tensor(chains.ahead, dtype=torch.float64)
    return Chains(  # without a flight: it would have to be shared out as well
        ranks.share(chains.weights),
        tuple(StepSizeAdaptation(*numbers) for numbers in ranks.share(adaptations).tolist()),
        int(share_number(ranks, chains.iteration)),
        tuple(Transition.from_numbers(numbers) for numbers in ranks.share(ahead).tolist()),
    )


def start_weights(config: HMCConfig, network: Network, data: Dataset) -> Tensor:
    """Where chains begin [C, d]: at PyTorch's initialisation, or at an anchored MAP."""
    streams = [
        generator(config.seed, "initial_weights", chain) for chain in range(config.num_chains)
    ]
    if config.start == "initialisation":
        draws = [network.initial_weights(stream) for stream in streams]
        return torch.stack(draws).to(data.train_images.device)
    epochs = config.anchored_epochs
    total = len(LEARNING_RATES) * epochs * config.num_chains
    with progress_bar(total, "anchored start") as bar:
        return anchored_maps(
            network, data, streams, config.seed, epochs,
            on_epoch=lambda member, epoch, loss: bar.update(),
        )  # fmt: skip


def measure_pace(target: Posterior, weights: Tensor, step_size: float) -> Pace:
    """Seconds of a leapfrog step from here, once a neighbour list has settled, and of the rest.

    Where steps of this size diverge, smaller ones are measured, which take as long.
    """
    _, *first, _ = time_leapfrog(target, weights, step_size, FEWEST_MEASURED_STEPS)
    if len(first) < FEWEST_MEASURED_STEPS:
        return measure_pace(target, weights, step_size / 10)
    affordable = share_number(target.ranks, MEASURING_SECONDS / mean_step(first))
    count = round(min(max(affordable, FEWEST_MEASURED_STEPS), MEASURED_STEPS))
    began, *starts, ended = time_leapfrog(target, weights, step_size, count)
    if len(starts) < count:
        return measure_pace(target, weights, step_size / 10)
    step = mean_step(starts)
    return Pace(step, max(0.0, starts[0] - began + ended - starts[-1] - step))


def time_leapfrog(
    target: Posterior, weights: Tensor, step_size: float, num_steps: int
) -> list[float]:
    """When a trajectory begins, each of its steps, and when it has ended."""
    momentum = torch.randn(weights.shape, generator=generator(0, "measurement"))
    times = [time.perf_counter()]
    leapfrog(
        target, weights, momentum.to(weights.device), step_size, num_steps,
        on_step=lambda _: times.append(time.perf_counter()),
    )  # fmt: skip
    return [*times, time.perf_counter()]


def mean_step(times: list[float]) -> float:
    """From the last quarter of times that steps have begun at."""
    settled = times[-max(2, len(times) // 4) :]
    return (settled[-1] - settled[0]) / (len(settled) - 1)


def chains_side_by_side(config: HMCConfig, ranks: Ranks) -> float:
    """Of all chains, how many move at a time on average: some ranks may have one more."""
    if config.parallel != "chains":
        return 1.0
    return config.num_chains / math.ceil(config.num_chains / ranks.size)


def sample(
    config: HMCConfig,
    settings: HMCSettings,
    target: Posterior,
    chains: Chains,
    ranks: Ranks,
    record: ChainRecord | None = None,
) -> Chains:
    """The chains after all transitions, each recorded (by the first rank) as it was made."""
    while chains.iteration < config.num_iterations:
        chains, transitions = advance(
            target, chains, settings, config.seed, ranks,
            spread_chains=config.parallel == "chains",
            on_step=record.on_step if record else lambda chains, flight: None,
        )  # fmt: skip
        if record:
            record.add(chains, transitions)
    return chains


def report(run: Run, summary: dict) -> None:
    print(f"\ntest accuracy of the average {100 * summary['test_accuracy']:.2f} %, "
          f"NLL {summary['test_nll']:.4f}, acceptance {summary['accept_prob']:.2f}")  # fmt: skip
    print_diagnostics(summary["diagnostics"])
    print_warnings(run.config, summary)
    print(f"Saved in {run.directory}")


def print_diagnostics(groups: dict) -> None:
    rows = {name: numbers for name, numbers in groups.items() if numbers}
    if rows:
        print(f"{'':20} largest R-hat   smallest ESS (bulk, tail)   median bulk ESS per hour")
    for name, numbers in rows.items():
        print(
            f"{name:20} {numbers['largest_rhat']:13.3f}   {numbers['smallest_ess_bulk']:17.0f} "
            f"{numbers['smallest_ess_tail']:7.0f}   {numbers['median_ess_bulk_per_hour']:24.0f}"
        )


def print_warnings(config: HMCConfig, summary: dict) -> None:
    divergences, made = summary["divergences"], config.num_chains * config.num_sampling
    if divergences:
        print(
            f"{divergences} of {made} trajectories after burn-in diverged and were rejected, so "
            "a part of the posterior may be missing: "
            + (
                "raise --target_acceptance."
                if config.adapt_step_size
                else f"give a smaller --step_size than {config.step_size:g}."
            )
        )
    slow = slow_groups(summary["diagnostics"])
    if slow:
        print(
            f"The chain has not mixed in every respect: R-hat is above {LARGEST_RHAT} for "
            f"{', '.join(slow)}. Give more --num_samples, or --num_chains."
        )
    violations, steps = summary["violations"], summary["leapfrog_steps"]
    if violations > FEW_VIOLATIONS * steps:
        print(
            f"The listed force overlooked points {violations} times in {steps} steps, too often "
            f"to be exact: raise --safe_margin from {config.safe_margin:g}, "
            "or give --force active."
        )


CONFIG = HMCConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
