"""The action of a network's symmetry group on its weights.

A `Transformation` first scales units, then flips their signs, then permutes them. `permutations[g]`
is the permutation of group g: perm[i] is the index, in the network being transformed, of the unit
that moves to position i. Scales and signs are indexed by units of the network being transformed.
For a hidden layer with permutation P, scales λ and signs s, and φ(λ s z) = λ s φ(z):

    W1 → P λ s W1        b1 → P λ s b1        W2 → W2 (P λ s)⁻¹

All of it follows from the table of slots, so the same code serves every architecture.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from utils.networks.network import NONE, RELU, TANH, Network, Slot
from utils.runs.seeding import generator
from utils.settings.errors import UserError
from utils.symmetry.permutation import check_permutation, num_transpositions

import torch
from torch import Tensor

# Logits in float64 may change by this, relative to their size: rounding, from another order of
# summation.
SAME_FUNCTION = 1e-9
NUM_PROBES = 16


@dataclass(frozen=True, eq=False)
class Transformation:
    """An element of a network's symmetry group. Groups that are absent stay as they are.

    With a K in front of all numbers it is a stack of elements, one for each network of a stack.
    """

    network: Network
    permutations: dict[str, Tensor] = field(default_factory=dict)  # [*units of parents, size]
    log_scales: dict[str, Tensor] = field(default_factory=dict)
    signs: dict[str, Tensor] = field(default_factory=dict)  # ±1

    def apply(self, weights: Tensor) -> Tensor:
        """Return the transformed weights, [d] or a stack [K, d]."""
        self.check()
        if self.stack and weights.dim() == 1:
            weights = weights.expand(*self.stack, -1)
        transformed = torch.empty_like(weights)
        for slot in self.network.slots:
            slot.of(transformed).copy_(self.apply_to_slot(slot, slot.of(weights)))
        return transformed

    def apply_to_std(self, std: Tensor) -> Tensor:
        """Return the standard deviations of transformed weights."""
        return replace(self, signs={}).apply(std)

    def then(self, second: "Transformation") -> "Transformation":
        """Return the transformation that does this one and then the second."""
        if self.stack and second.stack and self.stack != second.stack:
            raise ValueError(f"Stacks of {self.stack} and {second.stack} transformations")
        permutations = dict(second.permutations)
        for name, perm in self.permutations.items():
            permutations[name] = second.follow(name, perm)
        back, log_scales, signs = self.inverse(), dict(self.log_scales), dict(self.signs)
        for name, values in second.log_scales.items():
            log_scales[name] = log_scales.get(name, 0) + back.follow(name, values)
        for name, values in second.signs.items():
            signs[name] = signs.get(name, 1) * back.follow(name, values)
        return Transformation(self.network, permutations, log_scales, signs)

    def inverse(self) -> "Transformation":
        """Return the transformation that undoes this one."""
        undone = Transformation(self.network)
        for name in self.network.groups:
            if name in self.permutations or name in nested_in(self.network, self.permutations):
                perm = undone.follow(name, self.permutation(name))  # moved with its parents
                undone.permutations[name] = perm.argsort(-1)
        log_scales = {name: -self.follow(name, each) for name, each in self.log_scales.items()}
        signs = {name: self.follow(name, each) for name, each in self.signs.items()}
        return replace(undone, log_scales=log_scales, signs=signs)

    def permutation(self, name: str) -> Tensor:
        """Return the permutation of a group, the identity where it is absent."""
        if name in self.permutations:
            return self.permutations[name]
        units = (*self.stack, *self.network.units(name))
        return torch.arange(units[-1]).expand(units).clone()

    @property
    def stack(self) -> tuple[int, ...]:
        """Return (K,) if this is a stack of K elements, else ()."""
        for values in (self.permutations, self.log_scales, self.signs):
            for name, each in values.items():
                if isinstance(each, Tensor) and name in self.network.groups:
                    return tuple(each.shape[: each.dim() - len(self.network.units(name))])
        return ()

    def transpositions(self) -> dict[str, int]:
        """Return the number of transpositions (NoT) of every group of units."""
        return {
            name: num_transpositions(self.follow(name, numbered(self.network, name)).flatten())
            for name in self.network.groups
        }

    def total_transpositions(self) -> int:
        return sum(self.transpositions().values())

    def to_row(self) -> Tensor:
        """Return the permutations of all groups as one row [all hidden units], or rows [K, …]."""
        levels = len(self.stack)
        rows = [self.permutation(name).flatten(levels) for name in self.network.groups]
        return torch.cat(rows, -1) if rows else torch.empty(0, dtype=torch.int64)

    def sign_row(self) -> Tensor:
        """Return the signs ±1 of all groups as one row, in the order before units move."""
        none = {name: torch.ones(self.network.units(name)) for name in self.network.groups}
        parts = [self.signs.get(name, none[name]).flatten().cpu() for name in none]
        return torch.cat(parts).to(torch.int8) if parts else torch.empty(0, dtype=torch.int8)

    def follow(self, name: str, values: Tensor) -> Tensor:
        """Return numbers of a group's units in the units' new places."""
        for depth, each in enumerate(lineage(self.network, name), start=len(self.stack)):
            if each in self.permutations:
                perm = self.permutations[each].to(values.device)
                perm = perm.reshape(*perm.shape, *[1] * (values.dim() - perm.dim()))
                values = values.take_along_dim(perm, depth)
        return values

    def check(self) -> None:
        """Refuse what is no symmetry of the network."""
        network, stack = self.network, self.stack
        for name in (*self.permutations, *self.log_scales, *self.signs):
            if name not in network.groups:
                groups = ", ".join(network.groups) or "none"
                raise UserError(f"The network {network} has no units {name!r}; it has: {groups}.")
        for name, perm in self.permutations.items():
            check_permutation(perm, (*stack, *network.units(name)), name)
        pairs = (self.log_scales, RELU, "scaled"), (self.signs, TANH, "flipped")
        for values, kind, word in pairs:
            for name, each in values.items():
                if network.groups[name].kind != kind:
                    raise UserError(no_such_symmetry(network, name, word))
                units = (*stack, *network.units(name))
                if tuple(each.shape) != units:
                    given = list(each.shape)
                    raise UserError(
                        f"{name} has {list(units)} units, but is {word} by {given} numbers."
                    )

    def apply_to_slot(self, slot: Slot, tensor: Tensor) -> Tensor:
        """Return the slot's tensor, with a stack in front or not, scaled and permuted."""
        for axis, (name, power) in enumerate(zip(slot.axes, slot.powers, strict=True)):
            for factor in self._factors(name, power):
                factor = line_up(self.network, slot, axis, factor)
                tensor = tensor * factor.to(tensor)
        for axis, name in enumerate(slot.axes, start=-len(slot.shape)):
            if name in self.permutations:
                perm = self.permutations[name].to(tensor.device)
                if perm.dim() == 1:
                    tensor = tensor.index_select(axis, perm)
                else:
                    perm = line_up(self.network, slot, axis, perm)
                    stack = [1] * (tensor.dim() - perm.dim())
                    tensor = tensor.take_along_dim(perm.reshape(*stack, *perm.shape), axis)
        return tensor

    def _factors(self, name: str | None, power: int) -> Iterator[Tensor]:
        if power and name in self.log_scales:
            yield (power * self.log_scales[name].double()).exp()
        if power % 2 and name in self.signs:
            yield self.signs[name]


