"""How far to trust q_r's numbers: draws, chains in halves, matched units, pixels.

draws           agreement and TV of q_r by the number of draws, extrapolated to infinitely many
reliability     how μ_r and σ_r of one half of the chain correlate with those of the other half
held_out        distributions fitted to the first half, and some of its samples, compared with the
                second half's samples
similarity      cosines of matched units: of samples, and of networks from the prior
null            what alignment alone does to networks from the prior, in every way of rebasin
cross_fitted    units matched on half of the pixels, weights of the other half correlated
dead_pixels     predictions on test images with noise on pixels that are zero in training
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from utils.data.datasets import network_inputs
from utils.evaluation.alignment import (
    FIRST,
    WAYS,
    Aligned,
    RebasedSamples,
    Way,
    align_in_way,
    spaced_positions,
)
from utils.evaluation.checks import fit_to, prior_network
from utils.evaluation.cross_fitting import cross_fitted, some_networks
from utils.evaluation.metrics import accuracy, calibration_error, closeness, mean_nll
from utils.evaluation.predictions import REBASED, SAMPLE, Column, PartPredictions
from utils.evaluation.setting import Setting
from utils.evaluation.views import Refinement, Views, tau_search
from utils.evaluation.weight_study import correlation
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities, mean_probabilities
from utils.networks.registry import inputs_for
from utils.posteriors.low_rank import LowRankFit
from utils.posteriors.moments import Moments, fit_blocks, merge_all
from utils.posteriors.posterior import Posterior, is_set
from utils.rebasin.matching import RESPONSES
from utils.rebasin.response_matching import Stack
from utils.runs.seeding import generator
from utils.settings.wording import plural
from utils.symmetry.transformation import Transformation, random_transformation

import numpy as np
import torch
from torch import Tensor

NOISE = (0.0, 0.25, 0.5, 1.0, 2.0)  # deviations on dead pixels, whose values lie in [0, 1]
COUNTS = (5, 10, 20, 50, 100, 200, 500, 1000)  # of draws
SMALLEST_COUNT = 50  # of draws that a limit is extrapolated from
NUM_GROUPS = 5  # of draws, left out one at a time for the limit's error
FEW_SAMPLES = (1, 2, 5, 10)  # samples in place of a distribution


def find_limits(
    setting: Setting, candidates: dict[str, Posterior], truth: str, views: Views, predictions:
    dict[Column, PartPredictions], beside: dict[str, Posterior],
) -> dict:  # fmt: skip
    """Return all of it, for the truth's samples. Noise also for the posteriors `beside` them."""
    config, samples = setting.config, candidates[truth]
    images = setting.data.test_images[: config.study_images]
    average = predictions[Column(truth, SAMPLE)].average()[: len(images)]
    rebased = views.fits[Column(truth, REBASED)].posterior
    random = generator(config.seed, "limits", "draws")
    drawn = [
        class_probabilities(setting.network, weights, images)
        for weights in rebased.draw(config.limit_draws, random)
    ]
    best = next((c for c in views.ways if c.method == truth and c.view.key == "consensus"), None)
    aligned = {Column(truth, REBASED): views.aligned[truth]}
    aligned |= {best: views.ways[best]} if best else {}
    return {
        "draws": draw_curve(drawn, average),
        "reliability": {
            column.key: split_half(each.rebased_blocks, setting.groups)
            for column, each in aligned.items()
        },
        "held_out": held_out(setting, samples, aligned, images),
        "similarity": {
            matching: unit_similarity(setting, samples, matching) for matching in RESPONSES
        },
        "null": align_noise(setting, views, truth, average),
        "cross_fitted": cross_fitted(setting, candidates, truth),
        "dead_pixels": dead_pixel_noise(
            setting,
            noisy_networks(setting, candidates, truth, views),
            networks_beside(setting, beside),
        ),
    }


# ---- draws


def draw_curve(probabilities: Sequence[Tensor], truth: Tensor) -> dict:
    """Return agreement and TV with averages of n draws, by n, and what they tend to."""
    counts = [n for n in COUNTS if n <= len(probabilities)]
    rows = rows_by_count(probabilities, truth, counts)
    return {"rows": rows, "limit": limit_of(probabilities, truth)}


