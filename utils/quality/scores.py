"""QUALITY, the scores of the table of posteriors, and their standard errors.

Of out-of-distribution (OOD) detection both directions are listed, since papers differ: in "in" test
images are the positive class, in "out" the images from elsewhere.
"""

from collections.abc import Callable

from utils.evaluation.metrics import (
    Metric,
    MetricValues,
    accuracy,
    brier,
    calibration_error,
    deviations,
    mean_nll,
    resample,
)
from utils.quality.calibration import (
    adaptive_calibration_error,
    classwise_calibration_error,
    debiased_square_error,
)
from utils.quality.detection import auroc, average_precision, false_positive_rate
from utils.quality.diversity import disagreement, infinite_mutual_information
from utils.quality.forecasts import Forecast, Outlook

from torch import Tensor


def of_average(score: Callable[[Tensor, Tensor], float]) -> Callable[[Forecast], float]:
    return lambda forecast: score(forecast.average, forecast.labels)


def of_scaled(score: Callable[[Tensor, Tensor], float]) -> Callable[[Forecast], float]:
    return lambda forecast: score(forecast.scaled, forecast.labels)


def inside_positive(score: Callable, *more) -> Callable[[Forecast], float]:
    return lambda forecast: score(forecast.scores_inside, forecast.scores_outside, *more)


def outside_positive(score: Callable, *more) -> Callable[[Forecast], float]:
    return lambda forecast: score(-forecast.scores_outside, -forecast.scores_inside, *more)


def information(outlook: Outlook) -> float:
    return infinite_mutual_information(outlook.parts, outlook.entropies)


def differing(outlook: Outlook) -> float:
    return disagreement(outlook.votes, outlook.members)


QUALITY: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", of_average(accuracy), True, True),
        Metric("nll", "NLL (nats)", of_average(mean_nll)),
        Metric("brier", "Brier", of_average(brier)),
        Metric("ece", "ECE", of_average(calibration_error)),
        Metric("adaptive_ece", "adaptive ECE", of_average(adaptive_calibration_error)),
        Metric("scaled_ece", "ECE after scaling", of_scaled(calibration_error)),
        Metric("debiased_square", "squared error, debiased", of_average(debiased_square_error)),
        Metric("classwise_ace", "class-wise ACE", of_average(classwise_calibration_error)),
        Metric("scaled_nll", "NLL after scaling", of_scaled(mean_nll)),
        Metric("auroc", "AUROC", inside_positive(auroc), True, True),
        Metric("aupr_in", "AUPR in", inside_positive(average_precision), True, True),
        Metric("aupr_out", "AUPR out", outside_positive(average_precision), True, True),
        Metric(
            "aupr_in_even", "AUPR in, 50:50", inside_positive(average_precision, 0.5), True, True
        ),
        Metric(
            "aupr_out_even", "AUPR out, 50:50", outside_positive(average_precision, 0.5), True, True
        ),
        Metric("fpr95_in", "FPR95 in", inside_positive(false_positive_rate), percent=True),
        Metric("fpr95_out", "FPR95 out", outside_positive(false_positive_rate), percent=True),
        Metric("mi_inside", "MI in (nats)", lambda f: information(f.inside), True),
        Metric("mi_outside", "MI out (nats)", lambda f: information(f.outside), True),
        Metric("disagreement_inside", "disagreement in", lambda f: differing(f.inside), True, True),
        Metric(
            "disagreement_outside", "disagreement out", lambda f: differing(f.outside), True, True
        ),
    )
}
OF_ALL_MEMBERS = ("disagreement_inside", "disagreement_outside")  # not known by part


def quality_scores(prediction: Forecast, leave_out: tuple[str, ...] = ()) -> MetricValues:
    """Return every score by name; NaN where a single member has none."""
    return {
        name: metric.score(prediction) for name, metric in QUALITY.items() if name not in leave_out
    }


def quality_errors(prediction: Forecast, replicates: int, seed: int, name: str) -> MetricValues:
    """Return standard errors of the scores, but of those that are not known by part."""
    return part_errors(
        prediction, lambda each: quality_scores(each, OF_ALL_MEMBERS), replicates, seed, name
    )


def part_errors(
    prediction: Forecast, score: Callable[[Forecast], MetricValues], replicates: int, seed: int,
    name: str,
) -> MetricValues:  # fmt: skip
    """Return standard errors due to the choice of modes, or of samples of a single mode.

    Test images stay the same: they are common to all posteriors.
    """
    resampling = resample(len(prediction.inside.parts), replicates, seed, "quality", name)
    return deviations(lambda chosen: score(prediction.chosen(chosen)), [resampling])
