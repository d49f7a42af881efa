"""Compare posteriors as functions and weight by weight, before and after rebasin.

The paper's Table 1 and Figure 4, and what stands behind them.

    python MNIST_eval.py                        the newest HMC, ensemble and VI runs of the batch
    python MNIST_eval.py --config_name quick    the same with fewer samples, draws and images
    python MNIST_eval.py --hmc runs/default/HMC-MNIST-laptop --vi none
    python MNIST_eval.py --samples mine/samples.npy        [K, d], with network.json beside it

Leaves in its run directory

    table1.json              {column: {row: value}}, with table1_errors.json: standard errors
    predictions.npz          what every column predicts on the test images, and its mean network
    compact.npz              HMC's q_r: mean, std, permutations, transpositions, reference
    compact_<column>.npz     the same of the other rebased columns; low_rank.npz: mean, factor
    weight_space.npz         means and deviations, the ensemble's and VI's in HMC's frame
    diagnostics.json         checks, mixing, correlations, other references, the prior as a null

and figures. If it is stopped while HMC's samples are rebased, `--resume` keeps what is done.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from papers.compact import weight_figures
from papers.compact.tables import (
    CALIBRATION_ROWS,
    PAPERS_ROWS,
    check_tables,
    method_names,
    published_table1,
    score_numbers,
    score_table,
)
from utils.data.datasets import Dataset, load_pixels
from utils.evaluation.alignment import (
    Aligned,
    RebasedSamples,
    align,
    align_again,
    spaced_beside,
    spaced_references,
)
from utils.evaluation.columns import (
    COLUMNS,
    TRUTH,
    Column,
    draw_column,
    make_table,
)
from utils.evaluation.evaluation_record import (
    RebasinRecord,
    save_compact,
    save_predictions,
    save_weight_space,
)
from utils.evaluation.metrics import agreement, total_variation
from utils.evaluation.reference_study import Setting, move_together, study_prior, study_references
from utils.evaluation.standard_errors import Fit, TableErrors, refit_low_rank, refit_moments
from utils.evaluation.weight_study import (
    alive_weights,
    by_group,
    check_dead_pixels,
    choose_watched,
    dead_weights,
    describe_frames,
    mixing,
    num_effective,
    prior_band,
    weight_groups,
)
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities
from utils.posteriors.gaussian import Gaussian, rebase_gaussian
from utils.posteriors.low_rank import LowRank, LowRankFit
from utils.posteriors.moments import Moments, merge_all
from utils.posteriors.sources import (
    NEWEST,
    Samples,
    Sources,
    WeightSpace,
    check_network,
    find_sources,
)
from utils.report.tables import Table
from utils.runs.compute import choose_device
from utils.runs.config import Config, option
from utils.runs.progress import announce, progress_bar
from utils.runs.run import Run, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.symmetry.matching import Matcher, make_matcher
from utils.symmetry.permutation import expected_transpositions
from utils.symmetry.rebasin import iterated_mean

import torch
from torch import Tensor

KIND = "eval"  # of its runs: what their directories begin with


@dataclass(frozen=True, kw_only=True)
class EvalConfig(Config):
    config_name: str = option("laptop", "named settings: configs/MNIST_eval/NAME.yaml")
    # Changeable as paths: what must not change are the runs, which the run remembers.
    hmc: str = option(
        NEWEST, "HMC's run directory, or the newest finished run of the batch", changeable=True
    )
    ensemble: str = option(NEWEST, "the ensemble's run directory, newest, or none", changeable=True)
    vi: str = option(NEWEST, "VI's run directory, newest, or none", changeable=True)
    samples: str | None = option(None, "this samples.npy, network.json beside it, for HMC's")
    discard: float = option(0.0, "share of each chain's samples left out at its start", minimum=0)
    num_samples: int = option(1000, "HMC samples used, at most, evenly spaced", minimum=2)
    num_draws: int = option(100, "weights drawn from each Gaussian for its predictions", minimum=1)
    by_activation: bool = option(True, "rebase by activation, or by weight")
    num_match_images: int | None = option(
        None, "match on the first so many training images; none: on all", minimum=1
    )
    rank: int = option(250, "of the low-rank Gaussian, at most", minimum=1)
    num_blocks: int = option(20, "contiguous blocks of samples, or draws, to resample", minimum=2)
    num_bootstraps: int = option(200, "resamplings behind each standard error", minimum=2)
    num_refits: int = option(40, "Gaussians refitted to resampled blocks of samples", minimum=2)
    refit_draws: int = option(20, "weights drawn from each of them", minimum=1)
    num_references: int = option(5, "samples that others are rebased to, one by one", minimum=1)
    study_samples: int = option(
        100, "samples in the studies of references and of the prior, evenly spaced", minimum=2
    )
    study_images: int = option(
        10000, "training images matched on in the studies, and for the mean reference", minimum=1
    )
    mean_rounds: int = option(3, "of rebasing the study's samples to their own mean", minimum=1)


@dataclass(frozen=True)
class Setup:
    """What every part of the evaluation needs."""

    run: Run
    data: Dataset
    network: Network
    groups: dict[str, Tensor]  # masks [d]
    watched: dict[str, Tensor]  # indices of some weights of every group

    @property
    def config(self) -> EvalConfig:
        return self.run.config

    @property
    def alive(self) -> Tensor:
        return alive_weights(self.groups)

    def matcher_for(self, reference: Tensor) -> Matcher:
        return self._matcher(reference, self.config.num_match_images)

    def study_matcher_for(self, reference: Tensor) -> Matcher:
        return self._matcher(reference, self.config.study_images)

    def _matcher(self, reference: Tensor, num_images: int | None) -> Matcher:
        method = "activation" if self.config.by_activation else "weight"
        return make_matcher(method, self.network, reference, self.data.train_images[:num_images])


def main(config: EvalConfig) -> None:
    device = choose_device(config.device)
    sources = find_sources(config)
    data = load_pixels(config.dataset, config.data_dir, sources.num_train).to(device)
    check_network(sources.network, data, sources.paths["HMC"])
    run = open_run(config, KIND, device, sources.inputs, num_train=sources.num_train)
    if run.finished:
        return
    run.select_matmul()
    setup = set_up(run, data, sources.network)
    announce_work(setup, sources)
    hmc, low_rank = align_hmc(setup, sources)
    others = {name: align_samples(setup, s, name) for name, s in sources.others.items()}
    rebased = RebasedSamples(setup.network, sources.hmc, hmc.transformations, device)
    to_mean = align_to_mean(setup, rebased, sources.hmc.num_blocks(config.num_blocks))
    fits = blocks_by_column(hmc, to_mean, others)
    posteriors = fit_posteriors(setup, fits, low_rank, sources.vi)
    columns = predict_all(setup, hmc, others, posteriors)
    table, errors = score_all(setup, sources, columns, fits, low_rank)
    save_compact(run, hmc, to_mean, others, low_rank)
    save_predictions(run, columns, data.test_labels)
    space = align_methods(setup, hmc, others, posteriors)
    save_weight_space(run, space)
    diagnostics = diagnose(setup, sources, hmc, columns, space.gaussians)
    diagnostics["low_rank"] = describe_rank(low_rank, hmc)
    report(setup, table, errors, diagnostics)


def set_up(run: Run, data: Dataset, network: Network) -> Setup:
    groups = weight_groups(network, dead_weights(network, data.train_images))
    return Setup(run, data, network, groups, choose_watched(groups, run.config.seed))


def announce_work(setup: Setup, sources: Sources) -> None:
    """Time a rebasin and a prediction, and count how many of them are to come."""
    config, device = setup.config, setup.run.device
    weights = sources.hmc[0].to(device)
    matchers = [setup.matcher_for(weights), setup.study_matcher_for(weights)]
    works = [lambda matcher=matcher: matcher(weights) for matcher in matchers]
    works.append(lambda: class_probabilities(setup.network, weights, setup.data.test_images))
    seconds = [seconds_of(work) for work in works]
    samples, studied = len(sources.hmc), min(len(sources.hmc), config.study_samples)
    studies = config.num_references + config.mean_rounds + 1
    counts = (
        samples,
        2 * samples + studied * studies,  # to the mean, and as many networks of the prior at most
        samples + 8 * config.num_draws + config.num_refits * config.refit_draws * 6
        + config.num_references * config.num_draws,
    )  # fmt: skip
    rank = min(config.rank, samples)
    announce(
        setup.run.directory,
        sum(count * each for count, each in zip(counts, seconds, strict=True)),
        more_memory=(16 * 3 * config.num_blocks + 8 * rank + 4 * 64) * len(weights),
        disk_bytes=(4 * rank + 120) * len(weights),
    )


def seconds_of(work: Callable) -> float:
    work()  # the first time is slower
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# ---- samples, and Gaussians fitted to them


def align_hmc(setup: Setup, sources: Sources) -> tuple[Aligned, LowRank]:
    """HMC's samples rebased to the first; what an interrupted run has found is not found again."""
    low_rank, record = LowRankFit(setup.config.rank), RebasinRecord(setup.run, sources.hmc)
    with setup.run.graceful_stop():
        name = sources.label
        hmc = align_samples(setup, sources.hmc, name, low_rank, record.known, record.keep)
    return hmc, low_rank.gaussian()


