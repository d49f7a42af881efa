"""Chains on two real processes."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

from tests.conftest import REPOSITORY, script_command
from tests.toy_chains import FIXED, TOY, records, wait_for_records
from utils.methods.hmc.method import HMCConfig, check_sharing
from utils.runs.ranks import Ranks
from utils.settings.errors import UserError

import numpy as np
import pytest


def rank_environment(rank: int, port: int) -> dict:
    return os.environ | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def start_ranks(command: list[str]) -> list[subprocess.Popen]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        subprocess.Popen(
            command, env=rank_environment(rank, port), cwd=REPOSITORY, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip


def run_ranks(tmp_path, data_dir, *arguments) -> None:
    ranks = start_ranks(script_command(tmp_path, data_dir, "MNIST_HMC", *arguments))
    errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors


def torchrun(tmp_path, data_dir, *arguments) -> subprocess.CompletedProcess:
    script = script_command(tmp_path, data_dir, "MNIST_HMC", *arguments)[1:]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, "--nproc-per-node", "2", *script],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_sharded_data_give_the_same_chain(script, tmp_path, data_dir):
    arguments = (
        *TOY, "--hidden_sizes", 64, "--anchored_epochs", 100, "--force", "listed",
        "--safe_margin", 10, "--num_burnin", 2, "--num_steps", 30, "--step_size", 0.001,
    )  # fmt: skip
    alone = script("MNIST_HMC", *arguments, "--run_name", "alone")
    assert alone.returncode == 0, alone.stderr
    run_ranks(tmp_path, data_dir, *arguments, "--run_name", "both", "--parallel", "data")
    runs = [tmp_path / "default" / f"HMC-MNIST-quick-{name}" for name in ("alone", "both")]
    one, two = (np.load(run / "samples.npy") for run in runs)
    np.testing.assert_allclose(one, two, rtol=0, atol=2e-3)
    for first, second in zip(*(records(run) for run in runs), strict=True):
        assert first["accepted"] == second["accepted"]
        assert first["delta_energy"] == pytest.approx(second["delta_energy"], abs=0.02)
    rows = [np.mean([r["list_rows"] for r in records(run)]) for run in runs]
    assert rows[1] == pytest.approx(rows[0], rel=0.1)
    assert rows[0] < 400  # of 600 images


def test_chains_on_ranks_are_the_chains_of_one_process(script, tmp_path, data_dir):
    arguments = (*TOY, "--num_burnin", 2, "--num_chains", 3)
    alone = script("MNIST_HMC", *arguments, "--run_name", "alone")
    assert alone.returncode == 0, alone.stderr
    both = torchrun(tmp_path, data_dir, *arguments, "--run_name", "both", "--parallel", "chains")
    assert both.returncode == 0, both.stderr
    runs = [tmp_path / "default" / f"HMC-MNIST-quick-{name}" for name in ("alone", "both")]
    one, two = (np.load(run / "samples.npy") for run in runs)
    np.testing.assert_allclose(one, two, rtol=0, atol=2e-3)
    assert np.abs(one[:8] - one[8:16]).max() > 1
    steps = json.loads((runs[1] / "summary.json").read_text())["leapfrog_steps"]
    *_, (made, planned) = re.findall(r"(\d+)/(\d+) \[", both.stderr)
    assert int(made) == steps == pytest.approx(int(planned), rel=0.1)


def test_ranks_go_on_where_one_process_was_stopped(script, stopped_script, tmp_path, data_dir):
    """In the fifth step of the third chain's sixth transition; all chains make theirs again."""
    arguments = (*FIXED, "--num_chains", 4, "--num_samples", 3, "--run_name")
    alone = script("MNIST_HMC", *arguments, "alone")
    assert alone.returncode == 0, alone.stderr
    stopped_script(12 * (4 * 5 + 2) + 5, "MNIST_HMC", *arguments, "both")
    for sharing in ("data", "chains"):
        place = tmp_path / sharing
        shutil.copytree(tmp_path / "default", place / "default")
        run_ranks(place, data_dir, *arguments, "both", "--parallel", sharing, "--resume")
        runs = [place / "default" / f"HMC-MNIST-quick-{name}" for name in ("alone", "both")]
        one, two = (np.load(run / "samples.npy") for run in runs)
        np.testing.assert_allclose(one, two, rtol=0, atol=2e-3)
        before, after = (records(run) for run in runs)
        assert after[:20] == before[:20]
        assert [(r["iteration"], r["chain"]) for r in after] == [
            (r["iteration"], r["chain"]) for r in before
        ]


def test_a_dead_rank_ends_the_other_and_one_rank_can_go_on(script, tmp_path, data_dir):
    """From the last transition that was finished, long after the last checkpoint."""
    arguments = (*TOY, "--num_samples", 40, "--checkpoint_seconds", 1000, "--parallel", "data")
    command = script_command(tmp_path, data_dir, "MNIST_HMC", *arguments)
    ranks = start_ranks(command)
    directory = tmp_path / "default" / "HMC-MNIST-quick"
    try:
        wait_for_records(directory / "metrics.jsonl", 6)
        ranks[1].kill()
        _, errors = ranks[0].communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[0].returncode == 2
    assert "Another rank of this run has ended" in errors
    assert "Traceback" not in errors
    before = records(directory)
    resumed = script("MNIST_HMC", *arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "this is the only process" in resumed.stdout
    after = records(directory)
    assert len(before) >= 6
    assert f"after iteration {len(before)}" in resumed.stdout
    assert after[: len(before)] == before
    assert len(after) == 44


def test_ctrl_c_of_ranks_is_a_stop_and_no_death(tmp_path, data_dir):
    arguments = (*TOY, "--num_steps", 1000000, "--step_size", 1e-5, "--parallel", "data")
    ranks = start_ranks(script_command(tmp_path, data_dir, "MNIST_HMC", *arguments))
    trace = tmp_path / "default" / "HMC-MNIST-quick" / "trace.jsonl"
    try:
        deadline = time.monotonic() + 120
        while not trace.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)
        ranks[1].send_signal(signal.SIGSTOP)  # so that the first waits for it when it hears
        time.sleep(0.5)
        ranks[0].send_signal(signal.SIGINT)
        ranks[1].kill()
        _, errors = ranks[0].communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[0].returncode == 130
    assert "Go on with: torchrun" in errors
    assert "Another rank" not in errors


def test_what_the_first_rank_refuses_is_said_once(tmp_path, data_dir):
    finished = tmp_path / "default" / "HMC-MNIST-quick"
    finished.mkdir(parents=True)
    for name in ("config.yaml", "DONE"):
        (finished / name).write_text("seed: 0")
    ranks = start_ranks(script_command(tmp_path, data_dir, "MNIST_HMC", *TOY, "--parallel", "data"))
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2]
    assert "holds a finished run" in errors[0]
    assert not errors[1]


@pytest.mark.parametrize(
    ("sharing", "chains", "sentence"),
    [("none", 1, "give --parallel data"), ("chains", 1, "2 processes need --num_chains 2")],
)
def test_several_processes_need_something_to_share(sharing, chains, sentence):
    config = HMCConfig(num_steps=5, parallel=sharing, num_chains=chains)
    with pytest.raises(UserError, match=sentence):
        check_sharing(config, Ranks(0, 2))
