import socket
from datetime import timedelta

from utils import parallel
from utils.config import UserError

import pytest
import torch
import torch.distributed as distributed


def test_ranks_wait_for_long_transitions_of_others(monkeypatch):
    """PyTorch's 30 minutes would end a run whose ranks are all well."""

    class Asked(Exception):
        pass

    def connect(backend, timeout, **others):
        raise Asked(backend, timeout.total_seconds())

    meet = iter([(distributed.HashStore(), 0, 2)])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(parallel.distributed, "rendezvous", lambda *where, timeout: meet)
    monkeypatch.setattr(parallel.distributed, "init_process_group", connect)
    with pytest.raises(Asked) as asked, parallel.connected(torch.device("cpu")):
        pass
    assert asked.value.args[0] == "gloo"
    assert asked.value.args[1] >= 12 * 3600


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
