"""The choice of device and matmul."""

from utils.runs import compute
from utils.runs.compute import MatmulMeasurement, choose_device, choose_matmul, threads_for
from utils.settings.errors import UserError

import pytest
import torch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _put_precision_back():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def measured(monkeypatch, default, onednn):
    values = {"default": MatmulMeasurement(*default), "onednn": MatmulMeasurement(*onednn)}
    monkeypatch.setattr(compute, "measure_matmuls", lambda: values)


@pytest.mark.parametrize(
    ("onednn", "chosen"),
    [
        ((400, 1e-5), "onednn"),  # faster and as accurate
        ((400, 1e-2), "default"),  # faster because it rounds to bf16
        ((105, 1e-5), "default"),  # within the noise of timing
        ((50, 1e-5), "default"),
    ],
)
def test_the_fastest_accurate_matmul_is_selected(monkeypatch, onednn, chosen):
    measured(monkeypatch, (100, 1e-5), onednn)
    assert choose_matmul(CPU) == chosen
    assert torch.get_float32_matmul_precision() == compute.CANDIDATES[chosen]


def test_a_named_matmul_is_selected_though_it_is_slower(monkeypatch):
    measured(monkeypatch, default=(100, 1e-5), onednn=(10, 2e-5))
    assert choose_matmul(CPU, "onednn") == "onednn"
    assert torch.get_float32_matmul_precision() == "medium"


def test_a_named_matmul_that_rounds_here_is_refused(monkeypatch):
    """As where a run that was begun elsewhere is resumed on a processor with AMX."""
    measured(monkeypatch, default=(100, 1e-5), onednn=(10, 1e-2))
    with pytest.raises(UserError, match=r"'onednn' rounds .* give --matmul default"):
        choose_matmul(CPU, "onednn")


@pytest.mark.parametrize("name", ["auto", "default", "onednn"])
def test_on_a_gpu_full_precision_is_kept(name):
    assert choose_matmul(torch.device("cuda"), name) == "default"
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_chosen_matmul_is_accurate_to_fp32_here():
    choose_matmul(CPU)
    a = torch.randn(500, 784, generator=torch.Generator().manual_seed(0))
    exact = a.double() @ a.double().T
    # fp32 accumulates about sqrt(784) roundings of 6e-8; bf16's are 4e-3
    assert ((a @ a.T - exact).abs().max() / exact.abs().max()).item() < 1e-5


def test_measuring_leaves_the_setting_alone():
    torch.set_float32_matmul_precision("high")
    results = compute.measure_matmuls(rows=50, repeats=1)
    assert torch.get_float32_matmul_precision() == "high"
    assert set(results) == set(compute.CANDIDATES)
    assert all(m.gflops > 0 for m in results.values())


def test_small_products_have_one_thread_and_large_ones_as_many_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for rows, hidden, threads in ((200, 8, 1), (3000, 64, 2)):  # 64: the quick preset's
            with threads_for(2 * rows * 784 * hidden):
                assert torch.get_num_threads() == threads
            assert torch.get_num_threads() == 2
        with pytest.raises(KeyError), threads_for(1):
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_cuda_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(UserError, match="no CUDA device here"):
        choose_device("cuda")


def test_cuda_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == choose_device("cuda").type == "cuda"
    assert choose_device("cpu") == CPU
