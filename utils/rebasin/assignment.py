"""The best places for the units of a network, group by group: assignment problems."""

from collections.abc import Callable
from dataclasses import dataclass

from utils.networks.network import TANH, Network
from utils.settings.errors import UserError
from utils.symmetry.transformation import Transformation

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


@dataclass(frozen=True)
class Matching:
    """The transformation that aligns a network, and what the images left open, over all groups.

    Only matching by activation or contribution counts the latter.
    """

    transformation: Transformation
    dead: int | None = None  # units of the network that no image activates
    reference_dead: int | None = None  # units of the reference that none activates
    tied: int | None = None  # living units that respond to the reference just as another one does
    reference_tied: int | None = None  # such units of the reference, beside the network


Matcher = Callable[[Tensor], Matching]


def assign(similarity: Tensor) -> Tensor:
    """Return the assignment perm [n] that maximises Σ_i similarity[i, perm[i]]."""
    check_finite(similarity)
    _, units = linear_sum_assignment(similarity.cpu().numpy(), maximize=True)
    return torch.from_numpy(units)


def assign_each(similarity: Tensor) -> Tensor:
    """Return the best assignment [*parents, n] for every matrix of a stack [*parents, n, n]."""
    each = [assign(matrix) for matrix in similarity.reshape(-1, *similarity.shape[-2:])]
    return torch.stack(each).reshape(similarity.shape[:-1])


def check_finite(values: Tensor) -> None:
    if not values.isfinite().all():
        raise UserError(
            "These networks cannot be matched: their weights, or the activations they give, are "
            "not all finite numbers."
        )


def children_of(network: Network, name: str) -> list[str]:
    return [other for other, group in network.groups.items() if group.within == name]


def place(
    aligned: Transformation, name: str, similarity: Tensor, signed: Tensor | None = None
) -> None:
    """Put the units of a group where they are most similar [*parents, n, n], tanh units with signs.

    If signs do not matter to the similarity, they are those of another one, `signed`.
    """
    odd = aligned.network.groups[name].kind == TANH
    best = assign_each(similarity.abs() if odd and signed is None else similarity)
    aligned.permutations[name] = best
    if odd:
        chosen = similarity if signed is None else signed
        chosen = chosen.take_along_dim(best.unsqueeze(-1).to(chosen.device), -1).squeeze(-1)
        flips = torch.where(chosen < 0, -1, 1).to(best.device)
        aligned.signs[name] = flips.gather(-1, best.argsort(-1))  # by the unit that is moved


def reached_similarity(similarity: Tensor, aligned: Transformation, name: str) -> Tensor:
    """Return the similarity at every place, with the sign that its unit gets."""
    perm = aligned.permutation(name)
    reached = similarity.gather(-1, perm.unsqueeze(-1)).squeeze(-1)
    return reached * aligned.signs[name].gather(-1, perm) if name in aligned.signs else reached


def assign_all(
    network: Network,
    similarity: Callable[[Transformation, str], Tensor],
    signed: dict[str, Tensor] | None = None,
) -> Transformation:
    """Assign the units of all groups, from the input on.

    `similarity(aligned, name)` are those of a group's units [*parents, n, n] beside the units that
    are aligned already. Signs are those of `signed` similarities, if there are any.
    """
    _refuse_nested_signs(network)
    aligned = Transformation(network)
    for name in network.groups:
        if children_of(network, name):
            _assign_blocks(aligned, name, similarity)
        elif not network.groups[name].within:
            place(aligned, name, similarity(aligned, name), (signed or {}).get(name))
    return aligned


def _refuse_nested_signs(network: Network) -> None:
    for name, group in network.groups.items():
        if group.kind == TANH and (group.within or children_of(network, name)):
            raise UserError(
                f"{network} cannot be matched: {name} are tanh units in blocks, whose signs "
                "matching does not find."
            )


def _assign_blocks(
    aligned: Transformation, name: str, similarity: Callable[[Transformation, str], Tensor]
) -> None:
    """Assign a group's units together with all units nested in them.

    Each shift of the blocks puts each beside another one; together they make all pairs. A pair is
    as similar as its blocks and the best assignments of the units nested in them.
    """
    network, children = aligned.network, children_of(aligned.network, name)
    places = torch.arange(network.groups[name].size)
    blocks, trials = similarity(aligned, name).to("cpu", torch.float64, copy=True), []
    for shift in range(len(places)):
        units = (places + shift) % len(places)
        trial = Transformation(network, aligned.permutations | {name: units})
        for child in children:
            within = similarity(trial, child).cpu()
            perm = trial.permutations[child] = assign_each(within)
            blocks[places, units] += within.take_along_dim(perm.unsqueeze(-1), -1).sum((-1, -2))
        trials.append(trial)
    chosen = assign(blocks)
    shifts = ((chosen - places) % len(places)).tolist()
    aligned.permutations[name] = chosen
    for child in children:
        rows = [trials[shift].permutations[child][place] for place, shift in enumerate(shifts)]
        aligned.permutations[child] = torch.stack(rows)
