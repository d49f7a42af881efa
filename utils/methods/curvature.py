"""Curvature of the training loss Σ_n CE at a mode, whole or in the parts that are kept of it.

The generalised Gauss-Newton matrix (GGN), which is also the Fisher information, is

    Σ_n J_nᵀ Λ_n J_n        Λ = diag(p) − p pᵀ = R Rᵀ,  R = diag(√p) − p √pᵀ

with the Jacobian J [C, d] of the logits and the class probabilities p of an image. It is positive
semi-definite. The Hessian adds Σ_n Σ_c (p_c − y_c) ∇² logit_c, which may have either sign. ReLU and
max-pooling have no second derivative where autograd can see it, and their kinks are left out.
"""

from typing import NamedTuple

from utils.networks.jacobians import LayerSlopes, in_chunks, is_linear, jacobians, linear_layers
from utils.networks.network import RELU, Network
from utils.runs.progress import progress_bar
from utils.settings.errors import UserError

import torch
import torch.nn.functional as F
from torch import Tensor

DIRECTIONS, ROWS = 8, 125  # of Hessian-vector products computed at a time


class Curvature(NamedTuple):
    """A block of the matrix: (left ⊗ right) diag(eigenvalues) (left ⊗ right)ᵀ.

    Without eigenvectors it is a diagonal.
    """

    places: Tensor  # [m, n]: of these weights within the flat vector
    eigenvalues: Tensor  # [m, n], float64
    left: Tensor | None = None  # [m, m]
    right: Tensor | None = None  # [n, n]


def trained_places(network: Network, device=None) -> Tensor:
    """Return the places of all weights but buffers."""
    ranges = [range(s.start, s.start + s.size) for s in network.slots if s.role != "buffer"]
    return torch.tensor([place for each in ranges for place in each], device=device)


def loss_root(logits: Tensor) -> Tensor:
    """Return R [N, C, C] with R Rᵀ = Λ."""
    probabilities = logits.softmax(-1)
    roots = probabilities.sqrt()
    return roots.diag_embed() - probabilities.unsqueeze(2) * roots.unsqueeze(1)


def diagonal_ggn(network: Network, weights: Tensor, images: Tensor) -> list[Curvature]:
    total = torch.zeros_like(weights, dtype=torch.float64)
    for (rows,) in in_chunks(network, images):
        slopes, _ = jacobians(network, weights, rows, loss_root)
        total += slopes.square().sum((0, 1))
    places = trained_places(network, weights.device)
    return [Curvature(places[None], total[places][None])]


def full_ggn(network: Network, weights: Tensor, images: Tensor) -> Tensor:
    """Return the GGN [d, d] in float64."""
    total = torch.zeros(len(weights), len(weights), dtype=torch.float64, device=weights.device)
    for (rows,) in in_chunks(network, images):
        slopes, _ = jacobians(network, weights, rows, loss_root)
        flat = slopes.flatten(0, 1)
        total += flat.T @ flat
    return total


def dense(matrix: Tensor, places: Tensor) -> Curvature:
    """Return a block from the matrix [n, n] of the weights at these places [n]."""
    values, vectors = torch.linalg.eigh(matrix)
    return Curvature(places[None], values[None], values.new_ones(1, 1), vectors)


def last_layer_ggn(network: Network, weights: Tensor, images: Tensor) -> list[Curvature]:
    """Return the GGN of the last layer, Σ_n Λ_n ⊗ φ_n φ_nᵀ with its inputs φ."""
    total = 0
    for rows in images.split(network.chunk_rows):
        (layer,), logits = recorded(network, weights, rows, only_last=True)
        inputs, root = layer.inputs[:, 0, :, 0], loss_root(logits)
        curvature = root @ root.mT
        weighted = torch.einsum("ncd,nf->cndf", curvature, inputs).flatten(2)  # [C, N, C · F]
        total = total + (inputs.T @ weighted).double()  # [C, F, C · F]
    places = layer.places[0]
    return [dense(total.flatten(0, 1), places.flatten())]


def kronecker_ggn(
    network: Network, weights: Tensor, images: Tensor, only_last: bool = False
) -> list[Curvature]:
    """Return Kronecker factors of every layer (K-FAC, Martens and Grosse 2015).

    A block is Σ g gᵀ ⊗ Σ x xᵀ / (N T) with the inputs x of a layer, 1 for its bias among them, and
    the gradients g at its outputs, summed over images, T positions and the columns of R. Positions
    of convolutions count as images of their own (Grosse and Martens 2016).
    """
    sums = None
    for rows in images.split(network.chunk_rows):
        layers, _ = recorded(network, weights, rows, loss_root, only_last)
        if not (only_last or is_linear(network, layers)):
            raise UserError(
                f"Kronecker factors are those of linear layers, and {network} has other weights, "
                "too: give --structure last_layer_kron, or diagonal."
            )
        products = [factors(layer) for layer in layers]
        sums = products if sums is None else [
            (left + more_left, right + more_right)
            for (left, right), (more_left, more_right) in zip(sums, products, strict=True)
        ]  # fmt: skip
    blocks = []
    for layer, (left, right) in zip(layers, sums, strict=True):
        right = right / (len(images) * layer.inputs.shape[-1])
        blocks += map(kronecker, layer.places, left, right)
    return blocks


