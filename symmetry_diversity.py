"""Are independent networks different functions, and equally different in and out of distribution?

Figure 3 of Laurent et al. (2024): the mutual information of all pairs of independent networks (in
nats, from 0 for equal predictions to ln 2) on test images and on images of another data set. To
give the numbers a scale, the same for two copies of one network that were trained on apart, and
with --hmc for samples of one chain and of two.

    python symmetry_diversity.py                         the batch's run of train.py --method sgd
    python symmetry_diversity.py --networks PATH --hmc PATH
    python symmetry_diversity.py --config_name quick     a few networks and images, in seconds

Leaves in its run directory diversity.npz, the figures functional_collapse and diversity_scale (.png
and .pdf), and summary.json.
"""

import time
from dataclasses import dataclass

from papers.symmetry.collapse import (
    SIDES,
    compare_pairs,
    each_pair,
    means_of_groups,
    predict_all,
    variation,
)
from papers.symmetry.paper import PAPER
from papers.symmetry.plan import made_by
from utils.data.datasets import Dataset, load_dataset
from utils.methods.training import TrainingSettings, start_training, train
from utils.networks.registry import inputs_for
from utils.posteriors.files import Members, open_members
from utils.posteriors.prior import Prior, prior_of
from utils.quality.correlation import pair_correlation
from utils.quality.diversity import pairs_of, pairwise_disagreement, pairwise_mutual_information
from utils.quality.forecasts import ImageSets, evenly_spaced, load_test_images
from utils.quality.references import ReferenceConfig, reference_paths
from utils.report.paper import conclude
from utils.runs.lookup import PastRun, identify
from utils.runs.progress import check_space
from utils.runs.run import Run, begin, open_run
from utils.runs.script import run_script
from utils.settings.config import option
from utils.settings.errors import UserError

import numpy as np
import torch

KIND = "symmetry_diversity"
INPUT_KINDS = {"networks": "sgd", "hmc": "HMC"}  # of runs, by option


@dataclass(frozen=True, kw_only=True)
class DiversityConfig(ReferenceConfig):
    num_networks: int = option(1000, "networks, at most, of each set", minimum=4)
    num_images: int = option(2000, "images of each kind, at most, evenly spaced", minimum=2)
    num_copies: int = option(10, "networks that are fine-tuned twice, at most", minimum=1)
    num_train: int | None = option(
        None, "training images to fine-tune on; none: those that the networks have seen", minimum=1
    )
    num_epochs: int = option(1, "epochs of fine-tuning", minimum=1)
    learning_rate: float = option(0.01, "step size of fine-tuning, by SGD", above=0)
    batch_size: int = option(64, "images per step", minimum=1)
    num_permutations: int = option(200, "permutations of the Mantel test", minimum=1)


def main(config: DiversityConfig) -> None:
    paths = reference_paths(config, made_by(config.config_name))
    inputs = {INPUT_KINDS[name]: identify(path) for name, path in paths.items()}
    device = begin(config, KIND, inputs)
    networks = limited(open_members(paths["networks"]), config.num_networks)
    if not networks.independent or len(networks.weights) < 4:
        raise UserError(
            f"{paths['networks']} has no set of at least 4 independent networks: give one of "
            "train.py --method sgd with --networks."
        )
    network = networks.network
    past = PastRun(paths["networks"])
    num_train = config.num_train or past.data.get("num_train")
    data = load_dataset(config.dataset, config.data_dir, num_train)
    images = load_test_images(network, data, config.ood, config.data_dir, config.num_images)
    run = open_run(config, KIND, device, inputs)
    network.save(run.path("network.json"))
    results, summary = compare_networks(networks, images.to(device), run)
    prior = prior_of(past.config, network, len(data.train_labels))
    results |= compare_copies(networks, data, prior, images.to(device), config)
    if "hmc" in paths:
        results |= compare_chains(open_members(paths["hmc"]), networks, images.to(device), run)
    run.save_arrays("diversity.npz", ood=images.outside_name, **results)
    summary |= {"ood": images.outside_name, "groups": means_of_groups(results)}
    conclude(run, PAPER, summary, records={"pairs": summary["groups"]})


# ---- what is compared


