"""What each hidden unit contributes to the logits, independent of the signs and scales of units.

The contribution of unit i with activation h_i to logit f_c is h_i ∂f_c/∂h_i, summed over positions.
If the unit's sign flips or its scale changes, the derivative changes inversely; order, signs and
scales of other units do not matter either. Contributions are centred over classes, because softmax
ignores what all logits have in common. A unit that leads to the logits alone contributes h_i v_ic,
so products over images and classes are those of h times those of v.
"""

from utils.networks.network import Network, Slot
from utils.settings.errors import UserError
from utils.symmetry.transformation import incoming_slots

import torch
from torch import Tensor


def head_slots(network: Network, activations: dict[str, Tensor]) -> dict[str, Slot]:
    """Return the slot [classes, units] of outgoing weights of groups that feed the logits alone."""
    heads = {}
    for name, values in activations.items():
        incoming = incoming_slots(network, name)
        others = [s for s in network.slots_of(name) if len(s.shape) > 1 and s not in incoming]
        if len(others) == 1 and others[0].axes == (None, name) and values.dim() == 2:
            heads[name] = others[0]
    return heads


def heads_of(network: Network, weights: Tensor, images: Tensor) -> dict[str, Slot]:
    """Return the same for a network of these weights, from its activations on one image."""
    return head_slots(network, network.activations(weights, images[:1].to(weights.dtype)))


def head_weights(slot: Slot, weights: Tensor) -> Tensor:
    """Return v [classes, units], centred over classes, in float64."""
    values = slot.of(weights).double()
    return values - values.mean(0)


def contributions(network: Network, weights: Tensor, rows: Tensor) -> dict[str, Tensor]:
    """Return contributions [images × classes, units] of every group of units.

    Groups of `head_slots` need no derivative: for these it is the activations h [images, units],
    which `head_weights` complete.
    """
    with torch.enable_grad():
        activations, logits = network.trace(weights, rows.detach().requires_grad_())
        heads = head_slots(network, activations)
        responses = {name: activations[name].detach() for name in heads}
        others = {name: values for name, values in activations.items() if name not in heads}
        slopes = _slopes(network, others, logits - logits.mean(-1, keepdim=True))
    for name, values in others.items():
        levels = len(network.units(name))
        products = [(values.detach() * each).flatten(1, levels) for each in slopes[name]]
        responses[name] = torch.cat([p.flatten(2).sum(2) if p.dim() > 2 else p for p in products])
    return responses


def _slopes(
    network: Network, activations: dict[str, Tensor], logits: Tensor
) -> dict[str, list[Tensor]]:
    """Return the derivative of every logit by all activations."""
    names, slopes = list(activations), {name: [] for name in activations}
    for logit in logits.sum(0) if names else ():
        values = list(activations.values())
        each = torch.autograd.grad(logit, values, retain_graph=True, allow_unused=True)
        if None in each:
            raise UserError(
                f"{network} cannot be matched by contribution: its logits are not computed from "
                f"the activations of {names[each.index(None)]} that it returns. Match by "
                "activation or by weight."
            )
        for name, slope in zip(names, each, strict=True):
            slopes[name].append(slope)
    return slopes
