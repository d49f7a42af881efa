"""How heavy are trained networks, beside the lightest network that computes the same?

Figure 2 of Laurent et al. (2024): the L2 mass of independent networks against the smallest mass
that scaling their hidden units can reach, and the histogram of the excess. Biases are scaled, but
do not count. The mass along random directions of the orbit shows that it has one minimum.

    python symmetry_mass.py                     the batch's newest run of train.py --method sgd
    python symmetry_mass.py --posterior PATH    any set of networks, such as runs/quick/ensemble…
    python symmetry_mass.py --posterior RUN/mode-*    what a run that is under way has finished

1,000 OptuNets take seconds. Leaves in its run directory mass.npz, the figure
representation_cost.png and .pdf, and summary.json.
"""

import os
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from papers.symmetry.mass_claims import FEWEST_NETWORKS
from papers.symmetry.paper import PAPER
from papers.symmetry.plan import made_by
from papers.symmetry.values import median_error
from utils.networks.network import Network
from utils.posteriors.files import open_members
from utils.rebasin.rebase import move
from utils.report.paper import conclude
from utils.runs.lookup import PastRun, existing, find_run, identify
from utils.runs.run import begin, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.settings.config import Config, option
from utils.settings.errors import UserError
from utils.symmetry.mass import (
    mass,
    mass_along_orbit,
    minimum_mass,
    scalable_groups,
    without_idle_units,
)
from utils.symmetry.transformation import random_transformation

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from scipy.stats import gaussian_kde
from torch import Tensor

KIND = "symmetry_mass"
STEPS = torch.linspace(-2, 2, 21, dtype=torch.float64)  # along random directions in log λ
SAME = 1e-9  # largest relative difference of masses that are equal to rounding


@dataclass(frozen=True, kw_only=True)
class MassConfig(Config):
    posterior: list[str] = option(
        [], "set of networks, or several sets; by default the newest run of train.py --method sgd",
        metavar="DIR", changeable=True,
    )  # fmt: skip
    num_directions: int = option(20, "random directions of the orbit", minimum=1)
    num_curves: int = option(50, "networks whose mass along them is kept", minimum=1)


def main(config: MassConfig) -> None:
    paths = find_posteriors(config)
    inputs = dict(zip(names_of(paths), map(identify, paths), strict=True))
    device = begin(config, KIND, inputs)
    network, weights = open_networks(paths)
    run = open_run(config, KIND, device, inputs)
    masses = torch.stack([mass(network, weights), lightest_masses(network, weights)])
    curves = mass_along_orbit(
        network, weights[: config.num_curves], STEPS, config.num_directions,
        generator(config.seed, "directions"),
    )  # fmt: skip
    network.save(run.path("network.json"))
    run.save_arrays("mass.npz", mass=masses[0], minimum=masses[1], steps=STEPS, curves=curves)
    summary = summary_of(network, weights, masses.numpy(), curves.numpy(), config.seed)
    conclude(run, PAPER, summary, records={"clusters": summary["clusters"]})


def find_posteriors(config: MassConfig) -> list[Path]:
    """Return the sets that are given, without groups of networks that are still being trained."""
    if not config.posterior:
        return [find_run(config, "sgd", made_by(config.config_name)["sgd"], "--posterior")]
    paths = [existing(config, path) for path in config.posterior]
    for first, second in permutations([path.resolve() for path in paths], 2):
        if first.is_relative_to(second):  # or equal
            raise UserError(f"{first} would count twice, also by {second}: give each set once.")
    begun = [path for path in paths if not (path / "posterior.json").exists()]
    for path in begun:
        if list(path.glob("mode-*")):
            raise UserError(
                f"{path} is not finished: give {path}/mode-* for the networks that are ready."
            )
    ready = [path for path in paths if path not in begun or not path.match("mode-*")]
    if not ready:
        raise UserError(f"{paths[0]} has no networks yet: train.py is training them.")
    return ready


