"""The L2 mass of networks, and the smallest mass that scaling their ReLU units can reach.

With log scales u of the units, and the powers p of the table of slots, the mass is

    m(u) = Σ_w w² exp(2 Σ p u)     over all weights w; the inner sum is over the units of w

Both m and log m are convex in u (Laurent et al. 2024, Proposition 2), and at the minimum the
incoming mass of every unit equals its outgoing mass. Biases are scaled but do not count, as in that
paper, unless they are asked for. Running statistics never count.

A unit is idle if it has no incoming or no outgoing mass, apart from that of other idle units. Its
mass falls towards 0 as its scale moves one way for ever, so no scale is best. Idle units do not
count in the minimum of the others. Then their weights are made small (see `settle`), and the same
for all networks of an orbit.
"""

from collections.abc import Iterator
from typing import NamedTuple

from utils.networks.network import RELU, Network, Slot
from utils.settings.errors import UserError
from utils.symmetry.transformation import Transformation, line_up, lineage, no_such_symmetry

import torch
from torch import Tensor

MAX_SWEEPS = 20_000
SMALL = 1e-6  # norm of the weights of idle units
SMALLEST_STEP = 1e-12  # of log λ: the mass at the minimum is then exact to rounding

LogScales = dict[str, Tensor]  # [K, *units] of every group that can be scaled


class UnitMasses(NamedTuple):
    """Sums of squared weights of every unit of a group, [K, *units]."""

    incoming: Tensor
    outgoing: Tensor


class Term(NamedTuple):
    """The squared weights of a slot, summed over all that cannot be scaled."""

    squares: Tensor  # [K, *sizes of the groups in `labels`]
    labels: tuple[str, ...]
    powers: dict[str, int]  # by the groups that can be scaled


class Mass:
    """m(u) of a stack of networks [K, d], in float64."""

    def __init__(self, network: Network, weights: Tensor, biases: bool = False):
        self.network = network
        self.groups = scalable_groups(network)
        check_weights(network, weights)
        stack = weights.reshape(-1, network.num_weights)
        self._terms = [self._term(slot, stack) for slot in counted_slots(network, biases)]
        kind = {"dtype": torch.float64, "device": weights.device}
        self.no_scaling: LogScales = {
            name: torch.zeros(len(stack), *network.units(name), **kind) for name in self.groups
        }
        self._check()

    def __call__(self, log_scales: LogScales) -> Tensor:
        """Return m(u), [K]."""
        terms = [self._scaled(term, log_scales) for term in self._terms]
        return sum(_sum(each, list(range(1, each.dim()))) for each in terms)

    def around(self, name: str, log_scales: LogScales) -> UnitMasses:
        """Return the masses of a group's units in the scaled networks."""
        sums = {1: 0, -1: 0}
        for power, squares, others in self._scaled_terms(name, log_scales):
            sums[power] = sums[power] + _sum(squares, others)
        return UnitMasses(sums[1], sums[-1])

    def evening(self, name: str, log_scales: LogScales) -> Tensor:
        """Return how far the log scales of a group's units are from what `settle` looks for."""
        excess, count = 0, 0
        for power, squares, others in self._scaled_terms(name, log_scales):
            present = (squares > 0).double()
            logs = torch.where(squares > 0, squares, 1).log() / 2
            # means, as sums would tie two large layers so closely that settling takes for ever
            excess = excess + power * (logs.mean(others) if others else logs)
            count = count + (present.mean(others) if others else present)
        return torch.where(count > 0, -excess / count, 0)

    def _scaled_terms(
        self, name: str, log_scales: LogScales
    ) -> Iterator[tuple[int, Tensor, list[int]]]:
        """Yield the power of a group in a term, the term's squares and its other axes."""
        kept = lineage(self.network, name)
        for term in self._terms:
            power = term.powers.get(name)
            if power:
                others = [1 + k for k, label in enumerate(term.labels) if label not in kept]
                yield power, self._scaled(term, log_scales), others

    def _scaled(self, term: Term, log_scales: LogScales) -> Tensor:
        squares = term.squares
        for name, power in term.powers.items():
            kept = lineage(self.network, name)
            sizes = zip(term.labels, squares.shape[1:], strict=True)
            shape = [size if label in kept else 1 for label, size in sizes]
            squares = squares * (2 * power * log_scales[name]).exp().reshape(-1, *shape)
        return squares

    def _term(self, slot: Slot, stack: Tensor) -> Term:
        pairs = zip(slot.axes, slot.powers, strict=True)
        powers = {name: power for name, power in pairs if power and name in self.groups}
        kept = {label for name in powers for label in lineage(self.network, name)}
        labels = tuple(name for name in slot.axes if name in kept)
        summed = [1 + axis for axis, name in enumerate(slot.axes) if name not in kept]
        return Term(_sum(slot.of(stack).double().square(), summed), labels, powers)

    def _check(self) -> None:
        for name in self.groups:
            terms = [term for term in self._terms if name in term.powers]
            if {term.powers[name] for term in terms} != {1, -1}:
                raise UserError(
                    f"Units of {name} have no minimum mass: nothing that counts compensates their "
                    "scale, as between a convolution and a normalisation."
                )
            if any(term.labels.count(name) > 1 for term in terms):
                raise UserError(
                    f"Units of {name} feed themselves, so they cannot be scaled one by one."
                )


