"""Deep ensembles: networks trained independently, each to a mode (MAP) of the posterior."""

from collections.abc import Sequence
from dataclasses import dataclass

from utils.methods.method import Problem, Scores, scores_on
from utils.methods.shared_settings import PriorConfig, TrainingConfig
from utils.methods.training import TrainedMethod, TrainingState, settings_of, train
from utils.networks.predictions import class_probabilities, mean_probabilities
from utils.posteriors.samples import Points
from utils.report.figures import ORANGE, Look
from utils.settings.config import option

import torch

EPOCHS_PER_STEP = 2  # with two epochs of each member to hand out, no core waits for long


@dataclass(frozen=True, kw_only=True)
class EnsembleConfig(TrainingConfig, PriorConfig):
    num_members: int = option(5, "networks in the ensemble", minimum=1)
    optimizer: str = option("Adam", "optimiser of every member", choices=("SGD", "Adam"))
    batch_size: int = option(100, "images per step", minimum=1)


class Ensemble(TrainedMethod):
    name, kind, title = "ensemble", "ensemble", "ensemble"
    look = Look(ORANGE, "--", "s")
    Config = EnsembleConfig

    def modes(self, config) -> list[Sequence[int]]:
        return [range(config.num_members)]

    def stream(self, mode: int):
        return mode

    def step(self, problem: Problem, state: TrainingState, config) -> tuple:
        network, data, first = problem.network, problem.data, state.epoch
        state, losses = train(
            network, state, data.train_images, data.train_labels,
            settings_of(config, problem.prior.precision), seed=config.seed,
            num_epochs=min(EPOCHS_PER_STEP, config.num_epochs - first),
        )  # fmt: skip
        records = [
            {"epoch": epoch} | {f"train_loss_{k}": value for k, value in enumerate(loss)}
            for epoch, loss in enumerate(losses.tolist(), start=first + 1)
        ]
        probabilities = mean_probabilities(network, state.weights, data.test_images)
        scores = scores_on("test", probabilities, data.test_labels)
        return state, [*records, {"epoch": state.epoch} | scores]

    def posterior(self, problem: Problem, state: TrainingState, config) -> Points:
        return Points(state.weights, problem.network, {"modes": state.modes})

    def scores(self, problem: Problem, posterior, config, newest: dict) -> Scores:
        """Score the average prediction, and every member alone."""
        network, data = problem.network, problem.data
        images, labels = data.test_images, data.test_labels
        whole = scores_on("test", mean_probabilities(network, posterior, images), labels)
        members = [
            scores_on("member_test", class_probabilities(network, member, images), labels)
            for member in posterior
        ]
        alone = ([f"member {k}", *one.values()] for k, one in enumerate(members))
        rows = [["ensemble", *whole.values()], *alone]
        summary = {
            **whole,
            **{name: [one[name] for one in members] for name in members[0]},
            "mean_squared_weight": torch.stack(list(posterior)).double().square().mean().item(),
        }
        return Scores(summary, rows)
