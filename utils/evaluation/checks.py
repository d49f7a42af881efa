"""What diagnostics.json holds: how far the truth's samples and the other posteriors can be trusted.

Which candidates there are, and what they are, decides what is in it. Keys do not depend on names,
except where they are those of a posterior.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from utils.evaluation.alignment import (
    WAYS,
    Aligned,
    describe_way,
    spaced_beside,
    spaced_references,
)
from utils.evaluation.metrics import Prediction, accuracy_difference, closeness, scores
from utils.evaluation.predictions import (
    DIRECT,
    LOW_RANK,
    REBASED,
    SAMPLE,
    Column,
    PartPredictions,
    predict_draws,
)
from utils.evaluation.setting import Setting
from utils.evaluation.views import Views
from utils.evaluation.weight_space import WeightSpace
from utils.evaluation.weight_study import (
    averages,
    by_group,
    check_dead_pixels,
    correlation,
    correlations,
    describe_dead,
    mixing,
    num_effective,
    prior_band,
    share_at_prior,
)
from utils.posteriors.gaussian import Gaussian, rebase_gaussian
from utils.posteriors.moments import no_moments
from utils.rebasin.assignment import Matcher
from utils.rebasin.rebase import rebase_all
from utils.runs.progress import progress_bar
from utils.runs.seeding import generator
from utils.symmetry.counts import chance_transpositions

from torch import Tensor


def check_posteriors(
    setting: Setting, samples, views: Views, predictions: dict[Column, PartPredictions], space:
    WeightSpace,
) -> dict:  # fmt: skip
    """Return all checks; `samples` are the truth's. Comparisons with the prior are in its σ."""
    truth, aligned = space.truth, views.aligned[space.truth]
    sizes = {name: len(indices) for name, indices in setting.watched.items()}
    chains = {
        frame: by_group(values, sizes, samples.num_chains)
        for frame, values in aligned.watched().items()
    }
    mixed = {frame: mixing(groups) for frame, groups in chains.items()}
    moments = {"before": aligned.direct()}
    if setting.config.by_activation:  # by weight, dead weights are aligned, too
        moments["after"] = aligned.rebased()
    moments = {when: each.in_units_of(setting.prior.std) for when, each in moments.items()}
    dead = check_dead_pixels(moments, mixed, ~setting.alive)
    direct = in_prior_units(setting, views.fits[Column(truth, DIRECT)].posterior)
    follow_prior = bool(dead["dead_pixels"] and dead["dead_pixels"]["passed"])
    band = prior_band(direct, setting.groups, chains["before"], follow_prior)
    halves = predictions[Column(truth, SAMPLE)].halves()
    return {
        "num_samples": len(samples),
        "num_chains": samples.num_chains,
        **dead,
        **check_dead_of_distributions(setting, views, space),
        "mixing": mixed,
        **describe_frames(setting, space, band),
        "transpositions": {
            "along_chain": [each.total_transpositions() for each in aligned.transformations],
            "random": chance_transpositions(setting.network).mean,
        },
        f"halves_of_{truth}": closeness(*halves),
        "accuracy_differences": compare_accuracies(setting, predictions, Column(truth, SAMPLE)),
        **study(setting, samples, aligned, predictions, space, mixed),
        **describe_rank(views, truth),
        **describe_ways(setting, samples, views, truth),
    }


def compare_accuracies(
    setting: Setting, predictions: dict[Column, PartPredictions], truth: Column
) -> dict[str, dict]:
    """Return every column's accuracy minus the truth's, with its error over the same test points.

    For the truth itself it is that of its first half minus that of its second.
    """
    labels, average = setting.data.test_labels, predictions[truth].average()
    pairs = {column.key: (each.average(), average) for column, each in predictions.items()}
    pairs[truth.key] = predictions[truth].halves()
    return {key: accuracy_difference(*pair, labels) for key, pair in pairs.items()}


def in_prior_units(setting: Setting, gaussian: Gaussian) -> Gaussian:
    std = setting.prior.std
    return Gaussian(gaussian.mean / std, gaussian.std / std, gaussian.network)


