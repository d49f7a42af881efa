"""What earlier runs, or users, have left: weights, and users' inputs with their labels."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from utils.data.datasets import Dataset
from utils.networks.network import Network
from utils.networks.registry import NETWORK_EXAMPLE, load_network
from utils.posteriors.gaussian import Gaussian
from utils.runs.errors import UserError, reason
from utils.runs.files import UNREADABLE
from utils.runs.lookup import PastRun, find_run, identify

import numpy as np
import torch
from torch import Tensor

NEWEST, NONE = "newest", "none"
SCRIPTS = {
    "HMC": "MNIST_HMC.py",
    "ensemble": "MNIST_Ensemble.py",
    "VI": "MNIST_VI.py",
    "eval": "MNIST_eval.py",
}
# Methods beside HMC that leave samples: the option that says which run, and the run's kind.
SAMPLED = {"ensemble": "ensemble"}
METHODS = ("hmc", *SAMPLED, "vi")
OPTIONAL = (*SAMPLED.values(), "VI")  # kinds that an evaluation can do without
FRAMES = ("before", "after")  # rebasin; after it all methods are in the frame of HMC's reference


@dataclass(frozen=True)
class Samples:
    """Weight vectors in a samples.npy, of which only those at `indices` are used."""

    path: Path
    network: Network
    indices: np.ndarray  # [chains, samples of each]

    def __len__(self) -> int:
        return self.indices.size

    @property
    def num_chains(self) -> int:
        return len(self.indices)

    def num_blocks(self, most: int) -> int:
        """Into how many contiguous blocks to cut them so that none holds samples of two chains.

        At most so many, but at least one of every chain.
        """
        each = min(max(most // self.num_chains, 1), self.indices.shape[1])
        return self.num_chains * each

    def __getitem__(self, position: int) -> Tensor:
        """One weight vector, read from the disk; a mapping held open would fill the memory."""
        number = self.indices.flat[position]
        row = torch.from_numpy(np.load(self.path, mmap_mode="r")[number].astype(np.float32))
        if not row.isfinite().all():
            raise UserError(f"Sample {number} of {self.path} has NaN or infinite weights.")
        return row

    def __iter__(self):
        return (self[position] for position in range(len(self)))


def open_samples(path: Path, discard: float = 0.0, most: int | None = None) -> Samples:
    """The samples in a run directory, or in a samples.npy with network.json beside it.

    Of each chain the first `discard`, a share, are left out; of the rest at most `most`, over all
    chains together, are used, evenly spaced.
    """
    path = path / "samples.npy" if path.is_dir() else path
    network = read_network(path)
    try:
        array = np.load(path, mmap_mode="r")
        shape, kind = array.shape, array.dtype.kind
    except (*UNREADABLE, AttributeError) as error:  # an archive of arrays has no shape
        raise UserError(
            f"Cannot read the samples {path}: {reason(error)}. Give a run that leaves some, or a "
            "samples.npy of [samples, weights]."
        ) from None
    if len(shape) != 2 or shape[1] != network.num_weights or kind not in "fiu":
        raise UserError(
            f"{path} has {array.dtype} of the shape {list(shape)}: network.json beside it needs "
            f"numbers [samples, {network.num_weights}]."
        )
    layout = _read_layout(path, shape[0])
    num_chains, stored = layout["num_chains"], layout["stored_per_chain"]
    if shape[0] % num_chains:
        raise UserError(
            f"{path} has {shape[0]} samples, which are not {num_chains} chains of equal length, "
            "as chains.json beside it says."
        )
    chains = np.arange(shape[0]).reshape(num_chains, -1)[:, :stored]
    kept = chains[:, round(discard * chains.shape[1]) :]
    if kept.size < 2:
        remedy = "more samples" if chains.size < 2 else "a smaller --discard, or more samples"
        raise UserError(
            f"{path} has {chains.size} samples, of which {kept.size} are left, and a Gaussian "
            f"needs two: give {remedy}."
        )
    count = min(kept.shape[1], max(1, most // num_chains)) if most else kept.shape[1]
    chosen = np.linspace(0, kept.shape[1] - 1, count).round().astype(int)
    return Samples(path, network, kept[:, chosen])


def _read_layout(path: Path, num_rows: int) -> dict:
    """How many chains the samples are of, and how many each has stored, which may still run."""
    layout = path.with_name("chains.json")
    try:
        recorded = json.loads(layout.read_text()) if layout.exists() else {"num_chains": 1}
        num_chains = int(recorded["num_chains"])
    except UNREADABLE as error:
        why = reason(error)
        raise UserError(f"Cannot read {layout}: {why}. Mend it, or move it away.") from None
    if num_chains < 1:
        raise UserError(f"{layout} says {num_chains} chains, and there is at least one.")
    whole = num_rows // num_chains
    stored = recorded.setdefault("stored_per_chain", whole)
    if not isinstance(stored, int):
        raise UserError(f"{layout} needs a whole number stored_per_chain, and not {stored!r}.")
    if stored < whole:
        print(f"{path.parent} is not finished: its {stored} samples so far, of {whole}.")
    return recorded


def open_gaussian(directory: Path) -> tuple[Network, Gaussian]:
    """The mean and deviations that MNIST_VI.py has left in its run directory."""
    path = directory / "posterior.npz" if directory.is_dir() else directory
    network = read_network(path)
    arrays = read_arrays(path, SCRIPTS["VI"])
    mean, std = (arrays.get(name, torch.empty(0)).float() for name in ("mean", "std"))
    if not mean.shape == std.shape == (network.num_weights,):
        raise UserError(
            f"{path} has a mean and std of the shapes {list(mean.shape)} and {list(std.shape)}: "
            f"network.json beside it needs [{network.num_weights}]."
        )
    return network, Gaussian(mean, std)


def read_arrays(path: Path, script: str) -> dict[str, Tensor]:
    """All arrays of a .npz file that this script has left in its run directory."""
    try:
        with np.load(path) as archive:
            return {name: torch.from_numpy(archive[name]) for name in archive.files}
    except (*UNREADABLE, AttributeError) as error:  # a single array is no archive
        why = reason(error)
        raise UserError(f"Cannot read {path} ({why}): python {script} makes it.") from None


def read_network(beside: Path) -> Network:
    path = beside.with_name("network.json")
    if not path.exists():
        raise UserError(
            f"{path} is missing: it says which network the weights beside it are of, "
            f"for example {NETWORK_EXAMPLE}"
        )
    return load_network(path)


def check_network(network: Network, data: Dataset, path: Path) -> None:
    """Rebasin needs hidden units, and the scores need this data set's images and classes."""
    shape = (math.prod(network.input_shape), network.num_classes)
    if not network.groups or shape != (data.num_pixels, data.num_classes):
        raise UserError(
            f"{path} is of the network {network}: give samples of one with {data.num_pixels} "
            f"inputs, hidden units and {data.num_classes} outputs, as {data.name} needs it."
        )


