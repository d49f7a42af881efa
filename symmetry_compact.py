"""Does a Gaussian describe networks better once scales are removed as well as the order of units?

Xiao et al. (2023) fit a Gaussian for each weight to networks as they are (q_d) and after rebasin
(q_r). Hidden ReLU units have scales, too (Laurent et al. 2024). Here both Gaussians are fitted to
networks as they are, with incoming weights of norm 1, and at their minimum mass. Networks drawn
from each are compared with the networks themselves.

    python symmetry_compact.py                        the batch's newest HMC and ensemble runs
    python symmetry_compact.py --posteriors HMC=runs/laptop/HMC-MNIST-laptop
    python symmetry_compact.py --config_name quick    fewer draws, fewer images to match by

Takes a minute for each posterior of 100 networks. Leaves in its run directory compact.json and
summary.json.
"""

from dataclasses import dataclass

from papers.symmetry.paper import PAPER
from papers.symmetry.plan import made_by
from utils.data.datasets import Dataset, load_dataset
from utils.evaluation.evaluate import named_or_newest, sets_option
from utils.evaluation.metrics import accuracy, closeness
from utils.networks.network import Network
from utils.networks.predictions import class_probabilities, mean_probabilities
from utils.networks.registry import inputs_for
from utils.posteriors.files import Members, open_members
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.moments import fit_blocks
from utils.rebasin.matching import MATCHINGS, make_matcher
from utils.rebasin.rebase import move, rebase_all
from utils.report.paper import conclude
from utils.runs.lookup import PastRun, identify
from utils.runs.progress import progress_bar
from utils.runs.run import begin, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.settings.config import Config, option
from utils.settings.errors import UserError
from utils.symmetry.mass import minimum_mass, scalable_groups
from utils.symmetry.normal_forms import NormalForm, unit_norm

import numpy as np
from torch import Tensor

KIND = "symmetry_compact"
SCALINGS = {"as they are": None, "unit norm": unit_norm, "minimum mass": minimum_mass}


@dataclass(frozen=True, kw_only=True)
class CompactConfig(Config):
    posteriors: list[str] = sets_option()
    matching: str = option("contribution", "how to rebase", choices=MATCHINGS)
    num_match_images: int = option(10_000, "training images to match by, at most", minimum=1)
    num_draws: int = option(50, "networks drawn from a Gaussian for a prediction", minimum=1)
    num_repeats: int = option(4, "such predictions, for standard errors", minimum=2)


def main(config: CompactConfig) -> None:
    paths = named_or_newest(config, made_by(config.config_name))
    inputs = {name: identify(path) for name, path in paths.items()}
    device = begin(config, KIND, inputs)
    posteriors = {name: open_members(path) for name, path in paths.items()}
    for name, members in posteriors.items():
        scalable_groups(members.network)  # refuse networks without scales
        if members.weights[..., 0].numel() < 2:
            raise UserError(f"{name} is a single network: a Gaussian needs two or more.")
    data = load_dataset(config.dataset, config.data_dir)
    run = open_run(config, KIND, device, inputs)
    results = {}
    for name, members in posteriors.items():
        num_train = PastRun(paths[name]).data.get("num_train")
        ready = inputs_for(members.network, data).to(device)
        images = ready.train_images[:num_train][: config.num_match_images]
        results[name] = compare_gaussians(members, name, ready, images, config)
    run.save_json("compact.json", results)
    conclude(run, PAPER, {"columns": results}, records={"gaussians": mean_scores(results)})


# ---- Gaussians


def compare_gaussians(
    members: Members, name: str, data: Dataset, images: Tensor, config: CompactConfig
) -> dict:
    """Return scores of q_d and q_r for every treatment of scales, beside the networks' own."""
    network, weights = members.network, members.weights.flatten(0, 1).to(images.device)
    truth = mean_probabilities(network, weights, data.test_images)
    own = accuracy(truth, data.test_labels)
    results = {"networks": len(weights), "accuracy": own, "scales": {}}
    with progress_bar(len(SCALINGS) * 2, name, unit="Gaussian") as bar:
        for scales, normal_form in SCALINGS.items():
            rows = [scaled(network, row, normal_form) for row in weights]
            matcher = make_matcher(config.matching, network, rows[0], images)
            rebased = (each.weights for each in rebase_all(network, rows, matcher))
            results["scales"][scales] = {}
            for key, chosen in {"q_d": rows, "q_r": rebased}.items():
                posterior = fit_blocks(chosen, len(rows))[0].gaussian(network)
                results["scales"][scales][key] = score_draws(posterior, truth, data, config)
                bar.update()
    return results


def scaled(network: Network, weights: Tensor, normal_form: NormalForm | None) -> Tensor:
    """Return a network in a normal form, which is computed in float64."""
    if normal_form is None:
        return weights
    weights = weights.double()
    return move(weights, normal_form(network, weights)).float()


# ---- scores


def score_draws(posterior: Gaussian, truth: Tensor, data: Dataset, config: CompactConfig) -> dict:
    """Return each score in every repeat, and the accuracy of the one network at the mean.

    Repeats draw the same noise for every Gaussian, so differences between Gaussians are paired.
    """
    repeats = []
    for number in range(config.num_repeats):
        draws = posterior.draw(config.num_draws, generator(config.seed, "draws", number))
        predicted = mean_probabilities(posterior.network, draws, data.test_images)
        repeats.append(
            closeness(predicted, truth) | {"accuracy": accuracy(predicted, data.test_labels)}
        )
    at_mean = class_probabilities(posterior.network, posterior.mean, data.test_images)
    scores = {name: [each[name] for each in repeats] for name in repeats[0]}
    return scores | {"mean_accuracy": [accuracy(at_mean, data.test_labels)]}


def mean_scores(results: dict) -> list[dict]:
    """Return a record for every Gaussian, with the means of its scores."""
    return [
        {"posterior": name, "scales": scales, "gaussian": key}
        | {score: float(np.mean(values)) for score, values in scores.items()}
        for name, result in results.items()
        for scales, gaussians in result["scales"].items()
        for key, scores in gaussians.items()
    ]


CONFIG = CompactConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
