"""MNIST_number_of_transpositions.py end to end at toy size."""

import gc
import itertools
import json
import signal

from MNIST_number_of_transpositions import TranspositionsConfig, main
from papers.compact.planted_pairs import wanted_transpositions
from tests.networks.toy_networks import WrongTable
from utils.data.datasets import load_pixels
from utils.networks.mlp import MLP
from utils.rebasin.matching import make_matcher
from utils.runs.run import Run
from utils.runs.script import Stopped
from utils.runs.wandb_run import NoWandb
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch

PAIRS, RUNS = 3, 2
TOY = dict(
    config_name="quick", hidden_sizes=[16], num_train=600, num_epochs=2, num_perm_exps=PAIRS,
    num_runs=RUNS, learning_rate=0.03, seed=30, device="cpu", matmul="default",
    wandb="disabled",
)  # fmt: skip


@pytest.fixture
def run(tmp_path, data_dir):
    """Run the script's main in this process; returns its run directory."""

    def call(run_name: str, **settings):
        main(
            TranspositionsConfig(
                **(TOY | settings), run_name=run_name, out_dir=str(tmp_path), data_dir=str(data_dir)
            )
        )
        return call.directory(run_name)

    call.directory = lambda name: tmp_path / "default" / f"transpositions-MNIST-quick-{name}"
    return call