def locate(config, kind: str, given: str, like: PastRun | None = None) -> Path | None:
    """Return the run of this kind that `given` asks for: the batch's finished one, none, or a path.

    If looked for, it must match `like` in network and data.
    """
    if given == NONE:
        return None
    flag = f"--{kind.lower()}"
    if given == NEWEST:
        return find_run(config, kind, SCRIPTS[kind], flag, like, optional=kind in OPTIONAL)
    path = Path(given)
    if not path.exists():
        raise UserError(f"{path} does not exist; leave it out to use the batch's finished run.")
    dataset = PastRun(path).dataset or config.dataset
    if dataset != config.dataset:
        raise UserError(f"{path} is a run on {dataset}: give --dataset {dataset}.")
    return path


def _check_is_hmc(run: PastRun) -> None:
    """Refuse other samples, which would be taken for what everything is measured against."""
    if run.kind not in (None, "HMC"):
        raise UserError(
            f"{run.path} is a run of kind {run.kind}, not HMC: give another --hmc, or --samples if "
            "these are to stand in for HMC's."
        )


# ---- users' own inputs


def read_inputs(path: Path, network: Network) -> Tensor:
    """Inputs [N, in] of a network, from an array [N, …] with as many numbers for each."""
    array = _read_numbers(path, kinds="fiub")
    if array.ndim < 2 or not len(array) or array[0].size != math.prod(network.input_shape):
        raise UserError(
            f"{path} has the shape {list(array.shape)}, but these networks need inputs "
            f"[N, {math.prod(network.input_shape)}]."
        )
    if network.num_classes == 1:
        raise UserError(
            "These networks have a single output, and what is predicted here are probabilities of "
            "classes, by softmax: leave the inputs out, and the networks are rebased by weight."
        )
    inputs = torch.from_numpy(array.astype(np.float32)).flatten(1)
    strange = int((~inputs.isfinite()).any(1).sum())
    if strange:
        raise UserError(f"{path} has NaN or infinite numbers in {strange} inputs: leave them out.")
    return inputs


def read_labels(path: Path, count: int, network: Network) -> Tensor:
    """The class numbers [N] of so many inputs."""
    array, num_classes = _read_numbers(path, kinds="iu"), network.num_classes
    if array.shape != (count,):
        raise UserError(
            f"{path} has the shape {list(array.shape)}, but {count} inputs have labels [{count}]."
        )
    if array.min() < 0 or array.max() >= num_classes:
        raise UserError(
            f"{path} has labels from {array.min()} to {array.max()}, but the networks have "
            f"{num_classes} outputs: classes are numbered from 0 to {num_classes - 1}."
        )
    return torch.from_numpy(array.astype(np.int64))


def _read_numbers(path: Path, kinds: str) -> np.ndarray:
    try:
        array = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"Cannot read the array {path}: {reason(error)}.") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
        kind = "whole numbers" if "f" not in kinds else "numbers"
        raise UserError(f"{path} must be an array of {kind}, written with numpy.save.")
    return array


