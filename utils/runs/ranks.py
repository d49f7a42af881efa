"""Several processes on one run, as `torchrun` starts them; usually there is only one.

gloo connects ranks on CPUs, nccl on GPUs. Only rank 0 has a run directory. When a rank dies, gloo's
connections to it break, and the other ranks end with a clear sentence. nccl does not notice, so
there torchrun ends the others.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from utils.settings.errors import UserError

import torch
import torch.distributed as distributed
from torch import Tensor

# A dead rank breaks its connections at once. A living one may let others wait for longer than
# PyTorch's default of 30 minutes, for example in dense trajectories of several chains.
PATIENCE = timedelta(days=1)
MEETING = timedelta(minutes=10)  # time for all ranks to start


class Ranks:
    """This process's number among `size`, and their collective operations."""

    def __init__(self, number: int = 0, size: int = 1, device: torch.device | None = None):
        self.number, self.size, self._device = number, size, device

    @property
    def first(self) -> bool:
        return self.number == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its sum over all ranks, with the same bits on each; return it."""
        two_on_cpus = self.size == 2 and self._device.type == "cpu"
        return self._together(self._add_other if two_on_cpus else distributed.all_reduce, tensor)

    def share(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Replace `tensor` by that of rank `source`; return it."""
        return self._together(distributed.broadcast, tensor, source)

    def part(self, tensor: Tensor) -> Tensor:
        """Return this rank's rows of a tensor that every rank has whole."""
        return tensor.tensor_split(self.size)[self.number]

    def _add_other(self, tensor: Tensor) -> None:
        """Add the other rank's tensor, in a third of the time of gloo's all_reduce on one machine.

        Between steps that keep all cores busy, all_reduce waits for its own threads to wake up.
        """
        other = 1 - self.number
        theirs = torch.empty_like(tensor)
        for message in distributed.isend(tensor, other), distributed.irecv(theirs, other):
            message.wait()
        tensor.add_(theirs)

    def _together(self, operation, tensor: Tensor, *arguments) -> Tensor:
        if self.size == 1:
            return tensor
        moved = tensor.to(self._device)  # nccl takes only tensors on a GPU
        with _other_ranks_alive():
            operation(moved, *arguments)
        return tensor if moved is tensor else tensor.copy_(moved)


ALONE = Ranks()


@contextmanager
def connected(device: torch.device) -> Iterator[Ranks]:
    """Yield the ranks that torchrun started, or ALONE; wait at the end for the first of them."""
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
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}, but other variables of torchrun are "
            "missing or wrong: start several processes with torchrun, or unset WORLD_SIZE."
        ) from error
    except RuntimeError as error:
        place = ":".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise UserError(
            f"The ranks of this run did not meet at {place}: check that all of them were started "
            "and that this port is open between the nodes."
        ) from error


@contextmanager
def _other_ranks_alive():
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            "Another rank of this run has ended, so this one cannot go on: see its message above "
            "and start the same command again with --resume."
        ) from error
