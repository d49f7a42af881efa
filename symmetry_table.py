"""How good is each approximation of the posterior? Paper B's table, against two references.

Table 1 of Laurent et al. (2024): each posterior with one of its modes and with several, beside
independent networks (reference 1) and, if given, HMC on the same network (reference 2). Distances
are unbiased MMD²: of weights as they are and without symmetries ("NS"), and, since in many
dimensions these see little but mean and total variance, of predictions and of sets of hidden units.
The other half of each reference is a row that must lie within the null's band.

    python symmetry_table.py --posteriors swag=PATH dropout=PATH --networks PATH --hmc PATH
    python symmetry_table.py --config_name quick …      few samples and images, in seconds
    python symmetry_table.py --config_name optunet …    settings for OptuNet; also: lenet

Every set of samples leaves its results in sets/, so a stopped run goes on with --resume. Leaves in
its run directory table.json, correlations.json, the figures posterior_quality, quality_and_scores,
reliability_diagrams and confidence (.png and .pdf), and summary.json.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from papers.symmetry import quality_claims, quality_figures, quality_tables
from utils.data.datasets import load_dataset
from utils.evaluation.candidates import check_names, named_paths, open_candidate, warn_of_other_data
from utils.networks.network import Network
from utils.posteriors.posterior import Posterior
from utils.quality.calibration import calibrated_errors, equal_width, reliability
from utils.quality.correlation import grouped_correlation
from utils.quality.forecasts import Forecast, forecast, num_parts
from utils.quality.images import ImageSets, load_test_images
from utils.quality.modes import SampleSet, modes_of, sample_modes
from utils.quality.published import published_predictions
from utils.quality.references import (
    HMC,
    NETWORKS,
    Reference,
    beside,
    beside_errors,
    fit_reference,
    mean_squares,
    reference_paths,
    split_chains,
    split_networks,
)
from utils.quality.scores import quality_errors, quality_scores
from utils.report.paper import print_verdicts
from utils.runs.compute import choose_device
from utils.runs.config import Config, option
from utils.runs.errors import UserError
from utils.runs.files import save_json
from utils.runs.lookup import NEWEST, NONE, PastRun, identify
from utils.runs.progress import check_space, progress_bar
from utils.runs.run import Run, already_finished, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.symmetry.counts import count_symmetries, total

import numpy as np
import torch
from torch import Tensor

KIND = "symmetry_table"
PUBLISHED = "published"
KINDS = {NETWORKS: "sgd", HMC: "HMC"}  # of runs, as reproduce.py and other scripts call them
LEAST_SAMPLES = 4  # for distances
LEAST_CLUSTERS = 4  # for correlations: intervals come from resampling them
HISTOGRAM_BINS = 40
ONE, SEVERAL = "one", "multi"  # modes


@dataclass(frozen=True, kw_only=True)
class TableConfig(Config):
    posteriors: list[str] = option(
        [], "posteriors to compare, each as NAME=PATH of a run; with several modes (--num_modes of "
        "train.py) each has two rows", metavar="NAME=PATH", changeable=True,
    )  # fmt: skip
    networks: str = option(
        NEWEST, "independent networks; newest: the batch's run of train.py --method sgd",
        metavar="DIR", changeable=True,
    )  # fmt: skip
    hmc: str = option(
        NONE, "samples of HMC of the same network; newest: the batch's, none: without",
        metavar="DIR", changeable=True,
    )  # fmt: skip
    published: str = option(
        NONE, "published predictions of HMC for CIFAR10, to compare predictions with: probs.csv, "
        "download or none", metavar="FILE", changeable=True,
    )  # fmt: skip
    ood: str | None = option(
        None,
        "data set out of the distribution, by default the usual one; MNIST-noise-3: corrupted, see "
        "docs/data.md",
        metavar="NAME",
    )
    num_samples: int = option(100, "samples of each row, at most", minimum=LEAST_SAMPLES)
    num_modes: int = option(10, "modes of a row with several", minimum=2)
    num_images: int | None = option(
        None, "images of each kind, at most, evenly spaced; none: all", minimum=20
    )
    num_inputs: int = option(500, "images whose predictions make distances", minimum=2)
    num_permutations: int = option(
        1000, "permutations behind each p value, and resamplings behind correlations", minimum=19
    )
    num_bootstraps: int = option(100, "resamplings behind standard errors", minimum=2)


class Row(NamedTuple):
    """A row of the table: a set of samples, or one for each of some modes, to be averaged."""

    name: str
    modes: str  # ONE or SEVERAL
    sets: list[SampleSet]
    path: Path

    def name_of(self, number: int) -> str:
        return f"{self.name}-{self.modes}-{number:02}"


class Setting(NamedTuple):
    """What every set of samples is compared with."""

    network: Network
    images: ImageSets
    references: list[Reference]
    truths: dict[str, Tensor]  # average predictions by reference
    config: TableConfig


def main(config: TableConfig) -> None:
    device = choose_device(config.device)
    paths = find_inputs(config)
    inputs = {KINDS.get(name, name): identify(path) for name, path in paths.items()}
    if already_finished(config, KIND, inputs):
        return
    candidates = {name: open_candidate(name, name, path, fewest=1) for name, path in paths.items()}
    warn_of_other_data(candidates.values())
    modes = {name: modes_of(each.posterior) for name, each in candidates.items()}
    network = check_network(modes, paths)
    halves = {NETWORKS: split_networks(modes[NETWORKS], config.num_samples, config.seed)}
    if HMC in modes:
        halves[HMC] = split_chains(modes[HMC], config.num_samples, config.seed)
    data = load_dataset(config.dataset, config.data_dir)
    images = load_test_images(network, data, config.ood, config.data_dir, config.num_images)
    run = open_run(config, KIND, device, inputs)
    run.select_matmul()
    check_memory(network, len({NETWORKS, HMC} & set(paths)), run)
    network.save(run.path("network.json"))
    rows = rows_of(modes, halves, paths, config)
    with run.graceful_stop():
        setting = set_up(network, images.to(device), halves, config)
        results = [compare_row(row, setting, run) for row in rows]
        powers = powers_of(setting, halves, run)
    run.save_json("table.json", results)
    results = json.loads(run.path("table.json").read_text())  # with None for what is not known
    run.save_json("correlations.json", correlations(results, config))
    for figure in quality_figures.TABLE:
        figure.save(run)
    run.finish(summary_of(setting, powers))
    for table in quality_tables.quality_tables(results, powers):
        table.print()
    print_verdicts(run, *quality_claims.TABLE)
    print(f"Saved in {run.directory}")


# ---- what is compared


def find_inputs(config: TableConfig) -> dict[str, Path]:
    """Return the paths of both references and of all posteriors, by name."""
    references = reference_paths(config, config.networks, config.hmc)
    posteriors = named_paths(config, config.posteriors)
    check_names(posteriors)
    for name in (NETWORKS, HMC):
        if name in posteriors:
            raise UserError(f"{name} is the name of a reference: give --{name} PATH instead.")
    if config.published != NONE and config.dataset != "CIFAR10":
        raise UserError(f"--published is about CIFAR10, and not {config.dataset}: leave it out.")
    return references | posteriors


def check_network(modes: dict[str, list[Posterior]], paths: dict[str, Path]) -> Network:
    """Return the network of all posteriors; refuse different ones."""
    network = modes[NETWORKS][0].network
    for name, path in paths.items():
        other = modes[name][0].network
        if other != network:
            raise UserError(
                f"{path} is of the network {other}, but {paths[NETWORKS]} of {network}: give "
                "posteriors of one network."
            )
    return network


def check_memory(network: Network, references: int, run: Run) -> None:
    """Say what memory the weights need: of each reference in three spaces, and of a row in two."""
    numbers = (3 * references + 4) * 2 * run.config.num_samples * network.num_weights
    check_space(run.directory, memory_bytes=4 * numbers, disk_bytes=10**7)


def rows_of(
    modes: dict[str, list[Posterior]], halves: dict, paths: dict[str, Path], config: TableConfig
) -> list[Row]:
    """Return the rows: of each posterior one mode and several, and the references' other halves."""
    rows = []
    for name, own in modes.items():
        if name == NETWORKS:
            own = halves[NETWORKS].second.modes
        if name != HMC:
            sets = [
                sample_modes(f"{name} {number}", [mode], config.num_samples, config.seed)
                for number, mode in enumerate(own[: config.num_modes])
            ]
            rows.append(Row(name, ONE, sets, paths[name]))
        if name in halves:
            rows.append(Row(name, SEVERAL, [halves[name].second], paths[name]))
        elif len(own) > 1:
            single = all(hasattr(mode, "num_chains") and len(mode) == 1 for mode in own)
            most = config.num_samples if single else config.num_modes
            sets = [sample_modes(name, own[:most], config.num_samples, config.seed)]
            rows.append(Row(name, SEVERAL, sets, paths[name]))
    return rows


