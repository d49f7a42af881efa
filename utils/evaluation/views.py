"""The setting of an evaluation, and the distributions behind the columns of its table.

What views a posterior has depends on what it is. A set of weight vectors predicts by itself, and
has Gaussians fitted to it before and after rebasin. Any other posterior has the one view that it
is. The truth, which others are compared with, is also rebased to its mean and has covariances.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

from utils.data.datasets import Dataset
from utils.evaluation.alignment import (
    Aligned,
    Blocks,
    RebasedSamples,
    RebasinRecord,
    align,
    align_again,
)
from utils.evaluation.predictions import (
    DIRECT,
    LOW_RANK,
    MEAN_REFERENCE,
    OWN,
    REBASED,
    SAMPLE,
    Column,
    PartPredictions,
    columns_of,
    predict_draws,
)
from utils.evaluation.weight_study import (
    alive_weights,
    choose_watched,
    dead_weights,
    weight_groups,
)
from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRank, LowRankFit
from utils.posteriors.mixture import is_set
from utils.posteriors.moments import Moments, block_of, merge_all
from utils.posteriors.posterior import Posterior
from utils.posteriors.prior import Prior
from utils.posteriors.samples import num_blocks
from utils.runs.config import Config, option
from utils.runs.progress import progress_bar
from utils.runs.run import Run
from utils.runs.seeding import generator
from utils.symmetry.matching import Matcher, make_matcher
from utils.symmetry.rebasin import iterated_mean

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Config):
    num_draws: int = option(100, "weights drawn from each Gaussian for its predictions", minimum=1)
    by_activation: bool = option(True, "rebase by activation; no: by weight")
    num_match_images: int | None = option(
        None, "training images to match activations on; none: all", minimum=1
    )
    rank: int = option(250, "largest rank of the low-rank Gaussian; 0: leave it out", minimum=0)
    num_blocks: int = option(20, "contiguous blocks of samples, or draws, to resample", minimum=2)
    num_bootstraps: int = option(200, "resamplings behind each standard error", minimum=2)
    num_refits: int = option(
        40,
        "Gaussians refitted to resampled blocks; 0: no standard errors of fitted Gaussians, and "
        "less memory",
        minimum=0,
    )
    refit_draws: int = option(20, "weights drawn from each refitted Gaussian", minimum=1)
    num_references: int = option(
        5, "samples that the others are rebased to in the study of references", minimum=1
    )
    study_samples: int = option(
        100, "samples in the studies of references and of the prior, evenly spaced", minimum=2
    )
    study_images: int = option(
        10000, "training images to match on in the studies and for the mean reference", minimum=1
    )
    mean_rounds: int = option(
        3,
        "rounds of rebasing the study's samples to their own mean; 0: leave that reference out",
        minimum=0,
    )


@dataclass(frozen=True)
class Setting:
    network: Network
    data: Dataset
    config: EvaluationConfig
    prior: Prior = Prior()  # of the truth, tempered

    @property
    def device(self) -> torch.device:
        return self.data.test_images.device

    @cached_property
    def groups(self) -> dict[str, Tensor]:
        """Masks [d] of the groups of weights."""
        return weight_groups(self.network, dead_weights(self.network, self.data.train_images))

    @cached_property
    def watched(self) -> dict[str, Tensor]:
        """Indices of some weights of every group."""
        return choose_watched(self.groups, self.config.seed)

    @property
    def alive(self) -> Tensor:
        """The mask [d] of the weights that are not behind dead pixels."""
        return alive_weights(self.groups)

    def matcher_for(self, reference: Tensor) -> Matcher:
        return self._matcher(reference, self.config.num_match_images)

    def study_matcher_for(self, reference: Tensor) -> Matcher:
        """Return a matcher that uses fewer images."""
        return self._matcher(reference, self.config.study_images)

    def _matcher(self, reference: Tensor, num_images: int | None) -> Matcher:
        method = "activation" if self.config.by_activation else "weight"
        return make_matcher(method, self.network, reference, self.data.train_images[:num_images])

    def blocks_of(self, samples) -> Blocks:
        """Return how many blocks of these samples to keep; of moments only where they are used."""
        count = num_blocks(samples, self.config.num_blocks)
        return Blocks(count, count if self.config.num_refits else 1)


# ---- views


@dataclass(frozen=True)
class Fit:
    """A distribution; `again` fits it to some blocks of the samples it was fitted to, if any."""

    posterior: Posterior
    again: Callable[[list[int]], Posterior] | None = None


@dataclass(frozen=True)
class Views:
    """Everything that is fitted to the candidates."""

    aligned: dict[str, Aligned]  # by name, of the sets
    fits: dict[Column, Fit]  # of all columns but the samples'
    to_mean: Aligned | None  # the truth's samples rebased to their mean

    def compacts(self, truth: str) -> dict[str, Aligned]:
        """Return what is saved in compact form, by file name."""
        found = {"compact": self.aligned[truth]}
        if self.to_mean:
            found[f"compact_{Column(truth, MEAN_REFERENCE).key}"] = self.to_mean
        for name, aligned in self.aligned.items():
            if name != truth:
                found[f"compact_{Column(name, REBASED).key}"] = aligned
        return found


def fit_views(setting: Setting, candidates: dict[str, Posterior], truth: str, run: Run) -> Views:
    """Rebase all sets and fit their Gaussians; continue an interrupted rebasin of the truth's."""
    low_rank = LowRankFit(setting.config.rank) if setting.config.rank else None
    record = RebasinRecord(run, candidates[truth], truth)
    with run.graceful_stop():
        aligned = {
            truth: align_set(setting, candidates[truth], truth, low_rank, record.known, record.keep)
        }
    for name, posterior in candidates.items():
        if name != truth and is_set(posterior):
            aligned[name] = align_set(setting, posterior, name)
    to_mean = align_to_mean(setting, candidates[truth], aligned[truth])
    fits = {}
    for name, posterior in candidates.items():
        if name in aligned:
            fits[Column(name, DIRECT)] = fit_moments(aligned[name].direct_blocks)
            fits[Column(name, REBASED)] = fit_moments(aligned[name].rebased_blocks)
        else:
            fits[Column(name, OWN)] = Fit(posterior)
    if to_mean:
        fits[Column(truth, MEAN_REFERENCE)] = fit_moments(to_mean.rebased_blocks)
    if low_rank:
        fits[Column(truth, LOW_RANK)] = fit_low_rank(
            low_rank.gaussian(), aligned[truth].rebased_blocks
        )
    return Views(aligned, fits, to_mean)


