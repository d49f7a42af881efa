"""Means and deviations of every posterior that has them, before and after rebasin to the truth."""

from dataclasses import dataclass
from pathlib import Path

from utils.evaluation.alignment import RebasedSamples
from utils.evaluation.predictions import DIRECT, REBASED, Column
from utils.evaluation.setting import Setting
from utils.evaluation.views import Views
from utils.networks.network import Network
from utils.posteriors.compact import load_compact
from utils.posteriors.files import read_with_network
from utils.posteriors.gaussian import Gaussian, rebase_gaussian
from utils.posteriors.moments import Moments, fit_blocks, merge_all
from utils.posteriors.posterior import Posterior
from utils.posteriors.samples import Samples, num_blocks
from utils.rebasin.assignment import Matcher
from utils.rebasin.rebase import move
from utils.runs.run import Run
from utils.settings.errors import UserError

import numpy as np
import torch
from torch import Tensor

HISTOGRAM_EDGES = np.linspace(-6, 1, 7001)  # of log10 σ; figures join several bins
NUM_BLOCKS = 20  # of the truth's samples, to resample
FEWEST_TO_REFIT = 4  # samples: with a block or a chain left out, two are left
FRAMES = ("before", "after")  # rebasin; after it all are in the frame of the truth's reference


@dataclass(frozen=True)
class WeightSpace:
    """Gaussians by frame, then by name, the truth first; and single networks after rebasin."""

    network: Network
    gaussians: dict[str, dict[str, Gaussian]]
    singles: dict[str, Tensor]  # [d]: the first weight vector of every set
    alive: Tensor  # [d]: weights that are not behind dead pixels

    @property
    def truth(self) -> str:
        return next(iter(self.gaussians["after"]))

    def save(self, run: Run) -> None:
        """Write weight_space.npz, with network.json, as `open_weight_space` reads them."""
        arrays = {f"{name}_single": weights for name, weights in self.singles.items()}
        for frame, gaussians in self.gaussians.items():
            for name, gaussian in gaussians.items():
                arrays[f"{name}_{frame}_mean"] = gaussian.mean
                arrays[f"{name}_{frame}_std"] = gaussian.std
        run.save_arrays("weight_space.npz", alive=self.alive, **arrays)
        self.network.save(run.path("network.json"))


def fit_weight_space(
    setting: Setting, candidates: dict[str, Posterior], truth: str, views: Views
) -> WeightSpace:
    """Move all Gaussians to the frame of the truth's reference.

    The q_r of another set is moved as a whole, together with the set's first network. A
    distribution without a mean and deviations is left out.
    """
    reference = views.aligned[truth].reference
    matcher = setting.matcher_for(reference)
    before, after, singles = {}, {}, {}
    for name, posterior in candidates.items():
        if name in views.aligned:
            before[name] = views.fits[Column(name, DIRECT)].posterior
            after[name] = views.fits[Column(name, REBASED)].posterior
            singles[name] = views.aligned[name].reference
            if name != truth:
                after[name], singles[name] = move_together(
                    setting.network, after[name], singles[name], matcher
                )
        elif (gaussian := marginal_gaussian(posterior)) is not None:
            before[name] = gaussian.to(setting.device)
            after[name], _ = rebase_gaussian(setting.network, before[name], matcher)
    return WeightSpace(setting.network, {"before": before, "after": after}, singles, setting.alive)


def marginal_gaussian(posterior: Posterior) -> Gaussian | None:
    """Return the mean and deviation of every weight, if the posterior has them."""
    if posterior.mean is None or getattr(posterior, "std", None) is None:
        return None
    return Gaussian(posterior.mean, posterior.std)


def move_together(
    network: Network, posterior: Gaussian, member: Tensor, matcher: Matcher
) -> tuple[Gaussian, Tensor]:
    """Rebase a Gaussian as a whole, and move one of its networks along."""
    moved, matching = rebase_gaussian(network, posterior, matcher)
    return moved, move(member, matching.transformation)


def std_histograms(space: WeightSpace) -> dict[str, np.ndarray]:
    """Count weights by log10 σ between `edges`: `<name>_<frame>_<all or alive>` [bins]."""
    counts = {"edges": HISTOGRAM_EDGES}
    for frame, gaussians in space.gaussians.items():
        for name, gaussian in gaussians.items():
            log_std = gaussian.std.double().log10()
            for part, values in (("all", log_std), ("alive", log_std[space.alive])):
                clipped = values.clamp(*HISTOGRAM_EDGES[[0, -1]]).cpu().numpy()
                counts[f"{name}_{frame}_{part}"] = np.histogram(clipped, HISTOGRAM_EDGES)[0]
    return counts


def open_weight_space(path: Path, device: torch.device) -> WeightSpace:
    """Open the weight_space.npz in the run directory of an evaluation, or that file itself."""
    network, arrays = read_with_network(path, "weight_space.npz", "an evaluation makes it")
    arrays = {key: array.to(device) for key, array in arrays.items()}
    names = [key.removesuffix("_after_mean") for key in arrays if key.endswith("_after_mean")]
    if not names or f"{names[0]}_single" not in arrays or "alive" not in arrays:
        raise UserError(f"{path} was left by another version: evaluate again with --overwrite.")
    gaussians = {
        frame: {
            name: Gaussian(arrays[f"{name}_{frame}_mean"], arrays[f"{name}_{frame}_std"])
            for name in names
        }
        for frame in FRAMES
    }
    singles = {name: arrays[f"{name}_single"] for name in names if f"{name}_single" in arrays}
    return WeightSpace(network, gaussians, singles, arrays["alive"])


def rebased_blocks(space: WeightSpace, samples: Samples, compact: Path) -> list[Moments]:
    """Return the moments of blocks of the truth's samples, rebased as the compact form says.

    Samples that are not those that the truth's Gaussian was fitted to are refused.
    """
    device, truth = space.alive.device, space.gaussians["after"][space.truth]
    moves = load_compact(compact, space.network).transformations
    if len(samples) < FEWEST_TO_REFIT:
        raise UserError(f"{len(samples)} samples are too few to be resampled.")
    if len(samples) != len(moves):
        raise UserError(f"{len(moves)} samples were evaluated, and there are {len(samples)} now.")
    rebased = RebasedSamples(space.network, samples, moves, device)
    blocks = fit_blocks(rebased, len(samples), num_blocks(samples, NUM_BLOCKS))
    if not merge_all(blocks).gaussian().std.allclose(truth.std, rtol=1e-3, atol=1e-5):
        raise UserError("There are other samples now than those that were evaluated.")
    return blocks
