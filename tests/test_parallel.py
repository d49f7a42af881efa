from utils import parallel

import pytest
import torch


def test_ranks_wait_for_long_transitions_of_others(monkeypatch):
    """PyTorch's 30 minutes would end a run whose ranks are all well."""

    class Asked(Exception):
        pass

    def connect(backend, timeout):
        raise Asked(backend, timeout.total_seconds())

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(parallel.distributed, "init_process_group", connect)
    with pytest.raises(Asked) as asked, parallel.connected(torch.device("cpu")):
        pass
    assert asked.value.args[0] == "gloo"
    assert asked.value.args[1] >= 12 * 3600
