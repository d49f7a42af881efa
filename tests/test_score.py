"""score.py and `checkpoints.py gold`: a run of HMC published, and predictions scored beside it."""

import json
import re
import shlex
import shutil

from tests.conftest import REPOSITORY
from utils.quality.gold import read_gold

import numpy as np
import pytest


@pytest.fixture
def command(run_here, data_dir):
    """Run a command to its end."""
    return lambda file, *words: run_here([REPOSITORY / file, *words, "--data_dir", data_dir])


@pytest.fixture(scope="module")
def chain(evaluated):
    """Two toy chains of eight samples each."""
    return evaluated / "default" / "HMC-MNIST-quick"


@pytest.fixture
def gold(chain, command, tmp_path):
    arguments = ("--name", "toy", "--out_dir", tmp_path, "--preliminary")
    done = command("checkpoints.py", "gold", chain, *arguments)
    assert done.returncode == 0, done.stderr
    return tmp_path / "toy.npz"


def scores(command, tmp_path, gold, *files):
    out = tmp_path / "scores.json"
    done = command(
        "score.py", *files, "--gold", gold, "--num_draws", 16, "--num_bootstraps", 4, "--out", out
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(out.read_text())


def test_hmc_beside_itself_and_others(gold, chain, command, tmp_path):
    other = chain.with_name("VI-MNIST-quick")
    said, found = scores(command, tmp_path, gold, chain, other)
    own, vi = (found["scores"][str(path)] for path in (chain, other))
    assert own["values"]["agreement"] > 0.999  # but for float16
    assert own["values"]["total_variation"] < 1e-3
    summary = json.loads((chain / "summary.json").read_text())
    assert own["values"]["nll"] == pytest.approx(summary["test_nll"], rel=1e-3)
    assert 0.1 < vi["values"]["agreement"] < 1
    assert 0 < vi["errors"]["total_variation"] < 0.3
    assert f"agreement {found['floor']['agreement']:.4f}" in said
    assert "toy is preliminary" in said


def test_predictions_in_another_order(gold, command, tmp_path):
    rows = read_gold(gold).predictions.average().numpy()
    order = np.random.default_rng(0).permutation(len(rows))
    np.savez(tmp_path / "mine.npz", probabilities=rows[order])
    said, found = scores(command, tmp_path, gold, tmp_path / "mine.npz")
    (only,) = found["scores"].values()
    assert only["values"]["agreement"] < 0.2
    assert "hardly more often than by chance" in said
    labels = read_gold(gold).labels.numpy()[order]
    np.savez(tmp_path / "mine.npz", probabilities=rows[order], labels=labels)
    done = command("score.py", tmp_path / "mine.npz", "--gold", gold)
    assert done.returncode == 2
    assert re.fullmatch(r"score: .*the labels in another order.*\.\n", done.stderr)


def test_the_card_says_what_was_checked(gold):
    card = gold.with_suffix(".md").read_text()
    about = read_gold(gold).about
    assert about["posterior"]["num_train"] == 300
    assert about["sampler"]["num_chains"] == 2 == about["num_parts"]
    assert {"probability", "invariants"} <= about["checks"]["groups"].keys()
    for text in ("784-10-10", "σ = 1", "**Preliminary.**", about["labels_sha256"], "MIT"):
        assert text in card
    assert " --out_dir" not in card
    assert "pixels in [0, 1] as they are" in card
    assert f"{about['checks']['ways_back']['followed']} followed back" in card


def test_chains_that_have_not_converged_are_refused(chain, command, tmp_path):
    done = command("checkpoints.py", "gold", chain, "--name", "toy", "--out_dir", tmp_path)
    assert done.returncode == 2
    assert "--preliminary" in done.stderr
    assert not list(tmp_path.iterdir())
    network = chain.with_name("ensemble-MNIST-quick")
    done = command("checkpoints.py", "gold", network, "--name", "toy", "--out_dir", tmp_path)
    assert "no run of HMC" in done.stderr


@pytest.fixture
def other(chain, tmp_path):
    """Return a function that copies the chain with another line in its config.yaml."""

    def other(before, after, file="config.yaml"):
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        shutil.copytree(chain, tmp_path / "other")
        text = (chain / file).read_text()
        assert before in text
        (tmp_path / "other" / file).write_text(text.replace(before, after))
        return tmp_path / "other"

    return other


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("prior_std: 1.0", "prior_std: 0.5", "prior σ = 0.5, not σ = 1."),
        ("prior_std: 1.0", "prior_std: [1.0, 0.5]", "prior σ = 1, 0.5, not σ = 1."),
        ("independent", "empcov", "prior σ = 1 with EmpCov, not σ = 1."),
        ("temperature: 1.0", "temperature: 0.3", "temperature 0.3, not 1.0."),
        ("temperature: 1.0", "flips: true", "images were cropped or flipped at random."),
        ("weight_decay: null", "weight_decay: 0.00333333", None),  # 1/300: σ = 1
        ("prior_std: 1.0", "prior_std: [1.0, 1.0]", None),
    ],
)
def test_other_posteriors_are_pointed_out(gold, other, command, tmp_path, before, after, words):
    said, _ = scores(command, tmp_path, gold, other(before, after))
    assert ("another posterior" in said) == (words is not None)
    assert f"another posterior: {words or ''}" in said or words is None
    assert "another network" not in said


