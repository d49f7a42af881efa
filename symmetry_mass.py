"""How heavy are trained networks, beside the lightest network that computes the same?

Figure 2 of Laurent et al. (2024): the L2 mass of independent networks against the smallest mass
that scaling their hidden units can reach, and the histogram of the excess. Biases are scaled, but
do not count. The mass along random directions of the orbit shows that it has one minimum.

    python symmetry_mass.py                        the batch's newest run of train.py --method sgd
    python symmetry_mass.py --posterior PATH       any set of networks, such as runs/quick/ensemble…

1,000 OptuNets take seconds. Leaves in its run directory mass.npz, the figure
representation_cost.png and .pdf, and summary.json.
"""

from dataclasses import dataclass

from papers.symmetry import claims, figures
from utils.networks.network import Network
from utils.posteriors.members import open_members
from utils.report.paper import print_verdicts
from utils.runs.compute import choose_device
from utils.runs.config import Config, option
from utils.runs.lookup import existing, find_run, identify
from utils.runs.run import open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.symmetry.mass import Mass, mass, minimum_mass, scalable_groups
from utils.symmetry.rebasin import move
from utils.symmetry.transformation import random_transformation

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

KIND = "symmetry_mass"
STEPS = np.linspace(-2, 2, 21)  # along directions in log λ, one unit vector for each


@dataclass(frozen=True, kw_only=True)
class MassConfig(Config):
    posterior: str | None = option(
        None, "set of networks; by default the newest run of train.py --method sgd",
        metavar="DIR", changeable=True,
    )  # fmt: skip
    num_directions: int = option(20, "random directions of the orbit", minimum=1)
    num_curves: int = option(50, "networks whose mass along them is kept", minimum=1)


def main(config: MassConfig) -> None:
    path = find_posterior(config)
    inputs = {"networks": identify(path)}
    members = open_members(path)
    scalable_groups(members.network)  # refuse a network without scales before a run is opened
    run = open_run(config, KIND, choose_device(config.device), inputs)
    if run.finished:
        return
    network, weights = members.network, members.weights.flatten(0, 1).double()
    masses = torch.stack([mass(network, weights), lightest_masses(network, weights)])
    curves = masses_along(network, weights[: config.num_curves], config)
    network.save(run.path("network.json"))
    run.save_arrays("mass.npz", mass=masses[0], minimum=masses[1], steps=STEPS, curves=curves)
    figures.representation_cost.save(run)
    run.finish(summary_of(network, weights, masses.numpy(), curves.numpy(), config.seed))
    print_verdicts(run, *claims.MASS)
    print(f"Saved in {run.directory}")


def find_posterior(config: MassConfig):
    if config.posterior:
        return existing(config, config.posterior)
    return find_run(config, "sgd", "train.py --method sgd", "--posterior")


def lightest_masses(network: Network, weights: Tensor) -> Tensor:
    """Return the minimum mass [K], with a check that the networks compute what they did."""
    return mass(network, move(weights, minimum_mass(network, weights)))


def masses_along(network: Network, weights: Tensor, config: MassConfig) -> Tensor:
    """Return m [direction, network, step] on random lines through the networks as trained."""
    objective, random = Mass(network, weights), generator(config.seed, "directions")
    curves = []
    for _ in range(config.num_directions):
        direction = {
            name: torch.randn(zeros.shape, generator=random, dtype=torch.float64)
            for name, zeros in objective.no_scaling.items()
        }
        squares = sum(each.flatten(1).square().sum(1) for each in direction.values())
        curve = []
        for step in STEPS:
            scales = {
                name: float(step) * each / squares.sqrt().view(-1, *[1] * (each.dim() - 1))
                for name, each in direction.items()
            }
            curve.append(objective(scales))
        curves.append(torch.stack(curve, -1))
    return torch.stack(curves)


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
        "clusters": two_clusters(masses.T) if len(excess) >= 20 else [],
        # log m is a function of u = log λ: strictly convex if these are positive
        "smallest_second_difference": float(np.diff(np.log(curves), n=2).min()),
        "minimum_spread_over_orbit": float(minima.max() / minima.min() - 1),
    }


def two_clusters(points: np.ndarray) -> list[dict]:
    """Return medians of two clusters of (mass, minimum), found by k-means, the lighter first."""
    _, label = kmeans2(points / points.std(0), 2, minit="++", seed=0)
    clusters = []
    for members in (points[label == k] for k in (0, 1) if (label == k).any()):
        total, lowest = np.median(members, axis=0).tolist()
        excess = total / lowest - 1
        clusters.append(
            {"mass": total, "minimum": lowest, "excess": excess, "networks": len(members)}
        )
    return sorted(clusters, key=lambda cluster: cluster["mass"])


CONFIG = MassConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