def set_up(network: Network, images: ImageSets, halves: dict, config: TableConfig) -> Setting:
    """Fit both references, and predict with their first halves."""
    (anchor,) = halves[NETWORKS].rest[0].draw(1, generator(config.seed, "anchor"))
    references, truths = [], {}
    for name, (first, *_) in halves.items():
        references.append(fit_reference(
            name, network, first, anchor, images, config.num_inputs, config.num_permutations,
            config.seed,
        ))  # fmt: skip
        parts = num_parts(len(first), len(first.modes))
        truths[name] = forecast(network, first, len(first), parts, images).average
    if config.published != NONE:
        if config.num_images is not None:
            raise UserError("--published is about all test images: leave --num_images out.")
        truths[PUBLISHED] = published_predictions(config.published, images.labels, config.data_dir)
    return Setting(network, images, references, truths, config)


# ---- comparing


def compare_row(row: Row, setting: Setting, run: Run) -> dict:
    """Return a row's results: those of its set, or means over its sets with their errors."""
    results = []
    with progress_bar(len(row.sets), f"{row.name}, {row.modes} mode", unit="set") as bar:
        for number, samples in enumerate(row.sets):
            results.append(kept(run, row.name_of(number), lambda s=samples: compare(s, setting)))
            run.stop_if_asked()
            bar.update()
    about = {"name": row.name, "modes": row.modes, "num_modes": len(row.sets[0].modes)}
    about |= {"samples": len(row.sets[0]), "averaged": len(row.sets)}
    about["training_seconds"] = training_seconds(row, len(row.sets[0].modes))
    if row.modes == SEVERAL:
        return about | results[0]
    return about | averaged(results) | {"points": [without_curves(each) for each in results]}


