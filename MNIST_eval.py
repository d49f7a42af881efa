"""Compare posteriors before and after rebasin: paper A's Table 1 and Figure 4.

python MNIST_eval.py                        newest HMC, ensemble and VI runs of the batch
python MNIST_eval.py --hmc runs/default/HMC-MNIST-laptop --samples my/samples.npy
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from utils.alignment import Aligned, align
from utils.compute import choose_device
from utils.config import Config, option
from utils.data import Dataset, load_dataset
from utils.evaluation import bootstrap, draw_column, make_table
from utils.matching import Matcher, make_matcher
from utils.mlp import Network
from utils.runs import Run, open_run, progress_bar, run_script
from utils.seeding import generator
from utils.sources import NEWEST, Samples, locate, open_gaussian, open_samples
from utils.vi import GaussianPosterior


@dataclass(frozen=True, kw_only=True)
class EvalConfig(Config):
    hmc: str = option(NEWEST, "HMC's run directory, or the newest finished run of the batch")
    ensemble: str = option(NEWEST, "the ensemble's; or newest, or none")
    vi: str = option(NEWEST, "VI's; or newest, or none")
    samples: str | None = option(None, "this samples.npy (network.json beside it) for HMC's")
    discard: float = option(0.0, "share of each chain's samples left out at its start", minimum=0)
    num_samples: int = option(1000, "HMC samples used, at most, evenly spaced", minimum=2)
    num_draws: int = option(100, "weights drawn from each Gaussian for its predictions", minimum=1)
    by_activation: bool = option(True, "rebase by activation, or by weight")
    num_match_images: int | None = option(
        None, "match activations on the first so many training images, not on all", minimum=1
    )
    num_blocks: int = option(20, "contiguous blocks of samples that are resampled", minimum=2)
    num_bootstraps: int = option(200, "resamplings behind each standard error", minimum=2)


@dataclass(frozen=True)
class Sources:
    """What is compared; the networks are the same."""

    network: Network
    hmc: Samples
    ensemble: Samples | None
    vi: GaussianPosterior | None
    paths: dict[str, str | None]


def main(config: EvalConfig) -> None:
    device = choose_device(config.device)
    sources = open_sources(config)
    data = load_dataset(config.dataset, config.data_dir).to(device)
    run = open_run(config, "eval", device)
    if run.finished:
        return
    hmc = align_samples(run, sources.network, data, sources.hmc, "HMC")
    ensemble = align_samples(run, sources.network, data, sources.ensemble, "ensemble")
    columns = {
        "hmc_sample": hmc.column,
        "hmc_direct": draws(config, sources.network, data, hmc.direct(), "hmc_direct"),
        "hmc_rebased": draws(config, sources.network, data, hmc.rebased(), "hmc_rebased"),
        "ensemble_sample": ensemble.column,
        "ensemble_direct": draws(config, sources.network, data, ensemble.direct(), "ens_d"),
        "ensemble_rebased": draws(config, sources.network, data, ensemble.rebased(), "ens_r"),
        "vi": draws(config, sources.network, data, sources.vi, "vi"),
    }
    hmc.compact().save(run.path("compact.npz"))
    table = make_table(columns, data.test_labels)
    run.save_json("table1.json", table)
    run.finish(table)
    print(table)
    print(bootstrap(columns, data.test_labels, config.num_bootstraps, config.seed))


def open_sources(config: EvalConfig) -> Sources:
    given = {"HMC": config.hmc, "ensemble": config.ensemble, "VI": config.vi}
    if config.samples:
        given["HMC"] = config.samples
    paths = {kind: locate(config, kind, path) for kind, path in given.items()}
    hmc = open_samples(paths["HMC"], config.discard, config.num_samples)
    ensemble = open_samples(paths["ensemble"]) if paths["ensemble"] else None
    network, vi = open_gaussian(paths["VI"])
    return Sources(hmc.network, hmc, ensemble, vi, paths)


def matcher_for(config: EvalConfig, network: Network, data: Dataset, reference: Tensor) -> Matcher:
    method = "activation" if config.by_activation else "weight"
    return make_matcher(method, network, reference, data.train_images[: config.num_match_images])


def align_samples(
    run: Run, network: Network, data: Dataset, samples: Samples, name: str
) -> Aligned:
    config = run.config
    reference = samples[0].to(run.device)
    with progress_bar(len(samples), f"rebasing {name}", unit="sample") as bar:
        return align(
            network, samples, matcher_for(config, network, data, reference), reference,
            data.test_images, config.num_blocks, torch.arange(3),
            on_sample=lambda aligned: bar.update(),
        )  # fmt: skip


def draws(config, network, data, posterior, name):
    random = generator(config.seed, "draws", name)
    return draw_column(network, posterior, data.test_images, config.num_draws, 20, random)


if __name__ == "__main__":
    run_script(main, EvalConfig, __file__, __doc__)
