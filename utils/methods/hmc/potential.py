"""The log joint of a network's weights and the training data, and its gradient.

    U(θ) = Σ_n −log p(y_n | x_n, θ) + ½ Σ_i θ_i²/s_i²       up to a constant

The chain's target is exp(−U/T), and what is called potential here is U/T: the NLL divided by the
temperature T plus the potential of the tempered prior N(0, T s²).

Energies use all the data and are summed in float64. A *force*, the gradient along a trajectory, may
skip points whose gradient is lost in float32's rounding: it is of size exp(−margin), where the
margin is the logit of the true class minus the largest other. At stationarity of the paper's
posterior nine images in ten are such. There are three methods:

    dense    forward and backward pass over all the data
    active   forward pass over all the data, backward pass over the rows that carry gradient
    listed   both passes over a neighbour list: a point with a large margin is skipped until it
             could have come near (`NeighbourList`)

Dense and active forces depend on the position alone, as a reversible map needs. A listed force also
depends on the path: a point that comes near while skipped (a *violation*, counted in the trace)
pulls on one of the two ways only. docs/hmc.md says how exact this is, and how runs test it.

With several ranks each holds a part of the data, and `ranks.sum` adds up the parts.
"""

import copy
import math
from collections.abc import Iterator
from typing import NamedTuple

from utils.methods.curvature import diagonal_ggn, full_ggn
from utils.methods.hmc.neighbour_list import SAFE_MARGIN, WORTHWHILE_SHARE, NeighbourList
from utils.networks.mlp_gradients import softmax_errors
from utils.networks.network import Network
from utils.posteriors.prior import Prior
from utils.runs.ranks import ALONE, Ranks

import torch
from torch import Tensor

STANDARD_NORMAL = Prior()
FORCES = ("auto", "dense", "active", "listed")
LISTED_FROM = 500  # points: for fewer, selecting rows costs more than computing them all
# |softmax − y| below which a row changes nothing in a float32 sum with errors of size 1.
NEGLIGIBLE_ERROR = 1e-8
# Selected rows are filled up to a multiple of this: matmul libraries compile and keep a kernel for
# every shape they meet, and lists would bring a new shape in every step.
ROW_MULTIPLE = 64
CURVATURE_IMAGES = 200  # from which the curvature at one state is estimated


class Energy(NamedTuple):
    potential: float  # U(θ)/T in nats
    nll: float  # Σ_n −log p(y_n | x_n, θ) in nats
    gradient: Tensor  # ∂(U/T)/∂θ [d]


