"""Networks made with torch.nn as flat weight vectors, and back: their state_dicts.

    layout = read_layout(model.state_dict(), activation="relu")
    weights = layout.flatten(model.state_dict())       # [d], what everything else here works on
    model.load_state_dict(layout.state_dict(weights))  # the same bits under the same names

A state_dict names tensors and does not say what is computed with them. Without a network to compare
with, it is read as an MLP: linear layers, computed in its order, with one activation between them,
under any names. Layers without biases get zeros. With a network, tensors are found by their names,
which may have a prefix such as "module.", or else by order, kind and shape. Anything else is
refused.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from utils.networks.mlp import MLP
from utils.networks.network import Network, Slot
from utils.networks.safetensors import TensorFile, open_tensors
from utils.settings.errors import UserError, reason

import torch
from torch import Tensor

ONLY_LINEAR = "Only linear layers with an activation between them can be taken"
FOLDING = (
    "; batch norm can be folded into the layer before it "
    "(torch.nn.utils.fusion.fuse_linear_bn_eval)."
)
COUNTER = "num_batches_tracked"  # of batch normalisation, which only counts; written as 0
BATCH_NORM = ("running_mean", "running_var", COUNTER)


@dataclass(frozen=True)
class Layout:
    """A network, and how a state_dict holds it."""

    network: Network
    keys: tuple[str, ...]  # of the network's slots; those of missing biases are in no state_dict
    dtypes: dict[str, torch.dtype]  # of every tensor, in the order of the state_dict

    @property
    def no_bias(self) -> Tensor:
        """Return a mask [d] of the biases that the state_dict does not have."""
        pairs = zip(self.network.slots, self.keys, strict=True)
        return torch.cat([torch.full((slot.size,), key not in self.dtypes) for slot, key in pairs])

    def flatten(self, state_dict: Mapping[str, Tensor]) -> Tensor:
        """Return the weights [d] of such a network, whatever its names are.

        They are float32, which holds all shorter types exactly, or float64 if any of them is.
        """
        given = read_layout(state_dict, network=self.network)
        self._check_biases(given)
        dtype = torch.float64 if torch.float64 in given.dtypes.values() else torch.float32
        weights = torch.zeros(self.network.num_weights, dtype=dtype)
        for slot, key in zip(self.network.slots, given.keys, strict=True):
            if key in given.dtypes:
                slot.of(weights).copy_(state_dict[key].detach().reshape(slot.shape))
        return weights

    def _check_biases(self, other: "Layout") -> None:
        for ours, theirs in zip(self.keys, other.keys, strict=True):
            if (ours in self.dtypes) != (theirs in other.dtypes):
                here, there = ("no", "has one") if ours in self.dtypes else ("a", "has none")
                raise UserError(
                    f"This network has {here} {theirs}, but the first network {there}: only "
                    "networks with biases in the same layers can be compared."
                )

    def state_dict(self, weights: Tensor) -> dict[str, Tensor]:
        """Return the weights [d] under the names and in the types that the state_dict had."""
        tensors = {key: torch.tensor(0) for key in self.dtypes if key.endswith(COUNTER)}
        for slot, key in zip(self.network.slots, self.keys, strict=True):
            tensors[key] = slot.of(weights).reshape(_shape(slot))
        # copies, because torch.save would write the whole vector behind each view
        return {key: tensors[key].to(dtype, copy=True) for key, dtype in self.dtypes.items()}


def read_layout(
    state_dict: Mapping[str, Tensor], activation: str = "relu", network: Network | None = None
) -> Layout:
    """Return the layout of this network, or else of an MLP, whose activation has to be told."""
    if not isinstance(state_dict, Mapping) or not state_dict:
        raise UserError("This is not a state_dict with weights: give that of a trained network.")
    if network is None or isinstance(network, MLP):
        return _read_mlp(state_dict, activation, network)
    keys = _keys_by_name(network, state_dict) or _keys_by_order(network, state_dict)
    for slot, key in zip(network.slots, keys, strict=True):
        _check_tensor(key, state_dict[key])
        if tuple(state_dict[key].shape) != _shape(slot):
            raise UserError(
                f"{key} has the shape {list(state_dict[key].shape)}, but {network} needs "
                f"{list(_shape(slot))}."
            )
        _check_numbers(key, state_dict[key])
    return Layout(network, keys, {key: tensor.dtype for key, tensor in state_dict.items()})


def default_layout(network: Network) -> Layout:
    """Return the layout for networks that came without one.

    An MLP is `nn.Sequential(Linear, activation, Linear, …)`; others have their slots' names.
    """
    keys = [slot.name for slot in network.slots]
    if isinstance(network, MLP):
        layers = range(0, len(keys), 2)
        keys = [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]
    dtypes = {}
    for key in keys:
        dtypes[key] = torch.float32
        if key.endswith("running_var"):
            dtypes[key.replace("running_var", COUNTER)] = torch.int64
    return Layout(network, tuple(keys), dtypes)


def _read_mlp(state_dict: Mapping[str, Tensor], activation: str, expected: MLP | None) -> Layout:
    for key in state_dict:
        _check_part_of_mlp(state_dict, key)
    layers = [key.removesuffix("weight") for key in state_dict if _part(key) == "weight"]
    _check_order(state_dict, layers)
    _check_separate(state_dict, layers)
    shapes = [tuple(state_dict[f"{layer}weight"].shape) for layer in layers]
    sizes = (shapes[0][1], *(outputs for outputs, _ in shapes))
    network = expected or MLP(sizes, activation)
    if sizes != network.sizes:
        raise UserError(
            f"This is a network {_join(sizes)}, not {_join(network.sizes)} as the first: only "
            "networks of the same layer sizes can be compared."
        )
    keys = tuple(f"{layer}{part}" for layer in layers for part in ("weight", "bias"))
    return Layout(network, keys, {key: tensor.dtype for key, tensor in state_dict.items()})


# ---- files


def read_networks(
    paths: Iterable[Path], activation: str = "relu", network: Network | None = None
) -> tuple[Layout, Tensor]:
    """Return the layout of the first of some networks, and the weights [K, d] of all of them."""
    layout, rows = None, []
    for path in paths:
        state_dict = read_state_dict(path)
        try:
            layout = layout or read_layout(state_dict, activation, network)
            rows.append(layout.flatten(state_dict))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    dtype = torch.float64 if any(row.dtype == torch.float64 for row in rows) else torch.float32
    return layout, torch.stack([row.to(dtype) for row in rows])


def read_state_dict(path: Path) -> Mapping[str, Tensor]:
    """Read a safetensors file, or one that torch.save wrote. No code is run."""
    if Path(path).suffix == ".safetensors":
        return state_dict_in(open_tensors(path))
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {reason(error)}.") from None
    except Exception:  # other files and damaged ones make it raise anything
        raise UserError(
            f"{path} is not a file of tensors alone: write the network's weights with "
            "torch.save(model.state_dict(), PATH)."
        ) from None


def state_dict_in(file: TensorFile, position: int | None = None) -> dict[str, Tensor]:
    """Return all tensors of a file, or what they have at a position if they are stacked.

    Such files have lost the order of the layers, so names are put in the order of the numbers in
    them, weights before biases.
    """
    names = sorted(file.entries, key=_computing_order)
    if position is None:
        return {name: file.tensor(name) for name in names}
    return {name: file.item(name, position) for name in names}


def _computing_order(name: str) -> tuple:
    layer, _, part = name.rpartition(".")
    numbered = [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", layer)]
    return numbered, part != "weight", part


# ---- which tensor belongs to which slot


def _keys_by_name(network: Network, state_dict: Mapping[str, Tensor]) -> tuple[str, ...] | None:
    names = [slot.name for slot in network.slots]
    prefixes = [key.removesuffix(names[0]) for key in state_dict if key.endswith(names[0])]
    for prefix in sorted(prefixes, key=len):
        keys = tuple(f"{prefix}{name}" for name in names)
        if set(keys) == {key for key in state_dict if not key.endswith(COUNTER)}:
            return keys
    return None


def _keys_by_order(network: Network, state_dict: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the keys in their order, if their last parts are those of the network's slots."""
    keys = tuple(key for key in state_dict if not str(key).endswith(COUNTER))
    names = [slot.name for slot in network.slots]
    given, expected = ([each.rpartition(".")[2] for each in several] for several in (keys, names))
    if given != expected:
        for key in keys:
            _check_tensor(key, state_dict[key])
        missing = [name for name in names if not any(key.endswith(name) for key in keys)]
        what = f"there is no {missing[0]}" if missing else f"its {len(keys)} tensors have others"
        raise UserError(
            f"This is not a state_dict of {network}, which has {len(names)} tensors, "
            f"{names[0]} to {names[-1]}: {what}."
        )
    return keys


