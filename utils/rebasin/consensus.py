"""Align a set of networks to each other, with no reference among them.

All are moved to one common order of units, so matchings are consistent around every cycle of
networks. The order maximises the similarity of units summed over all pairs of networks,

    Σ_{k<l} Σ_i ⟨f_i(k), f_i(l)⟩ = ½ ‖Σ_k f(k)‖² + const.,

where f_i(k) is what the unit at place i of network k contributes to the logits of some images.
Network by network is matched to the sum of all others, an assignment problem, so the similarity
only rises (generalised Procrustes analysis, Gower 1975; Crisostomi et al. 2024, "C2M3", maximise
the same sum over weights).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from utils.networks.network import Network
from utils.rebasin.assignment import assign_all
from utils.rebasin.contributions import contributions, head_weights, heads_of
from utils.rebasin.response_matching import unit_rows
from utils.symmetry.transformation import Transformation, has_signs, numbered

import torch
from torch import Tensor

LEAST_RELATIVE_GAIN = 1e-7  # relative: sums in fp32 are no better
Features = dict[str, Tensor]  # [units, numbers] by group


@dataclass(frozen=True)
class Consensus:
    """How every network moves to the common order, and whether none would move in another round."""

    transformations: list[Transformation]
    rounds: int
    at_rest: bool
    similarity: list[float]  # ½ ‖Σ_k f(k)‖² after the first pass and after every round


@dataclass(frozen=True)
class ComparedUnits:
    """What units are compared by; for tanh units, whose signs may not show in it, also responses.

    Contributions do not depend on signs, so the signs of units are those of their responses.
    """

    compared: Features
    signed: Features

    def moved(self, transformation: Transformation) -> "ComparedUnits":
        return ComparedUnits(
            _moved(self.compared, transformation, flips=False),
            _moved(self.signed, transformation, flips=True),
        )

    def plus(self, other: "ComparedUnits", factor: float = 1.0) -> "ComparedUnits":
        def total(ours: Features, theirs: Features) -> Features:
            return {name: ours[name] + factor * theirs[name] for name in ours}

        return ComparedUnits(total(self.compared, other.compared), total(self.signed, other.signed))

    def dot(self, other: "ComparedUnits") -> float:
        pairs = ((self.compared[name], other.compared[name]) for name in self.compared)
        return sum((ours * theirs).sum(dtype=torch.float64).item() for ours, theirs in pairs)


def unit_features(network: Network, weights: Tensor, images: Tensor) -> ComparedUnits:
    """Return what units contribute to the logits; of tanh units also how they respond."""
    rows = images.to(weights.dtype)
    compared = {n: each.T for n, each in contributions(network, weights, rows).items()}
    for name, slot in heads_of(network, weights, rows).items():
        values = head_weights(slot, weights).T.to(rows)  # [units, classes]
        compared[name] = (compared[name].unsqueeze(-1) * values.unsqueeze(1)).flatten(1)
    if not has_signs(network):
        return ComparedUnits(compared, {})
    responses = unit_rows(network, network.activations(weights, rows))
    return ComparedUnits(compared, {name: each.T for name, each in responses.items()})


def consensus(
    network: Network, samples: Sequence[Tensor], images: Tensor, max_rounds: int = 20
) -> Consensus:
    """Move all networks to the order of largest similarity, a local optimum.

    In a first pass each network is matched to the sum of those before it. Then every round matches
    each of them to the sum of all others.
    """
    moves: list[Transformation] = []
    total, similarity, num_moved = None, [], 0
    for number in range(max_rounds + 1):
        num_moved = 0
        for position, weights in enumerate(samples):
            features = unit_features(network, weights, images)
            if number:
                before = features.moved(moves[position])
                total = total.plus(before, -1.0)
            best = Transformation(network) if total is None else _match(network, total, features)
            after = features.moved(best)
            if not number:
                moves.append(best)
            elif total.dot(after) - total.dot(before) > LEAST_RELATIVE_GAIN * abs(
                total.dot(before)
            ):
                moves[position] = best
                num_moved += 1
            else:
                after = before
            total = after if total is None else total.plus(after)
        similarity.append(total.dot(total) / 2)
        if number and not num_moved:
            break
    return Consensus(moves, number, number > 0 and not num_moved, similarity)


def _match(network: Network, total: ComparedUnits, features: ComparedUnits) -> Transformation:
    """Return the assignment that is most similar to the total."""
    pairs = (total.compared, features.compared), (total.signed, features.signed)
    tables, signed = (
        {name: first[name] @ second[name].T for name in first} for first, second in pairs
    )

    def similarity(aligned: Transformation, name: str) -> Tensor:
        units = numbered(network, name)
        if name not in tables:  # blocks of units may have no activations of their own
            return torch.zeros(len(units), len(units))
        return tables[name][units.unsqueeze(-1), aligned.follow(name, units).unsqueeze(-2)]

    return assign_all(network, similarity, signed or None)


def _moved(features: Features, transformation: Transformation, flips: bool) -> Features:
    moved = {}
    for name, values in features.items():
        units = numbered(transformation.network, name)
        if flips and name in transformation.signs:
            values = values * transformation.signs[name].flatten().to(values).unsqueeze(-1)
        moved[name] = values[transformation.follow(name, units).flatten().to(values.device)]
    return moved
