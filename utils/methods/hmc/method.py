"""HMC's settings, and the run of all its chains, by one process or several."""

import sys
from dataclasses import dataclass, fields

from utils.methods.hmc.adaptation import HMCSettings, StepSizeAdaptation
from utils.methods.hmc.anchored import LEARNING_RATES, anchored_maps
from utils.methods.hmc.chains import Chains, advance, start_chains
from utils.methods.hmc.display import monitored, print_summary
from utils.methods.hmc.fixed_weights import FixedWeights
from utils.methods.hmc.mass import MASSES, check_size
from utils.methods.hmc.neighbour_list import SAFE_MARGIN
from utils.methods.hmc.potential import FORCES, Potential
from utils.methods.hmc.record import ChainRecord, Schedule
from utils.methods.method import Method, Problem, images_used, set_up
from utils.methods.shared_settings import PriorConfig
from utils.report.figures import BLUE, Look
from utils.runs import ranks as parallel
from utils.runs.compute import CANDIDATES, choose_device, choose_matmul, threads_for
from utils.runs.progress import progress_bar
from utils.runs.ranks import ALONE, Ranks
from utils.runs.run import Run, already_finished, open_run
from utils.runs.seeding import generator
from utils.settings.config import option
from utils.settings.errors import UserError

import torch
from torch import Tensor

LARGEST_STEP_SIZE = 1e30  # adaptation may change it by a factor of 100: still a float32
MOST_STEPS = 10_000_000  # of a trajectory: weeks
REFUSED, FINISHED, OPEN = range(3)  # what the first rank says of the run


@dataclass(frozen=True, kw_only=True)
class HMCConfig(PriorConfig):
    config_name: str = option("laptop", "named settings: configs/<script>/NAME.yaml")
    num_samples: int = option(250, "samples stored of each chain", minimum=1, may_grow=True)
    num_burnin: int = option(30, "transitions of each chain before the first sample", minimum=0)
    store_every: int = option(1, "transitions from one stored sample to the next", minimum=1)
    num_chains: int = option(1, "independent chains", minimum=1, may_grow=True)
    step_size: float = option(
        0.0012, "step size of the leapfrog integrator, or where its adaptation begins", above=0
    )
    num_steps: int | None = option(None, "leapfrog steps per transition", minimum=1)
    trajectory_length: float | None = option(
        None, "step size × steps of a transition, instead of num_steps", above=0
    )
    max_steps: int | None = option(
        None, "most leapfrog steps of a transition with a trajectory_length", minimum=1
    )
    jitter: float = option(
        0.0, "share by which trajectories vary randomly in length", minimum=0, below=1
    )
    adapt_step_size: bool = option(False, "adapt the step size in burn-in, by dual averaging")
    target_acceptance: float = option(
        0.8, "acceptance probability that the step size is adapted to", above=0, below=1
    )
    grow_trajectories: bool = option(
        False, "let trajectories grow in burn-in, from short ones to full length"
    )
    start: str = option(
        "anchored",
        "start of chains: PyTorch's initialisation, a draw from the prior, a MAP near one, or "
        "mixed: a MAP for the first chain, the initialisation for the second, and so on",
        choices=("initialisation", "prior", "anchored", "mixed"),
    )
    anchored_epochs: int = option(
        8, "epochs at each of the 3 learning rates that find this MAP", minimum=1
    )
    anneal_from: float = option(
        1.0,
        "factor by which the likelihood's temperature is above --temperature in the first "
        "transition; it falls to 1 in the first half of burn-in, so that chains leave poor modes",
        minimum=1,
    )
    mass: str = option(
        "identity",
        "metric of momenta, from the curvature along burn-in: of every weight, or dense for small "
        "networks; step_size and trajectory_length are then in units of the posterior's deviations",
        choices=MASSES,
    )
    fixed_share: float = option(
        0.0,
        "share of the weights, at random, that all chains hold at the same draw from the prior: a "
        "control without symmetries",
        minimum=0, below=1,
    )  # fmt: skip
    force: str = option("auto", "how gradients along trajectories are computed", choices=FORCES)
    reversal_every: int = option(
        20,
        "one in so many trajectories, at random, is followed back, and rejected if it does not "
        "return; 1: all, 0: none",
        minimum=0,
    )
    safe_margin: float = option(
        SAFE_MARGIN, "listed force: margin above which an image may be skipped [nats]", above=0
    )
    parallel: str = option(
        "none", "what several processes under torchrun divide among them",
        choices=("none", "data", "chains"), changeable=True,
    )  # fmt: skip
    checkpoint_seconds: float = option(
        20.0, "seconds between checkpoints, or a transition if that is longer",
        minimum=0, changeable=True,
    )  # fmt: skip

    def __post_init__(self):
        super().__post_init__()
        self.refuse_flat_prior()

    def schedule(self) -> Schedule:
        return Schedule(self.num_chains, self.num_burnin, self.num_samples, self.store_every)

    def fixed_weights(self, problem: Problem) -> FixedWeights:
        return FixedWeights(problem.network, self.fixed_share, problem.tempered_prior, self.seed)

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
        if self.fixed_share and self.mass != "identity":
            raise UserError(
                "Fixed weights have an infinite mass, and the others the identity: give --mass "
                "identity with a --fixed_share."
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
            **{field.name: getattr(self, field.name) for field in fields(HMCSettings)}
        )


