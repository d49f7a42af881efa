"""Weights of posteriors compared where matching did not look, with standard errors.

Units are matched by activation on images that show every other pixel; the weights of the other
pixels, which matching cannot make alike, are correlated. Both halves of the pixels take turns.

The units of the first layer are resampled, not single weights: a unit is matched as a whole, so its
weights agree or disagree together, and weights of neighbouring pixels are alike. The samples of
every set are resampled in contiguous blocks (and in whole chains, if there are several), and their
Gaussians are refitted and matched again. These origins are independent, so errors add in squares.
What a distribution owes to its training is not in the errors.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from utils.evaluation.alignment import spaced_positions
from utils.evaluation.checks import prior_network
from utils.evaluation.metrics import (
    MetricValues,
    Resampling,
    add_errors,
    deviations,
    resample,
    resample_chains,
)
from utils.evaluation.setting import Setting
from utils.evaluation.weight_space import marginal_gaussian
from utils.posteriors.gaussian import Gaussian, rebase_gaussian
from utils.posteriors.moments import Moments, fit_blocks, merge_all
from utils.posteriors.posterior import Posterior, is_set
from utils.posteriors.samples import Points, num_blocks
from utils.rebasin.rebase import rebase_all
from utils.rebasin.response_matching import ActivationMatcher
from utils.runs.seeding import generator

import torch
from torch import Tensor

CORRELATED = ("mean", "std")


def cross_fitted(setting: Setting, candidates: dict[str, Posterior], truth: str) -> dict | None:
    """Correlate μ and σ with the truth's over weights whose pixels had no part in the matching.

    "null" has networks from the prior in place of the truth's samples: it should be 0.
    """
    if setting.network.pixel_slot is None or len(candidates) < 2:
        return None
    halves = [pixel_half(setting, first) for first in (0, 1)]
    fits = {name: fit_on_halves(setting, each, halves) for name, each in candidates.items()}
    ours = fits.pop(truth)
    found = {name: compare_weights(setting, ours, each) for name, each in fits.items() if each}
    drawn = [prior_network(setting, number) for number in range(ours.count)]
    ours = fit_on_halves(setting, Points(torch.stack(drawn), setting.network), halves)
    for name in found:
        null = compare_weights(setting, ours, fits[name])
        found[name] |= {"null": null["mean"], "null_error": null["mean_error"]}
    return found


# ---- halves of the pixels


class Half(NamedTuple):
    images: Tensor  # that show half of the pixels
    hidden: Tensor  # [pixels]: the others, without the dead ones

    def hidden_weights(self, setting: Setting, weights: Tensor) -> Tensor:
        """Return the weights [units, hidden] of the first layer that matching did not see."""
        of_pixels = setting.network.pixel_slot.of(weights)[..., self.hidden]
        return of_pixels.reshape(len(of_pixels), -1)


def pixel_half(setting: Setting, first: int) -> Half:
    """Show every other pixel of the study's images, from the first or the second on."""
    alive = setting.data.train_images.any(0).flatten()
    shown = torch.arange(len(alive), device=alive.device) % 2 == first
    images = setting.study_images.flatten(1) * shown
    return Half(images.reshape(-1, *setting.network.input_shape), alive & ~shown)


# ---- Gaussians, one for each half


@dataclass(frozen=True)
class HalvesFit:
    """A posterior's Gaussians by half of the pixels, and what a set is resampled by."""

    halves: list[Half]
    fits: list[Gaussian | list[Moments]]  # a distribution's own, or blocks of rebased samples
    num_chains: int = 0  # of a set; 0: a distribution
    count: int = 0  # of samples

    def gaussians(self, chosen: Tensor | None = None) -> list[Gaussian] | None:
        """Return a Gaussian for each half, of all blocks or of the chosen ones.

        None if these have a single sample, which has no deviation.
        """
        if not self.num_chains:
            return self.fits
        numbers = range(len(self.fits[0])) if chosen is None else chosen.tolist()
        if sum(self.fits[0][number].count for number in numbers) < 2:
            return None
        return [merge_all([blocks[n] for n in numbers]).gaussian() for blocks in self.fits]