def kept(run: Run, name: str, compute) -> dict:
    """Return what an earlier session has saved under this name, or compute and save it."""
    path = run.path("sets") / f"{name}.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        save_json(path, compute())
    return json.loads(path.read_text())


def compare(samples: SampleSet, setting: Setting) -> dict:
    """Return all that is measured of a set of samples."""
    network, config = setting.network, setting.config
    started = time.perf_counter()
    weights = samples.weights()
    sampled = time.perf_counter()
    parts = num_parts(len(samples), len(samples.modes))
    prediction = forecast(network, weights, len(samples), parts, setting.images)
    predicted = time.perf_counter()
    enough = len(samples) >= LEAST_SAMPLES
    return {
        "scores": quality_scores(prediction),
        "errors": quality_errors(prediction, config.num_bootstraps, config.seed, samples.name),
        "beside": {
            name: beside(prediction.average, truth) for name, truth in setting.truths.items()
        },
        "beside_errors": {
            name: beside_errors(prediction, truth, config.num_bootstraps, config.seed, samples.name)
            for name, truth in setting.truths.items()
        },
        "distances": {
            reference.name: reference.distances(weights, samples.blocks, network)
            for reference in setting.references
            if enough
        },
        "mean_squares": mean_squares(network, weights),
        "sampling_seconds": sampled - started,
        "prediction_seconds": predicted - sampled,
        **curves(prediction, config.seed),
    }


def curves(prediction: Forecast, seed: int) -> dict:
    """Return the reliability diagram, and histograms of confidence in and out of distribution."""
    bins = reliability(prediction.average, prediction.labels)
    null = calibrated_errors(prediction.average, generator(seed, "calibrated"))
    outside = prediction.outside.parts.mean(0)
    return {
        "reliability": {name: each.tolist() for name, each in bins._asdict().items()},
        "calibrated_ece": [null.mean().item(), null.quantile(0.95).item()],
        "confidence": {
            side: histogram(average).tolist()
            for side, average in (("inside", prediction.average), ("outside", outside))
        },
    }


def histogram(average: Tensor) -> Tensor:
    """Return the shares of images by their largest probability."""
    counts = torch.histc(average.max(-1).values.float().cpu(), HISTOGRAM_BINS, 0, 1)
    return counts / counts.sum()


def averaged(results: Sequence[dict]) -> dict:
    """Return means over modes, with standard errors from their differences; curves likewise."""
    count = len(results)
    scores = {name: [each["scores"][name] for each in results] for name in results[0]["scores"]}
    return {
        "scores": {name: mean_of(values) for name, values in scores.items()},
        "errors": {name: error_of(values) for name, values in scores.items()},
        **{
            part: {
                name: {key: summarise([each["beside"][name][key] for each in results])
                       for key in first}
                for name, first in results[0]["beside"].items()
            }
            for part, summarise in (("beside", mean_of), ("beside_errors", error_of))
        },
        "distances": {
            reference: {
                space: averaged_distance([each["distances"][reference][space] for each in results])
                for space in spaces
            }
            for reference, spaces in results[0]["distances"].items()
        },
        "confidence": {
            side: np.mean([each["confidence"][side] for each in results], 0).tolist()
            for side in ("inside", "outside")
        },
        "reliability": pooled([each["reliability"] for each in results]),
        **{
            name: sum(each[name] for each in results) / count
            for name in ("sampling_seconds", "prediction_seconds")
        },
    }  # fmt: skip


