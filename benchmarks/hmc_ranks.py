"""Seconds per leapfrog step of this process, or of all that torchrun started, for hmc.py.

torchrun --nproc-per-node 2 benchmarks/hmc_ranks.py PROBLEM.npz
"""

import json
import sys
import time

import harness  # noqa: F401 (finds utils)
from utils.methods.hmc.leapfrog import leapfrog
from utils.methods.hmc.potential import Potential
from utils.networks.mlp import MLP
from utils.runs import ranks as parallel
from utils.runs.compute import choose_matmul

import numpy as np
import torch

STEPS = {"dense": 4, "listed": 40}
SETTLING_STEPS = {"dense": 3, "listed": 200}


def main() -> None:
    problem = np.load(sys.argv[1])
    images, labels, weights, momentum = (
        torch.from_numpy(problem[name]) for name in ("images", "labels", "weights", "momentum")
    )
    choose_matmul(torch.device("cpu"), str(problem["matmul"]))
    with parallel.connected(torch.device("cpu")) as ranks:
        seconds = {}
        for force, count in STEPS.items():
            parts = ranks.part(images), ranks.part(labels)
            target = Potential(MLP(tuple(problem["sizes"].tolist())), *parts, force, ranks=ranks)
            times = []
            leapfrog(
                target, weights, momentum, float(problem["step_size"]),
                SETTLING_STEPS[force] + count + 1,
                on_step=lambda times=times: times.append(time.perf_counter()),
            )  # fmt: skip
            settled = np.diff(times[SETTLING_STEPS[force] :])
            seconds[force] = float(settled.mean())
        if ranks.first:
            print(json.dumps(seconds))


if __name__ == "__main__":
    main()
