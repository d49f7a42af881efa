"""Compare posteriors with one of them, the truth: as functions and weight by weight.

Posteriors are known by names that the user chooses; nothing here depends on what made them.
"""

from dataclasses import dataclass, replace

from utils.data.datasets import Dataset
from utils.evaluation.checks import check_posteriors
from utils.evaluation.limits import find_limits
from utils.evaluation.metrics import scores
from utils.evaluation.predictions import FURTHER, LOW_RANK, SAMPLE, Column, PartPredictions
from utils.evaluation.setting import Setting
from utils.evaluation.standard_errors import MetricValues, TableErrors
from utils.evaluation.views import Views, fit_views, possible_columns, predict_views
from utils.evaluation.ways import WAYS
from utils.evaluation.weight_space import WeightSpace, fit_weight_space
from utils.posteriors.mixture import is_set
from utils.posteriors.posterior import Posterior
from utils.posteriors.prior import Prior
from utils.runs.progress import check_space
from utils.runs.run import Run

from torch import Tensor

NORMAL = Prior()


@dataclass(frozen=True)
class Evaluation:
    """All results; `save` writes them as files."""

    truth: str
    labels: Tensor
    views: Views
    predictions: dict[Column, PartPredictions]
    space: WeightSpace
    table: dict[str, MetricValues]  # by key of the column
    errors: dict[str, MetricValues]
    diagnostics: dict

    def save(self, run: Run, about: dict) -> None:
        """Write table1.json, table1_errors.json, diagnostics.json and all arrays.

        diagnostics.json begins with what `about` says of the posteriors.
        """
        run.save_json("table1.json", self.table)
        run.save_json("table1_errors.json", self.errors)
        run.save_json("diagnostics.json", about | self.diagnostics)
        for name, aligned in self.views.compacts(self.truth).items():
            aligned.compact().save(run.path(f"{name}.npz"))
        if low_rank := self.views.fits.get(Column(self.truth, LOW_RANK)):
            low_rank.posterior.write(run.path("low_rank.npz"))
        self.save_predictions(run)
        self.space.save(run)

    def save_predictions(self, run: Run) -> None:
        """Write averages [N, classes] by column, and `<column>_mean` of networks at the mean."""
        arrays = {column.key: each.average() for column, each in self.predictions.items()}
        for column, each in self.predictions.items():
            if each.mean_network is not None:
                arrays[f"{column.key}_mean"] = each.mean_network
        run.save_arrays("predictions.npz", labels=self.labels, **arrays)


def evaluate(
    candidates: dict[str, Posterior], truth: str, data: Dataset, run: Run, prior: Prior = NORMAL,
    temperature: float = 1.0,
) -> Evaluation:  # fmt: skip
    """Compare all candidates, of one network, with the truth, which is a set of weight vectors.

    `run` has the settings, an EvaluationConfig, and what an interrupted session has found. The
    `prior` is the truth's, tempered, for likelihoods to the power 1 / temperature.
    """
    candidates = {truth: candidates[truth], **candidates}  # the truth comes first
    network, images = candidates[truth].network, data.train_images[:2]
    first = candidates[truth][0].to(images.device)
    further = possible_columns(network, first, images, run.config.further)
    config = replace(run.config, further=further)
    setting = Setting(network, data, config, prior, temperature)
    check_resources(setting, candidates, run)
    views = fit_views(setting, candidates, truth, run)
    predictions = predict_views(setting, candidates, views)
    true_predictions = predictions[Column(truth, SAMPLE)]
    table = {
        column.key: scores(each.compared(true_predictions, data.test_labels))
        for column, each in predictions.items()
    }
    chains = {name: candidates[name].num_chains for name in views.aligned}
    errors = TableErrors(setting, predictions, views.fits, chains, Column(truth, SAMPLE)).table()
    space = fit_weight_space(setting, candidates, truth, views)
    checks = check_posteriors(setting, candidates[truth], views, predictions, space)
    if setting.config.limit_draws:
        checks["limits"] = find_limits(setting, candidates, truth, views, predictions)
    return Evaluation(
        truth, data.test_labels, views, predictions, space, table,
        {column.key: row for column, row in errors.items()}, checks,
    )  # fmt: skip


def check_resources(setting: Setting, candidates: dict[str, Posterior], run: Run) -> None:
    """Refuse what the disk cannot hold, and warn of what the memory cannot.

    Memory grows with the blocks of moments (two of every set, 16 bytes per weight each) and with
    the rank: num_refits, mean_rounds and rank of 0 leave them out.
    """
    config, num_weights = setting.config, setting.network.num_weights
    num_sets = sum(map(is_set, candidates.values()))
    further = {FURTHER[name].way for name in config.further} & set(WAYS)
    num_moments = 2 * num_sets + bool(config.mean_rounds) + len(further)
    blocks = config.num_blocks if config.num_refits else 1
    memory = 16 * num_moments * blocks + 8 * config.rank + 256
    disk = 4 * config.rank + 40 * len(candidates)
    check_space(run.directory, memory_bytes=memory * num_weights, disk_bytes=disk * num_weights)
