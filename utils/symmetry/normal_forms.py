"""Normal forms: each maps all networks of an orbit of the symmetry group to the same network.

A normal form takes a network's weights [d], or a stack [K, d], and returns the `Transformation`
that leads there:

    unit_norm       every unit's incoming weights have norm 1
    minimum_mass    the sum of squared weights is smallest (see `mass`)
    positive_signs  every tanh unit's largest incoming weight is positive
    sort_units      units are sorted by a key

Scales and signs come first and sorting last: keys change with scales, not the other way round.
"""

import math
from collections.abc import Callable

from utils.networks.network import TANH, Network
from utils.settings.errors import UserError
from utils.symmetry.mass import Mass, check_weights, scaling
from utils.symmetry.transformation import (
    Transformation,
    incoming_slots,
    lineage,
    no_such_symmetry,
    units_first,
)

import torch
from torch import Tensor

NormalForm = Callable[[Network, Tensor], Transformation]
KEYS = ("norm", "largest", "mean", "last_layer")
TIED = 1e-12  # keys are equal if they differ by no more than this, relative to the largest


def compose(network: Network, weights: Tensor, *forms: NormalForm) -> Transformation:
    """Return the transformation to several normal forms, one after the other, sorting last."""
    total, weights = Transformation(network), weights.double()
    for form in forms:
        step = form(network, weights)
        if total.permutations and (step.log_scales or step.signs):
            raise UserError(
                "Units cannot be sorted before they are scaled or flipped, as their keys change "
                "with that: give sort_units last."
            )
        weights, total = step.apply(weights), total.then(step)
    return total


# ---- scales


def unit_norm(network: Network, weights: Tensor, norm: float = 1.0) -> Transformation:
    """Scale every ReLU unit so that its incoming weights have this norm.

    Units whose incoming weights are all 0 keep their scale, so this is no normal form of them.
    """
    if not 0 < norm < math.inf:
        raise UserError(f"Incoming weights cannot have norm {norm}: give a number above 0.")
    incoming = Mass(network, weights)
    log_scales = dict(incoming.no_scaling)
    for sweep in range(2):
        for name in incoming.groups:
            squares = incoming.around(name, log_scales).incoming
            steps = math.log(norm) - squares.log() / 2
            steps = torch.where(squares > 0, steps, 0)
            if sweep and (steps.abs() > TIED).any():
                raise UserError(
                    f"Units of {name} lead back to themselves over residual connections, so they "
                    "cannot all have incoming weights of norm 1; their minimum mass exists."
                )
            log_scales[name] = log_scales[name] + steps
    return scaling(network, weights, log_scales)


# ---- signs


def positive_signs(network: Network, weights: Tensor) -> Transformation:
    """Flip tanh units so that the largest of their incoming weights is positive."""
    groups = [name for name, group in network.groups.items() if group.kind == TANH]
    if not groups:
        reasons = [no_such_symmetry(network, name, "flipped") for name in network.groups]
        raise UserError(reasons[0] if reasons else f"{network} has no hidden units to flip.")
    flips = Transformation(network)
    for name in groups:
        flipped = flips.apply(weights)
        settled = {name, None, *(each for each in network.groups if each not in groups)}
        slots = [
            slot for slot in incoming_slots(network, name)
            if settled | set(flips.signs) >= set(slot.axes)
        ]  # fmt: skip
        rows = [units_first(network, slot, slot.of(flipped), name) for slot in slots]
        values = torch.cat(rows, -1)
        largest = values.gather(-1, values.abs().argmax(-1, keepdim=True)).squeeze(-1)
        flips.signs[name] = torch.where(largest < 0, -1, 1)
    return flips


# ---- order


def sort_units(network: Network, weights: Tensor, key: str = "norm") -> Transformation:
    """Sort the units of every group by one of KEYS, the smallest first.

    Norm, largest and mean are of a unit's incoming weights, the first two without their signs.
    "last_layer" is a unit's weight to the first output, and "largest" for units that lead to other
    units. Equal units stay in their order. Blocks of units are sorted by what they contain.
    """
    check_weights(network, weights)
    order = Transformation(network)
    for name in sorted(network.groups, key=lambda name: len(lineage(network, name))):
        keys = order.follow(name, unit_keys(network, weights, name, key))
        order.permutations[name] = keys.argsort(dim=-1, stable=True)
    return order


def unit_keys(network: Network, weights: Tensor, name: str, key: str) -> Tensor:
    """Return what a group's units are sorted by, [*units] or [K, *units]."""
    if key not in KEYS:
        raise UserError(f"Units cannot be sorted by {key!r}; choose from {', '.join(KEYS)}.")
    last = [slot for slot in network.slots_of(name) if slot.axes[0] is None]
    if key == "last_layer" and last:
        rows = units_first(network, last[0], last[0].of(weights), name).double()
        return rows.unflatten(-1, (network.num_classes, -1))[..., 0, :].sum(-1)
    slots = incoming_slots(network, name)
    rows = [units_first(network, slot, slot.of(weights), name) for slot in slots]
    values = torch.cat(rows, -1).double()
    if key == "mean":
        return values.mean(-1)
    return values.norm(dim=-1) if key == "norm" else values.abs().amax(-1)


def count_ties(network: Network, weights: Tensor) -> Tensor:
    """Count the units whose weight in the last layer is that of another unit in their set, [K].

    Sorting leaves their order open.
    """
    total = torch.zeros(weights.shape[:-1], dtype=torch.int64, device=weights.device)
    for name in network.groups:
        keys = unit_keys(network, weights, name, "last_layer").sort(-1).values
        close = keys.diff(dim=-1) <= TIED * keys.abs().amax(-1, keepdim=True)
        nothing = torch.zeros_like(keys[..., :1], dtype=torch.bool)
        tied = torch.cat([close, nothing], -1) | torch.cat([nothing, close], -1)
        total += tied.flatten(weights.dim() - 1).sum(-1)
    return total