def align_samples(
    setup: Setup,
    samples: Samples,
    name: str,
    low_rank: LowRankFit | None = None,
    known=(),
    on_sample=lambda aligned: None,
) -> Aligned:
    """Samples rebased to the first of them."""
    reference = samples[0].to(setup.run.device)
    num_blocks = samples.num_blocks(setup.config.num_blocks)
    watched = torch.cat(list(setup.watched.values()))
    with progress_bar(len(samples), f"rebasing {name}", unit="sample") as bar:

        def on_each(aligned: Aligned) -> None:
            bar.update()
            on_sample(aligned)

        return align(
            setup.network, samples, setup.matcher_for(reference), reference,
            setup.data.test_images, num_blocks, watched, low_rank, known, on_each,
        )  # fmt: skip


def blocks_by_column(
    hmc: Aligned, to_mean: Aligned, others: dict[str, Aligned]
) -> dict[str, list[Moments]]:
    """Moments of blocks of samples, of every mean-field Gaussian that is fitted to samples."""
    blocks = {
        "hmc_direct": hmc.direct_blocks,
        "hmc_rebased": hmc.rebased_blocks,
        "hmc_mean_reference": to_mean.rebased_blocks,
    }
    for name, aligned in others.items():
        blocks[f"{name}_direct"] = aligned.direct_blocks
        blocks[f"{name}_rebased"] = aligned.rebased_blocks
    return blocks


