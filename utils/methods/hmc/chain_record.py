"""What running chains leave in their run directory, and how they go on from there.

Everything chance or adaptation depends on is in the checkpoint or follows from the seed and the
number of the transition, so that a chain killed at any moment repeats itself bit for bit: at most
the steps since the last checkpoint are made a second time. On several ranks, where the flight under
way is spread over them, it is the transitions since then.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from utils.data.datasets import Dataset
from utils.evaluation.diagnostics import FEWEST_DRAWS, Quantities, diagnose_all
from utils.evaluation.metrics import accuracy, mean_nll
from utils.methods.hmc.hmc import Chains, Flight, HMCSettings, StepSizeAdaptation, Transition
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.report import figures
from utils.runs.errors import UserError
from utils.runs.files import ArrayFile, RecordFile
from utils.runs.progress import announce, check_disk, duration, progress_bar
from utils.runs.run import Run

import numpy as np
import torch
from torch import Tensor

STOCKTAKINGS = 10  # while the chains run
SECONDS_BETWEEN_STOCKTAKINGS = 60  # at least: drawing the figure takes one or two
RECORD_BYTES = 700  # of a transition, in trace.jsonl and metrics.jsonl
RECENT = 8  # iterations that tell, after burn-in, how long the others will take
SETTING_THE_PACE = ("host", "device", "threads", "processes")
AVERAGED = ("accept_prob", "delta_energy", "nll", "step_size", "list_rows", "divergent")
FLIGHT = "flight_"  # what the names of its arrays in a checkpoint begin with


class Pace(NamedTuple):
    """Seconds that chains take, and how much they do side by side on several ranks."""

    step: float  # a leapfrog step
    transition: float  # what a transition takes besides its steps: the energies at its ends
    side_by_side: float = 1.0  # chains that move at a time

    def seconds(self, steps: float, transitions: float) -> float:
        return (steps * self.step + transitions * self.transition) / self.side_by_side


def _saved_chains(counters: dict, arrays: dict[str, Tensor]) -> Chains:
    """The chains as a checkpoint has them, with the flight under way if there was one."""
    flight = {
        name.removeprefix(FLIGHT): array
        for name, array in arrays.items()
        if name.startswith(FLIGHT)
    }
    return Chains(
        arrays["weights"],
        tuple(StepSizeAdaptation(*numbers) for numbers in arrays["adaptations"].tolist()),
        counters["iteration"],
        tuple(Transition.from_numbers(numbers) for numbers in counters["ahead"]),
        flight or None,
    )


class ChainRecord:
    """The files of C chains; `chains` is what the last checkpoint held, None without one."""

    def __init__(self, run: Run, network: Network, data: Dataset, settings: HMCSettings):
        config = run.config
        self.run, self._network, self._data, self._settings = run, network, data, settings
        self._num_chains, self._per_chain = config.num_chains, config.num_samples
        self._quantities = Quantities(network, data.test_labels, config.seed)
        shape = (len(data.test_labels), data.num_classes)
        saved = run.load_checkpoint(
            weights=(self._num_chains, network.num_weights), probability_sum=shape,
            adaptations=(self._num_chains, len(StepSizeAdaptation._fields)),
        )  # fmt: skip
        self.chains, self._probability_sum = None, torch.zeros(shape, dtype=torch.float64)
        self._counters = {
            "trace_bytes": 0, "steps": 0, "seconds": 0.0, "accept_prob": 0.0, "violations": 0,
            "divergences": 0, "recent": [],  # (seconds, steps) of iterations
            "begun_seconds": 0.0, "ahead": [],  # of the iteration that is being made
        }  # fmt: skip
        if saved:
            counters, arrays = saved
            self._counters |= counters
            self.chains = _saved_chains(self._counters, arrays)
            self._probability_sum = arrays["probability_sum"]
        self._probability_sum = self._probability_sum.to(run.device)
        check_disk(run.directory, self._disk_bytes(), self._disk_bytes_there())

    # -- before and around sampling

    def announce(self, chains: Chains, pace: Pace) -> None:
        """Say what the whole will take, and refuse what the disk cannot hold."""
        self._side_by_side = pace.side_by_side
        if self._counters["recent"] and self._goes_on_as_before(chains):
            seconds = self._seconds_left(chains)
        else:
            moves = self._num_chains * (self.run.config.num_iterations - chains.iteration)
            seconds = pace.seconds(self._steps_left(chains), moves)
            seconds += self._scores_left(chains.iteration) * self._measure_score(chains.weights[0])
        announce(
            self.run.directory,
            seconds,
            more_memory=4 * self._checkpoint_bytes(),
            disk_bytes=self._disk_bytes(),
            disk_bytes_there=self._disk_bytes_there(),
        )
        if chains.iteration < self.run.config.num_burnin:
            print("The time is a guess from where chains start; after burn-in it is told again.")

    def _checkpoint_bytes(self) -> int:
        """With a flight: its place and momentum, and when to look at each image again."""
        vectors = 4 * self._network.num_weights * (self._num_chains + 2)
        lists = 12 * len(self._data.train_labels)
        return vectors + lists + self._probability_sum.nbytes

    def _disk_bytes(self) -> int:
        """What the whole run needs: a checkpoint is replaced only by one that is complete."""
        rows = self._num_chains * self._per_chain
        row_bytes = 4 * self._network.num_weights + 8 * len(self._quantities.names)
        records = RECORD_BYTES * self._num_chains * self.run.config.num_iterations
        return rows * row_bytes + records + 2 * self._checkpoint_bytes()

    def _disk_bytes_there(self) -> int:
        """Of these, what an earlier session has left."""
        names = "samples.npy", "quantities.npy", "trace.jsonl", "metrics.jsonl", "checkpoint.npz"
        there = [self.run.path(name) for name in names]
        return sum(path.stat().st_size for path in there if path.exists())

    @contextmanager
    def open(self, chains: Chains) -> Iterator[None]:
        """Within it transitions may be added."""
        run, rows = self.run, self._num_chains * self._per_chain
        self._newest = chains
        columns = len(self._quantities.names)
        shapes = (rows, self._network.num_weights), (rows, columns)
        resumed = self.chains is not None
        self._samples = ArrayFile(run.path("samples.npy"), shapes[0], resumed=resumed)
        self._measured = ArrayFile(run.path("quantities.npy"), shapes[1], "float64", resumed)
        self._trace = RecordFile(run.path("trace.jsonl"), self._counters["trace_bytes"])
        self._network.save(run.path("network.json"))
        self._save_layout(chains)
        self._checkpointed = self._counted = self._took_stock = time.monotonic()
        self._saved = chains if resumed else None
        self._made = done = self._counters["steps"] + sum(t.num_steps for t in chains.ahead)
        total = done + self._steps_left(chains)
        with (
            run.graceful_stop(),
            progress_bar(total, "HMC", initial=done, unit="step") as self._bar,
        ):
            try:
                yield
            except UserError:  # another rank has ended
                self._checkpoint(self._newest)  # which is a stop, where Ctrl-C has reached all
                raise

    def on_step(self, chains: Chains, flight: Flight | None) -> None:
        """To be called before every leapfrog step: checkpoints are made here, and a stop."""
        self._newest = chains
        self._made += self._side_by_side
        self._bar.update(round(self._made) - self._bar.n)
        due = time.monotonic() - self._checkpointed >= self.run.config.checkpoint_seconds
        news = flight is not None or chains is not self._saved
        if self.run.stop_requested or (due and news):
            self._checkpoint(chains, flight)

    def _save_layout(self, chains: Chains) -> None:
        """How samples.npy is filled: what is read from it while chains still run."""
        layout = {
            "num_chains": self._num_chains,
            "samples_per_chain": self._per_chain,
            "stored_per_chain": self._stored(chains.iteration),
        }
        self.run.save_json("chains.json", layout)

    def _stored(self, iteration: int) -> int:
        """Samples that each chain has stored after so many transitions."""
        config = self.run.config
        return max(0, iteration - config.num_burnin) // config.store_every

    def _steps_left(self, chains: Chains) -> int:
        steps = [
            self._settings.expected_steps(adaptation, iteration)
            for iteration in range(chains.iteration, self.run.config.num_iterations)
            for adaptation in chains.adaptations
        ]
        return round(sum(steps[len(chains.ahead) :]))

    def _goes_on_as_before(self, chains: Chains) -> bool:
        """Whether what is left will be like what an earlier session has done."""
        before, now = [{}, *self.run.meta["sessions"]][-2:]
        same = all(before.get(name) == now[name] for name in SETTING_THE_PACE)
        return same and chains.iteration >= self.run.config.num_burnin

    def _seconds_left(self, chains: Chains) -> float:
        """If steps, and what comes with them, take as long as they lately did."""
        seconds, steps = map(sum, zip(*self._counters["recent"], strict=True))
        return self._steps_left(chains) * seconds / steps

    def _scores_left(self, iteration: int) -> int:
        """States of all chains that test accuracies will be measured of."""
        config = self.run.config
        burnin = max(0, config.num_burnin - iteration)
        return self._num_chains * (burnin + self._per_chain - self._stored(iteration))

    def _measure_score(self, weights: Tensor) -> float:
        """Seconds that the test accuracy of a state takes, from a second call, like all others."""
        for _ in range(2):
            began = time.perf_counter()
            class_probabilities(self._network, weights, self._data.test_images)
        return time.perf_counter() - began

    # -- as transitions are made

    def add(self, chains: Chains, transitions: list[Transition]) -> None:
        """Write down a transition of every chain."""
        iteration, config = chains.iteration, self.run.config
        burnin = iteration <= config.num_burnin
        for k, transition in enumerate(transitions):
            record = {"iteration": iteration, "chain": k, "burnin": burnin}
            self._trace.append(record | transition._asdict())
        averages = {
            name: sum(getattr(t, name) for t in transitions) / len(transitions) for name in AVERAGED
        }
        stores = not burnin and (iteration - config.num_burnin) % config.store_every == 0
        scores = {}
        if burnin or stores:
            number = self._stored(iteration) - 1 if stores else None
            scores = self._score(chains.weights, transitions, number)
        self.run.log(iteration=iteration, **averages, **scores)
        self._newest = chains
        self._count(transitions, burnin)
        self._show(averages | scores)
        if iteration == config.num_burnin:
            self._announce_sampling(chains)
        if stores and self._stock_is_due(iteration):
            self._take_stock(iteration)

    def _score(self, weights: Tensor, transitions: list[Transition], number: int | None) -> dict:
        """Test accuracies; unless `number` is None, store states as that sample."""
        accuracies = []
        for k, (state, transition) in enumerate(zip(weights, transitions, strict=True)):
            probabilities = class_probabilities(self._network, state, self._data.test_images)
            accuracies.append(accuracy(probabilities, self._data.test_labels))
            if number is not None:
                row = k * self._per_chain + number
                self._samples.write(row, state)
                numbers = self._quantities.measure(state, probabilities, transition.nll)
                self._measured.write(row, numbers)
                self._probability_sum += probabilities
        scores = {"sample_test_accuracy": sum(accuracies) / len(accuracies)}
        if number is not None:
            scores["test_accuracy"] = accuracy(self._probability_sum, self._data.test_labels)
        return scores

    def _count(self, transitions: list[Transition], burnin: bool) -> None:
        counters, steps = self._counters, sum(t.num_steps for t in transitions)
        counters["steps"] += steps
        counters["violations"] += sum(t.violations for t in transitions)
        self._count_seconds()
        seconds, counters["begun_seconds"] = counters["begun_seconds"], 0.0
        if not burnin:
            counters["seconds"] += seconds
            counters["accept_prob"] += sum(t.accept_prob for t in transitions)
            counters["divergences"] += sum(t.divergent for t in transitions)
        counters["recent"] = [*counters["recent"], (seconds, steps)][-RECENT:]
        # Counted here are also the steps of other ranks, and those that a divergence has spared.
        self._made = counters["steps"]
        self._bar.update(self._made - self._bar.n)

    def _count_seconds(self) -> None:
        """Those gone by since they were last counted, for the iteration that is being made."""
        now = time.monotonic()
        self._counters["begun_seconds"] += now - self._counted
        self._counted = now

    def _show(self, shown: dict) -> None:
        texts = {
            "accept": f"{shown['accept_prob']:.2f}",
            "ΔH": f"{shown['delta_energy']:+.2f}",
            "NLL": f"{shown['nll']:.0f}",
            "list": f"{shown['list_rows']:.0f}",
        }
        for label, name in (("new", "sample_test_accuracy"), ("average", "test_accuracy")):
            if name in shown:
                texts[label] = f"{shown[name]:.4f}"
        self._bar.set_postfix(texts, refresh=False)

    def _announce_sampling(self, chains: Chains) -> None:
        self._bar.total = self._bar.n + self._steps_left(chains)
        self._bar.write(f"Burn-in is over; sampling: {duration(self._seconds_left(chains))}")

    def _checkpoint(self, chains: Chains, flight: Flight | None = None) -> None:
        for file in (self._samples, self._measured):
            file.sync()
        self._count_seconds()
        self._counters |= {
            "iteration": chains.iteration, "ahead": chains.ahead, "trace_bytes": self._trace.sync(),
        }  # fmt: skip
        self._save_layout(chains)  # after what it tells readers is there
        under_way = flight.state() if flight else {}
        self._saved, self._checkpointed = chains, time.monotonic()
        self.run.save_checkpoint(
            self._counters, weights=chains.weights, probability_sum=self._probability_sum,
            adaptations=np.array(chains.adaptations),
            **{FLIGHT + name: values for name, values in under_way.items()},
        )  # fmt: skip

    def _stock_is_due(self, iteration: int) -> bool:
        every = max(1, self._per_chain // STOCKTAKINGS)
        if self._stored(iteration) % every or iteration == self.run.config.num_iterations:
            return False
        return time.monotonic() - self._took_stock >= SECONDS_BETWEEN_STOCKTAKINGS

    def _take_stock(self, iteration: int) -> dict:
        """diagnostics.json and the figure of the chains so far.

        Given back is the summary of the diagnostics, which is empty for too few samples.
        """
        self._took_stock = time.monotonic()
        self.run.save_figure("chain", figures.chain(self.run.path("metrics.jsonl")))
        stored = self._stored(iteration)
        if stored < FEWEST_DRAWS:
            return {}
        measured = np.load(self.run.path("quantities.npy"), mmap_mode="r")
        draws = measured.reshape(self._num_chains, self._per_chain, -1)[:, :stored]
        hours = self._counters["seconds"] / 3600
        diagnostics = diagnose_all(np.asarray(draws), self._quantities.names, hours)
        self.run.save_json("diagnostics.json", diagnostics)
        groups = {name: group for name, group in diagnostics["groups"].items() if group}
        self.run.log(
            iteration=iteration,
            **{f"rhat_{name}": group["largest_rhat"] for name, group in groups.items()},
            **{f"ess_{name}": group["median_ess_bulk"] for name, group in groups.items()},
        )
        return diagnostics["groups"]

    # -- at the end

    def finish(self, chains: Chains) -> dict:
        """Diagnostics and final scores, written, with the run marked as finished."""
        self._checkpoint(chains)
        counters, labels = self._counters, self._data.test_labels
        average = self._probability_sum / (self._num_chains * self._per_chain)
        made = self._num_chains * self.run.config.num_sampling
        summary = {
            "test_accuracy": accuracy(average, labels),
            "test_nll": mean_nll(average, labels),
            "accept_prob": counters["accept_prob"] / made,
            "sampling_seconds": counters["seconds"],
            "leapfrog_steps": counters["steps"],
            "violations": counters["violations"],
            "divergences": counters["divergences"],
            "diagnostics": self._take_stock(chains.iteration),
        }
        function = summary["diagnostics"].get("test_log_likelihood") or {}
        summary["ess_per_hour"] = function.get("median_ess_bulk_per_hour")
        self.run.finish(summary)
        return summary
