"""Published predictions come back in the order of the test images; other files are refused."""

import hashlib

from utils.quality.gold import published_predictions
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch


@pytest.fixture(scope="module")
def made_up():
    """Return predictions with an accuracy of 0.9144, and labels, in the order of the images."""
    random = np.random.default_rng(0)
    labels = random.integers(10, size=10_000)
    chosen = (labels + (np.arange(10_000) >= 9144)) % 10
    table = 0.05 * np.ones((10_000, 10))
    table[np.arange(10_000), chosen] = 0.55
    table += 1e-4 * random.random((10_000, 1)) * (np.arange(10) == 0)
    return table / table.sum(1, keepdims=True), torch.from_numpy(labels)


def write(path, table):
    np.savetxt(path, table, fmt="%.8g")  # compressed by its suffix
    return str(path)


@pytest.mark.parametrize("name", ["probs.csv", "probs.csv.gz"])
def test_the_order_is_undone(made_up, tmp_path, name):
    table, labels = made_up
    order = sorted(range(10_000), key=lambda k: hashlib.md5(f"test{k}".encode()).hexdigest())
    path = write(tmp_path / name, table[order])
    found = published_predictions(path, labels, tmp_path)
    np.testing.assert_allclose(found, table, atol=1e-7)
    torch.testing.assert_close(found.sum(1), torch.ones(10_000, dtype=torch.float64))


def test_another_order_and_other_files_are_refused(made_up, tmp_path):
    table, labels = made_up
    with pytest.raises(UserError, match=r"accuracy of 0\.0"):
        published_predictions(write(tmp_path / "a.csv", table), labels, tmp_path)
    with pytest.raises(UserError, match=r"shape \[3, 10\]"):
        published_predictions(write(tmp_path / "b.csv", table[:3]), labels, tmp_path)
    with pytest.raises(UserError, match="Cannot read"):
        published_predictions(str(tmp_path / "none.csv"), labels, tmp_path)