def fit_posteriors(
    setup: Setup,
    fits: dict[str, list[Moments]],
    low_rank: LowRank,
    vi: Gaussian | None,
) -> dict:
    """The Gaussian of every column that has one."""
    posteriors = {name: merge_all(blocks).gaussian() for name, blocks in fits.items()}
    posteriors["hmc_low_rank"] = low_rank
    if vi:
        device = setup.run.device
        posteriors["vi"] = Gaussian(vi.mean.to(device), vi.std.to(device))
    return posteriors


def align_to_mean(setup: Setup, rebased: RebasedSamples, num_blocks: int) -> Aligned:
    """Samples rebased to the mean that some of them come to rest around."""
    config, samples = setup.config, list(rebased.spaced(setup.config.study_samples))
    matcher_for = setup.study_matcher_for
    mean = iterated_mean(setup.network, samples, matcher_for, config.mean_rounds).weights
    with progress_bar(len(rebased), "rebasing to the mean", unit="sample") as bar:
        return align_again(setup.network, rebased, matcher_for(mean), mean, num_blocks, bar.update)


def predict_all(
    setup: Setup, hmc: Aligned, others: dict[str, Aligned], posteriors: dict
) -> dict[str, Column]:
    """The columns of the table, in its order."""
    config, data = setup.config, setup.data
    sampled = {"hmc": hmc, **others}
    columns = {f"{name}_sample": aligned.column for name, aligned in sampled.items()}
    for name, posterior in posteriors.items():
        random = generator(config.seed, "draws", name)
        columns[name] = draw_column(
            setup.network, posterior, data.test_images, config.num_draws, config.num_blocks, random
        )
    return {name: columns[name] for name in COLUMNS if name in columns}


def score_all(
    setup: Setup,
    sources: Sources,
    columns: dict[str, Column],
    fits: dict[str, list[Moments]],
    low_rank: LowRank,
) -> tuple[dict, dict]:
    """The table and its standard errors."""
    config, data = setup.config, setup.data
    chains = {name: s.num_chains for name, s in {"hmc": sources.hmc, **sources.others}.items()}
    refits = {
        name: Fit(method, partial(refit_moments, blocks))
        for name, blocks in fits.items()
        for method in chains
        if name.startswith(f"{method}_")
    }
    refits["hmc_low_rank"] = Fit("hmc", partial(refit_low_rank, low_rank, fits["hmc_rebased"]))
    table = make_table(columns, data.test_labels)
    errors = TableErrors(
        columns, data.test_labels, refits, chains, setup.network, data.test_images,
        config.num_bootstraps, config.num_refits, config.refit_draws, config.seed,
    ).table()  # fmt: skip
    setup.run.save_json("table1.json", table)
    setup.run.save_json("table1_errors.json", errors)
    return table, errors


# ---- weight by weight


def align_methods(
    setup: Setup, hmc: Aligned, others: dict[str, Aligned], posteriors: dict
) -> WeightSpace:
    """Every method's Gaussian before rebasin and after, when all are in the frame of HMC's.

    The others' q_r and VI's q are moved there as a whole, with the others' first samples.
    """
    matcher = setup.matcher_for(hmc.reference)
    before, after = {"hmc": posteriors["hmc_direct"]}, {"hmc": posteriors["hmc_rebased"]}
    singles = {"hmc": hmc.reference}
    for name, aligned in others.items():
        before[name] = posteriors[f"{name}_direct"]
        after[name], singles[name] = move_together(
            setup.network, posteriors[f"{name}_rebased"], aligned.reference, matcher
        )
    if "vi" in posteriors:
        before["vi"] = posteriors["vi"]
        after["vi"], _ = rebase_gaussian(setup.network, posteriors["vi"], matcher)
    frames = {"before": before, "after": after}
    return WeightSpace(setup.network, frames, singles, setup.alive)


