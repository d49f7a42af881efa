"""Derivatives of the logits of every image by the weights, for any network.

Where all weights are those of linear layers, they are products of what a layer reads and of the
gradient at what it writes, and a pass over a batch finds them for all its images. Other networks,
such as those with normalisations, are copied once per image.
"""

from collections.abc import Iterator
from typing import NamedTuple

from utils.networks.layers import recorded_layers
from utils.networks.network import Network

import torch
from torch import Tensor

NUMBERS_AT_A_TIME = 2**24  # of Jacobians in memory


class LayerSlopes(NamedTuple):
    """The derivatives of K functions of N images by a layer's weights, in factors.

    By the weight of group g they are Σ_t errors[n, k, g, :, t] inputs[n, g, :, t]ᵀ.
    """

    places: Tensor  # [groups, outputs, inputs]: of its weights within the flat vector
    inputs: Tensor  # [N, groups, inputs, positions]; the last is 1 if the layer has a bias
    errors: Tensor  # [N, K, groups, outputs, positions]

    def product(self) -> Tensor:
        """Return the derivatives [N, K, groups, outputs, inputs]."""
        return self.errors @ self.inputs.mT.unsqueeze(1)


def linear_layers(
    network: Network, weights: Tensor, images: Tensor, of_logits=None, only_last: bool = False
) -> tuple[list[LayerSlopes], Tensor]:
    """Return the slopes of every linear layer, from the first to the last, and the logits.

    The K functions are the columns of `of_logits(logits)` [N, C, K] times the logits, by default
    the logits themselves.
    """
    with torch.enable_grad(), recorded_layers() as layers:
        leaf = weights.detach().requires_grad_()
        logits = network.outputs(leaf, images)
    layers = layers[-1:] if only_last else layers
    if not layers:  # the network does not record them
        return [], logits.detach()
    directions = directions_of(logits.detach(), of_logits)
    outputs = [layer.outputs for layer in layers]
    errors = [
        torch.autograd.grad(logits, outputs, direction, retain_graph=True)
        for direction in directions.unbind(-1)
    ]
    slopes = []
    for layer, each in zip(layers, zip(*errors, strict=True), strict=True):
        places, biased = places_of(network, layer.weight.storage_offset() - leaf.storage_offset())
        inputs = layer.inputs().detach()
        if biased:
            inputs = torch.cat([inputs, torch.ones_like(inputs[:, :, :1])], 2)
        arranged = torch.stack([layer.arranged(error) for error in each], 1)
        slopes.append(LayerSlopes(places.to(weights.device), inputs, arranged))
    return slopes, logits.detach()


def directions_of(logits: Tensor, of_logits) -> Tensor:
    """Return the directions [N, C, K] in which logits are differentiated."""
    if of_logits is not None:
        return of_logits(logits)
    identity = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
    return identity.expand(len(logits), -1, -1)


def places_of(network: Network, start: int) -> tuple[Tensor, bool]:
    """Return the places [groups, outputs, inputs] of a layer's weights, and if it has a bias.

    Its weight begins at `start`; the bias is an input more. A grouped convolution has an axis of
    groups before those of channels.
    """
    (slot,) = (slot for slot in network.slots if slot.start == start)
    grouped = len(slot.shape) == 5 and slot.axes[2] is not None
    groups = slot.shape[0] if grouped else 1
    outputs = (slot.original or slot.shape)[0] // groups
    places = torch.arange(slot.start, slot.start + slot.size).view(groups, outputs, -1)
    names = (slot.name.removesuffix("weight") + "bias", f"b{slot.name[1:]}")  # the latter an MLP's
    biases = [each for each in network.slots if each.name in names and each.role == "bias"]
    if not biases:
        return places, False
    bias = biases[0]
    column = torch.arange(bias.start, bias.start + bias.size).view(groups, outputs, 1)
    return torch.cat([places, column], 2), True


def is_linear(network: Network, layers: list[LayerSlopes]) -> bool:
    """Return whether all weights, buffers aside, are those of linear layers."""
    trained = sum(slot.size for slot in network.slots if slot.role != "buffer")
    return sum(layer.places.numel() for layer in layers) == trained


def jacobians(
    network: Network, weights: Tensor, images: Tensor, of_logits=None, only_last: bool = False
) -> tuple[Tensor, Tensor]:
    """Return derivatives [N, K, d], see `linear_layers`, and the logits [N, C].

    With `only_last` those by weights of other layers than the last are left 0.
    """
    layers, logits = linear_layers(network, weights, images, of_logits, only_last)
    if not (only_last or is_linear(network, layers)):
        return jacobians_of_copies(network, weights, images, of_logits)
    result = weights.new_zeros(*layers[0].errors.shape[:2], len(weights))
    for layer in layers:
        result[..., layer.places] = layer.product()
    return result, logits


def jacobians_of_copies(
    network: Network, weights: Tensor, images: Tensor, of_logits=None
) -> tuple[Tensor, Tensor]:
    """Return the same from a copy of the network for every image. Buffers have 0."""
    copies = weights.detach().expand(len(images), -1).clone().requires_grad_()
    with torch.enable_grad():
        logits = network.outputs(copies, images.unsqueeze(1)).squeeze(1)
    columns = directions_of(logits.detach(), of_logits).unbind(-1)
    slopes = [torch.autograd.grad(logits, copies, each, retain_graph=True)[0] for each in columns]
    for each in slopes:
        network.zero_buffers(each)
    return torch.stack(slopes, 1), logits.detach()


def in_chunks(network: Network, images: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield some rows at a time, so that their Jacobians fit into memory."""
    numbers = network.num_weights * network.num_classes
    rows = max(1, min(network.chunk_rows, NUMBERS_AT_A_TIME // numbers))
    return zip(*(each.split(rows) for each in (images, *others)), strict=True)
