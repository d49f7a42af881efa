"""The settings of an evaluation, and what they say about matching, groups of weights and blocks."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from utils.data.datasets import Dataset
from utils.evaluation.predictions import FURTHER
from utils.evaluation.weight_study import alive_weights, choose_watched, dead_weights, weight_groups
from utils.networks.network import Network
from utils.posteriors.prior import Prior
from utils.posteriors.samples import num_blocks
from utils.rebasin.assignment import Matcher
from utils.rebasin.matching import make_matcher
from utils.settings.config import Config, option

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
        100,
        "samples in studies: of references, the prior, means, τ, pixels; evenly spaced",
        minimum=2,
    )
    study_images: int = option(
        10000, "images to match on in studies, in further columns and for the mean", minimum=1
    )
    mean_rounds: int = option(
        3,
        "rounds of rebasing the study's samples to their own mean; 0: leave that reference out",
        minimum=0,
    )
    further: list[str] = option(
        list(FURTHER),
        "further columns of the truth's q_r; in YAML [] for none",
        choices=tuple(FURTHER),
    )
    further_refits: int = option(
        10, "refits behind the errors of further columns; 0: no such errors", minimum=0
    )
    further_rounds: int = option(
        20, "largest number of rounds of the iterated ways of rebasin", minimum=1
    )
    consensus_images: int = option(
        500, "training images to match on without a reference", minimum=1
    )
    scale_draws: int = option(10, "weights drawn to score each τ", minimum=1)
    num_pairs: int = option(
        10, "pairs of samples behind cycle errors and cosines of units", minimum=2
    )
    limit_draws: int = option(
        1000, "draws of q_r in the study of what its numbers are worth; 0: leave it out", minimum=0
    )
    elbo_draws: int = option(20, "weights drawn for each ELBO; 0: leave it out", minimum=0)


class Blocks(NamedTuple):
    """How many contiguous blocks of samples are kept apart.

    Blocks of moments take 32 bytes per weight each, in the two passes of a set.
    """

    predictions: int = 1
    moments: int = 1


@dataclass(frozen=True)
class Setting:
    network: Network
    data: Dataset  # as the network takes it
    config: EvaluationConfig
    prior: Prior = Prior()  # of the truth, tempered
    temperature: float = 1.0
    images: Dataset | None = None  # as it is in files

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

    @property
    def study_images(self) -> Tensor:
        """Training images to match on in studies."""
        return self.data.train_images[: self.config.study_images]

    @property
    def matching(self) -> str:
        """What units are matched by in the paper's way."""
        return "activation" if self.config.by_activation else "weight"

    def matcher_for(self, reference: Tensor) -> Matcher:
        images = self.data.train_images[: self.config.num_match_images]
        return make_matcher(self.matching, self.network, reference, images)

    def study_matcher_for(self, reference: Tensor) -> Matcher:
        """Return a matcher that uses fewer images."""
        return make_matcher(self.matching, self.network, reference, self.study_images)

    def blocks_of(self, samples) -> Blocks:
        """Return how many blocks of these samples to keep; of moments only where they are used."""
        count = num_blocks(samples, self.config.num_blocks)
        return Blocks(count, count if self.config.num_refits else 1)
