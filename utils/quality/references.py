"""References that posteriors are compared with: independent networks, and samples by HMC.

Each is split in two halves. Widths and predictions of the reference come from the first half. The
second half is compared with it as if it were a posterior, which shows what "no difference" is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from utils.distances.classifier import classify, invariants
from utils.distances.mmd import MIN_BLOCKS, distance, jackknife_error, number_modes, power
from utils.distances.spaces import Space, fit_spaces
from utils.networks.network import Network
from utils.posteriors.posterior import Posterior
from utils.quality.forecasts import ImageSets, evenly_spaced
from utils.quality.modes import SampleSet, alike, pieces_of, sample_modes
from utils.runs.lookup import LEFT_OUT, NEWEST, check_kind, locate
from utils.settings.config import Config, option
from utils.settings.errors import UserError
from utils.settings.wording import plural

import numpy as np
import torch
from torch import Tensor

INDEPENDENT, HMC_SAMPLES = "networks", "hmc"
# The kinds of runs that can be one.
REFERENCE_KINDS = {INDEPENDENT: ["sgd", "ensemble"], HMC_SAMPLES: ["HMC"]}
CHAIN_PIECES = 10  # of each half of a chain's samples
CHANGES = {  # planted in a reference, to see whether distances notice
    "means + 0.01 sd": (0.01, 1.0), "means + 0.1 sd": (0.1, 1.0),
    "weights × 1.01": (0.0, 1.01), "weights × 1.1": (0.0, 1.1),
}  # fmt: skip
POWER_DRAWS = 50
LEAST_NETWORKS = 9
MOST_KNOWN = 2000  # samples behind a reference's predictions


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig(Config):
    """The further settings of scripts that compare with references."""

    networks: str = option(
        NEWEST, "independent networks; newest: the batch's run of the method sgd",
        metavar="DIR", changeable=True,
    )  # fmt: skip
    hmc: str = option(
        LEFT_OUT, "samples of HMC of the same network; newest: the batch's, none: without",
        metavar="DIR", changeable=True,
    )  # fmt: skip
    ood: str | None = option(
        None, "data set out of the distribution, by default the usual one; MNIST-noise-3: "
        "corrupted, see docs/data.md", metavar="NAME",
    )  # fmt: skip


def reference_paths(config: ReferenceConfig, made_by: Mapping[str, str]) -> dict[str, Path]:
    """Return the paths of both references; `made_by` says which script makes runs of a kind."""
    if config.networks == LEFT_OUT:
        raise UserError("Independent networks are needed: give --networks PATH, or newest.")
    sgd = locate(config, config.networks, "sgd", made_by["sgd"], flag="--networks")
    paths = {INDEPENDENT: sgd, HMC_SAMPLES: locate(config, config.hmc, "HMC", made_by["HMC"])}
    paths = {name: path for name, path in paths.items() if path}
    for name, path in paths.items():
        check_kind(
            path, REFERENCE_KINDS[name], f"give another --{name}, or compare it as a posterior"
        )
    return paths


class Halves(NamedTuple):
    """Two halves of a reference, the modes in neither, and what predictions are compared with.

    Halves have as many samples as other rows. Predictions need no such limit: they are compared
    with the average of `known`, all samples of HMC's first half or all networks that are not in the
    second, so that the noise of a hundred samples is not in every comparison.
    """

    first: SampleSet
    second: SampleSet
    rest: Sequence[Posterior]
    known: SampleSet


def split_networks(modes: Sequence[Posterior], most: int, seed: int) -> Halves:
    """Split independent networks, at most `most` for each half; one or more are in neither."""
    if len(modes) < LEAST_NETWORKS:
        raise UserError(
            f"The reference has {plural(len(modes), 'independent network')}: give at least "
            f"{LEAST_NETWORKS}, such as the method sgd makes with --num_modes 200."
        )
    half = min(most, (len(modes) - 1) // 2)
    parts, rest = (modes[:half], modes[half : 2 * half]), modes[2 * half :]
    known = sample_modes("networks", [*parts[0], *rest], MOST_KNOWN, seed)
    return Halves(*(sample_modes("networks", part, half, seed) for part in parts), rest, known)


def split_chains(chains: Sequence[Posterior], most: int, seed: int) -> Halves:
    """Split HMC's samples: half of the chains against the others, or the halves of one chain."""
    if len(chains) == 1:
        early, late = pieces_of(chains, 2)
        halves = [early], [late]
    else:
        middle = len(chains) // 2
        halves = chains[:middle], chains[middle : 2 * middle]
    pieces = [pieces_of(half, CHAIN_PIECES) for half in halves]
    sets = [sample_modes(f"hmc {number}", each, most, seed) for number, each in enumerate(pieces)]
    return Halves(*sets, (), sample_modes("hmc known", pieces[0], MOST_KNOWN, seed))


