"""The files of running chains: samples, trace, metrics, diagnostics and checkpoints.

Everything that randomness or adaptation depends on is in the checkpoint or follows from the seed
and the number of the transition, so a chain that is killed at any moment and resumed repeats itself
bit for bit. Checkpoints are made between transitions, when `checkpoint_seconds` have passed since
the last one: a kill costs that time and the transition under way. A stop (Ctrl-C or SIGTERM)
abandons the transition of all chains that is under way and keeps what was finished before.
"""

import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from utils.evaluation.diagnostics import MIN_DRAWS, Quantities, diagnose_all
from utils.evaluation.metrics import accuracy
from utils.methods.hmc.adaptation import HMCSettings, StepSizeAdaptation
from utils.methods.hmc.annealing import AnnealedChains, compare_annealed, log_weights
from utils.methods.hmc.chains import Chains, Transition
from utils.methods.hmc.mass import MassAdaptation, MassMatrix
from utils.methods.method import Problem, scores_on
from utils.networks.predictions import class_probabilities, mean_probabilities
from utils.posteriors.samples import open_samples, save_kind
from utils.report import figures
from utils.runs.files import UNREADABLE, ArrayFile, RecordFile, read_records, write_atomically
from utils.runs.progress import check_space
from utils.runs.run import Run
from utils.settings.errors import UserError

import numpy as np
import torch
from torch import Tensor

INTERIM_DIAGNOSES = 10  # while the chains run
SECONDS_BETWEEN_DIAGNOSES = 60  # at least: drawing the figure takes one or two
RECORD_BYTES = 700  # of a transition, in trace.jsonl and metrics.jsonl
AVERAGED = ("accept_prob", "delta_energy", "nll", "step_size", "list_rows", "divergent")
# What is added up over transitions: over all of them, and over those after burn-in.
COUNTED = {"steps": lambda t: t.num_steps, "violations": lambda t: t.violations}
COUNTED_AFTER_BURNIN = {
    "accept_prob": lambda t: t.accept_prob,
    "divergences": lambda t: t.divergent,
    "sampling_steps": lambda t: t.num_steps,
    "images": lambda t: t.list_rows * t.num_steps,
    "followed_back": lambda t: t.followed_back,
    "not_returned": lambda t: not t.returned,
    "steps_back": lambda t: t.num_steps * t.followed_back,
}
COUNTERS = dict.fromkeys(("trace_bytes", "seconds", *COUNTED, *COUNTED_AFTER_BURNIN), 0)
CHAIN_ARRAYS = ("samples.npy", "quantities.npy")  # [chains · samples, …]


def mass_arrays(masses: tuple[MassAdaptation, ...]) -> dict[str, Tensor]:
    """Return what a checkpoint holds of masses, by name [chains, …]."""
    if not masses:
        return {}
    factors, curvatures = zip(*((each.mass.factor, each.curvature) for each in masses), strict=True)
    return {"mass_factor": torch.stack(factors), "mass_curvature": torch.stack(curvatures)}


