"""Independent networks, each trained from a start of its own: the reference of paper B.

Networks are trained in stacks, and each stack leaves its networks in a directory of its own. So
thousands can be trained by several processes, in any order, and a kill costs the stacks under way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from utils.evaluation.metrics import accuracy
from utils.methods.method import Problem, Scores
from utils.methods.training import RecipeConfig, TrainedMethod, TrainingState, check_losses
from utils.networks.predictions import class_probabilities
from utils.posteriors.samples import KEPT, Points, mark_members
from utils.report.figures import GREY, Look
from utils.settings.config import option
from utils.settings.errors import UserError
from utils.settings.wording import plural

import torch

ACCURACIES = "test_accuracies"  # in members.npz


@dataclass(frozen=True, kw_only=True)
class SGDConfig(RecipeConfig):
    num_modes: int = option(
        10, "independent networks; --resume adds more", minimum=1, may_grow=True
    )
    stack_size: int = option(16, "networks trained side by side", minimum=1)
    min_accuracy: float = option(
        0.0,
        "leave out networks whose test accuracy is below this; they stay on disk, and --resume "
        "with another value chooses again",
        minimum=0, below=1, revisable=True,
    )  # fmt: skip
    num_draws: int = option(100, "networks that the scores average over, at most", minimum=1)


class SGD(TrainedMethod):
    name, kind, title = "sgd", "sgd", "networks"
    look = Look(GREY, "-", "o")
    Config = SGDConfig

    def modes(self, config) -> list[Sequence[int]]:
        starts = range(0, config.num_modes, config.stack_size)
        return [range(first, min(first + config.stack_size, config.num_modes)) for first in starts]

    def step(self, problem: Problem, state: TrainingState, config) -> tuple:
        """Train all networks for an epoch; a run goes on while one of them has not diverged."""
        state, losses = self.train_epoch(problem, state, config, may_diverge=True)
        loss = losses[losses.isfinite()].mean()
        check_losses(loss, f"epoch {state.epoch}")
        return state, [{"epoch": state.epoch, "train_loss": loss.item()}]

    def posterior(self, problem: Problem, state: TrainingState, config) -> Points:
        """Return all networks, with numbers, accuracies and marks of those that have failed."""
        data, network = problem.data, problem.network
        accuracies = [
            accuracy(class_probabilities(network, weights, data.test_images), data.test_labels)
            if weights.isfinite().all()
            else math.nan  # is never enough
            for weights in state.weights
        ]
        members = {"modes": state.modes, ACCURACIES: torch.tensor(accuracies)}
        kept = members[ACCURACIES] >= members[ACCURACIES].new_tensor(config.min_accuracy)
        if not kept.all():
            members[KEPT] = kept
        return Points(state.weights, network, members)

    def choose(self, places: Sequence[Path], config) -> None:
        """Leave out networks that have learnt nothing, as the published recipe does."""
        for place in places:
            mark_members(place, ACCURACIES, config.min_accuracy)

    def scores(self, problem: Problem, posterior, config, newest: dict) -> Scores:
        if not len(posterior):
            raise UserError(
                f"No network of {config.num_modes} is as accurate as {config.min_accuracy}: "
                "give a lower --min_accuracy with --resume, which trains nothing, or change the "
                "recipe."
            )
        scores = super().scores(problem, posterior, config, newest)
        failed = config.num_modes - len(posterior)
        summary = scores.summary | {"networks": len(posterior), "failed": failed}
        remark = plural(len(posterior), "network")
        if config.min_accuracy:
            remark += f"; {failed or 'none'} less accurate than {config.min_accuracy}"
            if failed:
                remark += " and left out (--resume with a lower --min_accuracy takes them in)"
        elif failed:
            remark += f"; {failed} diverged and left out"
        return scores._replace(summary=summary, remarks=[remark])