@dataclass(frozen=True)
class Reference:
    """The first half of a reference, in every space."""

    name: str
    spaces: list[Space]
    features: dict[str, Tensor]  # by space, of the first half
    invariants: np.ndarray
    blocks: np.ndarray
    permutations: int
    seed: int

    def distances(self, weights: Tensor, blocks: np.ndarray, network: Network) -> dict:
        """Return MMD² by space, and the classifier's accuracy, of samples in these blocks.

        Samples of a single mode have no null, since it takes modes to permute.
        """
        random = np.random.default_rng(self.seed)
        modes = number_modes(self.blocks, blocks)
        both = np.concatenate(alike(self.blocks, blocks))
        several = len(np.unique(blocks)) > 1
        draws, count = self.permutations if several else 0, len(self.blocks)
        results = {}
        for space in self.spaces:
            ours = self.features[space.name]
            kernel = space.kernel(torch.cat([ours, space.features(weights).to(ours)]))
            measured = distance(kernel, count, modes, both, draws, random)._asdict()
            error = jackknife_error(kernel, count, modes) if several else float("nan")
            results[space.name] = measured | {"error": error}
        if several:
            theirs = invariants(network, weights)
            draws = (self.permutations + 1) // 5  # of 99 they are 20, which can show p < 0.05
            classified = classify(self.invariants, theirs, both, draws, random)
            results["classifier"] = classified._asdict()
        return results

    def power(self, second: Tensor, num_modes: int) -> dict[str, dict]:
        """Return how often planted changes are found, by space; `second` is the other half.

        Of "halves": half of the reference is compared with the other half, changed. Of "modes":
        with `num_modes` changed blocks of that, as a row of so many modes is.
        """
        random, of_modes = (np.random.default_rng(self.seed) for _ in range(2))
        blocks = np.arange(len(self.blocks) + len(second)) // max(
            1, len(self.blocks) // (self.blocks.max() + 1)
        )
        tables = {"halves": {}, "modes": {}}
        for space in self.spaces:
            ours = self.features[space.name]
            others = space.features(second).to(ours)
            plain = torch.cat([ours, others])
            kernel = space.kernel(plain)
            null = distance(kernel, len(ours), blocks, blocks, self.permutations, random)
            halves, modes = (tables[kind].setdefault(space.name, {}) for kind in tables)
            for change, (shift, factor) in CHANGES.items():
                moved = self._moved(space, second, shift, factor).to(ours)
                kernel = space.kernel(torch.cat([plain, moved]))
                halves[change] = power(kernel, blocks, null.high, POWER_DRAWS, random)
                modes[change] = self._power_of_modes(kernel, blocks, num_modes, of_modes)
        return tables

    def _power_of_modes(
        self, kernel: Tensor, blocks: np.ndarray, num_modes: int, random: np.random.Generator
    ) -> float:
        """Return how often p < 0.05 if half of the blocks are compared with some, changed.

        Neighbours in the half are put together, so that there are as many blocks on both sides.
        Every draw has a null of its own.
        """
        size, half = len(blocks), (blocks.max() + 1) // 2
        num_modes = min(num_modes, half)
        if num_modes < MIN_BLOCKS:
            return float("nan")
        draws, found = (self.permutations + 1) // 5, 0  # of 99 they are 20, as for the classifier
        for _ in range(POWER_DRAWS):
            order = random.permutation(blocks.max() + 1)
            plain = np.flatnonzero(np.isin(blocks, order[:half]))
            changed = np.flatnonzero(np.isin(blocks, order[half:][:num_modes]))
            rows = np.concatenate([plain, size + changed])
            modes = number_modes(*(np.unique(blocks[side], return_inverse=True)[1]
                                   for side in (plain, changed)))  # fmt: skip
            both = np.where(modes < half, modes * num_modes // half, modes)
            result = distance(kernel[rows][:, rows], len(plain), modes, both, draws, random)
            found += result.p < 0.05
        return found / POWER_DRAWS

    def _moved(self, space: Space, second: Tensor, shift: float, factor: float) -> Tensor:
        pool = torch.cat([self.features["weights"], second.to(self.features["weights"])])
        return space.features(factor * pool + shift * pool.std(0))


def fit_reference(
    name: str, network: Network, half: SampleSet, anchor: Tensor, images: ImageSets,
    num_inputs: int, permutations: int, seed: int,
) -> Reference:  # fmt: skip
    """Fit the spaces to the first half; predictions are compared on `num_inputs` of the images."""
    weights = half.weights()
    inputs = (
        each[evenly_spaced(len(each), num_inputs)] for each in (images.inside, images.outside)
    )
    spaces = fit_spaces(network, weights, anchor, *inputs, seed)
    features = {space.name: space.features(weights).float() for space in spaces}
    return Reference(
        name, spaces, features, invariants(network, weights), half.blocks, permutations, seed
    )


def mean_squares(network: Network, weights: Tensor) -> dict[str, float]:
    """Return what MMD² of many weights reacts to: mean squares by slot, and ‖mean‖²."""
    squares = {
        slot.name: slot.of(weights).double().square().mean().item() for slot in network.slots
    }
    return squares | {"squared norm of the mean": weights.double().mean(0).square().sum().item()}