def _shape(slot: Slot) -> tuple[int, ...]:
    return slot.original or slot.shape


# ---- what keeps a state_dict from being an MLP's


def _check_part_of_mlp(state_dict: Mapping[str, Tensor], key: str) -> None:
    tensor = state_dict[key]
    _check_tensor(key, tensor)
    part, layer, shape = _part(key), key.rpartition(".")[0] or "the layer", list(tensor.shape)
    if part is None:
        what = f"{key} is neither the weight nor the bias of a linear layer"
        advice = FOLDING if key.endswith(BATCH_NORM) else "."
        raise UserError(f"{what}. {ONLY_LINEAR}{advice}")
    _check_type(key, tensor)
    if part == "weight" and len(shape) != 2:
        kind, advice = _kind_of(state_dict, key)
        raise UserError(f"{key} has the shape {shape}: it belongs to {kind}. {ONLY_LINEAR}{advice}")
    weight = f"{key.removesuffix(part)}weight"
    if weight not in state_dict:
        raise UserError(
            f"{layer} has a bias but no {weight}. If the weight is parametrised, as by weight "
            "norm, undo that first: torch.nn.utils.parametrize.remove_parametrizations."
        )
    if part == "bias" and shape != list(state_dict[weight].shape[:1]):
        raise UserError(
            f"{key} has the shape {shape}, but {weight} is {list(state_dict[weight].shape)}: "
            "a linear layer has a bias for each of its outputs."
        )
    _check_numbers(key, tensor)


