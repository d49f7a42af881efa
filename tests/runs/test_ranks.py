import os
import socket
import subprocess
import sys
from datetime import timedelta

from tests.conftest import REPOSITORY
from utils.runs import ranks as parallel
from utils.settings.errors import UserError

import pytest
import torch
import torch.distributed as distributed


@pytest.fixture
def asked(monkeypatch):
    """How PyTorch is asked to connect rank 3 of 4, the second one of its machine."""

    class Asked(Exception):
        pass

    def ask(device):
        chosen = [0]  # the GPU that is a process's own unless it chooses another one

        def connect(backend, timeout, rank, world_size, **others):
            raise Asked((backend, rank, world_size, chosen[-1]), timeout)

        meet = iter([(distributed.HashStore(), 3, 4)])
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("LOCAL_RANK", "1")
        monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
        monkeypatch.setattr(parallel.distributed, "rendezvous", lambda *where, timeout: meet)
        monkeypatch.setattr(parallel.distributed, "init_process_group", connect)
        with pytest.raises(Asked) as asked, parallel.connected(torch.device(device)):
            pass
        return asked.value.args

    return ask


@pytest.mark.parametrize(("device", "expected"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_gloo_connects_processors_and_nccl_gpus(asked, device, expected):
    """Each rank of a machine with a GPU of its own, which it takes before it meets the others."""
    (backend, *place, gpu), _ = asked(device)
    assert backend == expected
    assert place == [3, 4]
    assert gpu == (1 if device == "cuda" else 0)


def test_ranks_wait_for_long_transitions_of_others(asked):
    """PyTorch's 30 minutes would end a run whose ranks are all well."""
    _, timeout = asked("cpu")
    assert timeout.total_seconds() >= 12 * 3600


SUM = """
import os, sys, torch
from utils.runs import ranks as parallel
with parallel.connected(torch.device("cpu")) as ranks:
    values = torch.rand(1001, generator=torch.Generator().manual_seed(ranks.number))
    print(ranks.sum(values).double().sum().item(), values[7].item())
"""


@pytest.mark.parametrize("size", [2, 3])
def test_sums_over_ranks_are_the_same_on_all_of_them(size):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY),
    }  # fmt: skip
    command = [sys.executable, "-c", SUM]
    started = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(size)
    ]
    outputs = {process.communicate(timeout=120)[0] for process in started}
    assert all(process.returncode == 0 for process in started)
    assert len(outputs) == 1
    each = [torch.rand(1001, generator=torch.Generator().manual_seed(k)) for k in range(size)]
    expected = torch.stack(each).double().sum(0)
    found = [float(word) for word in outputs.pop().split()]
    assert found == pytest.approx([expected.sum().item(), expected[7].item()], rel=1e-6)


@pytest.mark.parametrize("size", ["2", "two"])
def test_a_world_without_torchrun_is_told_in_a_sentence(monkeypatch, size):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(UserError, match=f"WORLD_SIZE is '{size}'.*torchrun"):
        parallel.connected(torch.device("cpu")).__enter__()


def test_ranks_that_do_not_meet_are_told_in_a_sentence(monkeypatch):
    monkeypatch.setattr(parallel, "MEETING", timedelta(seconds=1))
    with socket.socket() as nobody:  # the port is taken, and nothing listens there
        nobody.bind(("127.0.0.1", 0))
        port = str(nobody.getsockname()[1])
        environment = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1"}
        for name, value in (environment | {"MASTER_PORT": port}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match=f"did not meet at 127.0.0.1:{port}"):
            parallel.connected(torch.device("cpu")).__enter__()