def rows_by_count(
    probabilities: Sequence[Tensor], truth: Tensor, counts: Sequence[int]
) -> list[dict]:
    """Score averages of n draws, over disjoint batches, for each n."""
    rows = []
    for count in counts:
        starts = range(0, len(probabilities) - count + 1, count)
        batches = [sum(probabilities[start : start + count]) / count for start in starts]
        scored = [closeness(batch, truth) for batch in batches]
        rows.append({"draws": count, "batches": len(batches), **mean_and_error(scored)})
    return rows


def mean_and_error(scored: Sequence[dict[str, float]]) -> dict[str, float | None]:
    """Return the mean of every score and its standard error, None of a single one."""
    values = np.array([list(each.values()) for each in scored])
    errors = values.std(0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else None
    row = {}
    for number, name in enumerate(scored[0]):
        row[name] = float(values[:, number].mean())
        row[f"{name}_error"] = None if errors is None else float(errors[number])
    return row


def limit_of(probabilities: Sequence[Tensor], truth: Tensor) -> dict[str, float] | None:
    """Return the scores of infinitely many draws, extrapolated, with jackknife errors.

    An average over n draws differs from that over all by 1/√n, and labels change where it is near a
    tie, so scores follow a + b/√n. Small n do not lie on that line and are left out. None if fewer
    than three are left.
    """
    size = len(probabilities) // NUM_GROUPS
    counts = [n for n in COUNTS if SMALLEST_COUNT <= n <= len(probabilities) - size]
    if len(counts) < 3:
        return None

    def fitted(draws: Sequence[Tensor]) -> dict[str, float]:
        rows = rows_by_count(draws, truth, counts)
        return {name: extrapolate(rows, name) for name in ("agreement", "total_variation")}

    whole = fitted(probabilities)
    without = [
        fitted([*probabilities[: k * size], *probabilities[(k + 1) * size :]])
        for k in range(NUM_GROUPS)
    ]
    for name in list(whole):
        values = np.array([each[name] for each in without])
        whole[f"{name}_error"] = float(((NUM_GROUPS - 1) * values.var()) ** 0.5)
    return whole


def extrapolate(rows: Sequence[dict], name: str) -> float:
    """Return a of a + b/√n."""
    slopes = np.array([[1.0, row["draws"] ** -0.5] for row in rows])
    values = np.array([row[name] for row in rows])
    return float(np.linalg.lstsq(slopes, values, rcond=None)[0][0])


# ---- halves of the chain


def split_half(blocks: list[Moments], groups: dict[str, Tensor]) -> dict | None:
    """Correlate μ, and σ, of the first half of the blocks with those of the second, by group.

    "whole" is the reliability of all samples, by Spearman and Brown's 2r / (1 + r): the correlation
    with a repetition that is as long; None if r is negative. No rows if a half has less than two
    samples. Halves that are aligned to the same reference correlate by that alone: see `null`.
    """
    middle = len(blocks) // 2
    parts = [part for part in (blocks[:middle], blocks[middle:]) if part]
    if len(parts) < 2 or min(merge_all(part).count for part in parts) < 2:
        return None
    halves = [merge_all(part).gaussian() for part in parts]
    rows = {}
    for name, mask in groups.items():
        row = {}
        for part in ("mean", "std"):
            half = correlation(*(getattr(each, part)[mask] for each in halves))
            row[part] = {"halves": half, "whole": 2 * half / (1 + half) if half >= 0 else None}
        rows[name] = row
    return rows


def held_out(
    setting: Setting, samples, aligned: dict[Column, Aligned], images: Tensor
) -> dict[str, dict]:
    """Fit distributions to the first half of the samples and compare them with the second's.

    "samples" is the first half itself, the best that can be reached, and "n samples" are n of it.
    Shuffled samples have their units in random order. Of rebased ones there are also the network at
    the mean, and the Gaussian with the best τ. Halves of less than two samples have no deviations.
    """
    if len(samples) < 4:
        return {}
    network, config, middle = setting.network, setting.config, len(samples) // 2
    labels = setting.data.test_labels[: len(images)]
    first = [samples[k].to(setting.device) for k in range(middle)]
    second = (samples[k].to(setting.device) for k in range(middle, len(samples)))
    predicted = [class_probabilities(network, weights, images) for weights in first]
    truth = mean_probabilities(network, second, images)

    def score(average: Tensor) -> dict[str, float]:
        return closeness(average, truth) | own_scores(average, labels)

    rows = {"samples": score(sum(predicted) / middle)}
    for count in (n for n in FEW_SAMPLES if n < middle):
        # samples of one set are far apart in the chain
        sets = [predicted[k :: middle // count][:count] for k in range(middle // count)]
        scored = mean_and_error([score(sum(each) / count) for each in sets])
        rows[plural(count, "sample")] = scored
    search = tau_search(setting, first)
    orders: dict[str, list[Transformation]] = {
        "as they are": [Transformation(network)] * middle,
        "shuffled": [
            Transformation(network, random_transformation(network, each).permutations)
            for each in (generator(config.seed, "shuffle", number) for number in range(middle))
        ],
    }
    orders |= {column.key: each.transformations[:middle] for column, each in aligned.items()}
    for name, moves in orders.items():
        rebased = RebasedSamples(network, samples, moves, setting.device)
        fit = LowRankFit(min(config.rank, middle - 1) or 1)
        for weights in rebased:
            fit.add(weights)
        gaussian = merge_all(fit_blocks(rebased, middle)).gaussian(network)
        posteriors = {"Gaussian": gaussian, "low rank": fit.gaussian()}
        if name not in ("as they are", "shuffled"):
            rows[f"mean, {name}"] = score(class_probabilities(network, gaussian.mean, images))
            refine = search.best(Refinement(network), gaussian, by_layers=False)
            posteriors["Gaussian with τ"] = refine(gaussian)
        for kind, posterior in posteriors.items():
            drawn = posterior.draw(config.num_draws, generator(config.seed, "limits", "held_out"))
            rows[f"{kind}, {name}"] = score(mean_probabilities(network, drawn, images))
    return rows


def own_scores(average: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the scores that need no other posterior."""
    return {
        "accuracy": accuracy(average, labels),
        "ece": calibration_error(average, labels),
        "nll": mean_nll(average, labels),
    }


# ---- is there anything to align?


def unit_similarity(setting: Setting, samples, matching: str) -> dict[str, dict]:
    """Return the mean cosine of matched units, for pairs of samples and of networks of the prior.

    Units that alignment of noise makes as similar as those of samples are no evidence of modes.
    """
    positions = spaced_positions(len(samples), 2 * setting.config.num_pairs)
    of_chain = [samples[position].to(setting.device) for position in positions]
    of_prior = [prior_network(setting, k).to(of_chain[0]) for k in range(len(positions))]
    half = len(positions) // 2
    kinds = {
        "samples": (of_chain[:half], of_chain[half:]),
        "sample and prior": (of_chain[:half], of_prior[half:]),
        "prior": (of_prior[:half], of_prior[half:]),
    }
    rows = {}
    for kind, pairs in kinds.items():
        cosines = [
            matched_cosine(setting.network, *pair, setting.study_images, matching)
            for pair in zip(*pairs, strict=False)
        ]
        error = np.std(cosines, ddof=1) / len(cosines) ** 0.5 if len(cosines) > 1 else None
        rows[kind] = {"cosine": float(np.mean(cosines)), "error": error}
    return rows


def matched_cosine(
    network: Network, reference: Tensor, other: Tensor, images: Tensor, matching: str
) -> float:
    """Return the mean cosine between the responses of matched units that are not dead."""
    matcher = RESPONSES[matching](network, reference, images)
    comparisons = matcher.compare(Stack(network, other[None]))[0]
    moved = matcher(other).transformation
    cosines = []
    for name, each in comparisons.items():
        units = torch.arange(len(each.squares))
        places = moved.follow(name, units.reshape(network.units(name))).flatten()
        lengths = (each.reference_squares * each.squares[places]).sqrt()
        products = each.similarity[units, places].abs()
        cosines.append((products / lengths)[lengths > 0])
    return torch.cat(cosines).mean().item()


def align_noise(setting: Setting, views: Views, truth: str, average: Tensor) -> dict[str, dict]:
    """Return by way what rebasin does to networks from the prior, as many as the study's samples.

    "remaining_variance" is relative to before, over live weights; "closeness" that of q_r fitted to
    them to the truth's predictions; "reliability" as in `split_half`.
    """
    network, config = setting.network, setting.config
    drawn = [prior_network(setting, number) for number in range(config.study_samples)]
    unmoved = [Transformation(network)] * len(drawn)
    networks = RebasedSamples(network, drawn, unmoved, setting.device)
    reference = drawn[0].to(setting.device)
    before = merge_all(fit_blocks(networks, len(drawn))).variance()[setting.alive].sum()
    ways = {Column(truth, REBASED): Way(setting.matching, FIRST, "the paper's")}
    ways |= {c: WAYS[c.view.way] for c in views.ways if c.method == truth and c.view.way}
    images, found = setting.data.test_images[: len(average)], {}
    for column, way in ways.items():
        aligned = align_in_way(way, networks, reference, setting, 2, config.further_rounds)
        moments = aligned.rebased()
        random = generator(config.seed, "limits", "null")
        draws = moments.gaussian(network).draw(config.num_draws, random)
        found[column.key] = {
            "remaining_variance": (moments.variance()[setting.alive].sum() / before).item(),
            "closeness": closeness(mean_probabilities(network, draws, images), average),
            "reliability": split_half(aligned.rebased_blocks, setting.groups),
        }
    return found


# ---- noise on dead pixels


class Networks(NamedTuple):
    network: Network
    weights: list[Tensor]


def dead_pixel_noise(
    setting: Setting, networks: dict[str, Networks], beside: dict[str, Networks]
) -> dict | None:
    """Return accuracy, ECE and NLL of posteriors with noise on pixels that are zero in training.

    HMC keeps the prior's weights there, so noise goes straight into its predictions (Izmailov et
    al. 2021, "Dangers of Bayesian model averaging under covariate shift"). The noise is on the
    images, before a network normalises them or multiplies them by EmpCov's root.
    """
    dead = ~setting.images.train_images.bool().any(0)  # any() of uint8 is uint8
    if setting.network.pixel_slot is None or not dead.any():
        return None
    some = slice(setting.config.study_images)
    images, labels = setting.images.test_images[some], setting.images.test_labels[some]
    images = network_inputs(images, images.shape[1:])
    random = generator(setting.config.seed, "limits", "dead_pixels")
    noise = torch.randn(images.shape, generator=random).to(images) * dead

    def score(network: Network, weights: list[Tensor]) -> list[dict[str, float]]:
        kind = setting.images.normalisation(network.normalisation)
        rows = []
        for deviation in NOISE:
            inputs = network_inputs(images + deviation * noise, network.input_shape, kind)
            average = mean_probabilities(network, weights, inputs)
            rows.append({"noise": deviation, **own_scores(average, labels)})
        return rows

    return {
        "blank_pixels": int(dead.sum()),
        "images": len(images),
        "rows": {name: score(*each) for name, each in networks.items()},
        "beside": {name: score(*each) for name, each in beside.items()},
    }


def noisy_networks(
    setting: Setting, candidates: dict[str, Posterior], truth: str, views: Views
) -> dict[str, Networks]:
    """Return networks of all candidates, of the truth's q_r and of the best q_r with τ."""
    chosen = {name: some_networks(setting, each) for name, each in candidates.items()}
    scaled = [column for column in views.fits if column.view.key == "consensus_tau"]
    for column in (Column(truth, REBASED), *scaled):
        chosen[column.key] = some_networks(setting, views.fits[column].posterior)
    return {name: Networks(setting.network, list(each)) for name, each in chosen.items()}


def networks_beside(setting: Setting, beside: dict[str, Posterior]) -> dict[str, Networks]:
    """Return networks of posteriors with networks of their own, and of the q_r of chains."""
    found = {}
    for name, posterior in beside.items():
        network = posterior.network
        where = replace(setting, network=network, data=inputs_for(network, setting.images))
        weights = list(some_networks(where, posterior))
        found[name] = Networks(network, weights)
        if is_set(posterior) and posterior.is_chain:
            matcher = where.study_matcher_for(weights[0])
            rebased = fit_to(where, weights, matcher, len(weights))[0].posterior
            found[f"{name} q_r"] = Networks(network, list(some_networks(where, rebased)))
    return found