def make_room(path: Path, chains_before: int, rows: int, num_chains: int) -> bool:
    """Lay an array of chains out again if more rows are to be stored, for each chain or in all.

    Return whether the run is extended. The file is replaced as a whole. A missing or damaged one is
    left to those who open it.
    """
    try:
        before = np.load(path, mmap_mode="r")
        _, width = before.shape
    except UNREADABLE:
        return False
    if len(before) >= rows or len(before) % chains_before:
        return num_chains > chains_before

    def write(file) -> None:
        header = {"descr": before.dtype.str, "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(file, header)
        chains = np.split(before, chains_before)
        for chain in [*chains, *[before[:0]] * (num_chains - chains_before)]:
            file.write(chain.tobytes())
            file.write(bytes((rows // num_chains - len(chain)) * width * before.dtype.itemsize))

    write_atomically(path, write)
    return True


@dataclass(frozen=True)
class Schedule:
    """How many transitions chains make, and after which of them a sample is stored."""

    num_chains: int
    num_burnin: int  # transitions of each chain before the first sample
    num_samples: int  # stored of each chain
    store_every: int = 1  # transitions from one stored sample to the next

    @property
    def num_sampling(self) -> int:
        """Return the transitions of each chain after burn-in."""
        return self.num_samples * self.store_every

    @property
    def num_iterations(self) -> int:
        """Return the transitions of each chain."""
        return self.num_burnin + self.num_sampling

    def stored(self, iteration: int) -> int:
        """Return how many samples each chain has stored after so many transitions."""
        return max(0, iteration - self.num_burnin) // self.store_every

    def stores(self, iteration: int) -> bool:
        """Return whether a sample is stored after this transition."""
        return self.stored(iteration) > self.stored(iteration - 1)


class ChainRecord:
    """The files of C chains. `chains` is what the last checkpoint holds, None without one."""

    def __init__(
        self, run: Run, problem: Problem, schedule: Schedule, seed: int, checkpoint_seconds: float
    ):
        network, data, *_ = problem
        self._temperature = problem.temperature
        self.run, self._network, self._data, self._schedule = run, network, data, schedule
        self._checkpoint_seconds = checkpoint_seconds
        self._quantities = Quantities(network, data.test_labels, seed)
        shape = (len(data.test_labels), network.num_classes)
        if run.finished_config and not run.path("checkpoint.npz").exists():
            raise UserError(
                f"{run.directory} was finished by an earlier version, which kept no checkpoint to "
                "extend it from: give another --run_name."
            )
        begun = self._begun = self._count_begun()
        saved = run.load_checkpoint(
            "iteration", weights=(begun, network.num_weights), probability_sums=(begun, *shape),
            adaptations=(begun, len(StepSizeAdaptation._fields)),
        )  # fmt: skip
        self.chains, self.counters = None, dict(COUNTERS)
        self._probability_sums = torch.zeros(schedule.num_chains, *shape, dtype=torch.float64)
        if saved:
            self._restore(*saved)
        self._probability_sums = self._probability_sums.to(run.device)
        self._check_space()

    def _restore(self, counters: dict, arrays: dict[str, Tensor]) -> None:
        self.counters |= {name: counters[name] for name in COUNTERS if name in counters}
        sums = arrays["probability_sums"]
        self._probability_sums[: len(sums)] = sums.cpu()
        adaptations = tuple(StepSizeAdaptation(*row) for row in arrays["adaptations"].tolist())
        counts = counters.get("mass_counts", [])
        masses = tuple(
            MassAdaptation(MassMatrix(arrays["mass_factor"][k]), count, arrays["mass_curvature"][k])
            for k, count in enumerate(counts)
        )
        self.chains = Chains(arrays["weights"], adaptations, tuple(counters["iterations"]), masses)

    def _count_begun(self) -> int:
        """Return how many chains the checkpoint has."""
        try:
            with np.load(self.run.path("checkpoint.npz")) as archive:
                return min(len(archive["weights"]), self._schedule.num_chains)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return self._schedule.num_chains  # none, or one that cannot be loaded

    # -- space

    def _checkpoint_bytes(self) -> int:
        size, mass = self._network.num_weights, self.run.config.mass
        entries = {"identity": 0, "diagonal": 12 * size, "dense": 12 * size**2}[mass]
        weights = (4 * size + entries) * self._schedule.num_chains
        return weights + self._probability_sums.nbytes

    def _check_space(self) -> None:
        """Check what the whole run needs: a checkpoint is replaced by one that is complete."""
        schedule, checkpoint = self._schedule, self._checkpoint_bytes()
        row_bytes = 4 * self._network.num_weights + 8 * len(self._quantities.names)
        samples = schedule.num_chains * schedule.num_samples * row_bytes
        records = schedule.num_chains * schedule.num_iterations * RECORD_BYTES
        names = *CHAIN_ARRAYS, "trace.jsonl", "metrics.jsonl", "checkpoint.npz"
        paths = [self.run.path(name) for name in names]
        written = sum(path.stat().st_size for path in paths if path.exists())
        disk = samples + records + 2 * checkpoint
        check_space(self.run.directory, 4 * checkpoint, disk, written)

    # -- while chains run

    @contextmanager
    def open(self, chains: Chains) -> Iterator[None]:
        """Open the files; within it transitions may be added, and stops are noticed."""
        run, resumed = self.run, self.chains is not None
        rows = self._schedule.num_chains * self._schedule.num_samples
        columns = len(self._quantities.names)
        extended = resumed and any(
            [make_room(run.path(name), self._begun, rows, self._schedule.num_chains)
             for name in CHAIN_ARRAYS]
        )  # fmt: skip
        if resumed:
            self._complete_quantities()
        self._samples = ArrayFile(
            run.path("samples.npy"), (rows, self._network.num_weights), resumed=resumed
        )
        self._measured = ArrayFile(run.path("quantities.npy"), (rows, columns), "float64", resumed)
        self._trace = RecordFile(run.path("trace.jsonl"), self.counters["trace_bytes"])
        save_kind(run.directory, "Samples", self._network)
        self.chains, self._counted = chains, time.monotonic()
        self._checkpointed = self._diagnosed = self._counted
        with run.graceful_stop():
            # A start that took long is not made again, and the layout of arrays is as they are.
            if extended or not resumed:
                self._checkpoint()
            try:
                yield
            except UserError:  # another rank has ended
                self._checkpoint()  # which is a stop, if Ctrl-C has reached all ranks
                raise

    def _complete_quantities(self) -> None:
        """Add quantities that an earlier version did not record."""
        samples, measured = (self.run.path(name) for name in CHAIN_ARRAYS)
        if samples.exists() and measured.exists():
            before = np.load(measured, mmap_mode="r")
            whole = self._quantities.complete(before, np.load(samples, mmap_mode="r"))
            if whole is not before:
                write_atomically(measured, lambda file: np.save(file, whole))

    def stop_if_asked(self) -> None:
        """End the run after a checkpoint if it was asked to; to be called in every step."""
        if self.run.stop_requested:
            self._checkpoint()

    def add(self, chains: Chains, transitions: list[Transition]) -> dict:
        """Write down a transition of every chain, and return the averages over chains."""
        iteration = self.chains.iteration + 1
        burnin = iteration <= self._schedule.num_burnin
        moved = self.chains.active
        for k, transition in zip(moved, transitions, strict=True):
            record = {"iteration": iteration, "chain": k, "burnin": burnin}
            self._trace.append(record | transition._asdict())
        averages = {
            name: sum(getattr(t, name) for t in transitions) / len(transitions) for name in AVERAGED
        }
        stores = self._schedule.stores(iteration)
        if burnin or stores:
            number = self._schedule.stored(iteration) - 1 if stores else None
            made = dict(zip(moved, transitions, strict=True))
            averages |= self._score(chains.weights, made, number)
        self.run.log(iteration=iteration, **averages)
        self.chains = chains
        self._count(transitions, burnin)
        if stores and self._diagnosis_is_due(iteration):
            self._diagnose(iteration)
        if time.monotonic() - self._checkpointed >= self._checkpoint_seconds:
            self._checkpoint()
        return averages

    def _score(
        self, weights: Tensor, transitions: dict[int, Transition], number: int | None
    ) -> dict:
        """Return test accuracies; unless `number` is None, store states as that sample."""
        accuracies = []
        for k, transition in transitions.items():
            state = weights[k]
            probabilities = class_probabilities(self._network, state, self._data.test_images)
            accuracies.append(accuracy(probabilities, self._data.test_labels))
            if number is not None:
                row = k * self._schedule.num_samples + number
                self._samples.write(row, state)
                numbers = self._quantities.measure(state, probabilities, transition.nll)
                self._measured.write(row, numbers)
                self._probability_sums[k] += probabilities
        scores = {"sample_test_accuracy": sum(accuracies) / len(accuracies)}
        if number is not None:
            total = self._probability_sums.sum(0)
            scores["test_accuracy"] = accuracy(total, self._data.test_labels)
        return scores

    def _count(self, transitions: list[Transition], burnin: bool) -> None:
        now = time.monotonic()
        if not burnin:
            self.counters["seconds"] += now - self._counted
        for name, of in (COUNTED if burnin else COUNTED | COUNTED_AFTER_BURNIN).items():
            self.counters[name] += sum(map(of, transitions))
        self._counted = now

    def _checkpoint(self) -> None:
        """Save everything; a run that was asked to stop ends here."""
        self._samples.sync()
        self._measured.sync()
        counters = self.counters | {
            "iteration": self.chains.iteration, "iterations": self.chains.iterations,
            "trace_bytes": self._trace.sync(),
            "mass_counts": [mass.count for mass in self.chains.masses],
        }  # fmt: skip
        self._save_layout()  # only now, for readers rely on it
        self._checkpointed = time.monotonic()
        self.run.save_checkpoint(
            counters, weights=self.chains.weights, probability_sums=self._probability_sums,
            adaptations=np.array(self.chains.adaptations), **mass_arrays(self.chains.masses),
        )  # fmt: skip

    def _save_layout(self, **more) -> None:
        """Say how samples.npy is filled, for those who read it while chains still run."""
        chains, samples = self._schedule.num_chains, self._schedule.num_samples
        stored = {"stored_per_chain": self._schedule.stored(self.chains.iteration)}
        layout = {"num_chains": chains, "samples_per_chain": samples} | stored | more
        self.run.save_json("chains.json", layout)

    # -- diagnoses and the end

    def _diagnosis_is_due(self, iteration: int) -> bool:
        every = max(1, self._schedule.num_samples // INTERIM_DIAGNOSES)
        if self._schedule.stored(iteration) % every or iteration == self._schedule.num_iterations:
            return False
        return time.monotonic() - self._diagnosed >= SECONDS_BETWEEN_DIAGNOSES

    def _diagnose(self, iteration: int, left_out: Sequence[int] = ()) -> dict:
        """Write diagnostics.json and the figure of the chains so far.

        Return the diagnostics' groups, which are empty for too few samples.
        """
        self._diagnosed, schedule = time.monotonic(), self._schedule
        self.run.save_figure("chain", figures.chain(self.run.path("metrics.jsonl")))
        stored = schedule.stored(iteration)
        if stored < MIN_DRAWS:
            return {}
        measured = np.load(self.run.path("quantities.npy"), mmap_mode="r")
        draws = measured.reshape(schedule.num_chains, schedule.num_samples, -1)[:, :stored]
        hours = self.counters["seconds"] / 3600
        draws = np.delete(draws, left_out, axis=0)
        diagnostics = diagnose_all(draws, self._quantities.names, hours)
        self.run.save_json("diagnostics.json", diagnostics)
        groups = {name: group for name, group in diagnostics["groups"].items() if group}
        self.run.log(
            iteration=iteration,
            **{f"rhat_{name}": group["largest_rhat"] for name, group in groups.items()},
            **{f"ess_{name}": group["median_ess_bulk"] for name, group in groups.items()},
        )
        return diagnostics["groups"]

    def _compare(self, settings: HMCSettings) -> AnnealedChains | None:
        """Return annealed chains beside each other, and note for readers which are left out.

        Return None unless they began at draws from the prior, for then they have no weights.
        """
        if not settings.hot_transitions or self.run.config.start != "prior":
            return None
        chains = self._schedule.num_chains
        records = list(read_records(self.run.path("trace.jsonl")))
        weights = log_weights(records, settings, chains, self._temperature)
        potentials = [
            [each["potential"] for each in records if each["chain"] == k and not each["burnin"]]
            for k in range(chains)
        ]
        comparison = compare_annealed(weights, np.array(potentials))
        self._save_layout(**comparison._asdict())
        return comparison

    def finish(self, settings: HMCSettings) -> dict:
        """Write diagnostics and final scores, mark the run as finished, and return its summary."""
        self._checkpoint()
        counters, labels, schedule = self.counters, self._data.test_labels, self._schedule
        comparison = self._compare(settings)
        left_out = comparison.left_out if comparison else []
        kept = [k for k in range(schedule.num_chains) if k not in left_out]
        average = self._probability_sums[kept].sum(0) / (len(kept) * schedule.num_samples)
        summary = {
            **scores_on("test", average, labels),
            "accept_prob": counters["accept_prob"] / (schedule.num_chains * schedule.num_sampling),
            "sampling_seconds": counters["seconds"],
            "leapfrog_steps": counters["steps"],
            **{name: counters[name] for name in ("violations", "divergences")},
            "images_per_step": counters["images"] / max(1, counters["sampling_steps"]),
            **{name: counters[name] for name in ("followed_back", "not_returned", "steps_back")},
            "left_out": left_out,
            "diagnostics": self._diagnose(self.chains.iteration, left_out),
        }
        if comparison:
            summary["log_weight_spread"] = comparison.log_weight_spread
            summary["log_weight_gap"] = comparison.log_weight_gap
        if self._data.valid_labels is not None:
            images, samples = self._data.valid_images, open_samples(self.run.directory, fewest=1)
            samples = (weights.to(images.device) for weights in samples)
            average = mean_probabilities(self._network, samples, images)
            summary |= scores_on("valid", average, self._data.valid_labels)
        function = summary["diagnostics"].get("test_log_likelihood") or {}
        summary["ess_per_hour"] = function.get("median_ess_bulk_per_hour")
        self.run.finish(summary, keep_checkpoint=True)  # to extend the chains from
        return summary