def names_of(paths: list[Path]) -> list[str]:
    """Return what the run calls its inputs, a single one by its kind as reproduce.py does.

    Several have their paths from the directory that contains all of them.
    """
    if len(paths) == 1:
        return [PastRun(paths[0]).kind or paths[0].name]
    common = os.path.commonpath([path.resolve().parent for path in paths])
    return [path.resolve().relative_to(common).as_posix() for path in paths]


def open_networks(paths: list[Path]) -> tuple[Network, Tensor]:
    """Return the weights [K, d] of all sets in float64, and their network."""
    sets = [open_members(path) for path in paths]
    network = sets[0].network
    for path, members in zip(paths, sets, strict=True):
        if members.network != network:
            raise UserError(
                f"{path} is of the network {members.network}, but {paths[0]} of {network}: give "
                "sets of one network."
            )
    weights = torch.cat([members.weights.flatten(0, 1) for members in sets]).double()
    scalable_groups(network)  # refuse a network without scales before a run is opened
    if not mass(network, without_idle_units(network, weights)[0]).all():
        raise UserError(
            "Some of these networks have no minimum mass: all of their weights are 0, or none lead "
            "from inputs to outputs."
        )
    return network, weights


def lightest_masses(network: Network, weights: Tensor) -> Tensor:
    """Return the minimum mass [K], with a check that the networks compute what they did."""
    lightest = move(weights, minimum_mass(network, weights))
    return mass(network, without_idle_units(network, lightest)[0])


def summary_of(
    network: Network, weights: Tensor, masses: np.ndarray, curves: np.ndarray, seed: int
) -> dict:
    excess = masses[0] / masses[1] - 1
    orbit = random_transformation(network, generator(seed, "orbit"), stack=(10,))
    minima = lightest_masses(network, orbit.apply(weights[0]))
    return {
        "network": str(network),
        "networks": len(excess),
        "mass_range": [float(masses[0].min()), float(masses[0].max())],
        "minimum_range": [float(masses[1].min()), float(masses[1].max())],
        "excess_quantiles": np.quantile(excess, [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1]).tolist(),
        "excess_modes": two_modes(excess),
        "clusters": two_clusters(masses.T) if len(excess) >= FEWEST_NETWORKS else [],
        # log m is a function of u = log λ: strictly convex if these are positive
        "smallest_second_difference": float(np.diff(np.log(curves), n=2).min()),
        "minimum_spread_over_orbit": float(minima.max() / minima.min() - 1),
    }


def two_clusters(points: np.ndarray) -> list[dict]:
    """Describe two clusters of (mass, minimum), found by k-means, the lighter first.

    Mass, minimum and excess are medians over their networks, with standard errors. Where networks
    differ by rounding at most, they are one cluster.
    """
    apart = points[:, np.ptp(points, axis=0) > SAME * points.max(0)]
    label = np.zeros(len(points))
    if apart.size:
        _, label = kmeans2(apart / apart.std(0), 2, minit="++", seed=0)
    clusters = []
    for members in (points[label == k] for k in (0, 1) if (label == k).any()):
        total, lowest = members.T
        values = {"mass": total, "minimum": lowest, "excess": total / lowest - 1}
        medians = {name: float(np.median(each)) for name, each in values.items()}
        errors = {f"{name}_error": median_error(each) for name, each in values.items()}
        clusters.append({**medians, **errors, "networks": len(members)})
    return sorted(clusters, key=lambda cluster: cluster["mass"])


def two_modes(excess: np.ndarray) -> list[float]:
    """Return the two highest maxima of the excess's density, by a Gaussian kernel, in order.

    The kernel's width is Scott's rule for half of the spread, as there may be two modes.
    """
    if len(excess) < FEWEST_NETWORKS:
        return []
    grid = np.linspace(excess.min(), excess.max(), 1001)[1:-1]
    density = gaussian_kde(excess, 0.5 * len(excess) ** -0.2)(grid)
    tops = [k for k in range(1, len(grid) - 1) if density[k - 1] < density[k] >= density[k + 1]]
    highest = sorted(tops, key=lambda k: -density[k])[:2]
    return sorted(float(grid[k]) for k in highest)


CONFIG = MassConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