def load_records(directory) -> list[dict]:
    lines = (directory / "transpositions.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.figures
def test_the_command_of_the_paper_runs(script, tmp_path):
    done = script(
        "MNIST_number_of_transpositions", "--seed", 30, "--num_epochs", 1, "--optimizer", "SGD",
        "--num_perm_exps", 2, "--by_activation", "--hidden_sizes", 8, "--num_train", 500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "default" / "transpositions-MNIST-paper"
    assert (directory / "transpositions.png").stat().st_size > 5000
    assert len(load_records(directory)) == 2 * 3
    summary = json.loads((directory / "summary.json").read_text())
    assert set(summary) == {"initial", "trained", "undone"}


def test_planted_transpositions_of_the_paper():
    wanted = wanted_transpositions(512, 50)
    assert (len(wanted), wanted[0], wanted[-1]) == (50, 1, 511)
    assert {b - a for a, b in itertools.pairwise(wanted)} <= {10, 11}


def test_records_tell_the_story_of_each_pair(run):
    records = load_records(run("whole"))
    assert len(records) == RUNS * PAIRS * 3
    for number in range(RUNS):
        for pair, planted in enumerate((1, 8, 15)):
            initial, trained, undone = (
                r for r in records if (r["run"], r["pair"]) == (number, pair)
            )
            assert [r["stage"] for r in (initial, trained, undone)] == [
                "initial", "trained", "undone",
            ]  # fmt: skip
            # before training the pair are copies: rebasin finds just what was planted
            assert initial["planted"] == initial["found"] == [planted]
            assert initial["distance"]["b2"] == 0
            # training has moved them apart, by more than undoing what was planted leaves
            # (in the same order of the data only rounding would)
            assert trained["distance"]["total"] > undone["distance"]["total"] > 0.01
            assert undone["distance"]["b2"] == trained["distance"]["b2"]
            assert trained["train_loss"] - trained["train_loss_barrier"] == pytest.approx(
                undone["train_loss"] - undone["train_loss_barrier"], rel=1e-5
            )
    found = {
        s: sum(r["found"][0] for r in records if r["stage"] == s) for s in ("trained", "undone")
    }
    assert found["undone"] < found["trained"] / 2
    firsts = [r["distance"]["W1"] for r in records if r["stage"] == "initial"]
    assert len(set(firsts)) == RUNS * PAIRS  # every run and pair has a start of its own


@pytest.mark.parametrize("by", ["yaml", "command line"])
def test_without_hidden_units_there_is_nothing_to_do(script, tmp_path, by):
    settings = tmp_path / "linear.yaml"
    settings.write_text("hidden_sizes: []\n")
    given = ("--config", settings) if by == "yaml" else ("--hidden_sizes", "[]")
    done = script("MNIST_number_of_transpositions", *given)
    assert done.returncode == 2
    assert "hidden_sizes must have at least one hidden layer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("by_activation", "method"), [(True, "activation"), (False, "weight")])
def test_several_hidden_layers_matched_as_asked(run, monkeypatch, by_activation, method):
    asked = []

    def noted(method, *arguments):
        asked.append(method)
        return make_matcher(method, *arguments)

    monkeypatch.setattr("papers.compact.planted_pairs.make_matcher", noted)
    directory = run(
        "deep", hidden_sizes=[12, 9], by_activation=by_activation, num_runs=1, num_epochs=1
    )
    initial = [r for r in load_records(directory) if r["stage"] == "initial"]
    assert [r["planted"] for r in initial] == [[1, 1], [6, 4], [11, 8]]
    assert [r["found"] for r in initial] == [r["planted"] for r in initial]
    assert set(asked) == {method}


@pytest.mark.parametrize("network", [("optunet",), ("resnet18", "--width", 2)])
def test_units_within_blocks_and_batch_normalisation(script, few_test_images, tmp_path, network):
    done = script(
        "MNIST_number_of_transpositions", "--config_name", "quick", "--num_epochs", 1,
        "--num_perm_exps", 2, "--num_train", 100, "--network", *network,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = load_records(tmp_path / "default" / "transpositions-MNIST-quick")
    assert all(r["found"] == r["planted"] for r in records if r["stage"] == "initial")
    assert ("REPAIR" in done.stdout) == (network[0] == "resnet18")


def test_what_is_undone_is_compared_with_no_transposition(run, capsys):
    directory = run("summed_up", num_runs=1)
    records, summary = load_records(directory), json.loads((directory / "summary.json").read_text())
    for stage, expected in (("initial", (1, 8, 15)), ("trained", (1, 8, 15)), ("undone", (0,) * 3)):
        found = [sum(r["found"]) for r in records if r["stage"] == stage]
        gaps = [abs(a - b) for a, b in zip(found, expected, strict=True)]
        assert summary[stage]["mean_change"] == pytest.approx(sum(gaps) / 3)
        assert summary[stage]["max_change"] == max(gaps)
    assert "Expected is the NoT planted, and 0 where that is undone." in capsys.readouterr().out


def fake_records(run, monkeypatch, stages: dict[str, list], **settings) -> dict:
    """The summary of a run whose pairs have NoT and barriers as given, one triple after another."""
    waiting = {stage: iter(found) for stage, found in stages.items()}

    def made_up(network, data, pair, trained, matching):
        return [
            dict(zip(("planted", "found", "test_loss_barrier"), next(given), strict=True))
            | {"stage": stage, "hidden_sizes": network.sizes[1:-1], "distance": {"total": 1.0},
               "random_transpositions": 9.0, "train_loss_barrier": 0.0}
            for stage, given in waiting.items()
        ]  # fmt: skip

    monkeypatch.setattr("MNIST_number_of_transpositions.measure_pair", made_up)
    pairs = len(stages["trained"])
    directory = run("made_up", num_runs=1, num_epochs=1, num_perm_exps=pairs, **settings)
    return json.loads((directory / "summary.json").read_text())


def test_the_summary_of_known_records(run, monkeypatch, capsys):
    """Two hidden layers; every number differs from every other."""
    planted = [[1, 1], [5, 4], [11, 8], [2, 0]]
    found = [[2, 3], [5, 2], [9, 7], [4, 4]]
    heights = [0.25, 0.1, 0.8, 0.3]
    summary = fake_records(
        run, monkeypatch, hidden_sizes=[12, 9],
        stages={
            "initial": [(p, p, 0.0) for p in planted],
            "trained": list(zip(planted, found, heights, strict=True)),
            "undone": [(p, [1, k], -0.5) for k, p in enumerate(planted)],
        },
    )  # fmt: skip
    assert summary["trained"] == {
        "mean_found": 36 / 4,
        "mean_found_per_layer": [20 / 4, 16 / 4],
        "mean_change": (3 + 2 + 3 + 6) / 4,
        "mean_change_per_layer": [(1 + 0 + 2 + 2) / 4, (2 + 2 + 1 + 4) / 4],
        "max_change": 6,
        "mean_test_loss_barrier": pytest.approx(1.45 / 4),
        "least_planted": 2,
        "test_loss_barrier_at_least_planted": pytest.approx(0.275),  # of two pairs
        "most_planted": 19,
        "test_loss_barrier_at_most_planted": pytest.approx(0.8),
        # ranks of planted 1.5, 3, 4, 1.5; of found 1, 2, 4, 3; of barriers 2, 1, 4, 3
        "rank_correlation_planted_found": pytest.approx(spearman([1.5, 3, 4, 1.5], [1, 2, 4, 3])),
        "rank_correlation_planted_barrier": pytest.approx(spearman([1.5, 3, 4, 1.5], [2, 1, 4, 3])),
    }
    assert summary["initial"]["max_change"] == 0
    assert summary["undone"]["mean_change"] == (1 + 2 + 3 + 4) / 4
    assert summary["undone"]["mean_change_per_layer"] == [1, 1.5]
    assert summary["undone"]["rank_correlation_planted_barrier"] is None  # it does not vary
    printed = capsys.readouterr().out
    assert ["trained", "5.0", "+", "4.0", "3.5", "0.3625"] in map(str.split, printed.splitlines())


def spearman(first: list[float], second: list[float]) -> float:
    """The correlation of ranks."""
    return np.corrcoef(first, second)[0, 1]


def test_one_pair_has_no_rank_correlation(run, monkeypatch, capsys):
    stages = {stage: [([3], [3], 0.1)] for stage in ("initial", "trained", "undone")}
    summary = fake_records(run, monkeypatch, stages)
    assert summary["trained"]["rank_correlation_planted_barrier"] is None
    printed = capsys.readouterr().out
    assert "barrier after training: –" in printed
    assert "nan" not in printed


def test_undoing_what_was_planted_must_not_change_the_function(run, monkeypatch):
    monkeypatch.setattr(
        "utils.networks.registry.network_for",
        lambda config, data: WrongTable((data.num_pixels, 16, data.num_classes)),
    )
    with pytest.raises(AssertionError, match="changed the network's logits"):
        run("broken", num_runs=1, num_epochs=1)


def test_losses_and_errors_are_those_of_the_networks_trained(run, monkeypatch, data_dir):
    saved, save = [], Run.save_checkpoint

    def noted(self, counters, **arrays):
        saved.append(arrays["weights"])
        save(self, counters, **arrays)

    monkeypatch.setattr(Run, "save_checkpoint", noted)
    records = load_records(run("kept", num_runs=1))
    data, network = load_pixels("MNIST", data_dir, 600), MLP((784, 16, 10))
    for pair, (first, second) in enumerate(saved[-1].unflatten(0, (PAIRS, 2))):
        (trained,) = (r for r in records if (r["pair"], r["stage"]) == (pair, "trained"))
        for part, images, labels in (
            ("train", data.train_images, data.train_labels),
            ("test", data.test_images, data.test_labels),
        ):
            losses, errors = [], []
            for weights in (first, (first + second) / 2, second):
                outputs = network.outputs(weights, images)
                losses.append(torch.nn.functional.cross_entropy(outputs, labels).item())
                errors.append((outputs.argmax(-1) != labels).double().mean().item())
            for kind, (start, middle, end) in (("loss", losses), ("error", errors)):
                height = middle - (start + end) / 2
                assert trained[f"{part}_{kind}"] == pytest.approx(middle, abs=2e-4)
                assert trained[f"{part}_{kind}_barrier"] == pytest.approx(height, abs=2e-4)


def test_a_run_stopped_while_measuring_ends_its_wandb_session(run, monkeypatch):
    closed = []

    def stop_instead(*arguments):
        signal.raise_signal(signal.SIGTERM)
        return []

    monkeypatch.setattr("MNIST_number_of_transpositions.measure_pair", stop_instead)
    monkeypatch.setattr(NoWandb, "close", lambda self: closed.append(1), raising=False)
    with pytest.raises(Stopped):
        run("stopped", num_epochs=1)
    assert len(closed) == 1


@pytest.fixture
def stopped(run, monkeypatch):
    """Run the script's main until the end of an epoch."""

    def call(run_name: str, in_run: int, epoch: int, **settings):
        save = Run.save_checkpoint

        def stop(self, counters, **arrays):
            self.stop_requested = counters == {"run": in_run, "epoch": epoch}
            try:
                save(self, counters, **arrays)
            except Stopped:
                self._lock.close()  # as the end of the process would
                raise

        with monkeypatch.context() as patched:
            patched.setattr(Run, "save_checkpoint", stop)
            with pytest.raises(Stopped):
                run(run_name, **settings)

    return call


def assert_same_results(directory, expected) -> None:
    for file in ("transpositions.jsonl", "metrics.jsonl", "summary.json"):
        assert (directory / file).read_text() == (expected / file).read_text()


@pytest.mark.parametrize(("in_run", "epoch"), [(0, 1), (0, 2), (1, 1)])
def test_a_stopped_run_resumes_to_the_same_results(run, stopped, in_run, epoch):
    stopped("stopped", in_run, epoch)
    assert_same_results(run("stopped", resume=True), run("whole"))


def test_a_run_goes_on_to_more_repetitions(run, stopped):
    """Whether it is finished, unfinished, or was stopped while it went on."""
    stopped("unfinished", 0, 1, num_runs=1)
    directory = run("finished", num_runs=1)
    run("interrupted", num_runs=1)
    stopped("interrupted", 1, 1, num_runs=2, resume=True)
    whole = run("whole")
    for name in ("unfinished", "finished", "interrupted"):
        grown = run(name, resume=True)
        assert_same_results(grown, whole)
        assert (grown / "DONE").exists()
        with pytest.raises(UserError, match="num_runs was 2 and is 1"):
            run(name, num_runs=1, resume=True)
    with pytest.raises(UserError, match="holds a finished run: give --resume to go on with it"):
        run("whole", num_runs=3)
    assert "num_runs: 2" in (directory / "config.yaml").read_text()


def test_a_finished_run_stays_so_until_more_of_it_is_saved(run, monkeypatch):
    directory = run("kept", num_runs=1)
    with monkeypatch.context() as patched:
        patched.setattr("MNIST_number_of_transpositions.train_pairs", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run("kept", resume=True)
    assert (directory / "DONE").exists()
    gc.collect()  # lets go of the directory, as the end of the process would
    assert_same_results(run("kept", resume=True), run("whole"))


@pytest.mark.parametrize("damage", ["cut", "deleted"])
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "stopped"])
def test_damaged_records_are_said_to_be_so(run, stopped, finished, damage):
    if finished:
        path = run("damaged", num_runs=1) / "transpositions.jsonl"
    else:
        stopped("damaged", 1, 1)
        path = run.directory("damaged") / "transpositions.jsonl"
    path.write_text(path.read_text()[:-30]) if damage == "cut" else path.unlink()
    with pytest.raises(UserError, match=r"transpositions.jsonl is damaged: start again with --ov"):
        run("damaged", resume=True)