class Potential:
    """U(θ)/T of a network on images [N, …] and labels [N]; on several ranks, of this rank's part.

    `prior` is the tempered one, N(0, T s²).
    """

    def __init__(
        self, network: Network, images: Tensor, labels: Tensor, force: str = "auto",
        safe_margin: float = SAFE_MARGIN,
        ranks: Ranks = ALONE, prior: Prior = STANDARD_NORMAL, temperature: float = 1.0,
    ):  # fmt: skip
        self._network, self._images, self._labels = network, images, labels
        self.ranks, self.prior, self.temperature = ranks, prior, temperature
        self.num_points = int(ranks.sum(torch.tensor([len(images)]))[0])
        if force == "auto":
            force = "listed" if self.num_points > LISTED_FROM else "dense"
        self.method, self.safe_margin = force, safe_margin
        self._passes = network.data_passes(images)
        self.flops = self._passes.flops  # of the largest product of a full pass
        self._whole = network.whole_gradient(images, labels) if force == "dense" else None

    def heated(self, factor: float) -> "Potential":
        """Return the potential whose likelihood has a temperature higher by a factor."""
        potential = copy.copy(self)
        potential.temperature = self.temperature * factor
        return potential

    def curvature(self, weights: Tensor, dense: bool, generator: torch.Generator) -> Tensor:
        """Return the GGN of the NLL [d, d], or its diagonal [d], estimated from random images."""
        rows = torch.randperm(len(self._images), generator=generator)[:CURVATURE_IMAGES]
        images, scale = self._images[rows.to(weights.device)], self.num_points / len(rows)
        if dense:
            return scale * full_ggn(self._network, weights, images)
        (diagonal,) = diagonal_ggn(self._network, weights, images)
        return scale * diagonal.eigenvalues[0]

    def precision_of(self, curvature: Tensor) -> Tensor:
        """Return the curvature of U/T where the NLL's is this: curvature/T + 1/(T s²)."""
        precision = curvature / self.temperature
        (precision.diagonal() if precision.dim() == 2 else precision).add_(self.prior.precision)
        return precision

    def energy(self, weights: Tensor) -> Energy:
        """Return U(θ)/T and its gradient, from all the data."""
        return self.measure(weights)[0]

    def trajectory(self, weights: Tensor) -> tuple[Energy, "Force"]:
        """Return U and its gradient at the start of a trajectory, and the force along it."""
        energy, margins = self.measure(weights)
        listed = self.method == "listed"
        return energy, Force(self, NeighbourList(margins, self.safe_margin) if listed else None)

    def measure(self, weights: Tensor) -> tuple[Energy, Tensor]:
        """Return U(θ) with its gradient, and the margins of all points of this rank."""
        gradient = torch.empty_like(weights)
        nll, margins = self.pass_over(weights, gradient)
        nll = self.ranks.sum(nll.double().sum().reshape(1)).item()
        potential = nll / self.temperature + self.prior.potential(weights)
        return Energy(potential, nll, gradient), margins

    def pass_over(
        self, weights: Tensor, gradient: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Set `gradient` [d] to ∂U/∂θ, with the likelihood of the given rows of all ranks only.

        Return the NLLs and margins of this rank's rows; None means all. Without lists no margins
        are computed.
        """
        if self._whole:
            nll, margins = self._whole(weights, gradient), weights[:0]
        else:
            nll, margins = self._pass_by_chunks(weights, gradient, rows)
        gradient = self.ranks.sum(gradient)
        if self.temperature != 1:
            gradient.div_(self.temperature)
        self.prior.add_gradient(gradient, weights)
        return nll, margins

    def _pass_by_chunks(
        self, weights: Tensor, gradient: Tensor, rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Set `gradient` to that of the NLL; return NLLs and margins."""
        nll, margins = [weights[:0]], [weights[:0]]
        self._passes.begin(weights, gradient)
        for chunk, labels, count in self._chunks(rows):
            logits = self._passes.forward(chunk)
            if self.method == "listed":
                margins.append(true_margins(logits, labels)[:count])
            chunk_nll, errors = softmax_errors(logits[None], labels[None])
            nll.append(chunk_nll[0, :count])
            self._backward(errors[0], count)
        self._passes.finish()
        return torch.cat(nll), torch.cat(margins)

    def _chunks(self, rows: Tensor | None) -> Iterator[tuple[slice | Tensor, Tensor, int]]:
        """Yield some rows at a time, their labels, and how many they are without filling."""
        size, total = self._passes.chunk_rows, len(self._labels if rows is None else rows)
        for start in range(0, total, size):
            count, chunk = min(size, total - start), slice(start, start + size)
            if rows is not None:
                chunk = fill_up(rows[chunk], min(size, len(self._labels)))
            yield chunk, self._labels[chunk], count

    def _backward(self, errors: Tensor, count: int) -> None:
        """Add a chunk's gradient, from those of its first `count` rows that have one."""
        if count < len(errors):
            errors[count:] = 0
        if self.method != "dense":
            active = (errors.abs().amax(-1) > NEGLIGIBLE_ERROR).nonzero().squeeze(1)
            if len(active) < WORTHWHILE_SHARE * len(errors):
                count, active = len(active), fill_up(active, len(errors))
                errors = errors[active]
                errors[count:] = 0
                self._passes.backward(errors, active)
                return
        self._passes.backward(errors)


class Force:
    """∂U/∂θ along one trajectory, to be called once in each leapfrog step but the last.

    A gradient is valid until the next call.
    """

    def __init__(self, potential: Potential, neighbours: NeighbourList | None):
        self._potential, self._neighbours = potential, neighbours
        self._gradient = None
        self.num_calls, self.num_rows = 0, 0

    def __call__(self, weights: Tensor) -> Tensor:
        self.num_calls += 1
        if self._gradient is None:
            self._gradient = torch.empty_like(weights)
        rows = self._neighbours.due(self.num_calls) if self._neighbours else None
        nll, margins = self._potential.pass_over(weights, self._gradient, rows)
        if self._neighbours:
            self._neighbours.update(self.num_calls, rows, margins)
        self.num_rows += len(nll)
        return self._gradient

    def energy(self, weights: Tensor) -> Energy:
        """Return U(θ) at the end of the trajectory, and check the points that are asleep there."""
        energy, margins = self._potential.measure(weights)
        if self._neighbours is not None:
            self._neighbours.update(self.num_calls + 1, None, margins)
        return energy

    def counts(self) -> tuple[float, int, float]:
        """Return the points per call, the number of violations, and their lowest margin."""
        points, ranks = self._neighbours, self._potential.ranks
        violations, margin = (points.violations, points.lowest_margin) if points else (0, math.inf)
        total = torch.tensor([self.num_rows, violations, *[0.0] * ranks.size], dtype=torch.float64)
        total[2 + ranks.number] = margin
        rows, violations, *margins = ranks.sum(total).tolist()
        return rows / max(self.num_calls, 1), int(violations), min(margins)


def true_margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logit of the true class minus the largest other, [rows]."""
    labels = labels.unsqueeze(-1)
    others = logits.scatter(-1, labels, -torch.inf).amax(-1)
    return logits.gather(-1, labels).squeeze(-1) - others


def fill_up(rows: Tensor, most: int) -> Tensor:
    """Return row numbers, the first one repeated until they are a multiple of ROW_MULTIPLE or
    `most`."""
    missing = min(-len(rows) % ROW_MULTIPLE, most - len(rows))
    return torch.cat([rows, rows[:1].expand(missing)]) if len(rows) else rows