def run_chains(config: HMCConfig, problem: Problem, ranks: Ranks, run: Run | None) -> None:
    """Sample and report; only the first rank has a run directory and writes."""
    settings, schedule = config.hmc_settings(), config.schedule()
    record = None
    if ranks.first:
        record = ChainRecord(run, problem, schedule, config.seed, config.checkpoint_seconds)
    potential = build_potential(config, problem, ranks)
    chains = resume_or_start(config, problem, settings, ranks, record)
    mass = config.fixed_weights(problem).mass(problem.device)
    with monitored(record, chains, settings, schedule) as monitor:
        while chains.iteration < schedule.num_iterations:
            with threads_for(potential.flops):
                chains, transitions = advance(
                    potential, chains, settings, config.seed, ranks,
                    spread_chains=config.parallel == "chains", on_step=monitor.step, mass=mass,
                )  # fmt: skip
            monitor.add(chains, transitions)
    if ranks.first:
        print_summary(record.finish(settings), settings, schedule, potential)
        print(f"Saved in {run.directory}")


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


def open_together(
    config: HMCConfig, device: torch.device, ranks: Ranks, used: dict
) -> tuple[Run | None, bool]:
    """Return the run, which only the first rank has, and whether something is left to do.

    `used` is what the run notes about its data.
    """
    run, state = None, REFUSED
    try:
        run = open_run(config, HMC.kind, device, **used) if ranks.first else None
        state = FINISHED if run is None or run.finished else OPEN
    finally:
        state = share_number(ranks, state)
    if state == REFUSED:
        sys.exit(2)  # the first rank says why
    return run, state == OPEN


def share_number(ranks: Ranks, number: float) -> float:
    return ranks.share(torch.tensor([number], dtype=torch.float64)).item()


def share_matmul(ranks: Ranks, device: torch.device, run: Run | None) -> None:
    """Let all ranks multiply with the kernel that the first one's run was begun with."""
    names, chosen = list(CANDIDATES), 0
    if ranks.first:
        chosen = names.index(run.meta["matmul"])
    choose_matmul(device, names[int(share_number(ranks, chosen))])


def build_potential(config: HMCConfig, problem: Problem, ranks: Ranks) -> Potential:
    network, data, prior = problem.network, problem.data, problem.tempered_prior
    images, labels = data.train_images, data.train_labels
    if config.parallel != "data":
        ranks = ALONE
    parts = ranks.part(images), ranks.part(labels)
    return Potential(
        network, *parts, config.force, config.safe_margin, ranks, prior, problem.temperature
    )


def resume_or_start(
    config: HMCConfig, problem: Problem, settings: HMCSettings, ranks: Ranks,
    record: ChainRecord | None,
) -> Chains:  # fmt: skip
    """Return the chains of the first rank: those in its checkpoint, and new ones."""
    chains = record.chains if record else None
    begun = len(chains.weights) if chains else 0
    if begun < config.num_chains:
        weights = torch.zeros(config.num_chains - begun, problem.network.num_weights)
        weights = start_weights(config, problem, begun) if record else weights.to(problem.device)
        new = start_chains(weights, settings, config.mass)
        chains = chains.joined(new) if chains else new
    adaptations = ranks.share(torch.tensor(chains.adaptations, dtype=torch.float64))
    return Chains(
        ranks.share(chains.weights),
        tuple(StepSizeAdaptation(*numbers) for numbers in adaptations.tolist()),
        tuple(int(share_number(ranks, made)) for made in chains.iterations),
        tuple(mass.shared(ranks) for mass in chains.masses),
    )


def start_weights(config: HMCConfig, problem: Problem, first: int = 0) -> Tensor:
    """Return where chains begin [C, d], as `config.start` says.

    Chains before the `first` have begun already.
    """
    numbers = range(first, config.num_chains)
    streams = {chain: generator(config.seed, "initial_weights", chain) for chain in numbers}
    starts = ("anchored", "initialisation") if config.start == "mixed" else (config.start,)
    start_of = {chain: starts[chain % len(starts)] for chain in numbers}
    anchored = [chain for chain in numbers if start_of[chain] == "anchored"]
    prior, network, fixed = problem.tempered_prior, problem.network, config.fixed_weights(problem)
    initialisation = type(network).initial_weights
    draws = {"prior": prior.draw, "anchored": prior.draw, "initialisation": initialisation}
    weights = [draws[start_of[chain]](network, streams[chain]) for chain in numbers]
    weights = fixed.apply(torch.stack(weights)).to(problem.device)
    if anchored:
        rows = [chain - first for chain in anchored]
        weights[rows] = fixed.apply(anchored_starts(config, problem, weights[rows], anchored))
    return weights


def anchored_starts(
    config: HMCConfig, problem: Problem, anchors: Tensor, chains: list[int]
) -> Tensor:
    """Return the MAP near the anchor of each of these chains."""
    total = len(LEARNING_RATES) * config.anchored_epochs * len(chains)
    with progress_bar(total, "anchored start") as bar:
        return anchored_maps(
            problem.network, problem.data, anchors, config.seed, config.anchored_epochs,
            problem.prior, chains, on_epoch=lambda member, epoch, loss: bar.update(),
        )  # fmt: skip


class HMC(Method):
    """Hamiltonian Monte Carlo, with a loop of its own: its chains may be spread over processes."""

    name, kind, title = "hmc", "HMC", "HMC"
    look = Look(BLUE)
    takes_batch_norm = False
    Config = HMCConfig

    def run(self, config: HMCConfig) -> None:
        device = choose_device(config.device)
        with parallel.connected(device) as ranks:
            check_sharing(config, ranks)
            if ranks.size == 1 and already_finished(config, self.kind):
                return
            problem = set_up(self, config)
            check_size(config.mass, problem.network)
            ranks.sum(torch.zeros(1))  # touch no earlier run before all ranks have their data
            run, to_do = open_together(config, device, ranks, images_used(problem.data))
            if to_do:
                share_matmul(ranks, device, run)
                run_chains(config, problem, ranks, run)
