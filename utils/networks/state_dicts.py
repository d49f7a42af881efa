"""Networks made with torch.nn as flat weight vectors, and back: their state_dicts.

    layout = read_layout(model.state_dict(), activation="relu")
    weights = layout.flatten(model.state_dict())       # [d], what everything else here works on
    model.load_state_dict(layout.state_dict(weights))  # the same bits under the same names

A state_dict names tensors and says nothing of what is computed with them. So it is taken for linear
layers with biases, computed in its order, with one activation between them; names do not matter.
Whatever cannot be such a network is refused.
"""

import itertools
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.runs.errors import UserError, reason

import torch
from torch import Tensor

ONLY_LINEAR = (
    "Only linear layers with an activation between them can be taken; batch norm can be folded "
    "into the layer before it (torch.nn.utils.fusion.fuse_linear_bn_eval)."
)


@dataclass(frozen=True)
class Layout:
    """A network, and how a state_dict holds it."""

    network: Network
    layers: tuple[str, ...]  # what stands before "weight" and "bias", from input to output
    dtypes: dict[str, torch.dtype]  # of every tensor, in the order of the state_dict

    def flatten(self, state_dict: Mapping[str, Tensor]) -> Tensor:
        """The weights [d] of a network of these sizes, whatever its names are.

        They are float32, which holds all shorter types exactly, or float64 if any of them is.
        """
        given = read_layout(state_dict, self.network.activation)
        if given.network != self.network:
            raise UserError(
                f"This is a network {_sizes(given.network)}, not {_sizes(self.network)} as the "
                "first: only networks of the same layer sizes can be compared."
            )
        keys = [key for layer in given.layers for key in (f"{layer}weight", f"{layer}bias")]
        dtype = torch.float64 if torch.float64 in given.dtypes.values() else torch.float32
        return torch.cat([state_dict[key].detach().to(dtype).flatten() for key in keys])

    def state_dict(self, weights: Tensor) -> dict[str, Tensor]:
        """The weights [d] under the names and in the types that the state_dict had."""
        tensors = {}
        for layer, (weight, bias) in zip(self.layers, self.network.layers(weights), strict=True):
            tensors[f"{layer}weight"], tensors[f"{layer}bias"] = weight, bias
        # copies, because torch.save would write the whole vector behind each view
        return {key: tensors[key].to(dtype, copy=True) for key, dtype in self.dtypes.items()}


def read_layout(state_dict: Mapping[str, Tensor], activation: str = "relu") -> Layout:
    """The network that a state_dict is of; its activation has to be told."""
    if not isinstance(state_dict, Mapping) or not state_dict:
        raise UserError("This is not a state_dict with weights: give that of a trained network.")
    for key in state_dict:
        problem = _problem(state_dict, key)
        if problem:
            raise UserError(problem)
    layers = [key.removesuffix("weight") for key in state_dict if _part(key) == "weight"]
    _check_order(state_dict, layers)
    _check_separate(state_dict, layers)
    shapes = [tuple(state_dict[f"{layer}weight"].shape) for layer in layers]
    sizes = (shapes[0][1], *(outputs for outputs, _ in shapes))
    dtypes = {key: tensor.dtype for key, tensor in state_dict.items()}
    return Layout(MLP(sizes, activation), tuple(layers), dtypes)


def sequential_layout(network: Network) -> Layout:
    """The layout of `nn.Sequential(Linear, activation, Linear, …)`, for networks without one."""
    layers = tuple(f"{2 * number}." for number in range(len(network.shapes)))
    keys = [f"{layer}{part}" for layer in layers for part in ("weight", "bias")]
    return Layout(network, layers, dict.fromkeys(keys, torch.float32))


# ---- files


