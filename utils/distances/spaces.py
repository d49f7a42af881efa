"""Where sets of networks are compared.

    weights       weight by weight: of many weights it sees little but mean and total variance
    canonical     after scales and order are removed: minimum mass, units sorted by norm
    rebased       the same, then units matched to one network of neither set
    inside        predictions on images of the distribution: √p, so distances are Hellinger's
    outside       the same on other images
    units         sets of hidden units, without order and scale

A space turns networks [K, d] into features [K, p], and has a kernel fitted to one half of a
reference. Distances in `canonical` and `rebased` are what paper B calls NS.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from utils.distances.mmd import fit_width, gaussian_kernel, linear_kernel
from utils.distances.units import fit_unit_features, without_scales
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.rebasin.rebase import rebase
from utils.rebasin.weight_matching import WeightMatcher
from utils.symmetry.normal_forms import sort_units

import torch
from torch import Tensor

TITLES = {
    "weights": "weights", "canonical": "weights, sorted", "rebased": "weights, rebased",
    "inside": "predictions", "outside": "predictions, OOD", "units": "sets of units",
}  # fmt: skip


@dataclass(frozen=True)
class Space:
    name: str
    features: Callable[[Tensor], Tensor]
    kernel: Callable[[Tensor], Tensor]


def fit_spaces(
    network: Network, half: Tensor, anchor: Tensor, inside: Tensor, outside: Tensor, seed: int
) -> list[Space]:
    """Return all spaces, with kernels fitted to one half [K, d] of a reference.

    `anchor` [d] is the network that others are rebased to; the inputs are those that predictions
    are compared on. Networks without hidden units have no units, and nothing to remove.
    """
    views = {"weights": lambda weights: weights}
    if network.groups:
        views["canonical"] = lambda weights: canonical(network, weights)
        views["rebased"] = partial(rebased, network, canonical(network, anchor[None])[0])
    views["inside"] = lambda weights: root_probabilities(network, weights, inside)
    views["outside"] = lambda weights: root_probabilities(network, weights, outside)
    spaces = [
        Space(name, features, partial(gaussian_kernel, width=fit_width(features(half))))
        for name, features in views.items()
    ]
    if network.groups:
        spaces.append(Space("units", fit_unit_features(network, half, seed), linear_kernel))
    return spaces


def canonical(network: Network, weights: Tensor) -> Tensor:
    """Return networks with scales in normal form and units sorted by norm, in float64."""
    lightest = without_scales(network, weights)
    return sort_units(network, lightest).apply(lightest)


def rebased(network: Network, anchor: Tensor, weights: Tensor) -> Tensor:
    """Return canonical networks with their units matched to those of an anchor [d].

    The search for a match depends on its start, so equal functions must start alike.
    """
    matcher = WeightMatcher(network, anchor)
    starts = canonical(network, weights)
    return torch.stack([rebase(network, each, matcher).weights for each in starts])


def root_probabilities(network: Network, weights: Tensor, inputs: Tensor) -> Tensor:
    """Return √(p / images) [K, images · classes]: squared distances are Σ (√p − √q)² / images."""
    rows = [class_probabilities(network, each, inputs) for each in weights.to(inputs.device)]
    return torch.stack(rows).div(len(inputs)).sqrt().flatten(1)
