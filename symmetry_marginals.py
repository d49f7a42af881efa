"""Which hidden unit holds the largest weight? Under the exact posterior each does equally often.

The corollary of Laurent et al. (2024), and its check on their poster: the marginals of all units of
a layer are the same. Counted over independent networks and over the draws of chains: as they are,
with each network's units shuffled, and after rebasin to the first network. Shuffling makes any
sampler pass, so what is tested is whether a sampler changes the order of units. Weights that the
data leave open, as those behind dead pixels, can hide that it does not; --key last_layer compares
units by weights that matter.

    python symmetry_marginals.py                        the batch's newest HMC and ensemble runs
    python symmetry_marginals.py --posteriors DE=runs/default/sgd-MNIST-optunet HMC=runs/laptop/…

Takes seconds to minutes. Leaves in its run directory marginals.json, the figure
largest_weights.png and .pdf, and summary.json.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from papers.symmetry.paper import PAPER
from papers.symmetry.plan import made_by
from utils.evaluation.evaluate import named_or_newest, sets_option
from utils.posteriors.files import Members, open_members
from utils.rebasin.rebase import rebase
from utils.rebasin.weight_matching import WeightMatcher
from utils.report.paper import conclude
from utils.runs.lookup import identify
from utils.runs.progress import progress_bar
from utils.runs.run import begin, open_run
from utils.runs.script import run_script
from utils.runs.seeding import generator
from utils.settings.config import Config, option
from utils.settings.errors import UserError
from utils.symmetry.normal_forms import KEYS
from utils.symmetry.transformation import random_transformation
from utils.symmetry.unit_order import largest_units, uniformity

import torch
from torch import Tensor

KIND = "symmetry_marginals"
MARGINAL_VIEWS = ("as they are", "shuffled", "rebased")


@dataclass(frozen=True, kw_only=True)
class MarginalsConfig(Config):
    posteriors: list[str] = sets_option()
    key: str = option(
        "largest", "what the unit is chosen by: the largest of its incoming |w| as in the paper, "
        "their norm or mean, or its weight to the first class", choices=KEYS,
    )  # fmt: skip


def main(config: MarginalsConfig) -> None:
    paths = named_or_newest(config, made_by(config.config_name))
    inputs = {name: identify(path) for name, path in paths.items()}
    device = begin(config, KIND, inputs)
    posteriors = {name: open_members(path) for name, path in paths.items()}
    check_units(posteriors)
    run = open_run(config, KIND, device, inputs)
    results = {
        name: count_largest(members, name, config.seed, config.key)
        for name, members in posteriors.items()
    }
    run.save_json("marginals.json", results)
    summary = without_counts(results)
    conclude(run, PAPER, summary, records={"tests": summary})


def check_units(posteriors: dict[str, Members]) -> None:
    for name, members in posteriors.items():
        if not members.network.groups:
            raise UserError(f"{name} is of the network {members.network} without hidden units.")
        if max(math.prod(members.network.units(group)) for group in members.network.groups) < 2:
            raise UserError(
                f"{name} is of the network {members.network} with one unit in each layer, which "
                "always holds the largest weight: a layer needs at least two."
            )


def count_largest(members: Members, name: str, seed: int, key: str) -> dict:
    """Return the test of every group of two or more units in every view of a posterior."""
    network, groups = members.network, {}
    views = dict(views_of(members, name, seed))
    for group in network.groups:
        size = math.prod(network.units(group))
        if size < 2:
            continue  # a single unit always holds the largest weight
        groups[group] = {
            view: uniformity(largest_units(network, weights, group, key).numpy(), size)
            for view, weights in views.items()
        }
    return {"independent": members.independent, "groups": groups}


def views_of(members: Members, name: str, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights as they are, shuffled, and rebased to the first network."""
    yield MARGINAL_VIEWS[0], members.weights
    rows = members.weights.flatten(0, 1)
    orders = random_transformation(
        members.network, generator(seed, "shuffle", name), log_scale=0, stack=(len(rows),)
    )
    yield MARGINAL_VIEWS[1], orders.apply(rows).view_as(members.weights)
    matcher = WeightMatcher(members.network, rows[0])
    with progress_bar(len(rows), f"rebasin of {name}", unit="network", items=rows) as bar:
        rebased = [rebase(members.network, row, matcher).weights for row in bar]
    yield MARGINAL_VIEWS[2], torch.stack(rebased).view_as(members.weights)


def without_counts(results: dict) -> dict:
    """Leave only the numbers that fit a summary."""
    return {
        f"{name}/{group}/{view}": {key: test[key] for key in test if key != "counts"}
        for name, result in results.items()
        for group, views in result["groups"].items()
        for view, test in views.items()
    }


CONFIG = MarginalsConfig

if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