def align_set(
    setting: Setting,
    samples,
    name: str,
    low_rank: LowRankFit | None = None,
    known=(),
    on_sample=lambda aligned: None,
) -> Aligned:
    """Rebase samples to the first of them."""
    reference = samples[0].to(setting.device)
    watched = torch.cat(list(setting.watched.values()))
    with progress_bar(len(samples), f"rebasing {name}", unit="sample") as bar:

        def on_each(aligned: Aligned) -> None:
            bar.update()
            on_sample(aligned)

        return align(
            setting.network, samples, setting.matcher_for(reference), reference,
            setting.data.test_images, setting.blocks_of(samples), watched, low_rank, known, on_each,
        )  # fmt: skip


def align_to_mean(setting: Setting, samples, aligned: Aligned) -> Aligned | None:
    """Rebase samples to the mean that some of them settle around when rebased to it repeatedly."""
    config, matcher_for = setting.config, setting.study_matcher_for
    if not config.mean_rounds:
        return None
    rebased = RebasedSamples(setting.network, samples, aligned.transformations, setting.device)
    some = list(rebased.spaced(config.study_samples))
    mean = iterated_mean(setting.network, some, matcher_for, config.mean_rounds).weights
    blocks = setting.blocks_of(samples).moments
    with progress_bar(len(rebased), "rebasing to the mean", unit="sample") as bar:
        return align_again(setting.network, rebased, matcher_for(mean), mean, blocks, bar.update)


def predict_views(
    setting: Setting, candidates: dict[str, Posterior], views: Views
) -> dict[Column, PartPredictions]:
    """Predict with every view of every candidate, in the order of tables."""
    config, images, predictions = setting.config, setting.data.test_images, {}
    for column in columns_of(candidates).values():
        if column.view == SAMPLE and column.method in views.aligned:
            predictions[column] = views.aligned[column.method].predictions
        elif column in views.fits:
            predictions[column] = predict_draws(
                setting.network, views.fits[column].posterior, images, config.num_draws,
                config.num_blocks, generator(config.seed, "draws", column.key),
            )  # fmt: skip
    return predictions


# ---- Gaussians fitted to blocks of samples


def fit_moments(blocks: list[Moments]) -> Fit:
    return Fit(merge_all(blocks).gaussian(), partial(refit_moments, blocks))


def refit_moments(blocks: list[Moments], chosen: list[int]) -> Gaussian:
    """Return the mean-field Gaussian of some blocks, each as often as it is chosen."""
    return merge_all([blocks[block] for block in chosen]).gaussian()


def fit_low_rank(low_rank: LowRank, blocks: list[Moments]) -> Fit:
    return Fit(low_rank, partial(refit_low_rank, low_rank, blocks))


def refit_low_rank(low_rank: LowRank, blocks: list[Moments], chosen: list[int]) -> LowRank:
    """Return the low-rank Gaussian of some blocks of its samples.

    Its mean is that of the blocks: if the rank is too small, the mean moves in directions that the
    factor lacks.
    """
    num_samples = len(low_rank.coordinates)
    owners = [block_of(position, num_samples, len(blocks)) for position in range(num_samples)]
    times = torch.tensor(chosen).bincount(minlength=len(blocks))
    refitted = low_rank.resampled(times[owners].to(low_rank.mean.device))
    return replace(refitted, mean=refit_moments(blocks, chosen).mean)