def recorded(
    network: Network, weights: Tensor, images: Tensor, of_logits=None, only_last: bool = False
) -> tuple[list[LayerSlopes], Tensor]:
    layers, logits = linear_layers(network, weights, images, of_logits, only_last)
    if not layers:
        raise UserError(
            f"{network} does not record its linear layers (utils/networks/layers.py): give "
            "--structure diagonal or full."
        )
    return layers, logits


def factors(layer: LayerSlopes) -> tuple[Tensor, Tensor]:
    """Return Σ g gᵀ [groups, outputs, outputs] and Σ x xᵀ [groups, inputs, inputs]."""
    errors = layer.errors.permute(2, 3, 0, 1, 4).flatten(2)
    inputs = layer.inputs.permute(1, 2, 0, 3).flatten(2)
    return (errors @ errors.mT).double(), (inputs @ inputs.mT).double()


def kronecker(places: Tensor, left: Tensor, right: Tensor) -> Curvature:
    """Return the block left ⊗ right of weights at places [m, n]."""
    (rows, left), (columns, right) = (torch.linalg.eigh(each) for each in (left, right))
    eigenvalues = torch.outer(rows.clamp(min=0), columns.clamp(min=0))
    return Curvature(places, eigenvalues, left, right)


# ---- the Hessian


def hessian(network: Network, weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Return the Hessian [d, d] of Σ_n CE in float64.

    Logits are linear in the last layer, so its block is the GGN's, and what couples it to other
    weights follows from the Jacobians of its inputs. The rest is made of Hessian-vector products.
    In a network of ReLUs logits are linear in every tensor, so one tensor's own block is the GGN's
    as well, and products with all other weights suffice.
    """
    matrix = full_ggn(network, weights, images)
    last = recorded(network, weights, images[:1])[0][-1].places[0]
    couple_last_layer(matrix, network, weights, images, labels, last)
    body = [slot for slot in network.slots if slot.role != "buffer" and slot.start not in last]
    if is_piecewise_linear(network) and body:
        body.remove(max(body, key=lambda slot: slot.size))
    directions = [p for s in body for p in range(s.start, s.start + s.size)]
    with progress_bar(len(directions), "Hessian", unit="row") as bar:
        for first in range(0, len(directions), DIRECTIONS):
            some = torch.tensor(directions[first : first + DIRECTIONS], device=weights.device)
            products = hessian_products(network, weights, images, labels, some)
            matrix[some], matrix[:, some] = products, products.T
            bar.update(len(some))
    for slot in network.slots:
        if slot.role == "buffer":
            matrix[slot.start : slot.start + slot.size] = 0
            matrix[:, slot.start : slot.start + slot.size] = 0
    return matrix


def is_piecewise_linear(network: Network) -> bool:
    """Return whether all hidden units are ReLUs; blocks of channels are no units themselves."""
    parents = {group.within for group in network.groups.values()}
    return all(g.kind == RELU for name, g in network.groups.items() if name not in parents)


def couple_last_layer(
    matrix: Tensor, network: Network, weights: Tensor, images: Tensor, labels: Tensor, last: Tensor
) -> None:
    """Add Σ_n (p − y)_c ∂φ_k/∂w to the entries of last-layer weights [c, k] and all others.

    Some of the inputs φ_k at a time stand in for the logits of a network whose last layer copies
    them.
    """
    classes, others = len(last), torch.ones(len(weights), dtype=torch.bool, device=weights.device)
    others[last.flatten()] = False
    for inputs in range(0, last.shape[1], classes):
        columns = last[:, inputs : inputs + classes]
        picks, ones = weights.clone(), torch.arange(columns.shape[1])
        picks[last.flatten()] = 0
        picks[columns[ones, ones]] = 1
        for rows, targets in in_chunks(network, images, labels):
            residuals = network.outputs(weights, rows).softmax(-1)
            residuals = residuals - F.one_hot(targets, classes)
            slopes, _ = jacobians(network, picks, rows)
            slopes = slopes[:, : columns.shape[1]]
            coupling = torch.einsum("nc,nkd->ckd", residuals, slopes)[..., others].double()
            at = columns.flatten()[:, None], others.nonzero().T
            matrix[at] += coupling.flatten(0, 1)
            matrix[at[1].T, at[0].T] += coupling.flatten(0, 1).T


def hessian_products(
    network: Network, weights: Tensor, images: Tensor, labels: Tensor, places: Tensor
) -> Tensor:
    """Return rows [n, d] of the Hessian, by backward passes through backward passes."""
    total = torch.zeros(len(places), len(weights), dtype=torch.float64, device=weights.device)
    directions = torch.zeros_like(total, dtype=weights.dtype)
    directions[torch.arange(len(places)), places] = 1
    for rows, targets in zip(images.split(ROWS), labels.split(ROWS), strict=True):
        copies = weights.detach().expand(len(places), -1).clone().requires_grad_()
        with torch.enable_grad():
            logits = network.outputs(copies, rows)
            nll = F.cross_entropy(logits.mT, targets.expand(len(places), -1), reduction="sum")
            (gradient,) = torch.autograd.grad(nll, copies, create_graph=True)
        (products,) = torch.autograd.grad(gradient, copies, directions)
        total += products
    return total
