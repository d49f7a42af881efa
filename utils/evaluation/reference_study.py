"""How q_r depends on what samples are rebased to, and what rebasin makes of mere noise."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from utils.evaluation.columns import draw_column, scores
from utils.evaluation.weight_study import correlation
from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian, rebase_gaussian
from utils.posteriors.moments import no_moments
from utils.runs.seeding import generator
from utils.symmetry.matching import Matcher
from utils.symmetry.rebasin import move, rebase_all

import torch
from torch import Tensor


@dataclass(frozen=True)
class Setting:
    """What all fits of a study have in common."""

    network: Network
    matcher_for: Callable[[Tensor], Matcher]  # of a reference
    test_images: Tensor
    test_labels: Tensor
    true_posterior: Tensor  # [N, classes]: predictions of HMC's samples
    alive: Tensor  # [d]: weights that are not behind dead pixels
    num_draws: int
    seed: int


@dataclass(frozen=True)
class Fitted:
    posterior: Gaussian
    transpositions: list[int]  # of every sample's rebasin


def fit_to(
    setting: Setting, samples: Iterable[Tensor], matcher: Matcher, *counts: int
) -> list[Fitted]:
    """q_r of the first so many samples, for each of the counts."""
    moments, transpositions, fits = None, [], {}
    for moved in rebase_all(setting.network, samples, matcher):
        moments = (moments or no_moments(moved.weights)).add(moved.weights)
        transpositions.append(moved.matching.transformation.total_transpositions())
        if moments.count in counts:
            fits[moments.count] = Fitted(moments.gaussian(), list(transpositions))
    return [fits[count] for count in counts]


def describe(setting: Setting, fitted: Fitted, reference: Tensor) -> dict:
    """Scores of q_r, and how its weights lie beside its reference's.

    Dead weights cannot be aligned by activation: what these have in common with the reference's
    comes from samples that have not forgotten it.
    """
    posterior, alive, dead = fitted.posterior, setting.alive, ~setting.alive
    column = draw_column(
        setting.network, posterior, setting.test_images, setting.num_draws, 1,
        generator(setting.seed, "study_draws"),
    )  # fmt: skip
    predicted = column.average()
    return scores(predicted, column.mean_network, setting.true_posterior, setting.test_labels) | {
        "average_std": posterior.std[alive].double().mean().item(),
        "mean_square_of_mean": posterior.mean[alive].double().square().mean().item(),
        "mean_with_reference": correlation(posterior.mean[alive], reference[alive]),
        "dead_with_reference": correlation(posterior.mean[dead], reference[dead]),
        "average_transpositions": sum(fitted.transpositions) / len(fitted.transpositions),
    }


def study_references(
    setting: Setting,
    samples: list[Tensor],
    references: dict[str, Tensor],
    on_reference: Callable[[], None] = lambda: None,
) -> dict[str, dict]:
    """The same samples rebased to every reference.

    "mean_with_first" and "std_with_first" are correlations over weights with the q_r of the first
    reference, after the whole of the one is rebased to the other.
    """
    rows, first, first_matcher = {}, None, None
    for name, reference in references.items():
        matcher = setting.matcher_for(reference)
        (fitted,) = fit_to(setting, samples, matcher, len(samples))
        rows[name] = describe(setting, fitted, reference)
        if first is None:
            first, first_matcher = fitted.posterior, setting.matcher_for(fitted.posterior.mean)
        moved, _ = rebase_gaussian(setting.network, fitted.posterior, first_matcher)
        for part in ("mean", "std"):
            ours, theirs = getattr(moved, part), getattr(first, part)
            alike = correlation(ours[setting.alive], theirs[setting.alive])
            rows[name][f"{part}_with_first"] = alike
        on_reference()
    return rows


def study_prior(
    setting: Setting,
    reference: Tensor,
    methods: dict[str, Gaussian],
    count: int,
    effective: int,
) -> dict:
    """Networks drawn from the prior, rebased to HMC's reference: they know nothing of the data.

    What their q_r has in common with that reference, and with other methods' Gaussians that are
    rebased to it, is the work of the alignment alone. The mean of K networks keeps noise of the
    variance 1 / K, so that its correlations grow with K. Therefore `count` networks, as many as the
    study has samples, stand beside the study's rows; and `effective` networks, as many as all of
    HMC's samples are worth, make the mean that other methods' are compared with ("mean_with").
    """
    draws = (
        prior_network(setting, number).to(reference) for number in range(max(count, effective))
    )
    fitted, of_effective = fit_to(setting, draws, setting.matcher_for(reference), count, effective)
    mean, alive = of_effective.posterior.mean[setting.alive], setting.alive
    return describe(setting, fitted, reference) | {
        "mean_with": {name: correlation(mean, g.mean[alive]) for name, g in methods.items()},
        "networks_of_mean_with": effective,
        "transpositions": fitted.transpositions,
    }


def prior_network(setting: Setting, number: int) -> Tensor:
    """Weights drawn from N(0, 1)."""
    random = generator(setting.seed, "prior_network", number)
    return torch.randn(setting.network.num_weights, generator=random)


def move_together(
    network: Network, posterior: Gaussian, member: Tensor, matcher: Matcher
) -> tuple[Gaussian, Tensor]:
    """A Gaussian rebased as a whole, and a network of its that goes along."""
    moved, matching = rebase_gaussian(network, posterior, matcher)
    return moved, move(member, matching.transformation)
