"""How much noise rebasin stands: planted permutations recovered, against noise on the weights.

    python benchmarks/recovery.py [--data_dir DIR] [--num_images N]

A fresh network's copy gets noise of growing size on every weight and a random permutation; what
counts is the share of its hidden units that each method puts back to their places. The curves go
to benchmarks/recovery.json and recovery.png.
"""

import argparse
import json
from pathlib import Path

import harness
from utils.data.datasets import load_pixels
from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.rebasin.matching import MATCHINGS, make_matcher
from utils.report.figures import BLUE, GREEN, ORANGE, PURPLE, panels, styled
from utils.runs.files import save_json
from utils.runs.seeding import generator
from utils.symmetry.transformation import Transformation

import torch
from matplotlib.figure import Figure

NOISE = [0, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32]  # in units of the weights' own σ
NETWORKS = {"1 hidden layer": (784, 512, 10), "3 hidden layers": (784, 512, 512, 512, 10)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default=harness.ROOT / "data")
    parser.add_argument("--num_images", type=int, default=2000)
    options = parser.parse_args()
    images = load_pixels("MNIST", options.data_dir, options.num_images).train_images
    recovered = {
        name: {method: curve(MLP(sizes), method, images) for method in MATCHINGS}
        for name, sizes in NETWORKS.items()
    }
    path = harness.ROOT / "benchmarks" / "recovery.json"
    save_json(path, {"noise": NOISE, "images": options.num_images, "recovered": recovered})
    draw(path).savefig(path.with_suffix(".png"))


def curve(network: Network, method: str, images: torch.Tensor) -> list[float]:
    """Share of units that return to their places, over all layers, for each size of noise."""
    weights = network.initial_weights(generator(0, "recovery", "weights"))
    random = generator(0, "recovery", "permutation")
    planted = Transformation(network)
    for name, group in network.groups.items():
        planted.permutations[name] = torch.randperm(group.size, generator=random)
    matcher = make_matcher(method, network, weights, images)
    parts = [part for layer in network.layers(weights) for part in layer]
    deviations = torch.cat([part.std().expand(part.shape).flatten() for part in parts])
    shares = []
    for size in NOISE:
        noise = torch.randn(weights.shape, generator=generator(0, "recovery", "noise"))
        moved = planted.apply(weights + size * deviations * noise)
        undone = matcher(moved).transformation.to_row()
        shares.append((undone == planted.inverse().to_row()).double().mean().item())
        print(f"{network.sizes} {method}: noise {size}, recovered {100 * shares[-1]:.1f}%")
    return shares


@styled
def draw(source: Path) -> Figure:
    """Draw the share of units that each method puts back, against noise on the weights."""
    results = json.loads(Path(source).read_text())
    figure, (axes,) = panels(1, len(results["recovered"]), height=3)
    looks = {
        "activation": {"color": BLUE, "linestyle": "-", "marker": "s"},
        "contribution": {"color": ORANGE, "linestyle": "-.", "marker": "o"},
        "weight": {"color": GREEN, "linestyle": "--", "marker": "^"},
        "cosine": {"color": PURPLE, "linestyle": ":", "marker": "v"},
    }
    for axis, (network, curves) in zip(axes, results["recovered"].items(), strict=True):
        for method, shares in curves.items():
            percent = [100 * share for share in shares]
            axis.plot(
                results["noise"], percent, label=f"by {method}", markersize=3, **looks[method]
            )
        axis.set_xscale("symlog", linthresh=0.1)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set(xlabel="noise on the weights [their own σ]", ylabel="units recovered [%]")
        axis.set_title(network)
    axes[0].legend()
    return figure


if __name__ == "__main__":
    main()
