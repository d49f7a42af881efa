"""Chains of samplers that are not exact, beside exact ones: predictions, functionals, moments."""

from typing import NamedTuple

from utils.data.datasets import Dataset
from utils.evaluation.diagnostics import Bias, functional_names, functionals
from utils.evaluation.metrics import (
    Prediction,
    add_errors,
    deviations,
    resample_chains,
    scores,
)
from utils.evaluation.predictions import PartAverages, PartPredictions
from utils.evaluation.weight_study import dead_weights, weight_groups
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities

import numpy as np
import torch
from torch import Tensor


class MeasuredChains(NamedTuple):
    """What samples predict, and their quantities [chains, draws, F]."""

    predictions: PartPredictions
    quantities: np.ndarray


class ComparedQuantities:
    """The numbers of a sample that are compared, by name."""

    def __init__(self, network: Network, data: Dataset):
        self.network, self.data = network, data
        groups = weight_groups(self.network, dead_weights(self.network, self.data.train_images))
        self._alive = {name: mask for name, mask in groups.items() if name != "dead pixels"}
        names = functional_names(self.network)
        self._chosen = torch.tensor(["mean square" not in name for name in names])
        chosen = [name for name in names if "mean square" not in name]
        self.names = ["train NLL", *chosen, *(f"second moment of {name}" for name in self._alive)]

    def __call__(self, weights: Tensor) -> Tensor:
        network, data = self.network, self.data
        probabilities = class_probabilities(network, weights, data.train_images)
        nll = -probabilities.gather(1, data.train_labels[:, None]).log().sum()
        chosen = functionals(network, weights)[self._chosen]
        squares = [weights[mask].double().square().mean() for mask in self._alive.values()]
        return torch.cat([nll[None], chosen, torch.stack(squares)]).cpu()

    def shifts(self, biases: Bias) -> dict[str, float]:
        """Return the bias of functionals in their standard deviations, and how sure it is."""
        of_functionals = Bias(*(each[1 : -len(self._alive)] for each in biases))
        z = np.abs(of_functionals.z)
        return {
            "root_mean_square": of_functionals.shift,
            "largest_z": float(np.nanmax(z)),
            "share_beyond_3_errors": float(np.nanmean(z > 3)),
        }

    def second_moments(self, biases: Bias, exact: MeasuredChains) -> dict[str, dict]:
        """Return the relative bias of second moments, by tensor."""
        last = slice(-len(self._alive), None)
        means = exact.quantities.mean((0, 1))[last]
        relative = zip(biases.difference[last] / means, biases.error[last] / means, strict=True)
        return {
            name: {"bias": float(bias), "error": float(error)}
            for name, (bias, error) in zip(self._alive, relative, strict=True)
        }


def measure_chains(quantities: ComparedQuantities, samples, num_chains: int) -> MeasuredChains:
    """Measure weight vectors, one chain after the other."""
    network, data = quantities.network, quantities.data
    blocks = max(1, 20 // num_chains) * num_chains
    parts, rows = PartAverages(len(samples), blocks), []
    for weights in samples:
        weights = weights.to(data.test_images.device)
        parts.add(class_probabilities(network, weights, data.test_images))
        rows.append(quantities(weights))
    table = torch.stack(rows).numpy()
    return MeasuredChains(parts.predictions(), table.reshape(num_chains, -1, table.shape[1]))


def beside_exact(
    measured: MeasuredChains, exact: MeasuredChains, labels: Tensor, num_bootstraps: int, seed: int
) -> dict:
    """Return scores beside HMC, the differences of scores from HMC's, and errors.

    Errors are due to the samples of both, and to differences between chains. The test images are
    common to both, and stay.
    """

    def compared(ours: Tensor | None = None, theirs: Tensor | None = None) -> dict[str, float]:
        truth = exact.predictions.average(theirs)
        both, own = (
            scores(Prediction(average, truth, labels))
            for average in (measured.predictions.average(ours), truth)
        )
        differences = {f"{name}_difference": both[name] - own[name] for name in ("nll", "ece")}
        return {name: both[name] for name in ("agreement", "total_variation")} | differences

    def errors_of(each: MeasuredChains, name: str) -> dict[str, float]:
        counts = len(each.predictions.sizes), len(each.quantities)
        choices = resample_chains(*counts, num_bootstraps, seed, "bias", name)
        return deviations(lambda chosen: compared(**{name: chosen}), choices)

    errors = add_errors(errors_of(measured, "ours"), errors_of(exact, "theirs"))
    return compared() | {f"{name}_error": error for name, error in errors.items()}