def lineage(network: Network, name: str) -> list[str]:
    """Return the groups that a group lies within, from the outermost to itself."""
    parent = network.groups[name].within
    return [*(lineage(network, parent) if parent else []), name]


def nested_in(network: Network, names) -> set[str]:
    """Return the groups that lie within one of these."""
    return {name for name in network.groups if set(lineage(network, name)[:-1]) & set(names)}


def numbered(network: Network, name: str) -> Tensor:
    """Return the numbers 0, 1, … of a group's units, in the shape that its units have."""
    shape = network.units(name)
    return torch.arange(math.prod(shape)).reshape(shape)


def incoming_slots(network: Network, name: str) -> list[Slot]:
    """Return the slots with the weights that lead to a group's units."""
    return [
        slot
        for slot in network.slots_of(name)
        if slot.role == "weight" and len(slot.shape) > 1
        and slot.powers[slot.axes.index(name)] >= 0
    ]  # fmt: skip


def units_first(network: Network, slot: Slot, tensor: Tensor, name: str) -> Tensor:
    """Return a slot's tensor as [*parents, units, everything else], or with a K in front."""
    places = [slot.axes.index(each) - len(slot.shape) for each in lineage(network, name)]
    stack = tensor.dim() - len(slot.shape)
    front = range(stack, stack + len(places))
    return tensor.movedim(places, list(front)).unsqueeze(-1).flatten(stack + len(places))


