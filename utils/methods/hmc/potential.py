"""The log joint of a network's weights and the training data, and its gradient, in closed form.

    U(θ) = Σ_n −log p(y_n | x_n, θ) + ½ ‖θ‖²        the potential: prior N(0, 1) on every weight

Energies always use all the data and are summed in float64. A *force*, the gradient along a
trajectory, may leave out what cannot matter. At stationarity of the paper's posterior nine images
in ten have a margin (logit of the true class minus the largest other) so large that their share
of the gradient, about exp(−margin), is lost in float32's rounding. There are three methods:

    dense    forward and backward pass over all the data
    active   forward pass over all the data, backward pass over the rows that carry gradient
    listed   both passes over a neighbour list, as in molecular dynamics (Verlet 1967): a point
             whose margin is large is left alone until it could have come near (`NeighbourList`)

HMC is exact where the way back along a trajectory meets the same forces. Dense and active forces
depend on the position alone, so there rounding is all that is between. A listed one depends on the
way, too: what it leaves out while no point is overlooked is of the size of rounding, but a point
that comes near asleep (a *violation*, counted in the trace) pulls on one of the two ways only.
Measured on 784-64-10, 3,000 images, 200 steps of 0.0024 there and back: without violations the
largest weight error of the return is 1.2e-6, as with the active force. With 71 to 116 violations
each way, forced by `slack` 0.5, it is 8e-4 to 7e-3, and the two ΔH differ by 0.03 to 1.9 nats in
size. Usual are 0 or 1. Over the 600 to 1,300 steps of a long trajectory roundings grow, with every
method: the way back of 784-512-10 ends up to 0.1 beside the start, and the two ΔH differ by some
tenths. Whether that matters is told by the mean of exp(−ΔH), 1 where HMC is exact
(`diagnostics.energy_balance`): 0.987 ± 0.045 over the 250 transitions of the laptop run.

Over several ranks each holds a part of the data; sums over data go through `ranks.sum`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from utils.networks.mlp_gradients import Backprop, softmax_errors
from utils.networks.network import Network
from utils.runs.ranks import ALONE, Ranks

import torch
import torch.nn.functional as F
from torch import Tensor

FORCES = ("auto", "dense", "active", "listed")
# Rows that pass through the network at a time: their activations stay in the processor's cache.
CHUNK_ROWS = 4000
# |softmax − y| below which a row changes nothing in a float32 sum with errors of size 1.
NEGLIGIBLE_ERROR = 1e-8
# Below these, choosing rows costs more than computing them all.
WORTHWHILE_POINTS = 500
WORTHWHILE_SHARE = 0.7
# Rows are filled up to a multiple of this: matmul libraries compile and keep a kernel for every
# shape they meet, and lists would bring a new one in every step.
ROW_MULTIPLE = 64
# Input columns are kept in multiples of this, so that rows start at cache lines.
COLUMN_MULTIPLE = 16


class Energy(NamedTuple):
    potential: float  # U(θ) in nats
    nll: float  # Σ_n −log p(y_n | x_n, θ) in nats
    gradient: Tensor  # ∂U/∂θ [d]


class ListSettings(NamedTuple):
    """How a neighbour list decides when a point has to be looked at again."""

    safe_margin: float = 18.0  # a point above it may be left out: its errors are below 1.6e-8
    longest_sleep: int = 200  # steps a point is left alone at most
    slack: float = 1.25  # factor between the fastest fall of a margin that was seen and assumed


class Posterior:
    """U(θ) of `network` on images [N, in] and labels [N]; on several ranks, of this rank's part."""

    def __init__(
        self,
        network: Network,
        images: Tensor,
        labels: Tensor,
        force: str = "auto",
        list_settings: ListSettings | None = None,
        ranks: Ranks = ALONE,
    ):
        self.network, self.ranks = network, ranks
        self.num_points = int(ranks.sum(torch.tensor([len(images)]))[0])
        if force == "auto":
            force = "listed" if self.num_points > WORTHWHILE_POINTS else "dense"
        self.method, self.list_settings = force, list_settings or ListSettings()
        self._first = FirstLayer(images, network.sizes[1])
        self._inputs, self._labels = self._first.inputs, labels
        rows, kind = min(CHUNK_ROWS, len(images)), {"device": images.device, "dtype": images.dtype}
        self._backprop = Backprop(network, 1, rows, **kind)
        self._gathered, self._active_inputs = torch.empty(2, rows, self._inputs.shape[1], **kind)
        self._active_hidden = [torch.empty(rows, n, **kind) for n in network.sizes[1:-1]]

    def energy(self, weights: Tensor) -> Energy:
        """U(θ) and its gradient, from all the data."""
        return self._energy(weights)[0]

    def trajectory(self, weights: Tensor) -> tuple[Energy, "Force"]:
        """U and its gradient at the start of a trajectory, and the force along it."""
        energy, margins = self._energy(weights)
        watch = None
        if self.method == "listed":
            watch = NeighbourList(margins, self.list_settings)
        return energy, Force(self, watch)

    def _energy(self, weights: Tensor) -> tuple[Energy, Tensor]:
        gradient, nll, margins = self.pass_over(weights, None)
        nll = self.ranks.sum(nll.double().sum().reshape(1)).item()
        exact = weights.double()
        potential = nll + 0.5 * exact.dot(exact).item()
        return Energy(potential, nll, gradient), margins

    def pass_over(self, weights: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """∂U/∂θ [d] as the given rows of the data (None: all) make it; their NLLs and margins.

        The prior's part is exact; the likelihood's is summed over those rows of all ranks.
        """
        gradient = torch.zeros_like(weights)
        first, *layers = self.network.layers(weights)
        first_slot, *slots = self.network.layers(gradient)
        layers = [(self._first.weight_of(*first), None), *in_stacks_of_one(layers)]
        slots = [(self._first.empty_gradient(), None), *in_stacks_of_one(slots)]
        nll, margins = [], []
        for inputs, labels, count in self._chunks(rows):
            *hidden, outputs = self._backprop.forward(layers, inputs[None])
            margins.append(true_margins(outputs[0], labels)[:count])
            chunk_nll, errors = softmax_errors(outputs, labels[None])
            nll.append(chunk_nll[0, :count])
            errors[:, count:] = 0
            self._backward(layers, inputs, hidden, errors, slots)
        self._first.write_gradient(*first_slot)
        self.ranks.sum(gradient).add_(weights)
        empty = gradient[:0]
        return gradient, torch.cat([empty, *nll]), torch.cat([empty, *margins])

    def _chunks(self, rows: Tensor | None) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Inputs and labels of the given rows, some at a time, in a buffer that is used again.

        Those beyond the count that comes with them only fill up.
        """
        if rows is None:
            parts = self._inputs.split(CHUNK_ROWS), self._labels.split(CHUNK_ROWS)
            for inputs, labels in zip(*parts, strict=True):
                yield inputs, labels, len(labels)
            return
        for chunk in rows.split(CHUNK_ROWS):
            count, chunk = len(chunk), fill_up(chunk, len(self._gathered))
            inputs = self._gathered[: len(chunk)]
            torch.index_select(self._inputs, 0, chunk, out=inputs)
            yield inputs, self._labels[chunk], count

    def _backward(self, layers, inputs, hidden, errors, slots) -> None:
        """Add a chunk's gradient to `slots`, from the rows that have one."""
        if self.method != "dense":
            active = (errors[0].abs().amax(-1) > NEGLIGIBLE_ERROR).nonzero().squeeze(1)
            if len(active) < WORTHWHILE_SHARE * len(inputs):
                count, active = len(active), fill_up(active, len(inputs))
                size = len(active)
                inputs = torch.index_select(inputs, 0, active, out=self._active_inputs[:size])
                hidden = [
                    torch.index_select(values[0], 0, active, out=buffer[:size])[None]
                    for values, buffer in zip(hidden, self._active_hidden, strict=True)
                ]
                errors = errors[:, active]
                errors[:, count:] = 0
        self._backprop.backward(layers, inputs[None], hidden, errors, slots, keep=1)


class FirstLayer:
    """The products of layer 1, made smaller: only live pixels, and the bias within the product.

    The weights of a pixel that is zero in all images get no likelihood gradient, and leaving them
    out is exact; of MNIST's 784 pixels 67 are such. After the live pixels the inputs have a column
    of ones, whose weights are the bias, and zeros up to a multiple of COLUMN_MULTIPLE, at least
    one: its gradient, zero, is the one of all dead pixels.
    """

    def __init__(self, images: Tensor, num_outputs: int):
        live = images.any(dim=0).nonzero().squeeze(1)
        self._ones = len(live)
        width = -(-(self._ones + 2) // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
        self._pixels = F.pad(live, (0, width - self._ones))  # what fills up meets zeros
        self._columns = torch.full((images.shape[1],), width - 1, device=images.device)
        self._columns[live] = torch.arange(self._ones, device=images.device)
        self.inputs = images[:, self._pixels]  # [N, width]
        self.inputs[:, self._ones :] = 0
        self.inputs[:, self._ones] = 1
        self._weight, self._gradient = self.inputs.new_empty(2, 1, num_outputs, width)

    def weight_of(self, weight: Tensor, bias: Tensor) -> Tensor:
        """The layer's weight [out, in] and bias [out] as one [1, out, width], in a buffer."""
        torch.index_select(weight, 1, self._pixels, out=self._weight[0])
        self._weight[0, :, self._ones] = bias
        return self._weight

    def empty_gradient(self) -> Tensor:
        """Zeros [1, out, width], in a buffer, to which a gradient may be added."""
        return self._gradient.zero_()

    def write_gradient(self, weight: Tensor, bias: Tensor) -> None:
        """Set these, [out, in] and [out], to what was added."""
        torch.index_select(self._gradient[0], 1, self._columns, out=weight)
        bias.copy_(self._gradient[0, :, self._ones])


def in_stacks_of_one(layers: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(weight[None], bias[None]) for weight, bias in layers]


def fill_up(rows: Tensor, most: int) -> Tensor:
    """Row numbers, the first one repeated until there are a multiple of ROW_MULTIPLE, or `most`."""
    missing = min(-len(rows) % ROW_MULTIPLE, most - len(rows))
    return torch.cat([rows, rows[:1].expand(missing)]) if len(rows) else rows


class Force:
    """∂U/∂θ along one trajectory, to be called once in each leapfrog step but the last."""

    def __init__(self, posterior: Posterior, neighbours: "NeighbourList | None"):
        self._posterior, self._neighbours = posterior, neighbours
        self.num_calls, self.num_rows = 0, 0

    def __call__(self, weights: Tensor) -> Tensor:
        self.num_calls += 1
        if self._neighbours is None:
            gradient, _, margins = self._posterior.pass_over(weights, None)
        else:
            rows = self._neighbours.due(self.num_calls)
            gradient, _, margins = self._posterior.pass_over(weights, rows)
            self._neighbours.update(self.num_calls, rows, margins)
        self.num_rows += len(margins)
        return gradient

    def energy(self, weights: Tensor) -> Energy:
        """U(θ) where the trajectory ends, and a last look at the points asleep there."""
        energy, margins = self._posterior._energy(weights)
        if self._neighbours is not None:
            self._neighbours.update(self.num_calls + 1, None, margins)
        return energy

    def counts(self) -> tuple[float, int]:
        """Points looked at per call, and how often one came near while it was left alone."""
        violations = self._neighbours.violations if self._neighbours else 0
        total = torch.tensor([self.num_rows, violations], dtype=torch.float64)
        rows, violations = self._posterior.ranks.sum(total).tolist()
        return rows / max(self.num_calls, 1), int(violations)

    def state(self) -> dict[str, Tensor]:
        """What the calls so far have left, of this rank's part of the data."""
        counts = {"counts": torch.tensor([self.num_calls, self.num_rows])}
        return counts | (self._neighbours.state() if self._neighbours else {})

    def restore(self, state: dict[str, Tensor]) -> None:
        self.num_calls, self.num_rows = state["counts"].tolist()
        if self._neighbours:
            self._neighbours.restore(state)


class NeighbourList:
    """When to look at each training point again, along one trajectory.

    Margins move smoothly. Let v be the fastest fall of a margin per step that was seen lately,
    times a slack, and the way the sum of v over the steps. A point of margin m cannot come below
    the safe margin s before the way has grown by m − s, and is woken a step earlier than that. As
    v rises, all that sleep wake earlier. So a point near s is looked at in every step, one far
    away rarely, and early in burn-in, when most points are near s, the list holds all of them.

    A point found below s after it has slept for more than one step is a violation: it fell faster
    than was assumed, and the gradient may have missed its error, about exp(−margin), for some of
    these steps. Not counted are points that came below s and rose again in their sleep.
    """

    def __init__(self, margins: Tensor, settings: ListSettings):
        self._settings = settings
        self._margins = margins.clone()
        self._seen = torch.zeros(len(margins), dtype=torch.int32, device=margins.device)
        # The way by which to look again: all in step 1, which gives a first v.
        self._deadlines = torch.full_like(margins, -torch.inf)
        self._speed, self._way = 0.0, 0.0
        self.violations = 0

    def due(self, step: int) -> Tensor | None:
        """Rows to look at in this step; None means all."""
        due = self._deadlines <= self._way + 2 * self._speed  # by this step's end and the next's
        due.logical_or_(self._seen <= step - self._settings.longest_sleep)
        rows = due.nonzero().squeeze(1)
        return None if len(rows) > WORTHWHILE_SHARE * len(due) else rows

    def update(self, step: int, rows: Tensor | None, margins: Tensor) -> None:
        """Take note, in every step, of the margins found and decide how long their points sleep."""
        rows = slice(None) if rows is None else rows
        settings = self._settings
        slept = step - self._seen[rows]
        if len(margins):
            fall = (self._margins[rows] - margins) / slept
            self._speed = max(0.98 * self._speed, settings.slack * fall.max().item())
        self._way += self._speed
        self.violations += int(((margins < settings.safe_margin) & (slept > 1)).sum())
        deadlines = margins + (self._way - settings.safe_margin)
        self._margins[rows] = margins
        self._seen[rows] = step
        self._deadlines[rows] = deadlines.nan_to_num(-torch.inf, posinf=torch.inf)

    def state(self) -> dict[str, Tensor]:
        numbers = [self._speed, self._way, self.violations]
        return {
            "margins": self._margins,
            "seen": self._seen,
            "deadlines": self._deadlines,
            "numbers": torch.tensor(numbers, dtype=torch.float64),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        self._margins, self._seen, self._deadlines = (
            state[name].clone() for name in ("margins", "seen", "deadlines")
        )
        self._speed, self._way, violations = state["numbers"].tolist()
        self.violations = int(violations)


def true_margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit of the true class minus the largest other, [rows]."""
    labels = labels.unsqueeze(-1)
    others = logits.scatter(-1, labels, -torch.inf).amax(-1)
    return logits.gather(-1, labels).squeeze(-1) - others