def fit_on_halves(setting: Setting, posterior: Posterior, halves: list[Half]) -> HalvesFit | None:
    """Fit a Gaussian to samples rebased to the first of them, on each half of the pixels.

    None for a distribution without a mean and deviations.
    """
    if not is_set(posterior):
        gaussian = marginal_gaussian(posterior)
        if gaussian is None:
            return None
        return HalvesFit(halves, [gaussian.to(setting.device)] * len(halves))
    samples, fits = list(some_networks(setting, posterior)), []
    count = num_blocks(posterior, min(setting.config.num_blocks, len(samples)))
    for half in halves:
        matcher = ActivationMatcher(setting.network, samples[0], half.images)
        moved = (each.weights for each in rebase_all(setting.network, samples, matcher))
        fits.append(fit_blocks(moved, len(samples), count))
    return HalvesFit(halves, fits, posterior.num_chains, len(samples))


def some_networks(setting: Setting, posterior: Posterior) -> Iterator[Tensor]:
    """Yield some of a posterior's networks: evenly spaced samples, or draws."""
    count = setting.config.study_samples
    if is_set(posterior):
        drawn = (posterior[position] for position in spaced_positions(len(posterior), count))
    else:
        drawn = posterior.draw(count, generator(setting.config.seed, "limits", "networks"))
    return (weights.to(setting.device) for weights in drawn)


# ---- correlations


def compare_weights(setting: Setting, ours: HalvesFit, theirs: HalvesFit) -> dict[str, float]:
    """Return the correlation of μ and of σ, each with its error, averaged over both halves."""
    config = setting.config
    sums = sums_by_unit(setting, ours.halves, ours.gaussians(), theirs.gaussians())
    units = resample(sums["mean"].shape[1], config.num_bootstraps, config.seed, "units")
    errors = [
        deviations(
            lambda chosen: correlate_units({p: s[:, chosen] for p, s in sums.items()}), [units]
        )
    ]
    unknown = dict.fromkeys(CORRELATED, float("nan"))

    def refitted(first: list[Gaussian] | None, second: list[Gaussian] | None) -> MetricValues:
        if first is None or second is None:
            return unknown
        return correlate_units(sums_by_unit(setting, ours.halves, first, second))

    scores: list[tuple[HalvesFit, Callable[[Tensor], MetricValues]]] = [
        (ours, lambda chosen: refitted(ours.gaussians(chosen), theirs.gaussians())),
        (theirs, lambda chosen: refitted(ours.gaussians(), theirs.gaussians(chosen))),
    ]
    for fit, score in scores:
        if fit.num_chains:
            known = config.num_refits
            errors.append(deviations(score, resamplings(setting, fit)) if known else unknown)
    return correlate_units(sums) | {f"{p}_error": e for p, e in add_errors(*errors).items()}


def resamplings(setting: Setting, fit: HalvesFit) -> list[Resampling]:
    config, count = setting.config, len(fit.fits[0])
    return resample_chains(count, fit.num_chains, config.num_refits, config.seed, "cross_fitted")


def sums_by_unit(
    setting: Setting, halves: list[Half], ours: list[Gaussian], theirs: list[Gaussian]
) -> dict[str, Tensor]:
    """Match theirs to ours, and return the sums over weights that correlations are made of.

    They are [halves, units, 6]: of 1, x, y, x², y² and xy, for μ and for σ.
    """
    sums: dict[str, list[Tensor]] = {part: [] for part in CORRELATED}
    for half, like, other in zip(halves, ours, theirs, strict=True):
        matcher = ActivationMatcher(setting.network, like.mean, half.images)
        moved, _ = rebase_gaussian(setting.network, other, matcher)
        for part in CORRELATED:
            x, y = (
                half.hidden_weights(setting, getattr(each, part)).double() for each in (like, moved)
            )
            products = torch.stack([torch.ones_like(x), x, y, x * x, y * y, x * y])
            sums[part].append(products.sum(-1).T)
    return {part: torch.stack(each) for part, each in sums.items()}


def correlate_units(sums: dict[str, Tensor]) -> MetricValues:
    """Return Pearson's correlation over all units by part, averaged over the halves."""
    found = {}
    for part, each in sums.items():
        n, x, y, xx, yy, xy = each.sum(1).T  # [halves] each
        spreads = ((n * xx - x * x) * (n * yy - y * y)).sqrt()
        found[part] = ((n * xy - x * y) / spreads).mean().item()
    return found