def line_up(network: Network, slot: Slot, axis: int, values: Tensor) -> Tensor:
    """Return numbers of the units along an axis in a shape that lines up with the slot's axes."""
    shape, (*parents, _) = [1] * len(slot.shape), lineage(network, slot.axes[axis])
    places = [*(slot.axes.index(parent) for parent in parents), axis]
    stack = values.shape[: values.dim() - len(places)]
    for place, size in zip(places, values.shape[len(stack) :], strict=True):
        shape[place] = size
    return values.reshape(*stack, *shape)


def from_row(network: Network, row: Tensor, sign_row: Tensor | None = None) -> Transformation:
    """Read permutations from a row of `Transformation.to_row`, signs from one of `sign_row`."""
    shapes = {name: network.units(name) for name in network.groups}

    def by_group(values: Tensor) -> dict[str, Tensor]:
        parts = values.split([math.prod(shape) for shape in shapes.values()])
        named = zip(parts, shapes.items(), strict=True)
        return {name: part.view(shape) for part, (name, shape) in named}

    signs = {} if sign_row is None else by_group(sign_row)
    odd = {name: each for name, each in signs.items() if network.groups[name].kind == TANH}
    return Transformation(network, by_group(row), signs=odd)


def has_signs(network: Network) -> bool:
    return any(group.kind == TANH for group in network.groups.values())


def random_transformation(
    network: Network, random: torch.Generator, log_scale: float = 0.5, stack: tuple[int, ...] = ()
) -> Transformation:
    """Draw an element of the full group: uniform permutations and signs, log-normal scales.

    With `stack` (K,), a stack of K elements is drawn.
    """
    drawn = Transformation(network)
    for name, group in network.groups.items():
        units = (*stack, *network.units(name))
        drawn.permutations[name] = torch.rand(units, generator=random).argsort(-1)
        if group.kind == RELU:
            normal = torch.randn(units, generator=random, dtype=torch.float64)
            drawn.log_scales[name] = log_scale * normal
        if group.kind == TANH:
            drawn.signs[name] = 2 * torch.randint(2, units, generator=random) - 1
    return drawn


def no_such_symmetry(network: Network, name: str, word: str) -> str:
    """Say why a group's units cannot be scaled or flipped."""
    reasons = {
        RELU: "they are positively homogeneous, so they can be scaled, not flipped",
        TANH: "they are odd functions, so they can be flipped, not scaled",
        NONE: "they can only be permuted, as with SiLU, or where a normalisation follows",
    }
    return f"Units of {name} cannot be {word}: {reasons[network.groups[name].kind]}."


# ---- proof that the function stays


def check_same_function(network: Network, before: Tensor, after: Tensor) -> None:
    """Compare the logits of two networks, or stacks, in float64, on a few random inputs.

    Inputs have both signs, so a unit that is dead on one of them is hardly dead on all.
    """
    random = generator(0, "probe_inputs")
    probe = torch.randn(NUM_PROBES, *network.input_shape, generator=random, dtype=torch.float64)
    old, new = (network.outputs(each.double(), probe.to(each.device)) for each in (before, after))
    change = (new - old).abs().max().item()
    if not change <= SAME_FUNCTION * (1 + old.abs().max().item()):
        raise AssertionError(f"A transformation changed the network's logits by {change}.")


def check_same_units(network: Network, before: Tensor, after: Tensor) -> None:
    """Compare the weights that meet in each unit, whatever the order of units: they must be equal.

    This notices what is done to units that are dead on all probes. The sums are of float64's bits
    as whole numbers, so they are exact whatever the order.
    """
    pair = [torch.atleast_2d(each).double().view(torch.int64) for each in (before, after)]
    for name in network.groups:
        units, moved = (_unit_sums(network, each, name).sort(-1).values for each in pair)
        if not torch.equal(units, moved):
            raise AssertionError(f"A permutation took a unit of {name} apart.")


def _unit_sums(network: Network, stack: Tensor, name: str) -> Tensor:
    """Return the sums [K, units] of all weights of each unit of a group."""
    total = 0
    for slot in network.slots_of(name):
        kept = [slot.axes.index(each) + 1 for each in lineage(network, name)]
        others = [axis for axis in range(1, len(slot.shape) + 1) if axis not in kept]
        tensor = slot.of(stack)
        total = total + (tensor.sum(others) if others else tensor).flatten(1)
    return total
