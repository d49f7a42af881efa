"""Read any posterior from the directory that it was saved in."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from utils.networks.network import Network
from utils.posteriors.block_gaussian import BlockGaussian, WeightBlock
from utils.posteriors.dropout import DropoutMasks
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRank
from utils.posteriors.named_samples import NAMED_SAMPLES, open_named_samples
from utils.posteriors.posterior import Mixture, Posterior, is_set, mode_directory
from utils.posteriors.samples import open_samples, read_network
from utils.runs.files import UNREADABLE, read_mapping, write_atomically
from utils.settings.errors import UserError, reason

import numpy as np
import torch
from torch import Tensor

# What posteriors save, besides network.json and posterior.json.
FILES = (
    "samples.npy", "checksums.npy", "members.npz", "chains.json", "gaussian_mean.npy",
    "networks.safetensors", "posterior.npz", "low_rank.npz", "dropout.npz", "blocks.npz",
)  # fmt: skip


def open_posterior(path: Path, **thinning) -> Posterior:
    """Open what a method left in its run directory, or one of its files.

    Of a run that is under way these are the modes that are ready, if it leaves each in a directory.
    `thinning` says which weight vectors of a samples.npy to use: `discard` and `most`; with
    `fewest`, how few may be there.
    """
    kind = _kind(path)
    if kind == "Samples":
        return open_samples(path, **thinning)
    if kind not in OPENERS:
        raise UserError(
            f"{path} is a posterior of the unknown class {kind!r}; known are: Samples, "
            f"{', '.join(OPENERS)}."
        )
    return OPENERS[kind](path)


def _read_kind(path: Path) -> dict:
    """Return what posterior.json says: the class and, of a mixture, its number of parts."""
    named = path / "posterior.json"
    kind = read_mapping(named)
    if "class" not in kind:
        raise UserError(f"Cannot read {named}: it names no class.")
    return kind


def _kind(path: Path) -> str:
    """Return the class of a posterior; runs of earlier versions have no posterior.json."""
    if (path / "posterior.json").exists():
        return _read_kind(path)["class"]
    if ready_modes(path):
        return "Mixture"
    if path.suffix == ".safetensors" and path.is_file():
        return NAMED_SAMPLES
    gaussian = path.name if path.is_file() else "posterior.npz"
    is_gaussian = gaussian.endswith(".npz") and (path.is_file() or (path / gaussian).exists())
    return "Gaussian" if is_gaussian else "Samples"


def open_gaussian(path: Path) -> Gaussian:
    """Open the mean and std in a posterior.npz."""
    remedy = "methods that fit a Gaussian, such as VI, write it"
    network, arrays = read_with_network(path, "posterior.npz", remedy)
    mean, std = (arrays.get(name, torch.empty(0)).float() for name in ("mean", "std"))
    if not mean.shape == std.shape == (network.num_weights,):
        raise UserError(
            f"{path} has a mean and std of the shapes {list(mean.shape)} and {list(std.shape)}: "
            f"network.json beside it needs [{network.num_weights}]."
        )
    return Gaussian(mean, std, network)


def open_low_rank(path: Path) -> LowRank:
    """Open the mean, factor and diagonal in a low_rank.npz."""
    network, arrays = read_with_network(path, "low_rank.npz", "methods such as SWAG write it")
    return LowRank(
        arrays["mean"], arrays["factor"], network=network, diagonal=arrays.get("diagonal")
    )


def open_dropout(path: Path) -> DropoutMasks:
    """Open the weights and rates in a dropout.npz."""
    network, arrays = read_with_network(path, "dropout.npz", "MC dropout writes it")
    rates = dict(zip(network.groups, arrays["rates"].tolist(), strict=True))
    dropped = {name: rate for name, rate in rates.items() if rate}
    return DropoutMasks(arrays["weights"], dropped, network)


def open_block_gaussian(path: Path) -> BlockGaussian:
    """Open the mean and blocks in a blocks.npz."""
    network, arrays = read_with_network(path, "blocks.npz", "methods such as Laplace write it")
    count = sum(name.startswith("places_") for name in arrays)
    blocks = [
        WeightBlock(*(arrays[f"{name}_{number}"] for name in WeightBlock._fields))
        for number in range(count)
    ]
    return BlockGaussian(arrays["mean"], blocks, network, arrays.get("scales"))


def ready_modes(path: Path) -> list[Path]:
    """Return the directories of a mixture's modes, in order, without those that are under way."""
    modes = [file.parent for file in path.glob("mode-*/posterior.json")]
    return sorted(modes, key=lambda mode: (len(mode.name), mode.name))


