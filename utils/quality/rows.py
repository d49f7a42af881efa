"""Rows of the table of posteriors: one mode, several, or as many modes as samples.

All rows of a posterior have equally many samples, M modes with k samples each, so that they compare
like with like. Single networks are the exception: one of them is a row, ensembles are others.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from utils.posteriors.block_gaussian import BlockGaussian
from utils.posteriors.low_rank import LowRank
from utils.posteriors.posterior import Posterior, is_set
from utils.posteriors.samples import Points, Samples
from utils.quality.modes import SampleSet, modes_of, sample_modes
from utils.quality.references import HMC_SAMPLES, Halves
from utils.runs.lookup import PastRun
from utils.settings.errors import UserError

ONE, SEVERAL, EACH = "one", "multi", "each"  # modes: one, several, one for each sample


class LinearisedSet(NamedTuple):
    """Modes that predict with the network linearised at their means, and not by samples."""

    name: str
    modes: Sequence[BlockGaussian]


class Trained(NamedTuple):
    """The modes of a posterior, and the core-seconds that each of them took."""

    modes: Sequence[Posterior]
    core_seconds: float | None = None
    linearised: bool = False  # predicts with the linearised network
    source: str | None = None  # the posterior that it is derived from, if from another
    converged: bool | None = None  # whether training had, if its run says so


class Row(NamedTuple):
    """A set of samples, or one for each of some modes, which are averaged."""

    name: str
    modes: str  # ONE, SEVERAL or EACH
    sets: list[SampleSet | LinearisedSet]
    core_seconds: float | None  # of one mode
    source: str  # the posterior whose modes these are
    converged: bool | None = None  # whether training had, if it is known

    def name_of(self, number: int) -> str:
        return f"{self.name}-{self.modes}-{number:02}"

    @property
    def about(self) -> dict:
        """Say what the row is; linearised modes have no samples."""
        num_modes, drawn = len(self.sets[0].modes), isinstance(self.sets[0], SampleSet)
        seconds = None if self.core_seconds is None else self.core_seconds * num_modes
        return {
            "name": self.name,
            "source": self.source,
            "modes": self.modes,
            "num_modes": num_modes,
            "samples": len(self.sets[0]) if drawn else None,
            "averaged": len(self.sets),
            "training_seconds": seconds,
            "converged": self.converged,
        }


def open_modes(path: Path, posterior: Posterior) -> Trained:
    """Return the modes of the posterior that a run has left.

    A run of modes has trained each part as one, whether or not its version saved numbers.
    """
    run = PastRun(path)
    modes = modes_of(posterior, unnumbered_are_one="num_modes" in run.config)
    made = max(len(modes), run.config.get("num_chains") or 0)  # with chains that are left out
    seconds = None if run.core_seconds is None else run.core_seconds / made
    return Trained(modes, seconds, converged=run.summary.get("converged"))


def with_derived(trained: dict[str, Trained]) -> dict[str, Trained]:
    """Add what posteriors offer besides their draws, under names of its own.

    The mean of SWAG's Gaussian is stochastic weight averaging (SWA), a single network, which sets
    of draws have beside them. A Gaussian with covariances, such as Laplace's, can predict with the
    linearised network.
    """
    result = {}
    for name, each in trained.items():
        result[name] = each
        derived = {}
        if all(isinstance(mode, LowRank | Points | Samples) for mode in each.modes) and all(
            mode.mean is not None for mode in each.modes
        ):
            means = [Points(mode.mean[None], mode.network) for mode in each.modes]
            derived[f"{name}_mean"] = each._replace(modes=means, source=name)
        if all(isinstance(mode, BlockGaussian) for mode in each.modes):
            derived[f"{name}_linearised"] = each._replace(linearised=True, source=name)
        for taken in derived.keys() & trained.keys():
            raise UserError(
                f"{taken} is the name of a row that {name} has besides its draws: give another "
                "name in --posteriors."
            )
        result |= derived
    return result


def rows_of(
    trained: dict[str, Trained], halves: dict[str, Halves], num_samples: int, num_modes: int,
    seed: int,
) -> list[Row]:  # fmt: skip
    """Return the rows of every posterior, and of the references' other halves.

    The last row of a reference is the whole of its other half.
    """
    rows = []
    for name, each in trained.items():
        if name == HMC_SAMPLES:
            second = halves[HMC_SAMPLES].second
            chains = len(each.modes) // 2 or 0.5  # of which the second half is
            seconds = each.core_seconds and each.core_seconds * chains / len(second.modes)
            rows.append(Row(HMC_SAMPLES, SEVERAL, [second], seconds, HMC_SAMPLES))
            continue
        if name in halves:
            each = each._replace(modes=halves[name].second.modes)
        for modes, sets in sets_of(name, each, num_samples, num_modes, seed).items():
            source = each.source or name
            rows.append(Row(name, modes, sets, each.core_seconds, source, each.converged))
    return rows


def sets_of(
    name: str, trained: Trained, num_samples: int, num_modes: int, seed: int
) -> dict[str, list[SampleSet | LinearisedSet]]:
    """Return the sets of one mode, of several, and of as many as samples, as far as there are."""
    modes, linearised = trained.modes, trained.linearised
    lengths = [] if linearised else [len(mode) for mode in modes if is_set(mode)]
    in_one = 1 if linearised else min([num_samples, *lengths])
    total = num_samples if in_one == 1 else in_one

    def make(label: str, some: Sequence, most: int) -> SampleSet | LinearisedSet:
        return LinearisedSet(label, some) if linearised else sample_modes(label, some, most, seed)

    few = modes[:num_modes]
    sets = {ONE: [make(f"{name} {k}", [mode], in_one) for k, mode in enumerate(few)]}
    if len(few) > 1:
        sets[SEVERAL] = [make(name, few[:total], total)]
    enough = in_one == 1 or len(modes) >= total  # single networks: as many as there are
    if enough and total > len(few) < len(modes):
        each = modes[:total]
        sets[EACH] = [make(f"{name} each", each, len(each))]
    return sets