def test_another_network_is_pointed_out(gold, other, command, tmp_path):
    said, _ = scores(command, tmp_path, gold, other('"relu"', '"tanh"', "network.json"))
    assert "is of another network: 784-10-10 (tanh), not 784-10-10 (relu)." in said
    assert "another posterior" not in said


def test_other_pixels_are_pointed_out(gold, chain, command, tmp_path):
    with np.load(gold) as archive:
        arrays = dict(archive)
    about = json.loads(arrays["about"].tobytes())
    about["posterior"]["pixels"] = {"mean": [0.1], "std": [0.3]}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    np.savez(gold, **arrays)
    said, _ = scores(command, tmp_path, gold, chain)
    assert "another posterior: pixels in [0, 1], unlike HMC's." in said


def test_the_command_on_the_card_makes_the_same_chain(gold, chain, script, tmp_path):
    words = shlex.split(read_gold(gold).about["origin"]["command"])
    done = script("MNIST_HMC", *words[2:], "--run_name", "again")
    assert done.returncode == 0, done.stderr
    (again,) = (tmp_path / "default").glob("HMC-*-again/samples.npy")
    np.testing.assert_array_equal(np.load(again), np.load(chain / "samples.npy"))


def test_sure_predictions_are_scored(gold, command, tmp_path):
    labels = read_gold(gold).labels.numpy()
    sure = np.eye(10)[labels]
    np.savez(tmp_path / "right.npz", p=sure)
    sure[0] = np.roll(sure[0], 1)
    np.savez(tmp_path / "wrong.npz", p=sure)
    files = tmp_path / "right.npz", tmp_path / "wrong.npz"
    said, _ = scores(command, tmp_path, gold, *files)
    assert "wrong.npz gives probability 0 to the labels of 1 image" in said
    assert "right.npz gives" not in said
    assert not {"inf", "nan", "-0.0000"} & set(said.split())
    np.savez(tmp_path / "shifted.npz", p=np.roll(read_gold(gold).predictions.average(), 1, 1))
    said, _ = scores(command, tmp_path, gold, tmp_path / "shifted.npz")
    assert "columns in that of the classes" in said


def test_an_exported_chain_has_the_same_card(chain, command, tmp_path):
    shutil.copytree(chain, tmp_path / "chain")
    config = (chain / "config.yaml").read_text().replace("independent", "empcov")
    (tmp_path / "chain" / "config.yaml").write_text(config)
    done = command("checkpoints.py", "export", tmp_path / "chain", "--out_dir", tmp_path / "set")
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "set" / "README.md").read_text()
    assert "## Posterior" in card
    assert "(EmpCov)" in card
    assert "functionals of the weights without labels" in card


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.npz", "--gold", "none"), "no gold standard 'none'"),
        (("missing.npz",), "--gold"),
    ],
)
def test_what_is_refused(command, arguments, words):
    done = command("score.py", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


PAGE = (REPOSITORY / "docs" / "gold.md").read_text()


@pytest.mark.parametrize("path", sorted((REPOSITORY / "results" / "gold").glob("*.npz")))
def test_committed_gold_standards(path):
    """They have converged and their card says so; or card and page say that they have not."""
    gold = read_gold(path)
    preliminary = gold.about["checks"]["shortfalls"] != []
    card = path.with_suffix(".md").read_text()
    (row,) = [r for r in PAGE.splitlines() if r.startswith(f"| [{path.stem}](")]
    assert gold.about["name"] == path.stem
    assert ("**Preliminary.**" in card) == preliminary
    assert ("The chains meet the criteria" in card) == (not preliminary)
    assert ("preliminary" in row) == preliminary
    assert path.stat().st_size < 2_000_000


@pytest.mark.parametrize("name", ["quantities.npy", "trace.jsonl", "chains.json", "config.yaml"])
def test_damaged_chains_make_no_gold_standard(chain, command, tmp_path, name):
    damaged = tmp_path / "damaged"
    shutil.copytree(chain, damaged)
    size = (damaged / name).stat().st_size
    with open(damaged / name, "r+b") as file:
        file.truncate(0 if name == "config.yaml" else size // 2)
    arguments = ("--name", "toy", "--out_dir", tmp_path / "gold", "--preliminary")
    done = command("checkpoints.py", "gold", damaged, *arguments)
    assert done.returncode == 2
    assert name in done.stderr
    assert not (tmp_path / "gold").exists()


def test_a_gold_standard_is_replaced_only_if_asked(gold, chain, command):
    before = gold.read_bytes()
    arguments = ("--name", "toy", "--out_dir", gold.parent, "--preliminary")
    done = command("checkpoints.py", "gold", chain, *arguments)
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert gold.read_bytes() == before
    assert command("checkpoints.py", "gold", chain, *arguments, "--overwrite").returncode == 0
