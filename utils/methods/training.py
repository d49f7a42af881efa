"""Minibatch training of one network or of a stack of networks side by side.

Every member of a stack has its own initialisation, data order, augmentation and optimiser state,
and ends where it would have ended alone. On a CPU the members are spread over the cores, and each
thread computes as many of them together as the network likes (`members_together`): at these sizes a
matrix product is too short to be shared by threads, and the result does not depend on the number of
cores. On a GPU the whole stack is one batched product.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from utils.data.batches import Batches, PlainBatches
from utils.methods.method import Method, Problem, scores_along
from utils.methods.shared_settings import (
    AugmentationConfig,
    ModesConfig,
    PriorConfig,
    TrainingConfig,
)
from utils.networks.network import Network
from utils.settings.config import option
from utils.settings.errors import UserError

import torch
from torch import Tensor
from torch.optim.adam import adam

SCHEDULES = ("constant", "step", "cosine")


@dataclass(frozen=True)
class TrainingSettings:
    """How to minimise: mean cross-entropy + ½ Σ prior_precision (weights − a)² / number of points.

    a is 0, or the anchors of the `TrainingState`.
    """

    optimizer: str  # SGD or Adam
    learning_rate: float
    batch_size: int
    momentum: float = 0.9  # of SGD
    prior_precision: float | Tensor = 0.0  # or one of every weight [d]
    nesterov: bool = False
    schedule: str = "constant"  # of the learning rate: one of SCHEDULES
    milestones: Sequence[int] = ()  # epochs after which "step" multiplies it by gamma
    gamma: float = 0.1
    num_epochs: int = 0  # after which "cosine" reaches 0

    def learning_rate_at(self, epoch: int) -> float:
        """Return the step size in an epoch, counted from 0."""
        if self.schedule == "step":
            passed = sum(epoch >= milestone for milestone in self.milestones)
            return self.learning_rate * self.gamma**passed
        if self.schedule == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * epoch / self.num_epochs)) / 2
        return self.learning_rate


@dataclass(frozen=True, kw_only=True)
class RecipeConfig(TrainingConfig, PriorConfig, ModesConfig, AugmentationConfig):
    """What methods that train networks for many posteriors have besides."""

    nesterov: bool = option(False, "use Nesterov's momentum with SGD")
    schedule: str = option("constant", "how the learning rate changes", choices=SCHEDULES)
    milestones: list[int] = option([], "epochs after which 'step' changes the learning rate")
    gamma: float = option(0.1, "factor of the learning rate at each milestone", above=0)

    def __post_init__(self):
        super().__post_init__()
        if self.nesterov and self.optimizer != "SGD":
            raise UserError("--nesterov belongs to SGD: leave it out, or give --optimizer SGD.")


def settings_of(config, prior_precision: float | Tensor = 0.0) -> TrainingSettings:
    """Return the settings in a config; those that it does not have are as by default."""
    names = [field.name for field in fields(TrainingSettings)]
    settings = {name: getattr(config, name) for name in names if hasattr(config, name)}
    return TrainingSettings(**settings | {"prior_precision": prior_precision})


class TrainingState(NamedTuple):
    """K members after `epoch` epochs."""

    weights: Tensor  # [K, d]
    momentum: Tensor  # [K, d]: SGD's momentum, or Adam's mean of the gradient
    second_moment: Tensor | None = None  # [K, d]: Adam's mean of the squared gradient
    epoch: int = 0
    anchors: Tensor | None = None  # [K, d]: means of the members' priors, if not 0
    modes: Tensor | None = None  # [K]: the members' numbers, where a method needs them


def start_training(weights: Tensor, settings: TrainingSettings) -> TrainingState:
    """The state before the first step, from initial weights [K, d]."""
    zeros = torch.zeros_like(weights)
    second = torch.zeros_like(weights) if settings.optimizer == "Adam" else None
    return TrainingState(weights.clone(), zeros, second)


def train(
    network: Network, state, images: Tensor, labels: Tensor, settings: TrainingSettings, *,
    seed: int, num_epochs: int, streams: Sequence[Hashable] | None = None,
    batches: Batches | None = None,
    on_epoch: Callable[[int, int, float], None] = lambda member, epoch, loss: None,
    may_diverge: bool = False,
) -> tuple:  # fmt: skip
    """Return the state `num_epochs` later, and the training loss [num_epochs, K] along the way.

    The state is a `TrainingState`, or a method's own that has the first four of its fields.
    Member k's data order in each epoch is drawn from the stream (seed, streams[k], epoch), by
    default streams[k] = k. With `batches`, these are trained on instead of the images as they are.
    `on_epoch(member, epoch, loss)` is called after each epoch. A loss that is no number ends the
    training, unless it `may_diverge`.
    """
    num_members = len(state.weights)
    streams = range(num_members) if streams is None else streams
    first, last = state.epoch, state.epoch + num_epochs
    changed = {name: getattr(state, name) for name in ("weights", "momentum", "second_moment")}
    copies = {name: each.clone() for name, each in changed.items() if each is not None}
    state = state._replace(epoch=last, **copies)
    losses = torch.empty(num_epochs, num_members, dtype=torch.float64)

    def train_group(members: slice, epoch: int) -> None:
        source = batches or PlainBatches(images, labels)
        feed = source.epoch(settings.batch_size, seed=seed, streams=streams[members], epoch=epoch)
        step = _Step(network, state, members, settings, len(images), epoch)
        total = sum(step(inputs, classes).double() for inputs, classes in feed)
        losses[epoch - first, members] = (total / len(images)).cpu()

    groups = groups_of(network, num_members, images.device)
    with _worker_threads(len(groups)) as pool:
        # The pool works first come, first served, so the members advance epoch by epoch.
        running = {pool.submit(train_group, group, first): (group, first) for group in groups}
        while running:
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                done.result()
                group, epoch = running.pop(done)
                if not may_diverge:
                    check_losses(losses[epoch - first, group], f"epoch {epoch + 1}")
                for member in range(num_members)[group]:
                    on_epoch(member, epoch, losses[epoch - first, member].item())
                if epoch + 1 < last:
                    running[pool.submit(train_group, group, epoch + 1)] = (group, epoch + 1)
    return state, losses


class TrainedMethod(Method):
    """A method that trains networks as its config says, such as a `RecipeConfig`."""

    def init(self, problem: Problem, config, modes: Sequence[int]) -> TrainingState:
        start = start_training(self.initial_weights(problem, config, modes), settings_of(config))
        return start._replace(modes=torch.tensor(modes))

    def train_epoch(
        self, problem: Problem, state, config, network: Network | None = None,
        may_diverge: bool = False, **changes,
    ) -> tuple:  # fmt: skip
        """Return the state an epoch later, and the training loss [1, K] along the way.

        `network` stands in for the problem's own, and `changes` for settings of the config.
        """
        data, settings = problem.data, settings_of(config, problem.prior.precision)
        return train(
            network or problem.network, state, data.train_images, data.train_labels,
            replace(settings, **changes), seed=config.seed, num_epochs=1,
            streams=self.streams(state), batches=problem.batches, may_diverge=may_diverge,
        )  # fmt: skip


def epoch_record(problem: Problem, state, losses: Tensor, weights: Tensor, config) -> dict:
    """Return the training loss of an epoch, and the test scores of a network [d] if it is time."""
    record = {"epoch": state.epoch, "train_loss": losses.mean().item()}
    return record | scores_along(problem, weights, state.epoch, config)


class Diverged(UserError):
    """A training whose numbers have grown beyond use."""


def check_losses(losses: Tensor, when: str) -> None:
    """Stop a training that has left all numbers behind."""
    if not losses.isfinite().all():
        raise Diverged(
            f"Training diverged in {when}: its loss is not finite. Lower the learning_rate."
        )


def groups_of(network: Network, num_members: int, device: torch.device) -> list[slice]:
    """Return the members that are computed together: all of them on a GPU."""
    size = network.members_together if device.type == "cpu" else max(num_members, 1)
    starts = range(0, num_members, size)
    return [slice(start, min(start + size, num_members)) for start in starts]


@contextmanager
def _worker_threads(num_tasks: int):
    """A pool with a thread per core, in each of which PyTorch computes with that thread alone."""
    cores = torch.get_num_threads()
    num_workers = min(cores, num_tasks)
    pool = ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)  # part of that setting is shared by all threads


class _Step:
    """Steps of an optimiser in one epoch, for members that are computed together."""

    def __init__(
        self, network: Network, state, members: slice, settings: TrainingSettings,
        num_points: int, epoch: int,
    ):  # fmt: skip
        self._network, self._settings = network, settings
        self._weights, self._momentum = state.weights[members], state.momentum[members]  # [K, d]
        anchors = getattr(state, "anchors", None)
        self._anchors = None if anchors is None else anchors[members]
        self._decay = settings.prior_precision / num_points  # one, or one of every weight [d]
        self._learning_rate = settings.learning_rate_at(epoch)
        # SGD adds the gradient to the momentum within the matrix product
        plain = settings.optimizer == "SGD" and not settings.nesterov
        self._gradient = self._momentum if plain else torch.empty_like(self._weights)
        self._keep = settings.momentum if plain else 0.0
        if settings.optimizer == "Adam":
            self._second_moment = state.second_moment[members]
            steps_done = float(epoch * -(-num_points // settings.batch_size))
            self._steps_done = torch.tensor(steps_done, device=self._weights.device)
            self._update = self._adam
        else:
            self._update = self._sgd if plain else self._nesterov
        rows = min(settings.batch_size, num_points)
        self._find_gradient = network.gradient(self._weights, self._gradient, rows)

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Change weights and momentum in place; return the summed NLL [K] of the batch."""
        nll = self._find_gradient(inputs, labels, scale=1 / labels.shape[1], keep=self._keep)
        self._update()
        return nll.sum(-1)

    def _sgd(self) -> None:
        self._add_decay()
        self._weights.add_(self._momentum, alpha=-self._learning_rate)

    def _nesterov(self) -> None:
        rate, momentum = self._learning_rate, self._settings.momentum
        self._add_decay()
        self._momentum.mul_(momentum).add_(self._gradient)
        self._weights.add_(self._gradient, alpha=-rate)
        self._weights.add_(self._momentum, alpha=-rate * momentum)

    def _adam(self) -> None:
        uniform = not (self._network.has_buffers or isinstance(self._decay, Tensor))
        if not uniform:
            self._add_decay()
        elif self._anchors is not None:
            self._gradient.sub_(self._anchors, alpha=self._decay)
        adam_update(
            self._weights, self._gradient, self._momentum, self._second_moment, self._steps_done,
            self._learning_rate, self._decay if uniform else 0.0,  # the same of all weights
        )  # fmt: skip

    def _add_decay(self) -> None:
        if isinstance(self._decay, Tensor):
            moved = self._weights if self._anchors is None else self._weights - self._anchors
            self._gradient.addcmul_(moved, self._decay)
        elif self._decay:
            self._gradient.add_(self._weights, alpha=self._decay)
            if self._anchors is not None:
                self._gradient.sub_(self._anchors, alpha=self._decay)
            self._network.zero_buffers(self._gradient)


def adam_update(
    weights: Tensor, gradient: Tensor, mean: Tensor, second_moment: Tensor, steps_done: Tensor,
    learning_rate: float, decay: float = 0.0,
) -> None:  # fmt: skip
    """One step of torch.optim's Adam, in place; `decay` · weights is added to the gradient.

    `steps_done` has to be on the same device, for on a GPU the kernel reads it there.
    """
    adam(
        [weights], [gradient], [mean], [second_moment], [], [steps_done],
        fused=True, amsgrad=False, beta1=0.9, beta2=0.999, lr=learning_rate,
        weight_decay=decay, eps=1e-8, maximize=False,
    )  # fmt: skip
