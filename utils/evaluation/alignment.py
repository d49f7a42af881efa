"""Passes over posterior samples: predictions, and moments before and after rebasin.

The first pass rebases samples to the first of them. Further ways differ in what units are matched
by, and to what: to the first sample, to the samples' mean, which is iterated until it rests, or to
the order in which they are most similar, with no reference. Every way is described by the variance
that it leaves and by its cycle error: the share of units that do not return to their place if one
sample is matched to another directly, and then back through the common order.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from utils.evaluation.predictions import PartAverages, PartPredictions
from utils.evaluation.setting import Blocks, Setting
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.compact import Compact, from_rows
from utils.posteriors.low_rank import LowRankFit
from utils.posteriors.moments import Moments, block_of, enter_block, merge_all
from utils.rebasin.assignment import Matcher
from utils.rebasin.consensus import consensus
from utils.rebasin.matching import make_matcher
from utils.rebasin.rebase import iterated_mean, move, rebase
from utils.runs.run import Run
from utils.settings.errors import UserError
from utils.symmetry.transformation import Transformation

import numpy as np
import torch
from torch import Tensor

CHECKPOINT_SECONDS = 30  # between checkpoints


class Aligned:
    """What a pass gathers about samples; iterated ways of rebasin have rounds, and rest or not.

    What is kept of each sample goes into tensors allocated at the start: small allocations between
    large ones would keep the memory of the large ones from being reused.
    """

    def __init__(
        self, network: Network, reference: Tensor, num_samples: int, num_watched: int = 0,
        rounds: int | None = None, at_rest: bool | None = None,
    ):  # fmt: skip
        self.network, self.reference = network, reference
        self.rounds, self.at_rest = rounds, at_rest
        self.predictions: PartPredictions | None = None
        self.direct_blocks: list[Moments] = []
        self.rebased_blocks: list[Moments] = []
        self.done = 0
        num_units = len(Transformation(network).to_row())
        self._permutations = torch.zeros(num_samples, num_units, dtype=torch.long)
        self._signs = torch.ones(num_samples, num_units, dtype=torch.int8)
        self._watched = torch.zeros(2, num_samples, num_watched)

    def enter(self, transformation: Transformation, before: Tensor, after: Tensor) -> None:
        """Add the next sample's transformation, and its watched weights before and after it."""
        self._permutations[self.done] = transformation.to_row()
        self._signs[self.done] = transformation.sign_row()
        self._watched[0, self.done], self._watched[1, self.done] = before, after
        self.done += 1

    @property
    def permutation_rows(self) -> Tensor:
        """[samples so far, all hidden units]: groups of units one after the other."""
        return self._permutations[: self.done]

    @property
    def sign_rows(self) -> Tensor:
        """[samples so far, all hidden units]: ±1, as they were before units moved."""
        return self._signs[: self.done]

    @property
    def transformations(self) -> list[Transformation]:
        """Transformations of the samples so far."""
        return from_rows(self.network, self.permutation_rows, self.sign_rows)

    def direct(self) -> Moments:
        """Return the moments of all samples as they are."""
        return merge_all(self.direct_blocks)

    def rebased(self) -> Moments:
        """Return the moments of all samples after rebasin."""
        return merge_all(self.rebased_blocks)

    def watched(self) -> dict[str, np.ndarray]:
        """Return the watched weights [samples, watched] before and after rebasin."""
        return dict(zip(("before", "after"), self._watched.numpy(), strict=True))

    def compact(self) -> Compact:
        posterior = self.rebased().gaussian(self.network)
        return Compact(posterior, self.transformations, self.reference)


