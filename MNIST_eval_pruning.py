"""Prune networks by what their posterior says about each weight: the paper's Figure 5.

    python MNIST_eval_pruning.py                        the newest finished MNIST_eval.py run
    python MNIST_eval_pruning.py --eval runs/default/eval-MNIST-paper

The mean network of every method keeps X % of its weights, those with the lowest σ (and, for
comparison, the largest |μ|, the largest |μ|/σ, and random ones, ten times), and has zeros
elsewhere; a single HMC sample and a single ensemble member are pruned by the same masks. "alive"
is everything once more among the weights that do not come from dead pixels, those that are zero in
all training images: these follow the prior, and no accuracy is lost with them, so they stay as
they are.

Leaves in its run directory pruning.json (curves, and the sparsity each reaches at 1 % and 5 % of
lost accuracy), sigma_histograms.npz (σ before and after rebasin), and their figures.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from papers.compact import weight_figures
from papers.compact.tables import method_names, sparsity_summary, sparsity_table
from utils.data.datasets import Dataset, load_pixels
from utils.evaluation.pruning import (
    KEPT_PERCENT,
    LOSSES,
    accuracy_curve,
    by_std,
    orders,
    sparsity_at,
    without,
)
from utils.posteriors.sources import NEWEST, NONE, WeightSpace, locate, open_weight_space
from utils.runs.compute import choose_device
from utils.runs.config import Config, option
from utils.runs.errors import UserError
from utils.runs.files import read_mapping
from utils.runs.lookup import identify
from utils.runs.progress import check_space, progress_bar
from utils.runs.run import Run, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator

import numpy as np
from torch import Tensor

KIND = "eval_pruning"  # of its runs: what their directories begin with
HISTOGRAM_EDGES = np.linspace(-6, 1, 7001)  # of log10 σ; figures join what they show of them


@dataclass(frozen=True, kw_only=True)
class PruningConfig(Config):
    eval: str = option(
        NEWEST, "run directory of MNIST_eval.py, or the batch's newest finished one",
        changeable=True,  # the path; which run it is of, the run remembers
    )  # fmt: skip


@dataclass(frozen=True)
class Pruning:
    """A network and the order in which its weights are kept."""

    network: str  # "<method> mean" or "<method> single"
    by: str  # the method whose Gaussian gives the order
    criterion: str  # one of those of utils.pruning.orders
    weights: Tensor  # [d]
    orders: list[Tensor]  # one, or several whose curves are averaged

    @property
    def name(self) -> str:
        return f"{self.network}, {self.criterion} of {self.by}"


def main(config: PruningConfig) -> None:
    device = choose_device(config.device)
    if config.eval == NONE:
        raise UserError("There is nothing to prune without an evaluation: leave --eval out.")
    source = locate(config, "eval", config.eval)
    inputs = {"eval": identify(source)}
    space, names = open_weight_space(source, device), names_in(source)
    print(f"Posteriors of {source}")
    data = load_pixels(config.dataset, config.data_dir).to(device)
    run = open_run(config, KIND, device, inputs)
    if run.finished:
        return
    run.select_matmul()
    prunings = list_prunings(space, config.seed)
    check_space(run.directory, memory_bytes=40 * len(space.alive), disk_bytes=1e6)
    save_histograms(run, space)
    results = {
        "source": str(source),
        "names": names,
        "kept_percent": KEPT_PERCENT,
        "weights": {"all": len(space.alive), "alive": int(space.alive.sum())},
        **measure(run, space, data, prunings),
    }
    run.save_json("pruning.json", results)
    report(run, results)


def names_in(source: Path) -> dict[str, str]:
    """How the evaluation calls its methods; HMC, where only its weight_space.npz is there."""
    return method_names(read_mapping(source / "diagnostics.json", json.loads).get("label", "HMC"))


def list_prunings(space: WeightSpace, seed: int) -> list[Pruning]:
    """The paper's curves, by σ, of means and of single networks; and means by other criteria."""
    prunings = []
    gaussians = space.gaussians["after"]
    for by, gaussian in gaussians.items():
        for criterion, found in orders(gaussian, generator(seed, "random_order")).items():
            prunings.append(Pruning(f"{by} mean", by, criterion, gaussian.mean, found))
    for by, gaussian in gaussians.items():
        order = [by_std(gaussian.std)]
        if "ensemble" in gaussians and by != "ensemble":
            mean = gaussians["ensemble"].mean
            prunings.append(Pruning("ensemble mean", by, "std", mean, order))
        for method, single in space.singles.items():
            prunings.append(Pruning(f"{method} single", by, "std", single, order))
    return prunings


