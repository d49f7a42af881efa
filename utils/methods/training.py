"""Minibatch training of one network or of a stack of networks side by side.

Every member of a stack has its own initialisation, data order and optimiser state, and ends up
where it would have ended alone. On a CPU the members are spread over the cores, each computed by
one thread: at these sizes a matrix product is too short to be worth sharing, and the result does
not depend on the number of cores. On a GPU the whole stack is one batched product.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from utils.data.batches import data_order
from utils.methods.method import tensors_of
from utils.networks.network import Network
from utils.runs.errors import UserError

import torch
from torch import Tensor
from torch.optim.adam import adam


@dataclass(frozen=True)
class TrainingSettings:
    """How to minimise: mean cross-entropy + ½ prior_precision ‖weights − a‖² / number of points.

    a is 0, or the anchors of the `TrainingState`.
    """

    optimizer: str  # SGD or Adam
    learning_rate: float
    batch_size: int
    momentum: float = 0.9  # of SGD
    prior_precision: float = 0.0


def settings_of(config, prior_precision: float = 0.0) -> TrainingSettings:
    """The settings in a script's `TrainingConfig`."""
    return TrainingSettings(
        config.optimizer, config.learning_rate, config.batch_size, config.momentum, prior_precision
    )


class TrainingState(NamedTuple):
    """K members after `epoch` epochs."""

    weights: Tensor  # [K, d]
    momentum: Tensor  # [K, d]: SGD's momentum, or Adam's mean of the gradient
    second_moment: Tensor | None = None  # [K, d]: Adam's mean of the squared gradient
    epoch: int = 0
    anchors: Tensor | None = None  # [K, d]: means of the members' priors, if not 0

    def clone(self, epoch: int) -> "TrainingState":
        copies = {name: each.clone() for name, each in tensors_of(self).items()}
        return TrainingState(**copies, epoch=epoch)


def start_training(weights: Tensor, settings: TrainingSettings) -> TrainingState:
    """The state before the first step, from initial weights [K, d]."""
    zeros = torch.zeros_like(weights)
    second = torch.zeros_like(weights) if settings.optimizer == "Adam" else None
    return TrainingState(weights.clone(), zeros, second)


def train(
    network: Network,
    state: TrainingState,
    images: Tensor,
    labels: Tensor,
    settings: TrainingSettings,
    *,
    seed: int,
    num_epochs: int,
    streams: Sequence[Hashable] | None = None,
    on_epoch: Callable[[int, int, float], None] = lambda member, epoch, loss: None,
) -> tuple[TrainingState, Tensor]:
    """The state `num_epochs` later, and the training loss [num_epochs, K] along the way.

    Member k's data order in each epoch is drawn from the stream (seed, streams[k], epoch), by
    default streams[k] = k. `on_epoch(member, epoch, loss)` hears of each epoch as it ends.
    """
    num_members = len(state.weights)
    streams = range(num_members) if streams is None else streams
    first, last = state.epoch, state.epoch + num_epochs
    state = state.clone(epoch=last)
    losses = torch.empty(num_epochs, num_members, dtype=torch.float64)

    def train_group(members: slice, epoch: int) -> None:
        orders = [data_order(len(images), seed, stream, epoch) for stream in streams[members]]
        loss = _train_epoch(
            network, state, members, images, labels, settings, torch.stack(orders), epoch
        )
        losses[epoch - first, members] = loss.cpu()

    groups = groups_of(num_members, images.device)
    with _worker_threads(len(groups)) as pool:
        # The pool works first come, first served, so the members advance epoch by epoch.
        running = {pool.submit(train_group, group, first): (group, first) for group in groups}
        while running:
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                done.result()
                group, epoch = running.pop(done)
                check_losses(losses[epoch - first, group], f"epoch {epoch + 1}")
                for member in range(num_members)[group]:
                    on_epoch(member, epoch, losses[epoch - first, member].item())
                if epoch + 1 < last:
                    running[pool.submit(train_group, group, epoch + 1)] = (group, epoch + 1)
    return state, losses


def seconds_per_epoch(
    network: Network, images: Tensor, labels: Tensor, settings: TrainingSettings, num_members: int
) -> float:
    """Measured estimate of the time the stack needs for an epoch, from a few of its steps."""
    points = min(len(images), 40 * settings.batch_size)
    members = min(num_members, 2 * torch.get_num_threads())
    state = start_training(
        torch.zeros(members, network.num_weights, device=images.device), settings
    )
    start = time.perf_counter()
    train(network, state, images[:points], labels[:points], settings, seed=0, num_epochs=1)
    elapsed = time.perf_counter() - start
    return elapsed * (num_members / members) * (len(images) / points)