def check_dead_of_distributions(setting: Setting, views: Views, space: WeightSpace) -> dict:
    """Describe the dead weights of fitted distributions: they tell whether a fit has converged."""
    return {
        f"dead_pixels_{name}": describe_dead(in_prior_units(setting, gaussian), ~setting.alive)
        for name, gaussian in space.gaussians["before"].items()
        if name not in views.aligned
    }


def describe_frames(setting: Setting, space: WeightSpace, band) -> dict[str, dict]:
    """Describe Gaussians by frame: the truth's σ beside the prior's, averages, correlations."""
    groups, frames = setting.groups, space.gaussians
    return {
        "at_prior": {
            frame: share_at_prior(in_prior_units(setting, gaussians[space.truth]), groups, band)
            for frame, gaussians in frames.items()
            if band is not None
        },
        "average_std": {
            frame: {name: averages(g.std, groups) for name, g in gaussians.items()}
            for frame, gaussians in frames.items()
        },
        "correlations": {
            frame: correlations(gaussians, setting.alive) for frame, gaussians in frames.items()
        },
    }


def describe_rank(views: Views, truth: str) -> dict:
    """Return how much of the samples' variance the low-rank Gaussian keeps, if there is one."""
    fit = views.fits.get(Column(truth, LOW_RANK))
    if fit is None:
        return {}
    low_rank, whole = fit.posterior, views.aligned[truth].rebased().variance().sum().item()
    kept = low_rank.variance() / whole if whole else 1.0  # of copies of one network
    return {"low_rank": {"rank": len(low_rank.factor), "variance_kept": kept}}


def describe_ways(setting: Setting, samples, views: Views, truth: str) -> dict:
    """Return what every way of rebasin leaves, and the τ of columns that have one."""
    if not setting.config.further:
        return {}
    aligned = views.aligned[truth]
    ways = {Column(truth, REBASED): aligned}
    ways |= {column: each for column, each in views.ways.items() if column.method == truth}
    variance = aligned.direct().variance()
    images, num_pairs = setting.study_images, setting.config.num_pairs

    def described(column: Column) -> dict:
        way = WAYS.get(column.view.way)
        matching = way.matching if way else setting.matching
        return describe_way(
            samples, matching, ways[column], variance, setting.alive, images, num_pairs
        )

    return {
        "ways": {column.key: described(column) for column in ways},
        "scales": views.scales,
    }


def study(
    setting: Setting, samples, aligned: Aligned, predictions: dict[Column, PartPredictions], space:
    WeightSpace, mixed: dict,
) -> dict:  # fmt: skip
    """Rebase some samples to other references, and networks from the prior as a null."""
    config = setting.config
    average = predictions[Column(space.truth, SAMPLE)].average()
    watched = aligned.watched()["before"]
    positions = spaced_references(watched, config.num_references)
    others = spaced_beside(positions, watched, config.study_samples)
    references = {f"sample {p}": samples[p].to(setting.device) for p in positions if others}
    chosen = [samples[position].to(setting.device) for position in others]
    effective = num_effective(mixed["after"], len(samples))
    with progress_bar(len(references) + 1, "other references", unit="reference") as bar:
        rows = study_references(setting, average, chosen, references, bar.update)
        counts = len(chosen) or 2, effective
        null = study_prior(setting, average, aligned.reference, space.gaussians["after"], *counts)
        bar.update()
    return {
        "study_samples": len(chosen),
        "study_positions": others,
        "study_images": len(setting.study_images),
        "references": rows,
        "prior_networks": null,
    }


# ---- q_r with other references, and of noise alone


@dataclass(frozen=True)
class Fitted:
    posterior: Gaussian
    transpositions: list[int]  # of every sample's rebasin