def align(
    network: Network, samples: Sequence[Tensor], matcher: Matcher, reference: Tensor, test_images:
    Tensor, blocks: Blocks, watched: Tensor, low_rank: LowRankFit | None = None, known:
    Sequence[Transformation] = (), on_sample: Callable[[Aligned], None] = lambda aligned: None,
) -> Aligned:  # fmt: skip
    """Rebase samples one after the other and gather everything about them.

    `watched` are indices of weights whose values are kept for every sample. Transformations of the
    first samples that an interrupted pass has found are passed as `known`.
    """
    aligned = Aligned(network, reference, len(samples), len(watched))
    parts = PartAverages(len(samples), blocks.predictions)
    device = test_images.device
    for position in range(len(samples)):
        weights = samples[position].to(device)
        if position < len(known):
            transformation = known[position]
            moved = move(weights, transformation)
        else:
            moved, matching = rebase(network, weights, matcher)
            transformation = matching.transformation
        parts.add(class_probabilities(network, weights, test_images))
        block = block_of(position, len(samples), blocks.moments)
        enter_block(aligned.direct_blocks, block, weights)
        enter_block(aligned.rebased_blocks, block, moved)
        aligned.enter(transformation, weights[watched], moved[watched])
        if low_rank:
            low_rank.add(moved)
        on_sample(aligned)
    aligned.predictions = parts.predictions()
    return aligned


@dataclass(frozen=True)
class RebasedSamples:
    """Samples as their transformations move them, read from the disk whenever they are needed."""

    network: Network
    samples: Sequence[Tensor]
    transformations: list[Transformation]
    device: torch.device

    def __len__(self) -> int:
        return len(self.transformations)

    def __iter__(self) -> Iterator[Tensor]:
        for position, transformation in enumerate(self.transformations):
            yield transformation.apply(self.samples[position].to(self.device))

    def spaced(self, count: int) -> "RebasedSamples":
        """Return at most `count` of them, evenly spaced."""
        chosen = spaced_positions(len(self), count)
        samples = [self.samples[position] for position in chosen]
        transformations = [self.transformations[position] for position in chosen]
        return RebasedSamples(self.network, samples, transformations, self.device)


# ---- interrupted rebasin


class RebasinRecord:
    """The rebasin found so far, in the checkpoint of a run: finding it takes most of the time.

    Transformations that an interrupted session has found are `known`.
    """

    def __init__(self, run: Run, samples, name: str):
        self._run, self._num_samples, self._name = run, len(samples), name
        indices = getattr(samples, "indices", np.arange(len(samples)))
        self._used = {"indices": torch.from_numpy(indices), "reference": samples[0]}
        self._saved_at = time.monotonic()
        self.known: list[Transformation] = []
        saved = run.load_checkpoint("rebased")
        if saved:
            _, arrays = saved
            self._check_same_samples(arrays)
            self.known = from_rows(samples.network, arrays["permutations"], arrays.get("signs"))

    def keep(self, aligned: Aligned) -> None:
        """Save now and then, at the end, and before a stop. Call it after every sample."""
        done = aligned.done
        late = time.monotonic() - self._saved_at > CHECKPOINT_SECONDS
        due = late or self._run.stop_requested or done == self._num_samples
        if due and done > len(self.known):
            rows = {"permutations": aligned.permutation_rows, "signs": aligned.sign_rows}
            self._run.save_checkpoint({"rebased": done}, **rows, **self._used)
            self._saved_at = time.monotonic()

    def _check_same_samples(self, arrays: dict[str, Tensor]) -> None:
        """Refuse other samples, also where no meta.json says which run they come from."""
        for name, now in self._used.items():
            if name not in arrays or not torch.equal(arrays[name].cpu(), now.cpu()):
                raise UserError(
                    f"{self._name} has other samples than when {self._run.directory} was begun: "
                    "start again with --overwrite, or give another --run_name."
                )


# ---- positions of samples


def spaced_positions(length: int, count: int) -> list[int]:
    """Return at most `count` evenly spaced positions in 0 … length − 1, with both ends."""
    return np.linspace(0, length - 1, min(length, count)).round().astype(int).tolist()