def check_losses(losses: Tensor, when: str) -> None:
    """Stop a training that has left all numbers behind."""
    if not losses.isfinite().all():
        raise UserError(f"Training diverged in {when}: its loss is no number. Lower learning_rate.")


def groups_of(num_members: int, device: torch.device) -> list[slice]:
    """The members that are computed together: each alone on a CPU, all at once on a GPU."""
    if device.type == "cpu":
        return [slice(k, k + 1) for k in range(num_members)]
    return [slice(0, num_members)]


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


def _train_epoch(
    network: Network,
    state: TrainingState,
    members: slice,
    images: Tensor,
    labels: Tensor,
    settings: TrainingSettings,
    orders: Tensor,
    epoch: int,
) -> Tensor:
    """Train some members of the stack, in place, for an epoch; their mean losses [stack]."""
    stack, num_points = orders.shape
    step = _optimizer_step(network, state, members, settings, num_points, epoch)
    rows = min(settings.batch_size, num_points)
    batch = torch.empty(stack * rows, *images.shape[1:], device=images.device)
    total_nll = torch.zeros(stack, dtype=torch.float64, device=images.device)
    for indices in orders.to(images.device).split(settings.batch_size, dim=1):
        inputs = batch[: indices.numel()]
        torch.index_select(images, 0, indices.flatten(), out=inputs)
        total_nll += step(inputs.unflatten(0, indices.shape), labels[indices])
    return total_nll / num_points


def _optimizer_step(
    network: Network,
    state: TrainingState,
    members: slice,
    settings: TrainingSettings,
    num_points: int,
    epoch: int,
) -> Callable[[Tensor, Tensor], Tensor]:
    """The function (inputs, labels) -> summed NLL [stack] that makes one step."""
    weights, momentum = state.weights[members], state.momentum[members]
    rows = min(settings.batch_size, num_points)
    decay = settings.prior_precision / num_points
    anchors = None if state.anchors is None else state.anchors[members]

    if settings.optimizer == "SGD":
        add_to_velocity = network.gradient(weights, momentum, rows)

        def sgd_step(inputs, labels):
            nll = add_to_velocity(inputs, labels, scale=1 / labels.shape[1], keep=settings.momentum)
            if decay:
                momentum.add_(weights, alpha=decay)
                if anchors is not None:
                    momentum.sub_(anchors, alpha=decay)
                network.zero_buffers(momentum)
            weights.add_(momentum, alpha=-settings.learning_rate)
            return nll.sum(-1)

        return sgd_step

    gradient = torch.empty_like(weights)
    find_gradient = network.gradient(weights, gradient, rows)
    second_moment = state.second_moment[members]
    made = float(epoch * -(-num_points // settings.batch_size))
    steps_done = torch.tensor(made, device=weights.device)

    def adam_step(inputs, labels):
        nll = find_gradient(inputs, labels, scale=1 / labels.shape[1], keep=0)
        if anchors is not None:
            gradient.sub_(anchors, alpha=decay)
        if network.has_buffers:  # the prior is not theirs
            gradient.add_(weights, alpha=decay)
            network.zero_buffers(gradient)
        fused_decay = 0.0 if network.has_buffers else decay
        adam_update(
            weights, gradient, momentum, second_moment, steps_done, settings.learning_rate,
            fused_decay,
        )  # fmt: skip
        return nll.sum(-1)

    return adam_step


def adam_update(
    weights: Tensor,
    gradient: Tensor,
    mean: Tensor,
    second_moment: Tensor,
    steps_done: Tensor,
    learning_rate: float,
    decay: float = 0.0,
) -> None:
    """One step of torch.optim's Adam, in place; `decay` · weights is added to the gradient.

    `steps_done` has to be on the same device, for on a GPU the kernel reads it there.
    """
    adam(
        [weights], [gradient], [mean], [second_moment], [], [steps_done],
        fused=True, amsgrad=False, beta1=0.9, beta2=0.999, lr=learning_rate,
        weight_decay=decay, eps=1e-8, maximize=False,
    )  # fmt: skip