def _kind_of(state_dict: Mapping[str, Tensor], key: str) -> tuple[str, str]:
    """Return what layer has a weight that is no matrix, and what can be done about it."""
    if state_dict[key].dim() > 2:
        return (
            "a convolution",
            ". Convolutional networks are imported with --network NAME, or read from Python: "
            "docs/networks.md gives the commands.",
        )
    if key.removesuffix("weight") + "running_mean" in state_dict:
        return "batch norm", FOLDING
    return "a norm layer", ": layer norm depends on the input, so no linear layer can replace it."


def _check_tensor(key: str, value) -> None:
    if not isinstance(value, Tensor):
        raise UserError(
            f"{key!r} is no tensor but {type(value).__name__}. If this is a checkpoint, give the "
            "state_dict in it alone: torch.save(model.state_dict(), PATH)."
        )


def _check_type(key: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        wanted = "weights must be floating-point numbers; convert it"
        raise UserError(f"{key} is of {tensor.dtype}: {wanted}.")


def _check_numbers(key: str, tensor: Tensor) -> None:
    _check_type(key, tensor)
    strange = int((~tensor.double().isfinite()).sum())
    if strange:
        entries = f"entries that are NaN or infinite ({strange})"
        raise UserError(f"{key} has {entries}: leave this network out.")


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


def _join(sizes: Iterable[int]) -> str:
    return "-".join(map(str, sizes))