# ---- the posteriors of an evaluation


@dataclass(frozen=True)
class Sources:
    """The posteriors to compare, all of one network; all but HMC may be left out."""

    network: Network
    hmc: Samples
    others: dict[str, Samples]  # by method, those of SAMPLED
    vi: Gaussian | None
    paths: dict[str, Path | None]
    inputs: dict[str, dict]  # the runs at these paths, as `identify` tells them
    label: str  # what `hmc` is called: "HMC", or "samples" where a user's stand in for these
    num_train: int | None  # the first so many training images are what HMC has seen; none: all


def find_sources(config) -> Sources:
    """What the config's `hmc` or `samples`, SAMPLED's and `vi` ask for, and say what it is."""
    sampled = {kind: getattr(config, name) for name, kind in SAMPLED.items()}
    given = {"HMC": config.samples or config.hmc, **sampled, "VI": config.vi}
    if config.samples and config.hmc != NEWEST:
        raise UserError("--samples stands in for HMC's: give either --hmc or --samples.")
    if given["HMC"] == NONE:
        raise UserError("Everything is compared with HMC's samples: give --hmc, or --samples.")
    hmc_run = PastRun(locate(config, "HMC", given["HMC"]))
    # Before its samples are looked at: a chain that runs may have more of them in a moment.
    inputs = {"HMC": identify(hmc_run.path)}
    label = "samples" if config.samples else "HMC"
    if label == "HMC":
        _check_is_hmc(hmc_run)
    hmc = open_samples(hmc_run.path, config.discard, config.num_samples)
    paths = {"HMC": hmc_run.path}
    for kind in (*SAMPLED.values(), "VI"):
        paths[kind] = locate(config, kind, given[kind], like=hmc_run)
    inputs |= {kind: identify(path) for kind, path in paths.items() if path and kind != "HMC"}
    others = {name: open_samples(paths[kind]) for name, kind in SAMPLED.items() if paths[kind]}
    network, vi = open_gaussian(paths["VI"]) if paths["VI"] else (hmc.network, None)
    networks = {SAMPLED[name]: samples.network for name, samples in others.items()}
    for kind, other in (networks | {"VI": network}).items():
        if other != hmc.network:
            raise UserError(
                f"{paths[kind]} is of the network {other}, but {paths['HMC']} of {hmc.network}: "
                f"give the path of another run, or --{kind.lower()} none."
            )
    for kind, path in paths.items():
        print(f"{label if kind == 'HMC' else kind:9} {path or 'left out'}")
    _warn_of_other_data(paths)
    print(f"{len(hmc)} samples of {paths['HMC']} are used; chains: {hmc.num_chains}.")
    num_train = hmc_run.data.get("num_train")
    return Sources(hmc.network, hmc, others, vi, paths, inputs, label, num_train)


def _warn_of_other_data(paths: dict[str, Path | None]) -> None:
    """Say so if runs have seen different numbers of images: their posteriors differ."""
    data = {kind: PastRun(path).data for kind, path in paths.items() if path}
    seen = {kind: data["num_train"] for kind, data in data.items() if "num_train" in data}
    if len(set(seen.values())) > 1:
        told = ", ".join(f"{kind} {count or 'all'}" for kind, count in seen.items())
        print(f"Warning: these are posteriors of different training images ({told}).")


@dataclass(frozen=True)
class WeightSpace:
    """What MNIST_eval.py has fitted; some of the methods may be missing."""

    network: Network
    gaussians: dict[str, dict[str, Gaussian]]  # by frame, then by method
    singles: dict[str, Tensor]  # [d]: one sample of HMC, one member of the ensemble, after rebasin
    alive: Tensor  # [d]: weights that are not behind dead pixels


def open_weight_space(path: Path, device: torch.device) -> WeightSpace:
    """The weight_space.npz in a run directory of MNIST_eval.py, or that file itself."""
    path = path / "weight_space.npz" if path.is_dir() else path
    network = read_network(path)
    arrays = {name: array.to(device) for name, array in read_arrays(path, SCRIPTS["eval"]).items()}
    lacking = [name for name in ("hmc_after_mean", "hmc_single", "alive") if name not in arrays]
    if lacking:
        raise UserError(
            f"{path} was left by another version (it has no {lacking[0]}): "
            f"python {SCRIPTS['eval']} --overwrite makes it anew."
        )
    gaussians = {
        frame: {
            method: Gaussian(arrays[f"{method}_{frame}_mean"], arrays[f"{method}_{frame}_std"])
            for method in METHODS
            if f"{method}_{frame}_mean" in arrays
        }
        for frame in FRAMES
    }
    singles = {m: arrays[f"{m}_single"] for m in METHODS if f"{m}_single" in arrays}
    return WeightSpace(network, gaussians, singles, arrays["alive"])
