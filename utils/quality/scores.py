"""QUALITY, the scores of the table of posteriors, and their standard errors.

Of out-of-distribution (OOD) detection both directions are listed, since papers differ: in "in" test
images are the positive class, in "out" the images from elsewhere.
"""

from utils.evaluation.metrics import Metric, accuracy, brier, calibration_error, mean_nll
from utils.evaluation.standard_errors import MetricValues, deviations, resample
from utils.quality.calibration import (
    adaptive_calibration_error,
    classwise_calibration_error,
    debiased_square_error,
)
from utils.quality.detection import auroc, average_precision, false_positive_rate
from utils.quality.diversity import disagreement, infinite_mutual_information
from utils.quality.forecasts import Forecast, Outlook

QUALITY: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", lambda f: accuracy(f.average, f.labels), True, True),
        Metric("nll", "NLL (nats)", lambda f: mean_nll(f.average, f.labels)),
        Metric("brier", "Brier", lambda f: brier(f.average, f.labels)),
        Metric("ece", "ECE", lambda f: calibration_error(f.average, f.labels)),
        Metric(
            "adaptive_ece", "adaptive ECE",
            lambda f: adaptive_calibration_error(f.average, f.labels),
        ),
        Metric(
            "scaled_ece", "ECE after scaling", lambda f: calibration_error(f.scaled, f.labels)
        ),
        Metric(
            "debiased_square", "squared error, debiased",
            lambda f: debiased_square_error(f.average, f.labels),
        ),
        Metric(
            "classwise_ace", "class-wise ACE",
            lambda f: classwise_calibration_error(f.average, f.labels),
        ),
        Metric("scaled_nll", "NLL after scaling", lambda f: mean_nll(f.scaled, f.labels)),
        Metric("auroc", "AUROC", lambda f: auroc(f.scores_inside, f.scores_outside), True, True),
        Metric(
            "aupr_in", "AUPR in",
            lambda f: average_precision(f.scores_inside, f.scores_outside), True, True,
        ),
        Metric(
            "aupr_out", "AUPR out",
            lambda f: average_precision(-f.scores_outside, -f.scores_inside), True, True,
        ),
        Metric(
            "aupr_in_even", "AUPR in, 50:50",
            lambda f: average_precision(f.scores_inside, f.scores_outside, 0.5), True, True,
        ),
        Metric(
            "aupr_out_even", "AUPR out, 50:50",
            lambda f: average_precision(-f.scores_outside, -f.scores_inside, 0.5), True, True,
        ),
        Metric(
            "fpr95_in", "FPR95 in",
            lambda f: false_positive_rate(f.scores_inside, f.scores_outside), percent=True,
        ),
        Metric(
            "fpr95_out", "FPR95 out",
            lambda f: false_positive_rate(-f.scores_outside, -f.scores_inside), percent=True,
        ),
        Metric("mi_inside", "MI in (nats)", lambda f: information(f.inside), True),
        Metric("mi_outside", "MI out (nats)", lambda f: information(f.outside), True),
        Metric("disagreement_inside", "disagreement in", lambda f: differing(f.inside), True, True),
        Metric(
            "disagreement_outside", "disagreement out", lambda f: differing(f.outside), True, True
        ),
    )
}  # fmt: skip
OF_ALL_MEMBERS = ("disagreement_inside", "disagreement_outside")  # not known by part


def information(outlook: Outlook) -> float:
    return infinite_mutual_information(outlook.parts, outlook.entropies)


def differing(outlook: Outlook) -> float:
    return disagreement(outlook.votes, outlook.members)


def quality_scores(prediction: Forecast, leave_out: tuple[str, ...] = ()) -> MetricValues:
    """Return every score by name; NaN where a single member has none."""
    return {
        name: metric.score(prediction) for name, metric in QUALITY.items() if name not in leave_out
    }


def quality_errors(prediction: Forecast, replicates: int, seed: int, name: str) -> MetricValues:
    """Return standard errors due to the choice of modes, or of samples of a single mode.

    Test images stay the same: they are common to all posteriors.
    """
    count = len(prediction.inside.parts)
    resampling = resample(count, replicates, seed, "quality", name)
    return deviations(
        lambda chosen: quality_scores(prediction.chosen(chosen), OF_ALL_MEMBERS), [resampling]
    )