def check_weights(network: Network, weights: Tensor) -> None:
    """Refuse weights of another length, or that are no numbers."""
    network.check(weights)
    if not weights.isfinite().all():
        raise UserError("These networks have weights that are not finite numbers.")


def scalable_groups(network: Network) -> list[str]:
    """Return the groups whose units have scales; refuse networks without any."""
    groups = [name for name, group in network.groups.items() if group.kind == RELU]
    if not groups:
        if network.groups:
            raise UserError(no_such_symmetry(network, next(iter(network.groups)), "scaled"))
        raise UserError(f"The network {network} has no hidden units to scale.")
    return groups


def counted_slots(network: Network, biases: bool = False) -> list[Slot]:
    """Return the slots whose squares make the mass."""
    roles = ("weight", "bias") if biases else ("weight",)
    return [slot for slot in network.slots if slot.role in roles]


def mass(network: Network, weights: Tensor, biases: bool = False) -> Tensor:
    """Return the mass of one network [] or of a stack [K], in float64."""
    slots = counted_slots(network, biases)
    return sum(
        slot.of(weights).double().square().flatten(-len(slot.shape)).sum(-1) for slot in slots
    )


def minimum_mass(network: Network, weights: Tensor, biases: bool = False) -> Transformation:
    """Return the scaling of a network [d], or of each of a stack [K, d], to its smallest mass.

    Given the scales of all other units, the best for a unit is λ = (outgoing / incoming)^¼. Groups
    take turns until no scale moves any more. Idle units have no minimum and are settled afterwards.
    """
    busy, idle = without_idle_units(network, weights, biases)
    objective = Mass(network, busy, biases)
    log_scales = dict(objective.no_scaling)
    for _ in range(MAX_SWEEPS):
        largest = 0.0
        for name in objective.groups:
            incoming, outgoing = objective.around(name, log_scales)
            steps = torch.where(idle[name], 0, (outgoing / incoming).log() / 4)
            if not steps.isfinite().all():
                raise UserError("The mass of these networks is too large or too small to compute.")
            log_scales[name] = log_scales[name] + steps
            largest = max(largest, steps.abs().max().item())
        if largest < SMALLEST_STEP:
            return scaling(network, weights, settle(network, weights, log_scales, idle))
    raise UserError(f"The minimum mass of these networks was not reached in {MAX_SWEEPS} sweeps.")


def minimum_of(network: Network, weights: Tensor, biases: bool = False) -> Tensor:
    """Return the smallest mass that scaling can reach or come near to, [] or [K]."""
    scaled = minimum_mass(network, weights, biases).apply(weights.double())
    return mass(network, without_idle_units(network, scaled, biases)[0], biases)


