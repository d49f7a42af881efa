"""Prune networks by what their posterior says about each weight: the paper's Figure 5.

    python MNIST_eval_pruning.py                        the finished MNIST_eval.py run of the batch
    python MNIST_eval_pruning.py --eval runs/default/eval-MNIST-paper

The mean network of every posterior keeps X % of its weights, those with the lowest σ (and, for
comparison, the largest |μ|, the largest |μ|/σ, and random ones, ten times). The others are zero;
with REPAIR units then get back the mean and deviation over images that they had. A single network
of HMC and of the ensemble is pruned by the same masks, and at random. "alive" repeats all this for
the weights that are not behind dead pixels, those that are zero in all training images. The data
say nothing about the weights of dead pixels, and no accuracy depends on them.

Standard errors are those of resampled test images, of the random orders and, where HMC's μ and σ
order the weights, of fitting these again to resampled blocks of the chain. For the last, the
samples must still be where MNIST_eval.py read them.

Leaves in its run directory pruning.json (curves, and the sparsity each reaches at 1 % and 5 % of
lost accuracy, with errors), sigma_histograms.npz (σ before and after rebasin), and their figures.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from papers.compact import weight_figures
from papers.compact.tables import sparsity_summary, sparsity_table
from utils.data.datasets import load_dataset
from utils.evaluation.pruning import KEPT_PERCENT
from utils.evaluation.pruning_study import Refits, list_prunings, prune_all, refit
from utils.evaluation.weight_space import (
    WeightSpace,
    open_weight_space,
    rebased_blocks,
    std_histograms,
)
from utils.networks.registry import inputs_for
from utils.posteriors.files import open_posterior
from utils.runs.files import UNREADABLE, read_mapping
from utils.runs.lookup import LEFT_OUT, NEWEST, PastRun, identify, locate
from utils.runs.progress import check_space
from utils.runs.run import Run, begin, open_run
from utils.runs.script import run_script
from utils.settings.config import Config, option
from utils.settings.errors import UserError

KIND = "eval_pruning"  # of its runs: what their directories begin with


@dataclass(frozen=True, kw_only=True)
class PruningConfig(Config):
    # Changeable, as it is a path: the run remembers which run it is made of.
    eval: str = option(
        NEWEST, "run of MNIST_eval.py, or newest: the batch's finished one", changeable=True
    )
    num_images: int | None = option(
        None, "test images to score on, from the first on; none: all", minimum=2
    )


def main(config: PruningConfig) -> None:
    if config.eval == LEFT_OUT:
        raise UserError("There is nothing to prune without an evaluation: leave --eval out.")
    source = locate(config, config.eval, "eval", "MNIST_eval.py")
    inputs = {"eval": identify(source)}
    device = begin(config, KIND, inputs)
    space = open_weight_space(source, device)
    diagnostics = read_mapping(PastRun(source).directory / "diagnostics.json")
    names = diagnostics.get("names")
    if not names:
        raise UserError(f"{source} was left by another version or is damaged: evaluate again.")
    print(f"Posteriors of {source}")
    data = load_dataset(config.dataset, config.data_dir)
    data = inputs_for(space.network, data).to(device)
    images, labels = data.test_images[: config.num_images], data.test_labels[: config.num_images]
    data = replace(data, test_images=images, test_labels=labels)
    run = open_run(config, KIND, device, inputs)
    check_space(run.directory, memory_bytes=500 * len(space.alive), disk_bytes=1e6)
    run.save_arrays("sigma_histograms.npz", **std_histograms(space))
    refits = refit_truth(space, PastRun(source), diagnostics.get("sources", {}), config.seed)
    prunings = list_prunings(space, config.seed)
    results = {
        "source": str(source),
        "names": names,
        "kept_percent": KEPT_PERCENT,
        "weights": {"all": len(space.alive), "alive": int(space.alive.sum())},
        "curves": prune_all(space, data, prunings, refits, config.seed),
    }
    run.save_json("pruning.json", results)
    report(run, results)


def refit_truth(
    space: WeightSpace, evaluation: PastRun, sources: dict[str, str], seed: int
) -> list[Refits]:
    """Fit the truth's μ and σ again to resampled blocks of its samples; [] if these are gone."""
    config, directory = evaluation.config, evaluation.directory
    try:
        path = Path(next(iter(sources.values()), ""))  # the truth is the first
        thinning = {"discard": config.get("discard", 0.0), "most": config.get("num_samples")}
        samples = open_posterior(path, **thinning)
        blocks = rebased_blocks(space, samples, directory / "compact.npz")
    except (UserError, *UNREADABLE) as error:
        print(f"No standard errors where {space.truth} orders the weights: {error}")
        return []
    return refit(blocks, samples.num_chains, seed)


def report(run: Run, results: dict) -> None:
    """Log the curves, save the figures, and print the sparsity that every curve reaches."""
    for part, curves in results["curves"].items():
        for name, curve in curves.items():
            metric = re.sub(r"[^A-Za-z0-9]+", "_", f"{part}_{name}")  # a name that wandb takes
            for kept, accuracy in zip(KEPT_PERCENT, curve["accuracy"], strict=True):
                run.log(kept_percent=kept, **{metric: accuracy})
    weight_figures.pruning.save(run)
    weight_figures.pruning_criteria.save(run)
    weight_figures.sigma_histograms.save(run, results["names"])
    table = sparsity_table(results)
    run.log_records("sparsity", [dict(zip(table.head, row, strict=True)) for row in table.rows])
    run.finish(sparsity_summary(results))
    table.print()
    print(f"\nSaved in {run.directory}")


CONFIG = PruningConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