def count_networks(prunings: list[Pruning]) -> int:
    """All and alive weights, all shares, all orders."""
    return 2 * len(KEPT_PERCENT) * sum(len(pruning.orders) for pruning in prunings)


def save_histograms(run: Run, space: WeightSpace) -> None:
    """`<method>_<frame>_<all or alive>` [bins]: how many weights have log10 σ between `edges`."""
    counts = {}
    for frame, gaussians in space.gaussians.items():
        for method, gaussian in gaussians.items():
            log_std = gaussian.std.double().log10()
            for part, values in (("all", log_std), ("alive", log_std[space.alive])):
                clipped = values.clamp(*HISTOGRAM_EDGES[[0, -1]]).cpu().numpy()
                counts[f"{method}_{frame}_{part}"] = np.histogram(clipped, HISTOGRAM_EDGES)[0]
    run.save_arrays("sigma_histograms.npz", edges=HISTOGRAM_EDGES, **counts)


def measure(
    run: Run, space: WeightSpace, data: Dataset, prunings: list[Pruning]
) -> dict[str, dict[str, dict]]:
    """{"curves": {"all" or "alive": {pruning: its curve and sparsities}}}"""
    curves: dict[str, dict[str, dict]] = {"all": {}, "alive": {}}
    images, labels = data.test_images, data.test_labels
    with progress_bar(count_networks(prunings), "pruning", unit="network") as bar:
        for pruning in prunings:
            alive = [without(order, ~space.alive) for order in pruning.orders]
            for part, chosen in (("all", pruning.orders), ("alive", alive)):
                found = [
                    accuracy_curve(
                        space.network, pruning.weights, order, images, labels, bar.update
                    )
                    for order in chosen
                ]
                curve = np.mean(found, axis=0).tolist()
                curves[part][pruning.name] = {
                    "network": pruning.network, "by": pruning.by, "criterion": pruning.criterion,
                    "accuracy": curve,
                    "sparsity": {str(loss): sparsity_at(curve, loss) for loss in LOSSES},
                }  # fmt: skip
                if len(found) > 1:
                    spread = np.std(found, axis=0, ddof=1).tolist()
                    curves[part][pruning.name]["deviation"] = spread
                log_curve(run, f"{part}_{pruning.name}", curve)
    return {"curves": curves}


def log_curve(run: Run, name: str, curve: list[float]) -> None:
    """Accuracies over the share kept, under a name of letters, digits and _, as wandb wants it."""
    metric = re.sub(r"[^A-Za-z0-9]+", "_", name)
    for kept, share in zip(KEPT_PERCENT, curve, strict=True):
        run.log(kept_percent=kept, **{metric: share})


def report(run: Run, results: dict) -> None:
    """Save the figures, and print the sparsity that every curve reaches."""
    weight_figures.pruning.save(run)
    weight_figures.pruning_criteria.save(run)
    weight_figures.sigma_histograms.save(run, results["names"])
    table = sparsity_table(results)
    run.log_table("sparsity", table.head, table.rows)
    run.finish(sparsity_summary(results))
    table.print()
    print(f"\nSaved in {run.directory}")


CONFIG = PruningConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
