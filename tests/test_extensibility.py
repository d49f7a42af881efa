"""A toy method, network, metric and paper, each in a few lines and an entry in its registry.

CONTRIBUTING.md explains what is done here: two methods train a network with a convolution and a
residual connection, HMC samples it with the listed force, and all of them are rebased, compared in
the table by one more metric, and shown in the report of one more paper. All of this is done by the
scripts, given command lines as a user writes them. The paper's own script is this file.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import papers
from utils.evaluation.metrics import METRICS, Metric
from utils.methods.method import Method
from utils.methods.registry import METHODS
from utils.methods.training import RecipeConfig, TrainingState, settings_of, start_training, train
from utils.networks.conv_network import ConvNetwork, convolution, linear
from utils.networks.network import Group, lay_out
from utils.networks.registry import ARCHITECTURES
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.samples import Points
from utils.report.figures import BLUE, Look, panels
from utils.report.paper import (
    FAILS,
    HOLDS,
    Finding,
    Paper,
    Plan,
    RunTables,
    Section,
    Step,
    claim,
    conclude,
    figure,
)
from utils.report.results import Results
from utils.report.tables import Table
from utils.runs.compute import choose_device
from utils.runs.lookup import NEWEST, identify, locate
from utils.runs.run import open_run
from utils.runs.script import run_script
from utils.settings.config import Config, option

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

# ---- a network: a forward function, and the table from which its symmetries follow


@dataclass(frozen=True)
class ToyNetwork(ConvNetwork):
    """A convolution makes a stream "s", to which a residual connection adds what "h" reads."""

    name = "toy"
    groups: ClassVar = {"s": Group(4), "h": Group(3)}

    @cached_property
    def slots(self):
        return lay_out(
            *convolution("stem", (4, self.input_shape[0], 7, 7), "s", None, bias=True),
            *convolution("in", (3, 4, 1, 1), "h", "s", bias=True),
            *convolution("out", (4, 3, 1, 1), "s", "h"),
            *linear("head", self.num_classes, (4,), None, ("s",)),
        )

    def forward(self, tensors, images, statistics=None):
        stem, stem_bias, inward, inward_bias, outward, head, bias = tensors.values()
        first = F.conv2d(images, stem, stem_bias, stride=7).relu()
        inner = F.conv2d(first, inward, inward_bias).relu()
        stream = first + F.conv2d(inner, outward)
        stream = stream.relu()
        return {"s": stream, "h": inner}, F.linear(stream.mean((-1, -2)), head, bias)


# ---- two methods: one leaves a Gaussian, the other samples


@dataclass(frozen=True, kw_only=True)
class ToyConfig(RecipeConfig):
    num_draws: int = option(3, "weight samples that the predictions average over", minimum=1)


class Wobble(Method):
    """A Gaussian of a fixed width around a trained network."""

    name, kind, title = "wobble", "wobble", "Wobble"
    look = Look(BLUE)
    Config = ToyConfig

    def init(self, problem, config, modes):
        start = start_training(self.initial_weights(problem, config, modes), settings_of(config))
        return start._replace(modes=torch.tensor(modes))

    def step(self, problem, state, config):
        state, losses = train(
            problem.network, state, problem.data.train_images, problem.data.train_labels,
            settings_of(config, problem.prior.precision), seed=config.seed, num_epochs=1,
            streams=self.streams(state), batches=problem.batches,
        )  # fmt: skip
        return state, [{"epoch": state.epoch, "train_loss": losses.mean().item(),
                        "test_accuracy": 0.5}]  # fmt: skip

    def posterior(self, problem, state, config):
        mean = state.weights[0]
        return Gaussian(mean, torch.full_like(mean, 0.02), problem.network)


class PathState(NamedTuple):
    weights: Tensor  # [1, d]
    momentum: Tensor
    second_moment: Tensor
    path: Tensor  # [epochs, d]
    epoch: int = 0


class Path(Method):
    """The networks along the way of one training."""

    name, kind, title = "path", "path", "Path"
    look = Look(BLUE, ":")
    Config = ToyConfig

    def init(self, problem, config, modes):
        start = start_training(self.initial_weights(problem, config, modes), settings_of(config))
        path = start.weights.new_zeros(config.num_epochs, start.weights.shape[1])
        return PathState(start.weights, start.momentum, start.second_moment, path)

    def step(self, problem, state, config):
        before = TrainingState(*state[:3], epoch=state.epoch)
        after, losses = train(
            problem.network, before, problem.data.train_images, problem.data.train_labels,
            settings_of(config, problem.prior.precision), seed=config.seed, num_epochs=1,
            streams=[self.stream(0)],
        )  # fmt: skip
        path = state.path.clone()
        path[state.epoch] = after.weights[0]
        record = {"epoch": after.epoch, "train_loss": losses.mean().item(), "test_accuracy": 0.5}
        return PathState(*after[:3], path, after.epoch), [record]

    def posterior(self, problem, state, config):
        return Points(state.path, problem.network)


# ---- a metric

SURPRISE = Metric("surprise", "Surprise", lambda p: float(p.average.max(-1).values.mean()))


# ---- a paper: a claim, a figure, a table, and the script that makes what they are about

KIND = "surprises"  # of the script's runs


@claim("Toys are sure of themselves.", source="Table 1", criterion="above 0", kinds=(KIND,))
def toys_are_sure(results: Results) -> Finding:
    value = results.json(KIND, "surprises.json")["wobble"]
    return Finding(HOLDS if value > 0 else FAILS, f"Wobble is sure by {value:.4f}.", f"{value:.4f}")


@figure(KIND, "surprises.json", title="Figure T: surprises", caption="A bar per column.")
def surprise_bars(source):
    drawn, ((axis,),) = panels(1, 1)
    surprises = json.loads(source.read_text())
    axis.bar(list(surprises), list(surprises.values()))
    return drawn


def surprise_table(results: Results) -> list:
    surprises = results.json(KIND, "surprises.json")
    rows = [[name, f"{value:.4f}"] for name, value in surprises.items()]
    return [Table(["posterior", SURPRISE.title], rows, title="Table T")]


PAPER = Paper(
    name="toys",
    title="On Toys",
    authors="Nobody, 2000",
    url="https://example.org",
    heading="Toys",
    introduction="Toys are networks, too.",
    terms={},
    steps=(
        Step("MNIST_eval", "eval", {"quick": Plan("quick", 1)}),
        Step("test_extensibility", KIND, {"quick": Plan("quick", 1)}, (("eval", "eval"),)),
    ),
    artefacts={"tableT": (KIND,)},
    claims=(toys_are_sure,),
    sections=(
        Section("toys", "Toys", "All toys", (RunTables(KIND, surprise_table), surprise_bars)),
    ),
)


@dataclass(frozen=True, kw_only=True)
class SurprisesConfig(Config):
    eval: str = option(NEWEST, "run of MNIST_eval.py, or newest", changeable=True)


def main(config: SurprisesConfig) -> None:
    source = locate(config, config.eval, "eval", "MNIST_eval.py")
    run = open_run(config, KIND, choose_device(config.device), {"eval": identify(source)})
    table = json.loads((source / "table1.json").read_text())
    surprises = {name: column["surprise"] for name, column in table.items()}
    run.save_json("surprises.json", surprises)
    conclude(run, PAPER, surprises, records={})


CONFIG = SurprisesConfig

# ---- the proof

SHARED = ("--config_name", "quick", "--run_batch_name", "quick")
SMALL = (*SHARED, "--network", "toy", "--num_train", "200")
RECIPE = (
    "--optimizer", "Adam", "--learning_rate", "0.01", "--batch_size", "50", "--num_epochs", "4",
)  # fmt: skip
CHAIN = (
    "--num_samples", "6", "--num_burnin", "2", "--trajectory_length", "none", "--num_steps", "12",
    "--step_size", "0.003", "--no-adapt_step_size", "--no-grow_trajectories", "--force", "listed",
    "--anchored_epochs", "1",
)  # fmt: skip
EVALUATION = (
    "--ensemble", "none", "--vi", "none", "--num_draws", "4", "--num_match_images", "100",
    "--num_blocks", "2", "--rank", "3", "--num_bootstraps", "3", "--num_refits", "2",
    "--refit_draws", "2", "--num_references", "2", "--study_samples", "4", "--study_images", "50",
    "--mean_rounds", "1", "--further", "rebased_tau",
)  # fmt: skip


@pytest.fixture
def registered(monkeypatch):
    """Enter each toy in its registry, as the line that a contributor adds does."""
    monkeypatch.setitem(METHODS, "wobble", Wobble())
    monkeypatch.setitem(METHODS, "path", Path())
    monkeypatch.setitem(ARCHITECTURES, "toy", ToyNetwork)
    monkeypatch.setitem(METRICS, "surprise", SURPRISE)
    monkeypatch.setattr(papers, "PAPERS", (*papers.PAPERS, PAPER))


def test_everything_goes_through_without_an_edit(registered, few_test_images, script, tmp_path):
    def run(name, *arguments):
        ended = script(name, *arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    batch = tmp_path / "quick"
    for method in ("wobble", "path"):
        run("train", "--method", method, *SMALL, *RECIPE)
    run("MNIST_HMC", *SMALL, *CHAIN)
    check_energies(batch / "HMC-MNIST-quick")
    trained = [f"{method}={batch / method}-MNIST-quick" for method in ("wobble", "path")]
    run("MNIST_eval", *SHARED, *EVALUATION, "--posteriors", *trained)
    check_table(batch / "eval-MNIST-quick")
    (tmp_path / "quick.yaml").touch()  # configs/<script>/quick.yaml, without any settings
    settings = ("--config", tmp_path / "quick.yaml", "--run_batch_name", "quick")
    assert "Wobble is sure by" in run("tests/test_extensibility", *settings)
    assert "Toys are sure of" in run("reproduce", "--paper", "toys", "--only", "report")
    check_report(batch / "report")


def check_energies(directory) -> None:
    """The gradient of the listed force is that of the energy."""
    trace = [json.loads(line) for line in (directory / "trace.jsonl").read_text().splitlines()]
    assert all(abs(record["delta_energy"]) < 5 for record in trace)


def check_table(directory) -> None:
    """The new metric is that of the saved predictions, for every column, with an error."""
    table, errors = (
        json.loads((directory / f"{name}.json").read_text()) for name in ("table1", "table1_errors")
    )
    sets = {
        f"{name}_{view}" for name in ("hmc", "path") for view in ("sample", "direct", "rebased")
    }
    assert {"wobble"} | sets <= set(table)
    with np.load(directory / "predictions.npz") as predictions:
        for name, column in table.items():
            assert column["surprise"] == pytest.approx(predictions[name].max(-1).mean())
            assert "surprise" in errors[name]
    with np.load(directory / "compact.npz") as compact:
        assert compact["permutations"].shape == (6, 4 + 3)


def check_report(directory) -> None:
    page = (directory / "report.html").read_text()
    for text in ("Toys are sure of themselves.", "Wobble is sure by", "Figure T", "Table T"):
        assert text in page
    assert (directory / "figures" / "surprises_surprise_bars.png").exists()


if __name__ == "__main__":
    run_script(main, CONFIG, __file__, __doc__)
