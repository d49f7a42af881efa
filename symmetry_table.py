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
from dataclasses import dataclass
from pathlib import Path

from papers.symmetry import quality_claims
from papers.symmetry.paper import PAPER
from papers.symmetry.plan import made_by
from utils.data.datasets import load_dataset
from utils.evaluation.evaluate import (
    check_names,
    named_paths,
    open_candidate,
    warn_of_other_posteriors,
)
from utils.networks.network import Network
from utils.quality.comparison import LEAST_SAMPLES, Standard, compare_row, fit_references
from utils.quality.correlation import distances_and_scores, orders_by_reference
from utils.quality.forecasts import ImageSets, load_test_images
from utils.quality.gold import published_predictions
from utils.quality.references import (
    HMC_SAMPLES,
    INDEPENDENT,
    Halves,
    ReferenceConfig,
    reference_paths,
    split_chains,
    split_networks,
)
from utils.quality.rows import Trained, open_modes, rows_of, with_derived
from utils.report.paper import conclude
from utils.runs.files import read_mapping, save_json
from utils.runs.lookup import LEFT_OUT, identify
from utils.runs.progress import check_space, progress_bar
from utils.runs.run import Run, begin, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.settings.config import option
from utils.settings.errors import UserError
from utils.symmetry.counts import count_symmetries, total

from torch import Tensor

KIND = "symmetry_table"
PUBLISHED = "published"
INPUT_KINDS = {HMC_SAMPLES: "chain"}  # of runs, as reproduce.py calls them


@dataclass(frozen=True, kw_only=True)
class TableConfig(ReferenceConfig):
    posteriors: list[str] = option(
        [], "posteriors to compare, each as NAME=PATH of a run; with several modes (--num_modes of "
        "train.py) each has two rows", metavar="NAME=PATH", changeable=True,
    )  # fmt: skip
    published: str = option(
        LEFT_OUT, "published predictions of HMC for CIFAR10, to compare predictions with: "
        "probs.csv, download or none", metavar="FILE",
    )  # fmt: skip
    num_samples: int = option(100, "samples of each row, at most", minimum=LEAST_SAMPLES)
    num_modes: int = option(10, "modes of a row with several", minimum=2)
    num_images: int | None = option(
        None, "images of each kind, at most, evenly spaced; none: all", minimum=20
    )
    num_inputs: int = option(500, "images whose predictions make distances", minimum=2)
    num_permutations: int = option(
        1000, "permutations behind each p value, and resamplings behind correlations", minimum=99
    )
    num_bootstraps: int = option(100, "resamplings behind standard errors", minimum=2)


def main(config: TableConfig) -> None:
    paths = find_inputs(config)
    inputs = {INPUT_KINDS.get(name, name): identify(path) for name, path in paths.items()}
    device = begin(config, KIND, inputs)
    candidates = {name: open_candidate(name, name, path, fewest=1) for name, path in paths.items()}
    trained = {name: open_modes(paths[name], each.posterior) for name, each in candidates.items()}
    network = check_network(trained, paths)
    halves = split_references(trained, config)
    data = load_dataset(config.dataset, config.data_dir)
    warn_of_other_posteriors(candidates.values(), len(data.train_labels))
    images = load_test_images(network, data, config.ood, config.data_dir, config.num_images)
    published = read_published(images.labels, config)  # first: it may be missing
    run = open_run(config, KIND, device, inputs)
    # weights: each reference in three spaces, and a row in two
    numbers = (3 * len(halves) + 4) * 2 * config.num_samples * network.num_weights
    check_space(run.directory, memory_bytes=4 * numbers, disk_bytes=10**7)
    network.save(run.path("network.json"))
    with run.graceful_stop():
        standard = prepare(network, images.to(device), halves, published, config)
        rows = compare_all(trained, halves, standard, run)
        powers = powers_of(standard, halves, run)
    finish(rows, summary_of(standard, powers), run)


# ---- what is compared


def find_inputs(config: TableConfig) -> dict[str, Path]:
    """Return the paths of both references and of all posteriors, by name."""
    references = reference_paths(config, made_by(config.config_name))
    posteriors = named_paths(config, config.posteriors)
    check_names(posteriors)
    for name in (INDEPENDENT, HMC_SAMPLES):
        if name in posteriors:
            raise UserError(f"{name} is the name of a reference: give --{name} PATH instead.")
    if config.published != LEFT_OUT and config.dataset != "CIFAR10":
        raise UserError(f"--published is about CIFAR10, and not {config.dataset}: leave it out.")
    if config.published != LEFT_OUT and config.num_images is not None:
        raise UserError("--published is about all test images: give --num_images none.")
    return references | posteriors


