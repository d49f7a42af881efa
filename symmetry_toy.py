"""Thousands of networks with two hidden units: the posterior with and without its symmetries.

Figure 1 of Laurent et al. (2024). Each network tells two clouds of points in the plane apart. What
their last layers look like as trained, after the scales of the hidden units are removed, and after
their order is removed, too, is drawn side by side. Without symmetries the posterior is one of h!
equal copies; that is tested.

    python symmetry_toy.py                        10,000 networks, in less than a minute
    python symmetry_toy.py --config_name quick    2,000 networks, in seconds

Leaves in its run directory samples.npy [networks, weights] with network.json, toy.npz (the points,
and the last layers in each panel), the figure toy.png and .pdf, and summary.json.
"""

import math
from dataclasses import dataclass

from papers.symmetry.paper import PAPER
from papers.symmetry.values import median_error
from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.posteriors.samples import Points
from utils.rebasin.rebase import move
from utils.report.paper import conclude
from utils.runs.progress import progress_bar
from utils.runs.run import Run, begin, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.settings.config import Config, option
from utils.settings.errors import UserError
from utils.symmetry.normal_forms import count_ties, sort_units, unit_norm

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import chisquare, ks_2samp
from torch import Tensor

KIND = "symmetry_toy"
# Moments of the published points, 200 of each class.
MEANS = ((-2.09, -1.89), (2.19, 2.17))
COVARIANCE = ((0.96, -0.08), (-0.08, 0.96))
PANELS = ("as trained", "scales removed", "scales and order removed")
BIN = 0.03  # width of the bins that entropies are measured with, relative to the median of |w|
LEARNT = 0.9  # training accuracy of a network that has learnt to tell the classes apart


@dataclass(frozen=True, kw_only=True)
class ToyConfig(Config):
    dataset: str = option("gaussians", "two clouds of points", choices=("gaussians",))
    num_networks: int = option(10_000, "networks", minimum=100)
    hidden_units: int = option(2, "hidden units h of each network", minimum=2, below=8)
    points_per_class: int = option(200, "training points of each class", minimum=2)
    learning_rate: float = option(2.0, "step size of SGD", above=0)
    batch_size: int = option(10, "points per step", minimum=1)
    num_epochs: int = option(10, "passes over the points", minimum=1)
    norm: float = option(3.0, "norm of incoming weights when scales are removed", above=0)


def main(config: ToyConfig) -> None:
    device = begin(config, KIND)
    run = open_run(config, KIND, device)
    network = MLP((2, config.hidden_units, 1))
    points, classes = two_clouds(config.points_per_class, config.seed)
    trained = train_all(network, points.to(device), classes.to(device), config)
    trained = trained.cpu().double()  # scaled weights round less
    scaled = move(trained, unit_norm(network, trained, config.norm))
    order = sort_units(network, scaled, "last_layer")
    views = dict(zip(PANELS, (trained, scaled, move(scaled, order)), strict=True))
    save(run, network, points, classes, views)
    summary = {
        "failed": int((accuracies(network, trained, points, classes) < LEARNT).sum()),
        "entropies": {name: bin_entropy(last_layer(network, each)) for name, each in views.items()},
        **summary_of(shapes_in(*(last_layer(network, views[name]) for name in PANELS[:2]))),
        "tied": int((count_ties(network, scaled) > 0).sum()),
        "copies": compare_copies(order.permutations["h1"], views[PANELS[2]]),
    }
    shapes = {key: summary[key] for key in ("shape", "shape_errors")}
    conclude(run, PAPER, summary, records={"shapes": shapes})


# ---- networks