def read_networks(paths: Iterable[Path], activation: str = "relu") -> tuple[Layout, Tensor]:
    """The layout of the first of some networks, and the weights [K, d] of all of them."""
    layout, rows = None, []
    for path in paths:
        state_dict = read_state_dict(path)
        try:
            layout = layout or read_layout(state_dict, activation)
            rows.append(layout.flatten(state_dict))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    dtype = torch.float64 if any(row.dtype == torch.float64 for row in rows) else torch.float32
    return layout, torch.stack([row.to(dtype) for row in rows])


def read_state_dict(path: Path) -> Mapping[str, Tensor]:
    """What torch.save has written of a state_dict. Only tensors are read, no code is run."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {reason(error)}.") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError):
        raise UserError(
            f"{path} is not a file of tensors alone: write the network's weights with "
            "torch.save(model.state_dict(), PATH)."
        ) from None


# ---- what keeps a state_dict from being an MLP's


def _problem(state_dict: Mapping[str, Tensor], key: str) -> str | None:
    tensor = state_dict[key]
    if not isinstance(tensor, Tensor):
        return (
            f"{key!r} is no tensor but {type(tensor).__name__}. If this is a checkpoint, give the "
            "state_dict in it alone: torch.save(model.state_dict(), PATH)."
        )
    part, layer, shape = _part(key), key.rpartition(".")[0] or "the layer", list(tensor.shape)
    if part is None:
        return f"{key} is neither the weight nor the bias of a linear layer. {ONLY_LINEAR}"
    if not tensor.is_floating_point():
        return f"{key} is of {tensor.dtype}: weights must be floating-point numbers; convert it."
    if part == "weight" and len(shape) != 2:
        return f"{key} has the shape {shape}, and a linear layer's weight [out, in]. {ONLY_LINEAR}"
    partner = f"{key.removesuffix(part)}{'bias' if part == 'weight' else 'weight'}"
    if partner not in state_dict:
        return _missing(part, partner, layer, shape)
    if part == "bias" and shape != list(state_dict[partner].shape[:1]):
        return (
            f"{key} has the shape {shape}, but {partner} is {list(state_dict[partner].shape)}: "
            "a linear layer has a bias for each of its outputs."
        )
    strange = int((~tensor.double().isfinite()).sum())
    if strange:
        return f"{key} has {strange} entries that are NaN or infinite: leave this network out."
    return None


def _missing(part: str, partner: str, layer: str, shape: list[int]) -> str:
    if part == "weight":
        return (
            f"{layer} has no bias, which every layer needs here. Add one that does nothing: "
            f"state_dict[{partner!r}] = torch.zeros({shape[0]})."
        )
    return (
        f"{layer} has a bias but no {partner}. If the weight is parametrised, as by weight norm, "
        "undo that first: torch.nn.utils.parametrize.remove_parametrizations."
    )


def _check_order(state_dict: Mapping[str, Tensor], layers: list[str]) -> None:
    for before, after in itertools.pairwise(layers):
        outputs = state_dict[f"{before}weight"].shape[0]
        inputs = state_dict[f"{after}weight"].shape[1]
        if outputs != inputs:
            raise UserError(
                f"{before}weight has {outputs} outputs, but {after}weight after it {inputs} "
                "inputs. The state_dict must have the layers in the order in which they are "
                "computed, one after the other."
            )


def _check_separate(state_dict: Mapping[str, Tensor], layers: list[str]) -> None:
    """Rebasin moves every layer's units in their own way, so layers cannot share weights."""
    owners: dict[int, str] = {}
    for layer in layers:
        owner = owners.setdefault(state_dict[f"{layer}weight"].data_ptr(), layer)
        if owner != layer:
            raise UserError(
                f"{owner}weight and {layer}weight are one tensor: layers that share weights "
                "cannot be permuted each in its own way, so this network cannot be rebased."
            )


def _part(key: str) -> str | None:
    last = key.rpartition(".")[2]
    return last if last in ("weight", "bias") else None


def _sizes(network: Network) -> str:
    return "-".join(map(str, network.sizes))
