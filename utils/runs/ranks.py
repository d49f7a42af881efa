"""Several processes at work on one run, as `torchrun` starts them; one alone is the usual case.

gloo connects ranks on CPUs, nccl on GPUs. Only rank 0 has a run directory. When a rank dies, gloo's
connections to it break, and what the others were waiting for ends them with a clear sentence; from
nccl they would not hear of it, and are ended by torchrun.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from utils.runs.errors import UserError

import torch
import torch.distributed as distributed
from torch import Tensor

# A dead rank breaks its connections at once. One that lives may well let others wait for longer
# than PyTorch's 30 minutes: dense trajectories of several chains, say.
PATIENCE = timedelta(days=1)
MEETING = timedelta(minutes=10)  # for all ranks to start


class Ranks:
    """This process's number among `size`, and what they do together."""

    def __init__(self, number: int = 0, size: int = 1, device: torch.device | None = None):
        self.number, self.size, self._device = number, size, device

    @property
    def first(self) -> bool:
        return self.number == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """`tensor`, made the sum over all ranks; the same bits on each of them."""
        two_on_cpus = self.size == 2 and self._device.type == "cpu"
        return self._together(self._add_other if two_on_cpus else distributed.all_reduce, tensor)

    def share(self, tensor: Tensor, source: int = 0) -> Tensor:
        """`tensor`, made what it is on rank `source`."""
        return self._together(distributed.broadcast, tensor, source)

    def part(self, tensor: Tensor) -> Tensor:
        """This rank's rows of a tensor that every rank has whole."""
        return tensor.tensor_split(self.size)[self.number]

    def _add_other(self, tensor: Tensor) -> None:
        """gloo's all_reduce of two, in a third of its time where the ranks share a machine.

        Between steps that keep all cores busy it waits for several threads of its own to wake.
        """
        other = 1 - self.number
        theirs = torch.empty_like(tensor)
        for message in distributed.isend(tensor, other), distributed.irecv(theirs, other):
            message.wait()
        tensor.add_(theirs)

    def _together(self, operation, tensor: Tensor, *arguments) -> Tensor:
        if self.size == 1:
            return tensor
        moved = tensor.to(self._device)  # nccl knows only tensors on a GPU
        with _other_ranks_alive():
            operation(moved, *arguments)
        return tensor if moved is tensor else tensor.copy_(moved)


ALONE = Ranks()


@contextmanager
def connected(device: torch.device) -> Iterator[Ranks]:
    """The ranks that torchrun started, until the first of them is done; ALONE without it."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield ALONE
        return
    _connect(device)
    ranks = Ranks(distributed.get_rank(), distributed.get_world_size(), device)
    try:
        yield ranks
        ranks.sum(torch.zeros(1))  # wait for the first rank, which has more to do at the end
    finally:
        distributed.destroy_process_group()


def _connect(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    try:
        store, rank, size = next(distributed.rendezvous("env://", timeout=MEETING))
        store.set_timeout(PATIENCE)
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=PATIENCE
        )
    except ValueError as error:
        raise UserError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}, and what else torchrun sets is missing "
            "or wrong: start several processes with torchrun, or unset WORLD_SIZE for one."
        ) from error
    except RuntimeError as error:
        place = ":".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise UserError(
            f"The ranks of this run did not meet at {place}: see that all of them were started, "
            "and that this port is open between the nodes."
        ) from error


@contextmanager
def _other_ranks_alive():
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            "Another rank of this run has ended, so this one cannot go on: see its message above, "
            "and start the same command again with --resume."
        ) from error
