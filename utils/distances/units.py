"""Networks as sets of hidden units, whatever their order and scale.

A unit is described by its incoming weights, bias and outgoing weights, in a network whose scales
and signs are in normal form. Weights from or to other hidden units are sorted, since these have no
order either. The kernel of two networks is the mean of a Gaussian kernel over all pairs of units,
one from each: it is positive definite, and needs no alignment.
"""

import math
from dataclasses import dataclass

from utils.distances.mmd import FACTORS, fit_width
from utils.networks.network import RELU, TANH, Network
from utils.runs.seeding import generator
from utils.symmetry.mass import minimum_mass
from utils.symmetry.normal_forms import compose, positive_signs
from utils.symmetry.transformation import lineage, units_first

import torch
from torch import Tensor

FEATURES = 300  # random ones, for each of FACTORS
WIDTH_UNITS = 1000  # that the width is fitted to


def without_scales(network: Network, weights: Tensor) -> Tensor:
    """Return networks [K, d] at minimum mass and with positive signs, in float64.

    Networks without such symmetries stay as they are.
    """
    kinds = {group.kind for group in network.groups.values()}
    forms = [form for kind, form in ((RELU, minimum_mass), (TANH, positive_signs)) if kind in kinds]
    weights = weights.double()
    return compose(network, weights, *forms).apply(weights) if forms else weights


def describe_units(network: Network, weights: Tensor, name: str) -> Tensor:
    """Return the units of a group as vectors [K, units, numbers]."""
    own, rows = lineage(network, name), []
    for slot in network.slots_of(name):
        if slot.role != "buffer":
            tensor, places = slot.of(weights), [slot.axes.index(each) for each in own]
            for axis, label in enumerate(slot.axes):
                if label and axis not in places:  # of other units
                    tensor = tensor.sort(dim=1 + axis).values
            rows.append(units_first(network, slot, tensor, name).flatten(1, len(own)))
    return torch.cat(rows, -1)


@dataclass(frozen=True)
class UnitFeatures:
    """Random features whose inner products are the kernels of sets of units.

    By Bochner's theorem cos(ω·u + β) with normal ω has the Gaussian kernel as its mean product
    (Rahimi & Recht 2007).
    """

    network: Network
    frequencies: dict[str, Tensor]  # by group [numbers, features]
    phases: dict[str, Tensor]

    def __call__(self, weights: Tensor) -> Tensor:
        """Return features [K, groups · features] of networks [K, d]."""
        weights = without_scales(self.network, weights)
        means = []
        for name, frequencies in self.frequencies.items():
            angles = describe_units(self.network, weights, name) @ frequencies
            means.append((angles + self.phases[name]).cos().mean(1))
        return torch.cat(means, 1) * math.sqrt(2 * len(FACTORS) / self.frequencies[name].shape[1])


def fit_unit_features(network: Network, reference: Tensor, seed: int) -> UnitFeatures:
    """Draw features whose widths are those of the reference's units [K, d]."""
    reference, frequencies, phases = without_scales(network, reference), {}, {}
    for name in network.groups:
        if not network.slots_of(name) or any(g.within == name for g in network.groups.values()):
            continue  # of units that others lie within, these say all
        units = describe_units(network, reference, name).flatten(0, 1)
        random = generator(seed, "unit_features", name)
        width = fit_width(units[torch.randperm(len(units), generator=random)[:WIDTH_UNITS]])
        shape, parts = (units.shape[1], FEATURES), []
        for factor in FACTORS:
            normal = torch.randn(shape, generator=random, dtype=torch.float64)
            parts.append(normal / math.sqrt(factor * width))
        frequencies[name] = torch.cat(parts, 1)
        count = frequencies[name].shape[1]
        phases[name] = 2 * math.pi * torch.rand(count, generator=random, dtype=torch.float64)
    return UnitFeatures(network, frequencies, phases)
