"""What MNIST_eval.py leaves in its run directory, and what it goes on from when interrupted."""

import time

from utils.evaluation.alignment import Aligned
from utils.evaluation.columns import Column
from utils.posteriors.low_rank import LowRank
from utils.posteriors.sources import Samples, WeightSpace
from utils.runs.errors import UserError
from utils.runs.run import Run
from utils.symmetry.transformation import Transformation, from_row

import torch
from torch import Tensor

CHECKPOINT_SECONDS = 30


class RebasinRecord:
    """The permutations found so far, in the run's checkpoint: they take most of the time."""

    def __init__(self, run: Run, samples: Samples):
        self._run, self._num_samples = run, len(samples)
        self._path = samples.path
        self._used = {"indices": torch.from_numpy(samples.indices), "reference": samples[0]}
        self._checkpointed = time.monotonic()
        self.known: list[Transformation] = []
        saved = run.load_checkpoint()
        if saved:
            _, arrays = saved
            self._check_same_samples(arrays)
            self.known = [from_row(samples.network, row) for row in arrays["permutations"].cpu()]

    def keep(self, aligned: Aligned) -> None:
        """To be called after every sample; writes now and then, at the end, and before a stop."""
        done = aligned.done
        late = time.monotonic() - self._checkpointed > CHECKPOINT_SECONDS
        due = late or self._run.stop_requested or done == self._num_samples
        if due and done > len(self.known):
            permutations = aligned.permutation_rows
            self._run.save_checkpoint({"rebased": done}, permutations=permutations, **self._used)
            self._checkpointed = time.monotonic()

    def _check_same_samples(self, arrays: dict[str, Tensor]) -> None:
        """A permutation of one sample says nothing about another.

        Of runs their records tell as much; of samples that no run has left nothing else does.
        """
        for name, now in self._used.items():
            if name not in arrays or not torch.equal(arrays[name].cpu(), now):
                raise UserError(
                    f"{self._path} has other samples than when {self._run.directory} was begun: "
                    "start again with --overwrite, or give another --run_name."
                )


def save_compact(
    run: Run,
    hmc: Aligned,
    to_mean: Aligned,
    others: dict[str, Aligned],
    low_rank: LowRank,
) -> None:
    hmc.compact().save(run.path("compact.npz"))
    to_mean.compact().save(run.path("compact_hmc_mean_reference.npz"))
    for name, aligned in others.items():
        aligned.compact().save(run.path(f"compact_{name}_rebased.npz"))
    low_rank.write(run.path("low_rank.npz"))


def save_predictions(run: Run, columns: dict[str, Column], labels: Tensor) -> None:
    """Averages [N, classes] by column, and `<column>_mean` of the networks at the mean."""
    arrays = {name: column.average() for name, column in columns.items()}
    for name, column in columns.items():
        if column.mean_network is not None:
            arrays[f"{name}_mean"] = column.mean_network
    run.save_arrays("predictions.npz", labels=labels, **arrays)


def save_weight_space(run: Run, space: WeightSpace) -> None:
    """weight_space.npz, with network.json, as `open_weight_space` reads it."""
    arrays = {f"{name}_single": weights for name, weights in space.singles.items()}
    for frame, gaussians in space.gaussians.items():
        for name, gaussian in gaussians.items():
            arrays[f"{name}_{frame}_mean"] = gaussian.mean
            arrays[f"{name}_{frame}_std"] = gaussian.std
    run.save_arrays("weight_space.npz", alive=space.alive, **arrays)
    space.network.save(run.path("network.json"))
