"""A toy method, network, metric and paper, each in a few lines, with no edit anywhere else.

CONTRIBUTING.md explains what is done here: two methods train a network with a convolution and a
residual connection, HMC samples it with the listed force, and all of them are rebased, compared in
the table by one more metric, and shown in the report of one more paper.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import MNIST_eval
import MNIST_HMC
from utils.driver.run_method import run_method
from utils.evaluation import metrics
from utils.evaluation.metrics import Metric
from utils.methods.hmc.method import HMCConfig
from utils.methods.method import Method
from utils.methods.training import RecipeConfig, TrainingState, settings_of, start_training, train
from utils.networks import registry
from utils.networks.conv_network import ConvNetwork, convolution, linear
from utils.networks.network import Group, lay_out
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.samples import Points
from utils.report.figures import BLUE, Look, panels
from utils.report.page import write_report
from utils.report.paper import (
    HOLDS,
    Finding,
    Paper,
    Plan,
    RunTables,
    Section,
    Step,
    claim,
    figure,
)
from utils.report.results import Results, open_results
from utils.report.tables import Table
from utils.settings.config import option

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


# ---- a metric, a claim, a figure, a paper

SURPRISE = Metric("surprise", "Surprise", lambda p: float(p.average.max(-1).values.mean()))


@claim("Toys are sure of themselves.", source="Table 1", criterion="holds above 0", kinds=("eval",))
def toys_are_sure(results: Results) -> Finding:
    value = results.json("eval", "table1.json")["wobble"]["surprise"]
    return Finding(HOLDS, f"Wobble is sure by {value:.4f}.", f"{value:.4f}")


@figure("eval", "table1.json", title="Figure T: surprises", caption="A bar for every column.")
def surprises(source):
    drawn, ((axis,),) = panels(1, 1)
    table = json.loads(source.read_text())
    axis.bar(list(table), [column["surprise"] for column in table.values()])
    return drawn


def surprise_table(results: Results) -> list:
    table = results.json("eval", "table1.json")
    rows = [[name, f"{column['surprise']:.4f}"] for name, column in table.items()]
    return [Table(["posterior", SURPRISE.title], rows, title="Table T")]


PAPER = Paper(
    name="toys",
    title="On Toys",
    authors="Nobody, 2000",
    url="https://example.org",
    heading="Toys",
    introduction="Toys are networks, too.",
    terms={},
    steps=(Step("MNIST_eval", "eval", {"quick": Plan("quick", 1)}),),
    artefacts={"tableT": ("eval",)},
    claims=(toys_are_sure,),
    sections=(Section("toys", "Toys", "All toys", (RunTables("eval", surprise_table), surprises)),),
)


# ---- the proof


@pytest.fixture
def registered(monkeypatch):
    """Register the network and the metric, as an entry in their tables does."""
    monkeypatch.setitem(registry.ARCHITECTURES, "toy", ToyNetwork)
    monkeypatch.setitem(metrics.METRICS, "surprise", SURPRISE)


def test_everything_goes_through_without_an_edit(registered, tmp_path, data_dir):
    shared = {
        "out_dir": str(tmp_path), "data_dir": str(data_dir), "wandb": "disabled", "seed": 3,
        "config_name": "toy",
    }  # fmt: skip
    small = shared | {"network": "toy", "num_train": 200}
    recipe = {"optimizer": "Adam", "learning_rate": 0.01, "batch_size": 50, "num_epochs": 4}
    for method in (Wobble(), Path()):
        run_method(method, ToyConfig(**small, **recipe))
    hmc = HMCConfig(
        **small, num_samples=6, num_burnin=2, num_steps=12, step_size=0.003, force="listed",
        anchored_epochs=1,
    )  # fmt: skip
    MNIST_HMC.main(hmc)
    batch = tmp_path / "default"
    places = {name: batch / f"{name}-MNIST-toy" for name in ("HMC", "wobble", "path")}
    trace = [json.loads(line) for line in (places["HMC"] / "trace.jsonl").read_text().splitlines()]
    assert all(abs(record["delta_energy"]) < 5 for record in trace)
    evaluation = MNIST_eval.EvalConfig(
        **shared, hmc=str(places["HMC"]), ensemble="none", vi="none",
        posteriors=[f"{name}={places[name]}" for name in ("wobble", "path")], num_draws=4,
        num_match_images=100, num_blocks=2, rank=3, num_bootstraps=3, num_refits=2, refit_draws=2,
        num_references=2, study_samples=4, study_images=50, mean_rounds=1,
    )  # fmt: skip
    MNIST_eval.main(evaluation)
    check_table(batch / "eval-MNIST-toy")
    check_report(batch, tmp_path / "report")


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


def check_report(batch, report) -> None:
    results = open_results(batch, "quick", "MNIST", {"eval": "eval-MNIST-toy"})
    surprises.save(RunStub(batch / "eval-MNIST-toy"))
    page = write_report([(PAPER, results)], report).read_text()
    for text in ("Toys are sure of themselves.", "Wobble is sure by", "Figure T", "Table T"):
        assert text in page
    assert page.count("data:image/png") == 1


class RunStub:
    """What a figure needs of a run."""

    def __init__(self, directory):
        self.directory = directory

    def path(self, name: str):
        return self.directory / name

    def save_figure(self, name: str, drawn) -> None:
        drawn.savefig(self.path(f"{name}.png"))
