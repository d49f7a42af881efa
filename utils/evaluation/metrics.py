"""Scores of predictive distributions, METRICS, the list of those that tables show, and errors.

Probabilities are [N, classes], labels [N]. All scores are computed in float64. Standard errors come
from resampling: of test points, or of parts of samples or draws.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from utils.runs.seeding import generator

import torch
from torch import Tensor

CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Prediction:
    """Everything about a posterior that metrics may use."""

    average: Tensor  # [N, classes]: average prediction of its samples or draws
    truth: Tensor  # [N, classes]: the same of the posterior that others are compared with
    labels: Tensor  # [N]
    mean_network: Tensor | None = None  # [N, classes]: of the network at its mean, if it has one
    elbo: float | None = None  # evidence lower bound on the training images, in nats

    def at(self, points: Tensor) -> "Prediction":
        """Return the prediction for some of the test points, each as often as it is given."""
        points = points.to(self.labels.device)
        parts = (self.average, self.truth, self.labels, self.mean_network)
        chosen = (None if part is None else part[points] for part in parts)
        return Prediction(*chosen, elbo=self.elbo)


@dataclass(frozen=True)
class Metric:
    """A row of the table; posteriors whose Prediction lacks the field `needs` have no score."""

    name: str
    title: str
    score: Callable[[Prediction], float]
    higher_is_better: bool = False
    percent: bool = False  # shown as a percentage
    needs: str = "average"
    digits: int = 4  # behind the point, where it is no percentage

    @property
    def shown(self) -> tuple[int, int]:
        """The factor and the digits behind the point with which it is shown."""
        return (100, 2) if self.percent else (1, self.digits)

    @property
    def heading(self) -> str:
        """Its title with the unit and an arrow towards better values."""
        unit, arrow = " (%)" if self.percent else "", "↑" if self.higher_is_better else "↓"
        return f"{self.title}{unit} {arrow}"


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """Return the share of points whose most probable class is their label."""
    return (probabilities.argmax(-1) == labels).double().mean().item()


def mean_nll(probabilities: Tensor, labels: Tensor) -> float:
    """Return the mean of −log p(label) in nats: infinite if a label has probability 0."""
    chosen = probabilities.double().gather(-1, labels.unsqueeze(-1))
    return -chosen.log().mean().item()


def agreement(probabilities: Tensor, others: Tensor) -> float:
    """Return the share of points where two predictions have the same most probable class."""
    return (probabilities.argmax(-1) == others.argmax(-1)).double().mean().item()


def total_variation(probabilities: Tensor, others: Tensor) -> float:
    """Return the mean of ½ Σ_y |p(y) − p'(y)|, from 0 (equal) to 1 (nothing in common)."""
    return 0.5 * (probabilities.double() - others.double()).abs().sum(-1).mean().item()


def closeness(probabilities: Tensor, others: Tensor) -> dict[str, float]:
    """Return agreement and total variation of two predictions."""
    return {
        "agreement": agreement(probabilities, others),
        "total_variation": total_variation(probabilities, others),
    }


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """Return the mean of Σ_y (p(y) − [y = label])², from 0 to 2."""
    hits = torch.nn.functional.one_hot(labels, probabilities.shape[-1])
    return (probabilities.double() - hits).square().sum(-1).mean().item()


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Return the expected calibration error: mean |accuracy − confidence| over bins.

    Confidence is the largest probability. Its range from 0 to 1 is cut into CALIBRATION_BINS equal
    bins, weighted by their numbers of points (Guo et al. 2017, equation 3).
    """
    confidence, chosen = probabilities.double().max(-1)
    surplus = (chosen == labels).double() - confidence
    bins = (confidence * CALIBRATION_BINS).long().clamp(max=CALIBRATION_BINS - 1)
    return (torch.bincount(bins, surplus).abs().sum() / len(labels)).item()


def accuracy_difference(probabilities: Tensor, others: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracy minus that of another prediction of the same points, and its paired error.

    The error is that of resampled points, the same for both: s / √N, with the deviation s of the
    differences between hits. Points that both get right, or wrong, do not add to it (McNemar 1947).
    """
    hits = [(each.argmax(-1) == labels).double() for each in (probabilities, others)]
    gains = hits[0] - hits[1]
    error = gains.std(correction=0).item() / len(labels) ** 0.5
    return {"difference": gains.mean().item(), "error": error}


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "agreement", "agreement", lambda p: agreement(p.average, p.truth), higher_is_better=True
        ),
        Metric("total_variation", "TV", lambda p: total_variation(p.average, p.truth)),
        Metric(
            "sample_accuracy", "accuracy of samples", lambda p: accuracy(p.average, p.labels),
            higher_is_better=True, percent=True,
        ),
        Metric(
            "mean_accuracy", "accuracy of μ", lambda p: accuracy(p.mean_network, p.labels),
            higher_is_better=True, percent=True, needs="mean_network",
        ),
        Metric("nll", "NLL (nats)", lambda p: mean_nll(p.average, p.labels)),
        Metric("ece", "ECE", lambda p: calibration_error(p.average, p.labels)),
        Metric("brier", "Brier", lambda p: brier(p.average, p.labels)),
        Metric(
            "elbo", "ELBO (nats)", lambda p: p.elbo, higher_is_better=True, needs="elbo", digits=0
        ),
    )
}  # fmt: skip