def check_network(trained: dict[str, Trained], paths: dict[str, Path]) -> Network:
    """Return the network of all posteriors; refuse different ones."""
    network = trained[INDEPENDENT].modes[0].network
    for name, path in paths.items():
        other = trained[name].modes[0].network
        if other != network:
            raise UserError(
                f"{path} is of the network {other}, but {paths[INDEPENDENT]} of {network}: give "
                "posteriors of one network."
            )
    return network


def split_references(trained: dict[str, Trained], config: TableConfig) -> dict[str, Halves]:
    most, seed = config.num_samples, config.seed
    halves = {INDEPENDENT: split_networks(trained[INDEPENDENT].modes, most, seed)}
    if HMC_SAMPLES in trained:
        halves[HMC_SAMPLES] = split_chains(trained[HMC_SAMPLES].modes, most, seed)
    else:
        print(
            "Independent networks are the only reference: distances say how far posteriors are "
            "from them, not from the true posterior. --hmc adds HMC."
        )
    return halves


def read_published(labels: Tensor, config: TableConfig) -> dict[str, Tensor]:
    """Return the published predictions by name, if they are asked for."""
    if config.published == LEFT_OUT:
        return {}
    return {PUBLISHED: published_predictions(config.published, labels, config.data_dir)}


def prepare(
    network: Network, images: ImageSets, halves: dict[str, Halves], published: dict[str, Tensor],
    config: TableConfig,
) -> Standard:  # fmt: skip
    (anchor,) = halves[INDEPENDENT].rest[0].draw(1, generator(config.seed, "anchor"))
    standard = fit_references(
        network, images, halves, anchor, config.num_inputs, config.num_permutations,
        config.num_bootstraps, config.seed,
    )  # fmt: skip
    return standard._replace(truths=standard.truths | published)


# ---- comparing


def compare_all(
    trained: dict[str, Trained], halves: dict[str, Halves], standard: Standard, run: Run
) -> list[dict]:
    """Return the results of all rows; those of an earlier session are read."""
    config = run.config
    rows = rows_of(with_derived(trained), halves, config.num_samples, config.num_modes, config.seed)
    with progress_bar(sum(len(row.sets) for row in rows), "table", unit="set") as bar:

        def keep(name: str, compute) -> dict:
            result = kept(run, name, compute)
            bar.update()
            return result

        return [compare_row(row, standard, keep) for row in rows]


def kept(run: Run, name: str, compute) -> dict:
    """Return what an earlier session has saved under this name, or compute and save it."""
    path = run.path("sets") / f"{name}.json"
    if not path.exists():
        run.stop_if_asked()
        path.parent.mkdir(exist_ok=True)
        save_json(path, compute())
    return read_mapping(path)


def powers_of(standard: Standard, halves: dict[str, Halves], run: Run) -> dict:
    """Return how often planted changes of each reference are found."""
    return {
        reference.name: kept(
            run, f"powers-{reference.name}",
            lambda r=reference: r.power(halves[r.name].second.weights(), run.config.num_modes),
        )
        for reference in standard.references
    }  # fmt: skip


# ---- results


def finish(rows: list[dict], summary: dict, run: Run) -> None:
    """Save, draw and print the results."""
    config = run.config
    run.save_json("table.json", rows)
    rows = json.loads(run.path("table.json").read_text())  # with None for what is not known
    run.save_json("correlations.json", correlations(rows, config))
    conclude(run, PAPER, summary, records={"posteriors": rows})


def correlations(rows: list[dict], config: TableConfig) -> dict:
    """Relate distances to scores, beside the networks and under "hmc" beside HMC; orders of rows.

    The orders of rows by distance to either reference are compared in every space.
    """
    draws, seed = config.num_permutations, config.seed
    measures, scores = quality_claims.DISTANCES, tuple(quality_claims.SCORES)
    related = distances_and_scores(rows, measures, scores, draws, seed)
    if any(row["name"] == HMC_SAMPLES for row in rows):
        beside = distances_and_scores(rows, measures, scores, draws, seed, HMC_SAMPLES)
        related |= {HMC_SAMPLES: beside}
    return related | {"orders": orders_by_reference(rows, measures, draws, seed)}


def summary_of(standard: Standard, powers: dict) -> dict:
    symmetries = total(count_symmetries(standard.network))
    images = standard.images
    inside, outside = len(images.inside), len(images.outside)
    return {
        "network": str(standard.network),
        "ood": images.outside_name,
        "base_rate_in": inside / (inside + outside),
        "base_rate_out": outside / (inside + outside),
        "symmetries_removed": symmetries._asdict(),  # by sorting; rebasin removes the same
        "power": {name: found["halves"] for name, found in powers.items()},
        "power_of_modes": {name: found["modes"] for name, found in powers.items()},
    }


CONFIG = TableConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