def averaged_distance(distances: list[dict]) -> dict:
    values = [each["value"] for each in distances]
    return {"value": mean_of(values), "error": error_of(values)}


def mean_of(values: list) -> float:
    """Return the mean of numbers; NaN is read back from JSON as None."""
    return float(np.mean([np.nan if value is None else value for value in values]))


def error_of(values: list) -> float:
    values = [np.nan if value is None else value for value in values]
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def pooled(diagrams: list[dict]) -> dict:
    """Return a reliability diagram of all points of several, bin by bin."""
    joined = {name: np.concatenate([each[name] for each in diagrams]) for name in diagrams[0]}
    place = equal_width(torch.from_numpy(joined["confidence"])).numpy()
    sizes = np.bincount(place, joined["sizes"])
    used = sizes > 0
    means = {
        name: (np.bincount(place, joined["sizes"] * joined[name])[used] / sizes[used]).tolist()
        for name in ("confidence", "accuracy")
    }
    return {"sizes": sizes[used].tolist()} | means


def without_curves(result: dict) -> dict:
    return {name: result[name] for name in ("scores", "beside", "distances")}


def training_seconds(row: Row, num_modes: int) -> float | None:
    """Return the seconds of the run that made a posterior, for as many of its modes."""
    run = PastRun(row.path)
    seconds, made = run.meta.get("seconds"), run.config.get("num_modes", 1)
    return None if seconds is None else seconds * min(1.0, num_modes / (made or 1))


# ---- what follows from the rows


def powers_of(setting: Setting, halves: dict, run: Run) -> dict:
    """Return how often planted changes of each reference are found."""
    return {
        reference.name: kept(
            run, f"power-{reference.name}",
            lambda r=reference: r.power(halves[r.name].second.weights()),
        )
        for reference in setting.references
    }  # fmt: skip


def correlations(rows: list[dict], config: TableConfig) -> dict:
    """Correlate distances to the networks with scores: over rows, and over modes of each method.

    The networks themselves are left out, since they are their own reference, and HMC with them.
    """
    rows = [row for row in rows if row["name"] not in (NETWORKS, HMC)]
    points = [
        {"name": row["name"]} | point for row in rows for point in row.get("points", [])
    ]  # fmt: skip
    return {
        "rows": dict(correlate(rows, "modes", [row["name"] for row in rows], config)),
        "modes": dict(correlate(points, "name", list(range(len(points))), config)),
    }


def correlate(
    items: list[dict], group: str, clusters: list, config: TableConfig
) -> Iterator[tuple]:
    """Yield the correlation of each distance with each score, within groups."""
    items, clusters = complete(items, clusters)
    if len(set(clusters)) < LEAST_CLUSTERS:
        return
    groups = [item[group] for item in items]
    for measure in quality_claims.MEASURES:
        if measure not in items[0]["distances"][NETWORKS]:
            continue
        distances = [item["distances"][NETWORKS][measure]["value"] for item in items]
        for score in quality_claims.SCORES:
            values = [item["scores"][score] for item in items]
            found = grouped_correlation(
                distances, values, groups, clusters, np.random.default_rng(config.seed),
                config.num_permutations,
            )  # fmt: skip
            yield f"{measure}/{score}", found._asdict() | {"count": len(items)}


def complete(items: list[dict], clusters: list) -> tuple[list[dict], list]:
    """Return the items that have distances, with their clusters."""
    kept = [k for k, item in enumerate(items) if item["distances"].get(NETWORKS)]
    return [items[k] for k in kept], [clusters[k] for k in kept]


def summary_of(setting: Setting, powers: dict) -> dict:
    symmetries = total(count_symmetries(setting.network))
    inside, outside = len(setting.images.inside), len(setting.images.outside)
    return {
        "network": str(setting.network),
        "ood": setting.images.outside_name,
        "base_rate_in": inside / (inside + outside),
        "base_rate_out": outside / (inside + outside),
        "symmetries_removed": symmetries._asdict(),  # by sorting; rebasin removes the same
        "power": powers,
    }


CONFIG = TableConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