def diagnose(
    setup: Setup, sources: Sources, hmc: Aligned, columns: dict[str, Column], frames: dict
) -> dict:
    """What diagnostics.json holds."""
    groups, num_chains = setup.network.groups.values(), sources.hmc.num_chains
    watched = {name: len(indices) for name, indices in setup.watched.items()}
    chains = {k: by_group(values, watched, num_chains) for k, values in hmc.watched().items()}
    mixed = {when: mixing(values) for when, values in chains.items()}
    effective = num_effective(mixed["after"], len(sources.hmc))
    moments = {"before": merge_all(hmc.direct_blocks)}
    if setup.config.by_activation:  # by weight dead weights are aligned, too
        moments["after"] = merge_all(hmc.rebased_blocks)
    dead = check_dead_pixels(moments, mixed, frames["before"].get("vi"), ~setup.alive)
    follow_prior = bool(dead["dead_pixels"] and dead["dead_pixels"]["passed"])
    band = prior_band(frames["before"]["hmc"], setup.groups, chains["before"], follow_prior)
    halves = columns[TRUTH].halves()
    return {
        "sources": {kind: str(path) for kind, path in sources.paths.items()},
        "label": sources.label,
        "num_samples": len(sources.hmc),
        "num_chains": num_chains,
        **dead,
        "mixing": mixed,
        **describe_frames(frames, setup.groups, band),
        "transpositions": {
            "along_chain": [each.total_transpositions() for each in hmc.transformations],
            "random": sum(expected_transpositions(group.size) for group in groups),
        },
        "halves_of_hmc": {
            "agreement": agreement(*halves),
            "total_variation": total_variation(*halves),
        },
        **study(setup, sources, hmc, columns, frames["after"], effective),
    }


def describe_rank(low_rank: LowRank, hmc: Aligned) -> dict:
    """How much of the samples' variance its rank lets the low-rank Gaussian keep."""
    whole = merge_all(hmc.rebased_blocks).variance().sum().item()
    kept = low_rank.variance() / whole if whole else 1.0  # of copies of one network
    return {"rank": len(low_rank.factor), "variance_kept": kept}


def study(
    setup: Setup,
    sources: Sources,
    hmc: Aligned,
    columns: dict[str, Column],
    rebased: dict,
    effective: int,
) -> dict:
    """Other references, and the prior as a null, on some of the samples and images.

    HMC's means are worth those of `effective` independent samples.
    """
    config, data, device = setup.config, setup.data, setup.run.device
    setting = Setting(
        setup.network, setup.study_matcher_for, data.test_images, data.test_labels,
        columns[TRUTH].average(), setup.alive, config.num_draws, config.seed,
    )  # fmt: skip
    positions = spaced_references(hmc.watched()["before"], config.num_references)
    chosen = spaced_beside(positions, hmc.watched()["before"], config.study_samples)
    references = {f"sample {p}": sources.hmc[p].to(device) for p in positions if chosen}
    samples = [sources.hmc[position].to(device) for position in chosen]
    with progress_bar(len(references) + 1, "other references", unit="reference") as bar:
        rows = study_references(setting, samples, references, bar.update)
        count = len(samples) or 2
        null = study_prior(setting, hmc.reference, rebased, count, effective)
        bar.update()
    return {
        "study_samples": len(samples),
        "study_positions": chosen,
        "study_images": min(config.study_images, len(data.train_images)),
        "references": rows,
        "prior_networks": null,
    }


# ---- reporting


def report(setup: Setup, table: dict, errors: dict, diagnostics: dict) -> None:
    """Save the figures, and print the table beside the paper's and the checks."""
    run, label = setup.run, diagnostics["label"]
    run.save_json("diagnostics.json", diagnostics)
    if diagnostics["correlations"]["after"]:
        for figure in (weight_figures.weight_means, weight_figures.weight_deviations):
            figure.save(run, method_names(label))
    weight_figures.transpositions_along_chain.save(run)
    published = published_table1(run.config.dataset) if label == "HMC" else {}
    for name, rows in (("table1", PAPERS_ROWS), ("calibration", CALIBRATION_ROWS)):
        run.log_table(name, *score_numbers(table, errors, published, rows, label))
        score_table(table, errors, published, rows, label).print()
    for check in check_tables(diagnostics):
        check.print() if isinstance(check, Table) else print(f"\n{check}")
    run.finish({"table1": table})
    print(f"\nSaved in {run.directory}")


CONFIG = EvalConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