def open_mixture(path: Path) -> Mixture:
    modes = ready_modes(path)
    if not modes:
        raise UserError(f"{path} has no modes: its directories mode-000, … are missing.")
    if not (path / "posterior.json").exists():
        print(f"{path} is under way: {len(modes)} of its directories of modes are ready.")
    else:
        parts = _read_kind(path).get("parts", len(modes))  # which earlier versions did not save
        lost = [mode.name for k in range(parts) if (mode := mode_directory(path, k)) not in modes]
        if lost:
            raise UserError(
                f"{path} has lost {len(lost)} of its {parts} directories of modes, {lost[0]} "
                "first: copy it again, or remove DONE there and go on with --resume."
            )
    mixture = Mixture([open_posterior(mode, fewest=0) for mode in modes])
    if is_set(mixture) and not len(mixture):
        raise UserError(f"{path} has no networks: all were left out.")
    return mixture


def move_posterior(source: Path, target: Path) -> None:
    """Move what a posterior has saved in one directory to another one, on the same disk.

    posterior.json is the last file there and the first one gone. network.json stays as well.
    """
    for name in (*FILES, "network.json", "posterior.json"):
        if (source / name).exists():
            write_atomically(
                target / name, lambda file, name=name: file.write((source / name).read_bytes())
            )
    remove_posterior(source)


def remove_posterior(directory: Path) -> None:
    for name in ("posterior.json", *FILES):
        (directory / name).unlink(missing_ok=True)


def read_with_network(path: Path, name: str, remedy: str) -> tuple[Network, dict[str, Tensor]]:
    """Read the .npz of this name in a directory, or any such file, and the network.json beside it.

    The remedy says who writes it.
    """
    path = path / name if path.is_dir() else path
    try:
        with np.load(path) as archive:
            arrays = {key: torch.from_numpy(archive[key]) for key in archive.files}
    except UNREADABLE as error:  # a single array is no archive
        raise UserError(f"Cannot read {path} ({reason(error)}): {remedy}.") from None
    return read_network(path), arrays


OPENERS: dict[str, Callable[[Path], Posterior]] = {
    "Gaussian": open_gaussian,
    "DropoutMasks": open_dropout,
    "LowRank": open_low_rank,
    "BlockGaussian": open_block_gaussian,
    "Mixture": open_mixture,
    NAMED_SAMPLES: open_named_samples,
}


# ---- all weight vectors of a set of networks, in memory


class Members(NamedTuple):
    """Weights [chains, draws, d]; independent networks are chains of one draw each."""

    network: Network
    weights: Tensor

    @property
    def independent(self) -> bool:
        return self.weights.shape[1] == 1


def open_members(path: Path) -> Members:
    """Read all weight vectors of a run, or of a samples.npy.

    They are draws of chains if chains.json says so, else independent networks.
    """
    posterior = open_posterior(path, fewest=1)
    if not is_set(posterior):
        raise UserError(f"{path} has no set of networks, but a distribution of weights.")
    parts = posterior.components if isinstance(posterior, Mixture) else [posterior]
    chains = posterior.num_chains if all(part.is_chain for part in parts) else len(posterior)
    weights = torch.stack(list(posterior))
    return Members(posterior.network, weights.unflatten(0, (chains, -1)))
