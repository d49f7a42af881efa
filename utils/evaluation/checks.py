"""What diagnostics.json holds: how far the truth's samples and the other posteriors can be trusted.

Which candidates there are, and what they are, decides what is in it. Keys do not depend on names,
except where they are those of a posterior.
"""

import math

from utils.evaluation.alignment import Aligned, spaced_beside, spaced_references
from utils.evaluation.columns import DIRECT, LOW_RANK, SAMPLE, Column
from utils.evaluation.metrics import agreement, total_variation
from utils.evaluation.predictions import PartPredictions
from utils.evaluation.reference_study import Study, study_prior, study_references
from utils.evaluation.setting import Setting
from utils.evaluation.views import Views
from utils.evaluation.weight_space import WeightSpace
from utils.evaluation.weight_study import (
    averages,
    by_group,
    check_dead_pixels,
    correlations,
    describe_dead,
    mixing,
    num_effective,
    prior_band,
    share_at_prior,
)
from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian
from utils.runs.progress import progress_bar
from utils.symmetry.permutation import expected_transpositions


def check_posteriors(
    setting: Setting,
    samples,
    views: Views,
    predictions: dict[Column, PartPredictions],
    space: WeightSpace,
) -> dict:
    """Return all checks; `samples` are the truth's. Comparisons with the prior are in its σ."""
    truth, aligned = space.truth, views.aligned[space.truth]
    sizes = {name: len(indices) for name, indices in setting.watched.items()}
    chains = {
        frame: by_group(values, sizes, samples.num_chains)
        for frame, values in aligned.watched().items()
    }
    mixed = {frame: mixing(groups) for frame, groups in chains.items()}
    dead = check_dead(setting, aligned, mixed)
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
            "random": random_transpositions(setting.network),
        },
        f"halves_of_{truth}": {
            "agreement": agreement(*halves),
            "total_variation": total_variation(*halves),
        },
        **study(setting, samples, aligned, predictions, space, mixed),
        **describe_rank(views, truth),
    }


def random_transpositions(network: Network) -> float:
    """Return how many transpositions random permutations of all units take on average."""
    return sum(
        math.prod(network.units(name)[:-1]) * expected_transpositions(group.size)
        for name, group in network.groups.items()
    )


def in_prior_units(setting: Setting, gaussian: Gaussian) -> Gaussian:
    return Gaussian(*setting.prior.standardise(gaussian.mean, gaussian.std), gaussian.network)


def check_dead(setting: Setting, aligned: Aligned, mixed: dict) -> dict:
    moments = {"before": aligned.direct()}
    if setting.config.by_activation:  # by weight, dead weights are aligned, too
        moments["after"] = aligned.rebased()
    moments = {when: each.in_units_of(setting.prior.std) for when, each in moments.items()}
    return check_dead_pixels(moments, mixed, ~setting.alive)


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


def study(
    setting: Setting,
    samples,
    aligned: Aligned,
    predictions: dict[Column, PartPredictions],
    space: WeightSpace,
    mixed: dict,
) -> dict:
    """Rebase some samples to other references, and networks from the prior as a null."""
    config, data = setting.config, setting.data
    average = predictions[Column(space.truth, SAMPLE)].average()
    what = Study(
        setting.network, setting.study_matcher_for, data.test_images, data.test_labels, average,
        setting.alive, config.num_draws, config.seed, setting.prior,
    )  # fmt: skip
    watched = aligned.watched()["before"]
    positions = spaced_references(watched, config.num_references)
    others = spaced_beside(positions, watched, config.study_samples)
    references = {f"sample {p}": samples[p].to(setting.device) for p in positions if others}
    chosen = [samples[position].to(setting.device) for position in others]
    effective = num_effective(mixed["after"], len(samples))
    with progress_bar(len(references) + 1, "other references", unit="reference") as bar:
        rows = study_references(what, chosen, references, bar.update)
        null = study_prior(
            what, aligned.reference, space.gaussians["after"], len(chosen) or 2, effective
        )
        bar.update()
    return {
        "study_samples": len(chosen),
        "study_positions": others,
        "study_images": min(config.study_images, len(data.train_images)),
        "references": rows,
        "prior_networks": null,
    }
