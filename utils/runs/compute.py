"""What computes: the device, the kernel of matrix products, compiled code, and how many threads.

PyTorch's CPU builds carry two float32 matrix products, MKL and oneDNN. Which is faster, and whether
oneDNN keeps float32 accuracy when selected by `set_float32_matmul_precision("medium")`, differs
between processors: with AMX it rounds to bfloat16. The default is MKL, which gives the same bits
every time; on request both are timed and checked, and the faster accurate one is used.
"""

import os
import platform
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from utils.settings.config import DEVICES
from utils.settings.errors import UserError

import torch

CANDIDATES = {"default": "highest", "onednn": "medium"}
# A switch must gain more than timing noise, or two equal kernels would alternate between runs.
WORTHWHILE_GAIN = 1.2
# oneDNN and MKL sum in different orders; bfloat16 would be off by a factor of thousands.
ACCURACY_SLACK = 4.0
# Floating-point operations of a product that one thread does in about 0.5 ms. A second thread could
# save half of that, but where it has to wait for a core, as on a busy machine, it costs 2 to 4 ms.
SMALL_PRODUCT = 2e7


class MatmulMeasurement(NamedTuple):
    gflops: float
    error: float  # largest absolute error against float64


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is CUDA if there is one."""
    if name not in DEVICES:
        raise UserError(f"device must be one of {', '.join(DEVICES)}, got {name!r}.")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("There is no CUDA device here: use --device cpu, or auto.")
    return torch.device("cuda" if available and name in ("cuda", "auto") else "cpu")


def processor() -> str:
    """Return the model of this machine's CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def c_compiler() -> list[str]:
    """Return the command of the C compiler: cc, or what the environment variable CC says."""
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def c_compiler_version() -> str | None:
    """Return the first line of the compiler's --version, or None if there is no compiler."""
    try:
        command = [*c_compiler(), "--version"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None
    return next(iter(output.splitlines()), None)


@contextmanager
def threads_for(flops: float) -> Iterator[None]:
    """Compute on one thread within it, if the largest product is too small for several.

    `flops` is the number of floating-point operations of that product: 2 · rows · inputs · outputs.
    """
    threads = torch.get_num_threads()
    if flops <= SMALL_PRODUCT:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def choose_matmul(device: torch.device, name: str = "auto") -> str:
    """Select the kernel called `name`, or with "auto" the fastest accurate one; return its name.

    A resumed run must name the kernel it was begun with, to continue with the same bits.
    """
    if name == "onednn" and device.type == "cpu" and name not in _accurate(measure_matmuls()):
        raise UserError(
            "On this machine the matrix product 'onednn' rounds to less than float32: give "
            "--matmul default, or resume the run where it was begun."
        )
    if device.type != "cpu":
        name = "default"  # on GPUs any other precision rounds the products
    elif name == "auto":
        measured = measure_matmuls()
        name = max(_accurate(measured), key=lambda kernel: measured[kernel].gflops)
        if measured[name].gflops <= WORTHWHILE_GAIN * measured["default"].gflops:
            name = "default"
    torch.set_float32_matmul_precision(CANDIDATES[name])
    return name


def measure_matmuls(rows: int = 1000, repeats: int = 8) -> dict[str, MatmulMeasurement]:
    """Measure speed and error of each kernel on a layer of the paper's network, interleaved."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.rand(rows, 784, generator=random)
    weights = torch.randn(512, 784, generator=random)
    exact = inputs.double() @ weights.double().T
    seconds = dict.fromkeys(CANDIDATES, float("inf"))
    errors = {}
    before = torch.get_float32_matmul_precision()
    for _ in range(repeats):
        for name, precision in CANDIDATES.items():
            torch.set_float32_matmul_precision(precision)
            start = time.perf_counter()
            product = inputs @ weights.T
            seconds[name] = min(seconds[name], time.perf_counter() - start)
            errors[name] = (product - exact).abs().max().item()
    torch.set_float32_matmul_precision(before)
    operations = 2 * inputs.numel() * len(weights)
    return {n: MatmulMeasurement(operations / seconds[n] / 1e9, errors[n]) for n in CANDIDATES}


def _accurate(measured: dict[str, MatmulMeasurement]) -> list[str]:
    limit = ACCURACY_SLACK * measured["default"].error
    return [name for name, measurement in measured.items() if measurement.error <= limit]