def limited(members: Members, most: int) -> Members:
    """Return at most so many members: whole chains' evenly spaced draws, or the first networks."""
    chains, draws, _ = members.weights.shape
    if members.independent:
        return members._replace(weights=members.weights[:most])
    kept = evenly_spaced(draws, max(1, most // chains))
    return members._replace(weights=members.weights[:, kept])


# ---- comparing them


def compare_networks(members: Members, images: ImageSets, run: Run) -> tuple[dict, dict]:
    """Return arrays of all pairs of independent networks, and what the summary says of them."""
    weights, config = members.weights.flatten(0, 1), run.config
    memory = 12 * len(weights) * members.network.num_classes * config.num_images
    check_space(run.directory, memory + 100 * len(weights) ** 2, disk_bytes=16 * len(weights) ** 2)
    started = time.perf_counter()
    pairs = compare_pairs(members.network, weights, images)
    seconds = time.perf_counter() - started
    arrays = {}
    for side in SIDES:
        arrays[side] = pairs_of(pairs.information[side]).numpy()
        arrays[f"{side}_disagreement"] = pairs_of(pairs.disagreement[side]).numpy()
    random = np.random.default_rng(config.seed)
    matrices = [pairs.information[side].numpy() for side in SIDES]
    summary = {
        "networks": len(weights),
        "images": len(images.inside),
        "seconds": seconds,
        **{side: variation(pairs, side) for side in SIDES},
        "correlation": pair_correlation(*matrices, random, config.num_permutations)._asdict(),
        "correlation_with_disagreement": {
            side: pair_correlation(
                pairs.information[side].numpy(), pairs.disagreement[side].numpy(), random, draws=20
            )._asdict()
            for side in SIDES
        },
    }
    return arrays, summary


def compare_copies(
    members: Members, data: Dataset, prior: Prior, images: ImageSets, config: DiversityConfig
) -> dict[str, np.ndarray]:
    """Fine-tune some networks twice, in different orders of the images, and compare the copies.

    The prior is the networks' own.
    """
    network, weights = members.network, members.weights.flatten(0, 1)[: config.num_copies]
    settings = TrainingSettings(
        "SGD", config.learning_rate, config.batch_size, momentum=0.0,
        prior_precision=prior.precision,
    )  # fmt: skip
    start = weights.repeat_interleave(2, 0).to(images.inside.device)
    streams = [("copies", k, copy) for k in range(len(weights)) for copy in (0, 1)]
    inputs = inputs_for(network, data).to(start.device)
    state, _ = train(
        network, start_training(start, settings), inputs.train_images, inputs.train_labels,
        settings, seed=config.seed, num_epochs=config.num_epochs, streams=streams,
    )  # fmt: skip
    arrays = {}
    for side in SIDES:
        predictions = predict_all(network, state.weights, getattr(images, side)).unflatten(
            0, (-1, 2)
        )
        arrays[f"copies_{side}"] = each_pair(predictions, pairwise_mutual_information)
        arrays[f"copies_{side}_disagreement"] = each_pair(predictions, pairwise_disagreement)
    return arrays


def compare_chains(
    chains: Members, networks: Members, images: ImageSets, run: Run
) -> dict[str, np.ndarray]:
    """Compare samples of one chain, and of two different ones."""
    if chains.network != networks.network:
        raise UserError(
            f"--hmc is of the network {chains.network}, but --networks of {networks.network}."
        )
    chains = limited(chains, run.config.num_networks)
    weights = chains.weights.flatten(0, 1)
    numbers = torch.arange(len(chains.weights)).repeat_interleave(chains.weights.shape[1])
    first, second = torch.triu_indices(len(weights), len(weights), offset=1)
    same = numbers[first] == numbers[second]
    arrays, pairs = {}, compare_pairs(chains.network, weights, images)
    for side in SIDES:
        for suffix, matrices in (("", pairs.information), ("_disagreement", pairs.disagreement)):
            values = pairs_of(matrices[side])
            for name, chosen in (("one_chain", same), ("two_chains", ~same)):
                if chosen.any():
                    arrays[f"{name}_{side}{suffix}"] = values[chosen].numpy()
    return arrays


CONFIG = DiversityConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