def spaced_references(samples: np.ndarray, count: int) -> list[int]:
    """Return at most `count` positions of samples [K, numbers] to rebase the others to.

    They are at most half of the different samples.
    """
    different = len({row.tobytes() for row in samples})
    return spaced_positions(len(samples), min(count, max(different // 2, 1)))


def spaced_beside(references: list[int], samples: np.ndarray, count: int) -> list[int]:
    """Return such positions of samples [K, numbers] that are no references; none if one is left.

    The mean of K samples would resemble a reference among them by 1 / √K even if they had nothing
    in common. The same goes for copies of a reference that a chain leaves when it rejects.
    """
    taken = {samples[position].tobytes() for position in references}
    others = [position for position, row in enumerate(samples) if row.tobytes() not in taken]
    if len(others) < 2:
        return []  # one sample has no deviation
    return [others[position] for position in spaced_positions(len(others), count)]


# ---- further ways of rebasin

FIRST, MEAN, NO_REFERENCE = "first", "mean", "none"


class Way(NamedTuple):
    matching: str  # one of matching.MATCHINGS
    reference: str  # FIRST, MEAN or NO_REFERENCE
    title: str


WAYS = {
    "contribution": Way("contribution", FIRST, "by contribution, to the first"),
    "contribution_to_mean": Way("contribution", MEAN, "by contribution, to their mean"),
    "consensus": Way("contribution", NO_REFERENCE, "by contribution, no reference"),
}


def align_in_way(
    way: Way, rebased: RebasedSamples, reference: Tensor, setting: Setting, num_blocks: int,
    max_rounds: int, on_sample: Callable[[], None] = lambda: None,
) -> Aligned:  # fmt: skip
    """Rebase samples, which may be rebased already; transformations are of the original ones."""
    network, config, rounds, at_rest = rebased.network, setting.config, None, None

    def matcher_for(weights: Tensor):
        return make_matcher(way.matching, network, weights, setting.study_images)

    if way.reference == NO_REFERENCE:
        images = setting.study_images[: config.consensus_images]
        common = consensus(network, rebased, images, max_rounds)
        rounds, at_rest, moves = common.rounds, common.at_rest, iter(common.transformations)
        reference = common.transformations[0].apply(reference)  # the first sample in that order

        def find(weights: Tensor) -> Transformation:
            return next(moves)
    else:
        if way.reference == MEAN:
            some = list(rebased.spaced(config.study_samples))
            mean = iterated_mean(network, some, matcher_for, max_rounds)
            reference, rounds, at_rest = mean.weights, mean.rounds, mean.at_rest
        matcher = matcher_for(reference)

        def find(weights: Tensor) -> Transformation:
            return matcher(weights).transformation

    aligned = Aligned(network, reference, len(rebased), rounds=rounds, at_rest=at_rest)
    for position, weights in enumerate(rebased):
        transformation = find(weights)
        moved = move(weights, transformation)
        block = block_of(position, len(rebased), num_blocks)
        enter_block(aligned.rebased_blocks, block, moved)
        first, nothing = rebased.transformations[position], weights[:0]
        aligned.enter(first.then(transformation), nothing, nothing)
        on_sample()
    return aligned


def describe_way(
    samples, matching: str, aligned: Aligned, direct_variance: Tensor, mask: Tensor,
    images: Tensor, num_pairs: int,
) -> dict:  # fmt: skip
    """Return what a way leaves, over the masked weights: its cycle error and how it ended."""
    variance = aligned.rebased().variance()[mask].sum() / direct_variance[mask].sum()
    errors = cycle_errors(samples, aligned, matching, images, num_pairs)
    return {
        "remaining_variance": variance.item(),
        "cycle_error": errors.mean().item(),
        "cycle_error_se": (errors.std() / len(errors) ** 0.5).item(),
        "rounds": aligned.rounds,
        "at_rest": aligned.at_rest,
    }


def cycle_errors(
    samples, aligned: Aligned, matching: str, images: Tensor, num_pairs: int
) -> Tensor:
    """Return for some pairs of samples the share of units that direct matching puts elsewhere.

    The first sample is in no pair: where others are matched to it, its cycles close by themselves.
    """
    positions = [1 + k for k in spaced_positions(len(samples) - 1, num_pairs + 1)]
    shares = []
    moves = aligned.transformations
    for first, second in itertools.pairwise(positions):
        pair = [samples[position].to(images.device) for position in (first, second)]
        direct = make_matcher(matching, aligned.network, pair[0], images)(pair[1]).transformation
        through = moves[second].then(moves[first].inverse())
        shares.append((direct.to_row() != through.to_row()).double().mean().item())
    return torch.tensor(shares, dtype=torch.float64)
