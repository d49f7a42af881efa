"""checkpoints.py: sets of networks written, read by others and by us, and what is refused."""

import json
import re
import sys
import types
from pathlib import Path

from tests.conftest import REPOSITORY, Ended
from utils.data.datasets import load_dataset
from utils.networks.safetensors import open_tensors
from utils.posteriors.files import open_posterior

import numpy as np
import pytest
import torch

TOY = (
    "--method", "sgd", "--config_name", "quick", "--num_train", "200", "--num_epochs", "1",
    "--num_modes", "3", "--stack_size", "2",
)  # fmt: skip
NETWORKS = {
    "optunet": ("--network", "optunet", "--normalise"),
    "lenet": ("--network", "lenet", "--width", "3"),
    "mlp": ("--hidden_sizes", "6", "5"),
}


@pytest.fixture
def checkpoints(run_here, data_dir):
    """Run a command of checkpoints.py to its end."""

    def run(*words) -> Ended:
        data = ["--data_dir", data_dir] if words[:1] == ("export",) else []
        return run_here([REPOSITORY / "checkpoints.py", *words, *data])

    return run


pytestmark = pytest.mark.usefixtures("few_test_images")


@pytest.fixture
def toy_run(script, tmp_path):
    def make(name: str = "mlp") -> Path:
        done = script("train", *TOY, *NETWORKS[name])
        assert done.returncode == 0, done.stderr
        return tmp_path / "default" / "sgd-MNIST-quick"

    return make


@pytest.fixture
def without_the_package(monkeypatch):
    """Stand in for safetensors.torch.load_file, which the project does not need."""
    module = types.ModuleType("safetensors.torch")

    def load_file(path):
        file = open_tensors(Path(path))
        return {name: file.tensor(name) for name in file.entries}

    module.load_file = load_file
    monkeypatch.setitem(sys.modules, "safetensors", types.ModuleType("safetensors"))
    monkeypatch.setitem(sys.modules, "safetensors.torch", module)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_card_loads_what_was_exported(
    name, toy_run, checkpoints, without_the_package, tmp_path, data_dir
):
    run, out = toy_run(name), tmp_path / "set"
    done = checkpoints("export", run, "--out_dir", out)
    assert done.returncode == 0, done.stderr
    text = (out / "README.md").read_text()
    ours, theirs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    images = load_dataset("MNIST", data_dir).test_images[:50] / 255
    normalised = re.search(r"less ([\d.]+) and divided by ([\d.]+)\.", text)
    assert bool(normalised) == (name == "optunet")
    if normalised:
        images = (images - float(normalised[1])) / float(normalised[2])
    logits = []
    for code, shape in ((ours, (1, 28, 28)), (theirs, (1, 28, 28))):
        flat = name == "mlp" and code is ours
        names = {"DIRECTORY": str(out), "images": images.view(50, *((784,) if flat else shape))}
        exec(code, names)
        logits.append(names["logits"].detach())
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
    original, posterior = open_posterior(run), open_posterior(out)
    for ours, theirs in zip(original, posterior, strict=True):
        assert torch.equal(ours.half().float(), theirs)
    assert str(tmp_path) not in text
    rows = np.genfromtxt(out / "networks.csv", delimiter=",", names=True)
    assert rows["number"].tolist() == [0, 1, 2]
    kept = np.concatenate([np.load(path)["test_accuracies"] for path in
                           sorted(run.glob("mode-*/members.npz"))])  # fmt: skip
    np.testing.assert_allclose(rows["test_accuracy"], kept, atol=2e-2)  # rounded to float16
    assert f"| {100 * rows['test_accuracy'].min():.2f} |" in text


def test_there_and_back_in_tars(toy_run, checkpoints, tmp_path):
    run = toy_run()
    done = checkpoints("export", run, "--tar", "--dtype", "float32", "--out_dir", tmp_path / "tars")
    assert done.returncode == 0, done.stderr
    tars = sorted((tmp_path / "tars").iterdir())
    assert [path.name for path in tars] == ["mlp-MNIST-0-2.tgz"]
    done = checkpoints("import", *tars, "--out_dir", tmp_path / "back")
    assert "Imported 3 networks" in done.stdout
    for ours, theirs in zip(open_posterior(run), open_posterior(tmp_path / "back"), strict=True):
        assert torch.equal(ours, theirs)


def test_every_script_takes_an_imported_set(toy_run, checkpoints, script, tmp_path):
    checkpoints("export", toy_run(), "--out_dir", tmp_path / "set")
    done = script(
        "MNIST_eval", "--config_name", "quick", "--hmc", tmp_path / "set", "--ensemble", "none",
        "--vi", "none", "--num_draws", "4", "--num_match_images", "100", "--num_blocks", "2",
        "--rank", "2", "--num_bootstraps", "2", "--num_refits", "2", "--refit_draws", "2",
        "--num_references", "2", "--study_samples", "3", "--study_images", "50",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = script("symmetry_mass", "--config_name", "quick", "--posterior", tmp_path / "set")
    assert done.returncode == 0, done.stderr


def refused(done: Ended, sentence: str) -> None:
    assert done.returncode == 2
    assert re.search(sentence, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("checkpoints: ")


def test_mistakes_end_in_a_sentence(toy_run, checkpoints, tmp_path):
    run, out = toy_run(), tmp_path / "set"
    refused(checkpoints(), "required: export|import")
    refused(checkpoints("export", tmp_path / "none"), "does not exist: give a run")
    assert checkpoints("export", run, "--out_dir", out).returncode == 0
    refused(checkpoints("export", run, "--out_dir", out), "exists already: remove it")
    file, again = out / "networks.safetensors", tmp_path / "again"
    lenet = ("--network", "lenet", "--out_dir", again)
    refused(checkpoints("import", file, *lenet), "not a state_dict of lenet")
    refused(checkpoints("import", tmp_path / "x.tar", *lenet), r"x.tar does not exist")
    refused(checkpoints("import", file, "--width", 3, "--out_dir", again), "give their --network")
    zero = ("--network", "lenet", "--width", 0, "--out_dir", again)
    refused(checkpoints("import", file, *zero), "a width of at least 1")
    file.write_bytes(file.read_bytes()[:-1])
    refused(checkpoints("import", file, "--out_dir", again), "is damaged")
    (tmp_path / "empty").mkdir()
    refused(checkpoints("import", tmp_path / "empty", "--out_dir", again), "has no safetensors")
    assert not again.exists()
    assert not list(tmp_path.glob(".*unfinished"))


def test_a_damaged_shard_is_named(toy_run, checkpoints, tmp_path):
    run = toy_run()
    shard = run / "mode-001" / "samples.npy"
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    refused(
        checkpoints("export", run, "--out_dir", tmp_path / "set"),
        r"Weight vector 0 in .*mode-001.samples.npy is not the one that was saved",
    )
    shard.write_bytes(content[:300])
    remedy = r"Cannot read the samples .* Remove .*mode-001 and DONE beside it"
    refused(checkpoints("export", run, "--out_dir", tmp_path / "set"), remedy)
    (run / "config.yaml").unlink()  # as of networks that were imported
    refused(checkpoints("export", run, "--out_dir", tmp_path / "set"), "Copy or make .* again")
    assert json.loads((run / "posterior.json").read_text()) == {"class": "Mixture", "parts": 2}