def scores(prediction: Prediction) -> dict[str, float]:
    """Return every metric that the prediction has what it needs for, by name."""
    return {
        name: metric.score(prediction)
        for name, metric in METRICS.items()
        if getattr(prediction, metric.needs) is not None
    }


# ---- standard errors by resampling

MIN_PARTS = 10  # for a bootstrap: with 5 parts it is wrong by a factor of 2 to 5 for the NLL
MetricValues = dict[str, float]  # by metric, of one column


@dataclass(frozen=True)
class Resampling:
    """Choices of parts that scores are computed for."""

    choices: list[Tensor]  # the numbers of parts, each as often as it is chosen
    factor: float  # standard error / deviation between the choices


def resample(num_parts: int, num_replicates: int, seed: int, *stream) -> Resampling:
    """Return a bootstrap; for few parts the jackknife, which leaves out each in turn.

    Of one part alone the error is unknown: NaN. See Efron & Tibshirani (1993).
    """
    if num_parts == 1:
        return Resampling([torch.zeros(1, dtype=torch.long)], float("nan"))
    if num_parts < MIN_PARTS:
        parts = torch.arange(num_parts)
        others = [parts[parts != left_out] for left_out in range(num_parts)]
        return Resampling(others, (num_parts - 1) / num_parts**0.5)
    choices = []
    for number in range(num_replicates):
        random = generator(seed, "bootstrap", *stream, number)
        choices.append(torch.randint(num_parts, (num_parts,), generator=random))
    return Resampling(choices, 1.0)


def resample_chains(
    num_blocks: int, num_chains: int, num_replicates: int, seed: int, *stream
) -> list[Resampling]:
    """Resample blocks of samples, and whole chains if there are several.

    Chains that have not mixed differ by more than the blocks within them show.
    """
    resamplings = [resample(num_blocks, num_replicates, seed, *stream)]
    if num_chains > 1:
        blocks = torch.arange(num_blocks).reshape(num_chains, -1)
        chains = resample(num_chains, num_replicates, seed, *stream, "chains")
        choices = [blocks[chosen].flatten() for chosen in chains.choices]
        resamplings.append(replace(chains, choices=choices))
    return resamplings


def deviations(
    score: Callable[[Tensor], MetricValues], resamplings: list[Resampling]
) -> MetricValues:
    """Return the standard errors of scores of chosen parts, the largest of several resamplings."""
    errors = []
    for resampling in resamplings:
        rows = [score(chosen) for chosen in resampling.choices]
        values = torch.tensor([list(row.values()) for row in rows], dtype=torch.float64)
        deviation = values.std(0, correction=min(1, len(rows) - 1))
        errors.append(resampling.factor * deviation)
    return dict(zip(rows[0], torch.stack(errors).amax(0).tolist(), strict=True))


def add_errors(*errors: MetricValues) -> MetricValues:
    """Return the errors of independent origins together."""
    return {row: sum(each[row] ** 2 for each in errors) ** 0.5 for row in errors[0]}