def two_clouds(points_per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw points [2 n, 2] of two Gaussian classes, and their classes 0 or 1."""
    random = generator(seed, "points")
    spread = torch.linalg.cholesky(torch.tensor(COVARIANCE))
    clouds = [
        torch.tensor(mean) + torch.randn(points_per_class, 2, generator=random) @ spread.T
        for mean in MEANS
    ]
    return torch.cat(clouds), torch.tensor([0.0, 1.0]).repeat_interleave(points_per_class)


def train_all(network: Network, points: Tensor, classes: Tensor, config: ToyConfig) -> Tensor:
    """Train all networks side by side, each from its own start and in its own order of points."""
    start = generator(config.seed, "initial_weights")
    weights = torch.stack([network.initial_weights(start) for _ in range(config.num_networks)])
    weights, random = weights.to(points.device), generator(config.seed, "data_order")
    with progress_bar(config.num_epochs, "networks") as bar:
        for _ in range(config.num_epochs):
            keys = torch.rand(config.num_networks, len(points), generator=random)
            for batch in keys.argsort(1).to(points.device).split(config.batch_size, dim=1):
                gradient = loss_gradient(network, weights, points[batch], classes[batch])
                weights = weights - config.learning_rate * gradient
            bar.update()
    if not weights.isfinite().all():
        raise UserError("Training diverged: lower --learning_rate.")
    return weights


def loss_gradient(network: Network, weights: Tensor, points: Tensor, classes: Tensor) -> Tensor:
    """Return the gradient [K, d] of each network's mean cross-entropy on its own batch."""
    with torch.enable_grad():
        leaf = weights.detach().requires_grad_()
        logits = network.outputs(leaf, points).squeeze(-1)
        losses = F.binary_cross_entropy_with_logits(logits, classes, reduction="none").mean(-1)
        return torch.autograd.grad(losses.sum(), leaf)[0]


def accuracies(network: Network, weights: Tensor, points: Tensor, classes: Tensor) -> Tensor:
    """Return the share [K] of points that each network classifies rightly."""
    chosen = network.outputs(weights, points.to(weights)).squeeze(-1) > 0
    return (chosen == classes.bool()).double().mean(-1)


def last_layer(network: Network, weights: Tensor) -> np.ndarray:
    """Return the weights [K, h] of the last layer."""
    return network.layers(weights)[-1][0].squeeze(1).numpy()


# ---- what is measured


def bin_entropy(values: np.ndarray) -> float:
    """Return the entropy [bits] of the first two columns, brought to one size, in square bins."""
    pairs = values[:, :2]
    bins = np.floor(pairs / (BIN * np.median(np.abs(pairs))))
    _, counts = np.unique(bins, axis=0, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def shapes_in(trained: np.ndarray, scaled: np.ndarray) -> dict[str, np.ndarray]:
    """Measure the two left panels, on networks with weights of the same sign or of different ones.

    With the same sign they lie on a circle of this radius, and on the sides |w₁| + |w₂| = side of
    a square. With different signs they lie in lobes around (±a, ∓a).
    """
    same = trained[:, 0] * trained[:, 1] > 0
    return {
        "radius": np.hypot(*trained[same, :2].T),
        "lobe": np.abs(trained[~same, :2]).mean(1),
        "side": np.abs(scaled[same, :2]).sum(1),
        "scaled_lobe": np.abs(scaled[~same, :2]).mean(1),
    }


def summary_of(shapes: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return medians over networks, and their standard errors."""
    return {
        "shape": {name: float(np.median(values)) for name, values in shapes.items()},
        "shape_errors": {name: median_error(values) for name, values in shapes.items()},
    }


def compare_copies(orders: Tensor, weights: Tensor) -> dict:
    """Test that all h! orders of units are equally frequent, and sorted networks alike in each.

    The first is Pearson's χ² test. For the second, every weight of the networks that had one order
    is compared with that of all others, by Kolmogorov and Smirnov's test; the smallest p-value is
    multiplied by the number of tests (Bonferroni).
    """
    _, copy, counts = np.unique(orders.numpy(), axis=0, return_inverse=True, return_counts=True)
    num_copies = math.factorial(orders.shape[1])
    counts = np.pad(counts, (0, num_copies - len(counts)))
    values, copy = weights.numpy(), copy.ravel()
    p_values = [
        ks_2samp(column[copy == number], column[copy != number]).pvalue
        for number in np.unique(copy)[1:]
        for column in values.T
    ]
    return {
        "counts": counts.tolist(),
        "equal_shares_p": float(chisquare(counts).pvalue),
        "equal_weights_p": min(1.0, min(p_values) * len(p_values)),
        "tests": len(p_values),
    }


def save(
    run: Run, network: Network, points: Tensor, classes: Tensor, views: dict[str, Tensor]
) -> None:
    Points(views[PANELS[0]].float(), network).save(run.directory)
    layers = np.stack([last_layer(network, weights) for weights in views.values()])
    run.save_arrays(
        "toy.npz", points=points, classes=classes, panels=list(views), last_layers=layers
    )


CONFIG = ToyConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