def without_idle_units(
    network: Network, weights: Tensor, biases: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return weights in which nothing leads to or from idle units, and which units are idle.

    Units without incoming mass are cut off from those they lead to, which may make these idle.
    """
    while True:
        objective = Mass(network, weights, biases)
        each = {name: objective.around(name, objective.no_scaling) for name in objective.groups}
        idle = {name: (unit.incoming == 0) | (unit.outgoing == 0) for name, unit in each.items()}
        if not any((idle[name] & (sum(each[name]) > 0)).any() for name in idle):
            return weights, idle
        weights = weights.clone(memory_format=torch.contiguous_format)
        for slot in counted_slots(network, biases):
            for axis, (name, power) in enumerate(zip(slot.axes, slot.powers, strict=True)):
                if power and name in idle:
                    kept = slot.of(weights.view(-1, network.num_weights))
                    kept.mul_(~line_up(network, slot, axis, idle[name]))


def settle(
    network: Network, weights: Tensor, log_scales: LogScales, idle: dict[str, Tensor]
) -> LogScales:
    """Return the log scales with those of idle units at which their weights are nearest to SMALL.

    The squared logarithms of the norms of their weights and biases, in units of SMALL, averaged
    over each tensor and without zeros, have the smallest sum. It is convex and depends on nothing
    but scaled weights, so all networks of an orbit come to the same weights. These hardly count in
    masses and distances.
    """
    if not any(each.any() for each in idle.values()):
        return log_scales
    everything, log_scales = Mass(network, weights / SMALL, biases=True), dict(log_scales)
    for _ in range(MAX_SWEEPS):
        largest = 0.0
        for name, units in idle.items():
            steps = torch.where(units, everything.evening(name, log_scales), 0)
            log_scales[name] = log_scales[name] + steps
            largest = max(largest, steps.abs().max().item())
        if largest < SMALLEST_STEP:
            return log_scales
    raise UserError(f"The scales of idle units did not settle in {MAX_SWEEPS} sweeps.")


def imbalance(network: Network, weights: Tensor) -> Tensor:
    """Return incoming minus outgoing mass of every ReLU unit, biases included, [units] or [K, …].

    Without weight decay, gradient flow keeps it as it is.
    """
    objective = Mass(network, weights, biases=True)
    each = [objective.around(name, objective.no_scaling) for name in objective.groups]
    units = torch.cat([(masses.incoming - masses.outgoing).flatten(1) for masses in each], 1)
    return units if weights.dim() > 1 else units[0]


def mass_along_orbit(
    network: Network, weights: Tensor, steps: Tensor, num_directions: int, random: torch.Generator
) -> Tensor:
    """Return m [direction, network, step] on random lines in log λ through networks [K, d].

    Steps are distances from the networks as they are; each network has directions of its own.
    """
    objective = Mass(network, weights)
    curves = []
    for _ in range(num_directions):
        direction = {
            name: torch.randn(zeros.shape, generator=random, dtype=torch.float64)
            for name, zeros in objective.no_scaling.items()
        }
        length = sum(each.flatten(1).square().sum(1) for each in direction.values()).sqrt()
        unit = {n: each / length.view(-1, *[1] * (each.dim() - 1)) for n, each in direction.items()}
        points = ({n: float(step) * each for n, each in unit.items()} for step in steps)
        curves.append(torch.stack([objective(point) for point in points], -1))
    return torch.stack(curves)


def scaling(network: Network, weights: Tensor, log_scales: LogScales) -> Transformation:
    """Return scales [K, *units] as a transformation of these weights, [d] or [K, d]."""
    if weights.dim() == 1:
        log_scales = {name: each[0] for name, each in log_scales.items()}
    return Transformation(network, log_scales=log_scales)


def _sum(values: Tensor, axes: list[int]) -> Tensor:
    return values.sum(axes) if axes else values
