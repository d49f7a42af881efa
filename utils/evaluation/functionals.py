"""Functionals of weights that do not depend on the order of hidden units.

Chains wander between copies of a mode that differ in the order of units. R-hat and effective sample
sizes of single weights follow this wandering; those of the functionals here follow the posterior.
Signs of tanh units leave them as they are, too.
"""

from utils.distances.units import describe_units
from utils.networks.network import Network

import torch
from torch import Tensor

NORM_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def functional_names(network: Network) -> list[str]:
    """Return the names of `functionals`."""
    classes = range(network.num_classes)
    names = [f"mean square of {slot.name}" for slot in _with_prior(network)]
    names += [f"{what} of class {c}" for what in ("Σv²", "Σv⁴", "bias") for c in classes]
    for group in _groups(network):
        names += [f"norm of units of {group}, quantile {share:g}" for share in NORM_QUANTILES]
        names.append(f"largest eigenvalue of the Gram matrix of {group}")
    return names


def functionals(network: Network, weights: Tensor) -> Tensor:
    """Return the functionals of one weight vector [d], in float64.

    They are the mean square of every tensor; for every class the sums of v² and v⁴ over its
    outgoing weights v, and its bias; for every group of units, each described by all of its
    weights, quantiles of their norms and the largest eigenvalue of their Gram matrix.
    """
    weights = weights.double()
    output, bias = (slot.of(weights) for slot in network.slots[-2:])
    squares = output.flatten(1).square()
    parts = [slot.of(weights).square().mean()[None] for slot in _with_prior(network)]
    parts += [squares.sum(1), squares.square().sum(1), bias]
    shares = weights.new_tensor(NORM_QUANTILES)
    for group in _groups(network):
        (units,) = describe_units(network, weights[None], group)
        small = units.T @ units if units.shape[0] > units.shape[1] else units @ units.T
        parts += [units.norm(dim=1).quantile(shares), torch.linalg.eigvalsh(small)[-1:]]
    return torch.cat(parts)


def _with_prior(network: Network) -> list:
    return [slot for slot in network.slots if slot.role != "buffer"]


def _groups(network: Network) -> list[str]:
    return [name for name in network.groups if network.slots_of(name)]
