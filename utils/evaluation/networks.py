"""Networks rebased to the first of them: their Gaussian, accuracies and loss barriers."""

from collections.abc import Iterable, Sequence

from utils.evaluation.metrics import accuracy
from utils.networks.network import Network
from utils.networks.predictions import mean_probabilities
from utils.posteriors.compact import Compact
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.moments import no_moments
from utils.runs.progress import progress_bar
from utils.symmetry.matching import make_matcher
from utils.symmetry.paths import Line, barrier, score
from utils.symmetry.permutation import expected_transpositions
from utils.symmetry.rebasin import rebase_all

from torch import Tensor

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the way between two networks, for loss barriers


def rebase_and_fit(
    network: Network, samples: Sequence[Tensor], inputs: Tensor | None
) -> tuple[Gaussian, Compact]:
    """Return q_d of the networks as they are, and q_r of them rebased to the first.

    They are matched by activation on the inputs, or without any by weight.
    """
    method = "weight" if inputs is None else "activation"
    matcher = make_matcher(method, network, samples[0], inputs)
    direct = rebased = no_moments(samples[0])
    transformations = []
    with progress_bar(len(samples), f"rebasing by {method}", unit="network") as bar:
        for weights, moved in zip(samples, rebase_all(network, samples, matcher), strict=True):
            direct, rebased = direct.add(weights), rebased.add(moved.weights)
            transformations.append(moved.matching.transformation)
            bar.update()
    return direct.gaussian(), Compact(rebased.gaussian(), transformations, samples[0])


def transpositions_of(compact: Compact) -> dict[str, list]:
    """Return NoT of each network's groups of units, and what random permutations have."""
    network = compact.transformations[0].network
    return {
        "transpositions": [
            list(each.transpositions().values()) for each in compact.transformations
        ],
        "random": [expected_transpositions(group.size) for group in network.groups.values()],
    }


def accuracies_of(
    network: Network, samples: Sequence[Tensor], averaged: dict[str, Iterable[Tensor]],
    inputs: Tensor, labels: Tensor,
) -> dict:  # fmt: skip
    """Return the accuracy of each network, and of the average prediction of several."""

    def accuracy_of(networks: Iterable[Tensor]) -> float:
        return accuracy(mean_probabilities(network, networks, inputs), labels)

    single = [accuracy_of([weights]) for weights in samples]
    return {"networks": single} | {name: accuracy_of(each) for name, each in averaged.items()}


def barriers_to_first(
    compact: Compact, samples: Sequence[Tensor], count: int, inputs: Tensor, labels: Tensor
) -> dict[str, list[float]]:
    """Return the loss barrier [nats] between each of `count` networks and the first.

    It is the largest rise at FRACTIONS of the straight line, before and after rebasin.
    """

    def barrier_to_first(weights: Tensor) -> float:
        line = Line(compact.transformations[0].network, samples[0], weights, FRACTIONS)
        return barrier(score(line, inputs, labels).loss, FRACTIONS).max().item()

    barriers: dict[str, list[float]] = {"before": [], "after": []}
    with progress_bar(count, "loss barriers", unit="network") as bar:
        for number in range(count):
            moved = compact.transformations[number].apply(samples[number])
            barriers["before"].append(barrier_to_first(samples[number]))
            barriers["after"].append(barrier_to_first(moved))
            bar.update()
    return barriers