def fit_to(
    setting: Setting, samples: Iterable[Tensor], matcher: Matcher, *counts: int
) -> list[Fitted]:
    """Return q_r of the first samples, for each of the counts."""
    moments, transpositions, fits = None, [], {}
    for moved in rebase_all(setting.network, samples, matcher):
        moments = (moments or no_moments(moved.weights)).add(moved.weights)
        transpositions.append(moved.matching.transformation.total_transpositions())
        if moments.count in counts:
            fits[moments.count] = Fitted(moments.gaussian(), list(transpositions))
    return [fits[count] for count in counts]


def describe(setting: Setting, truth: Tensor, fitted: Fitted, reference: Tensor) -> dict:
    """Score q_r, and correlate its weights with its reference's.

    Activations do not align dead weights. If these correlate with the reference's, the samples have
    not forgotten it.
    """
    posterior, alive, dead = fitted.posterior, setting.alive, ~setting.alive
    data, config = setting.data, setting.config
    predictions = predict_draws(
        setting.network, posterior, data.test_images, config.num_draws, 1,
        generator(config.seed, "study_draws"),
    )  # fmt: skip
    average, mean_network = predictions.average(), predictions.mean_network
    return scores(Prediction(average, truth, data.test_labels, mean_network)) | {
        "average_std": posterior.std[alive].double().mean().item(),
        "mean_square_of_mean": posterior.mean[alive].double().square().mean().item(),
        "mean_with_reference": correlation(posterior.mean[alive], reference[alive]),
        "dead_with_reference": correlation(posterior.mean[dead], reference[dead]),
        "average_transpositions": sum(fitted.transpositions) / len(fitted.transpositions),
    }


def study_references(
    setting: Setting, truth: Tensor, samples: list[Tensor], references: dict[str, Tensor],
    on_reference: Callable[[], None] = lambda: None,
) -> dict[str, dict]:  # fmt: skip
    """Rebase the same samples to every reference; `truth` is the average prediction [N, classes].

    "mean_with_first" and "std_with_first" are correlations over weights with the q_r of the first
    reference, to which each q_r is rebased as a whole.
    """
    rows, first, first_matcher = {}, None, None
    for name, reference in references.items():
        matcher = setting.study_matcher_for(reference)
        (fitted,) = fit_to(setting, samples, matcher, len(samples))
        rows[name] = describe(setting, truth, fitted, reference)
        if first is None:
            first = fitted.posterior
            first_matcher = setting.study_matcher_for(first.mean)
        moved, _ = rebase_gaussian(setting.network, fitted.posterior, first_matcher)
        for part in ("mean", "std"):
            ours, theirs = getattr(moved, part), getattr(first, part)
            alike = correlation(ours[setting.alive], theirs[setting.alive])
            rows[name][f"{part}_with_first"] = alike
        on_reference()
    return rows


def study_prior(
    setting: Setting, truth: Tensor, reference: Tensor, gaussians: dict[str, Gaussian], count: int,
    effective: int,
) -> dict:  # fmt: skip
    """Rebase networks drawn from the prior, which know nothing of the data, to a reference.

    What their q_r has in common with the reference, and with Gaussians rebased to it, comes from
    alignment alone. The mean of K networks has noise of variance 1 / K, so its correlations grow
    with K. Therefore `count` networks, as many as the study has samples, are compared with the
    study's rows, and `effective` networks, as many as all samples of the truth are worth, give the
    mean that other means are compared with ("mean_with").
    """
    draws = (prior_network(setting, k).to(reference) for k in range(max(count, effective)))
    matcher = setting.study_matcher_for(reference)
    fitted, of_effective = fit_to(setting, draws, matcher, count, effective)
    mean, alive = of_effective.posterior.mean[setting.alive], setting.alive
    return describe(setting, truth, fitted, reference) | {
        "mean_with": {name: correlation(mean, g.mean[alive]) for name, g in gaussians.items()},
        "networks_of_mean_with": effective,
        "transpositions": fitted.transpositions,
    }


def prior_network(setting: Setting, number: int) -> Tensor:
    """Draw weights from the prior."""
    random = generator(setting.config.seed, "prior_network", number)
    return setting.prior.draw(setting.network, random)
