"""The distributions behind the columns of the table.

What views a posterior has depends on what it is. A set of weight vectors predicts by itself, and
has Gaussians fitted to it before and after rebasin. Any other posterior has the one view that it
is. The truth, which others are compared with, is also rebased to its mean and has covariances.

Two refinements make a fitted Gaussian predict better. With independent noise on all weights, units
lose what they have in common; N(μ, τ²σ²) with τ < 1 keeps more of the mean: τ = 0 is the network at
μ, τ = 1 the Gaussian as it is fitted. The τ whose predictions are nearest to those of the samples,
in KL divergence, is chosen on training images. REPAIR gives units the moments of others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from utils.evaluation.alignment import (
    MEAN,
    WAYS,
    Aligned,
    RebasedSamples,
    RebasinRecord,
    Way,
    align,
    align_in_way,
    spaced_positions,
)
from utils.evaluation.predictions import (
    CONTRIBUTION,
    DIRECT,
    FURTHER,
    LOW_RANK,
    MEAN_REFERENCE,
    OWN,
    REBASED,
    SAMPLE,
    TAUS,
    Column,
    PartPredictions,
    columns_of,
    predict_draws,
)
from utils.evaluation.setting import Setting
from utils.networks.network import Network
from utils.networks.predictions import mean_probabilities
from utils.posteriors.gaussian import Gaussian, elbo_estimates, log_likelihood
from utils.posteriors.low_rank import LowRank, LowRankFit
from utils.posteriors.moments import Moments, block_of, merge_all
from utils.posteriors.posterior import Posterior, is_set
from utils.posteriors.prior import by_layer, num_layers
from utils.rebasin.contributions import contributions
from utils.rebasin.repair import UnitMoments, repaired, unit_moments
from utils.runs.progress import progress_bar
from utils.runs.run import Run
from utils.runs.seeding import generator
from utils.settings.errors import UserError

import torch
from torch import Tensor

SCALES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)
SWEEPS = 2  # over the layers, where each has its own τ


@dataclass(frozen=True)
class Repaired:
    """A Gaussian whose networks get units with the moments of others."""

    posterior: Gaussian
    network: Network
    images: Tensor
    target: UnitMoments

    @property
    def mean(self) -> Tensor:
        return self._repair(self.posterior.mean)

    def draw(self, count: int, random: torch.Generator) -> Iterator[Tensor]:
        return (self._repair(weights) for weights in self.posterior.draw(count, random))

    def _repair(self, weights: Tensor) -> Tensor:
        return repaired(self.network, weights, self.images, self.target)


@dataclass(frozen=True)
class Refinement:
    """What is done to a Gaussian: τ for all weights or for each layer, and then REPAIR or not."""

    network: Network
    taus: tuple[float, ...] = (1.0,)
    images: Tensor | None = None
    target: UnitMoments | None = None

    def __call__(self, gaussian: Gaussian) -> Posterior:
        taus = self.taus[0] if len(self.taus) == 1 else list(self.taus)
        scale = by_layer(self.network, taus).to(gaussian.std)
        scaled = replace(gaussian, std=gaussian.std * scale.nan_to_num(posinf=1.0))
        if self.target is None:
            return scaled
        return Repaired(scaled, self.network, self.images, self.target)


@dataclass(frozen=True)
class TauSearch:
    """Compares scales by KL(samples' predictions ‖ predictions of draws) on training images.

    All scales are compared with the same noise.
    """

    images: Tensor
    truth: Tensor  # [N, classes]: what the samples predict
    num_draws: int
    seed: int

    def divergence(self, refinement: Refinement, gaussian: Gaussian) -> float:
        count = self.num_draws if any(refinement.taus) else 1
        drawn = refinement(gaussian).draw(count, generator(self.seed, "scale_draws"))
        average = mean_probabilities(refinement.network, drawn, self.images)
        own, cross = (torch.special.xlogy(self.truth, each) for each in (self.truth, average))
        return (own - cross).sum(-1).mean().item()

    def best(self, refinement: Refinement, gaussian: Gaussian, by_layers: bool) -> Refinement:
        """Return the refinement with the best of SCALES, for all weights or layer by layer."""
        found = self._best_of([replace(refinement, taus=(tau,)) for tau in SCALES], gaussian)
        if not by_layers:
            return found
        taus = found.taus * num_layers(refinement.network)
        for layer in list(range(len(taus))) * SWEEPS:
            trials = [(*taus[:layer], tau, *taus[layer + 1 :]) for tau in SCALES]
            found = self._best_of([replace(refinement, taus=each) for each in trials], gaussian)
            taus = found.taus
        return found

    def _best_of(self, refinements: list[Refinement], gaussian: Gaussian) -> Refinement:
        return min(refinements, key=lambda each: self.divergence(each, gaussian))


# ---- all views


@dataclass(frozen=True)
class Fit:
    """A distribution; `again` fits it to some blocks of the samples it was fitted to, if any."""

    posterior: Posterior
    again: Callable[[list[int]], Posterior] | None = None

    def refined(self, refine: Callable[[Posterior], Posterior]) -> "Fit":
        """Return what is made of the distribution, and again of every refit."""
        again = self.again and (lambda chosen: refine(self.again(chosen)))
        return Fit(refine(self.posterior), again)


@dataclass(frozen=True)
class Views:
    """Everything that is fitted to the candidates."""

    aligned: dict[str, Aligned]  # by name, of the sets
    fits: dict[Column, Fit]  # of all columns but the samples'
    ways: dict[Column, Aligned]  # of the sets: the truth to its mean, and further ways
    scales: dict[str, tuple[float, ...]] = field(default_factory=dict)  # τ, by key of the column

    def compacts(self, truth: str) -> dict[str, Aligned]:
        """Return what is saved in compact form, by file name."""
        found = {"compact": self.aligned[truth]}
        found |= {f"compact_{column.key}": aligned for column, aligned in self.ways.items()}
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
    ways, fits = {}, {}
    if setting.config.mean_rounds:
        way = Way(setting.matching, MEAN, "to the mean")
        column, rounds = Column(truth, MEAN_REFERENCE), setting.config.mean_rounds
        ways[column] = align_another_way(setting, candidates[truth], aligned[truth], way, rounds)
    for name, posterior in candidates.items():
        if name in aligned:
            fits[Column(name, DIRECT)] = fit_moments(aligned[name].direct_blocks)
            fits[Column(name, REBASED)] = fit_moments(aligned[name].rebased_blocks)
        else:
            fits[Column(name, OWN)] = Fit(posterior)
    for column, again in ways.items():
        fits[column] = fit_moments(again.rebased_blocks)
    if low_rank:
        blocks = aligned[truth].rebased_blocks
        fits[Column(truth, LOW_RANK)] = fit_low_rank(low_rank.gaussian(), blocks)
    views = Views(aligned, fits, ways)
    return fit_further(setting, candidates, truth, views) if setting.config.further else views


def align_set(
    setting: Setting, samples, name: str, low_rank: LowRankFit | None = None, known=(),
    on_sample=lambda aligned: None,
) -> Aligned:  # fmt: skip
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


def align_another_way(
    setting: Setting, samples, aligned: Aligned, way: Way, max_rounds: int
) -> Aligned:
    rebased = RebasedSamples(setting.network, samples, aligned.transformations, setting.device)
    reference, num_blocks = aligned.reference, setting.blocks_of(samples).moments
    with progress_bar(len(rebased), f"rebasing {way.title}", unit="sample") as bar:
        return align_in_way(way, rebased, reference, setting, num_blocks, max_rounds, bar.update)


# ---- further views


def possible_columns(
    network: Network, weights: Tensor, images: Tensor, keys: list[str]
) -> list[str]:
    """Return the further columns that a network can have; say which are left out, and why."""
    possible, left_out = [], {}
    for key in keys:
        try:
            if FURTHER[key].repair:
                unit_moments(network, weights, images)
            if FURTHER[key].way in WAYS:
                contributions(network, weights, images)
        except UserError as error:
            left_out.setdefault(str(error), []).append(key)
        else:
            possible.append(key)
    for error, names in left_out.items():
        print(f"Left out of the table: {', '.join(names)}. {error}")
    return possible


def fit_further(
    setting: Setting, candidates: dict[str, Posterior], truth: str, views: Views
) -> Views:
    """Return the views with the further ones that the settings ask for.

    Other sets than the truth are also rebased by contribution, if the truth is.
    """
    fits, ways, scales = dict(views.fits), dict(views.ways), {}
    max_rounds = setting.config.further_rounds
    wanted = [FURTHER[key] for key in FURTHER if key in setting.config.further]
    for name, aligned in views.aligned.items():
        for view in wanted if name == truth else [v for v in wanted if v == CONTRIBUTION]:
            column = Column(name, FURTHER.get(view.way, REBASED))
            if view.way in WAYS and column not in ways:
                ways[column] = align_another_way(
                    setting, candidates[name], aligned, WAYS[view.way], max_rounds
                )
                fits[column] = fit_moments(ways[column].rebased_blocks)
    refined = [view for view in wanted if view.scale or view.repair]
    search = tau_search(setting, candidates[truth]) if any(v.scale for v in refined) else None
    targets = {}
    for view in refined:
        base = Column(truth, FURTHER.get(view.way, REBASED))
        if view.repair and view.way not in targets:
            aligned = ways.get(base, views.aligned[truth])
            targets[view.way] = average_moments(setting, candidates[truth], aligned)
        refine = Refinement(
            setting.network, images=setting.study_images,
            target=targets[view.way] if view.repair else None,
        )  # fmt: skip
        column = Column(truth, view)
        if view.scale:
            refine = search.best(refine, fits[base].posterior, by_layers=view.scale == TAUS)
            scales[column.key] = refine.taus
        fits[column] = fits[base].refined(refine)
    return replace(views, fits=fits, ways=ways, scales=scales)


def tau_search(setting: Setting, samples) -> TauSearch:
    """Return what chooses τ: the predictions of some samples on training images."""
    config, images = setting.config, setting.study_images
    positions = spaced_positions(len(samples), config.study_samples)
    some = (samples[position].to(setting.device) for position in positions)
    truth = mean_probabilities(setting.network, some, images)
    return TauSearch(images, truth, config.scale_draws, config.seed)


def average_moments(setting: Setting, samples, aligned: Aligned) -> UnitMoments:
    """Return the moments of the units of rebased samples over images, on average over some."""
    rebased = RebasedSamples(setting.network, samples, aligned.transformations, setting.device)
    first, *others = (
        unit_moments(setting.network, weights, setting.study_images)
        for weights in rebased.spaced(setting.config.study_samples)
    )
    return first.averaged(others)


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
            bounds = elbos(setting, column, views.fits[column].posterior)
            predictions[column] = replace(predictions[column], bounds=bounds)
    return predictions


def elbos(setting: Setting, column: Column, posterior: Posterior) -> Tensor | None:
    """Return estimates of a Gaussian's ELBO; at temperature T of p(D | w)^(1/T)."""
    count = setting.config.elbo_draws
    if not count or not isinstance(posterior, Gaussian):
        return None
    images, labels = setting.data.train_images, setting.data.train_labels

    def likelihood(weights: Tensor) -> float:
        return log_likelihood(setting.network, weights, images, labels) / setting.temperature

    moved, random = posterior.to(setting.device), generator(setting.config.seed, "elbo", column.key)
    return elbo_estimates(moved, setting.prior, likelihood, count, random)


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
