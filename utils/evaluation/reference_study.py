"""How q_r depends on what samples are rebased to, and what rebasin makes of noise alone."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from utils.evaluation.metrics import Prediction, scores
from utils.evaluation.predictions import predict_draws
from utils.evaluation.weight_study import correlation
from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian, rebase_gaussian
from utils.posteriors.moments import no_moments
from utils.posteriors.prior import Prior
from utils.runs.seeding import generator
from utils.symmetry.matching import Matcher
from utils.symmetry.rebasin import rebase_all

from torch import Tensor


@dataclass(frozen=True)
class Study:
    """What all fits of a study have in common."""

    network: Network
    matcher_for: Callable[[Tensor], Matcher]  # of a reference
    test_images: Tensor
    test_labels: Tensor
    truth: Tensor  # [N, classes]: average prediction of the truth's samples
    alive: Tensor  # [d]: weights that are not behind dead pixels
    num_draws: int
    seed: int
    prior: Prior


@dataclass(frozen=True)
class Fitted:
    posterior: Gaussian
    transpositions: list[int]  # of every sample's rebasin


def fit_to(study: Study, samples: Iterable[Tensor], matcher: Matcher, *counts: int) -> list[Fitted]:
    """Return q_r of the first samples, for each of the counts."""
    moments, transpositions, fits = None, [], {}
    for moved in rebase_all(study.network, samples, matcher):
        moments = (moments or no_moments(moved.weights)).add(moved.weights)
        transpositions.append(moved.matching.transformation.total_transpositions())
        if moments.count in counts:
            fits[moments.count] = Fitted(moments.gaussian(), list(transpositions))
    return [fits[count] for count in counts]


def describe(study: Study, fitted: Fitted, reference: Tensor) -> dict:
    """Score q_r, and correlate its weights with its reference's.

    Activations do not align dead weights. If these correlate with the reference's, the samples have
    not forgotten it.
    """
    posterior, alive, dead = fitted.posterior, study.alive, ~study.alive
    predictions = predict_draws(
        study.network, posterior, study.test_images, study.num_draws, 1,
        generator(study.seed, "study_draws"),
    )  # fmt: skip
    average, mean_network = predictions.average(), predictions.mean_network
    return scores(Prediction(average, study.truth, study.test_labels, mean_network)) | {
        "average_std": posterior.std[alive].double().mean().item(),
        "mean_square_of_mean": posterior.mean[alive].double().square().mean().item(),
        "mean_with_reference": correlation(posterior.mean[alive], reference[alive]),
        "dead_with_reference": correlation(posterior.mean[dead], reference[dead]),
        "average_transpositions": sum(fitted.transpositions) / len(fitted.transpositions),
    }


def study_references(
    study: Study,
    samples: list[Tensor],
    references: dict[str, Tensor],
    on_reference: Callable[[], None] = lambda: None,
) -> dict[str, dict]:
    """Rebase the same samples to every reference.

    "mean_with_first" and "std_with_first" are correlations over weights with the q_r of the first
    reference, to which each q_r is rebased as a whole.
    """
    rows, first, first_matcher = {}, None, None
    for name, reference in references.items():
        matcher = study.matcher_for(reference)
        (fitted,) = fit_to(study, samples, matcher, len(samples))
        rows[name] = describe(study, fitted, reference)
        if first is None:
            first, first_matcher = fitted.posterior, study.matcher_for(fitted.posterior.mean)
        moved, _ = rebase_gaussian(study.network, fitted.posterior, first_matcher)
        for part in ("mean", "std"):
            ours, theirs = getattr(moved, part), getattr(first, part)
            alike = correlation(ours[study.alive], theirs[study.alive])
            rows[name][f"{part}_with_first"] = alike
        on_reference()
    return rows


def study_prior(
    study: Study,
    reference: Tensor,
    gaussians: dict[str, Gaussian],
    count: int,
    effective: int,
) -> dict:
    """Rebase networks drawn from the prior, which know nothing of the data, to a reference.

    What their q_r has in common with the reference, and with Gaussians rebased to it, comes from
    alignment alone. The mean of K networks has noise of variance 1 / K, so its correlations grow
    with K. Therefore `count` networks, as many as the study has samples, are compared with the
    study's rows, and `effective` networks, as many as all samples of the truth are worth, give the
    mean that other means are compared with ("mean_with").
    """
    draws = (prior_network(study, number).to(reference) for number in range(max(count, effective)))
    fitted, of_effective = fit_to(study, draws, study.matcher_for(reference), count, effective)
    mean, alive = of_effective.posterior.mean[study.alive], study.alive
    return describe(study, fitted, reference) | {
        "mean_with": {name: correlation(mean, g.mean[alive]) for name, g in gaussians.items()},
        "networks_of_mean_with": effective,
        "transpositions": fitted.transpositions,
    }


def prior_network(study: Study, number: int) -> Tensor:
    """Draw weights from the prior."""
    return study.prior.draw(study.network, generator(study.seed, "prior_network", number))
