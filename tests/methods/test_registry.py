"""Every registered method: it goes on from a checkpoint, and its modes are rows of the table."""

from utils.data.datasets import Dataset
from utils.evaluation.metrics import brier, mean_nll
from utils.methods.method import problem_of, tensors_of
from utils.methods.registry import METHODS
from utils.networks.mlp import MLP
from utils.networks.registry import conv_network
from utils.posteriors.files import open_posterior
from utils.posteriors.posterior import Mixture
from utils.posteriors.samples import Points
from utils.quality.comparison import compare_row, fit_references
from utils.quality.forecasts import ImageSets, linearised_forecast
from utils.quality.modes import modes_of
from utils.quality.references import INDEPENDENT, split_networks
from utils.quality.rows import (
    ONE,
    SEVERAL,
    LinearisedSet,
    Trained,
    open_modes,
    rows_of,
    with_derived,
)
from utils.runs.files import load_checkpoint, save_checkpoint
from utils.runs.seeding import generator
from utils.symmetry.transformation import random_transformation

import pytest
import torch

NETWORK, NUM_EPOCHS = MLP((6, 5, 3)), 5
RESNET = conv_network("resnet18", (1, 8, 8), 3, width=2)  # has batch normalisation
OWN = {  # settings that five epochs need
    "swag": {"num_pretrain_epochs": 1, "rank": 3},
    "sgld": {"num_burnin": 1},
    "sghmc": {"num_burnin": 1},
    "snapshot": {"num_cycles": 5},
}
STEPPED = [method for method in METHODS.values() if not hasattr(method, "run")]


def set_up(method, network, num_images: int = 45, **settings) -> tuple:
    """Return a config and a problem, and a function that trains a state up to an epoch."""
    own = OWN.get(method.name, {})
    config = method.Config(num_epochs=NUM_EPOCHS, batch_size=10, **own, **settings)
    images = torch.rand(num_images, *network.input_shape, generator=generator(0, "images"))
    labels = torch.randint(3, (num_images,), generator=generator(0, "labels"))
    data = Dataset("toy", images, labels, images[:9], labels[:9], network.num_classes)
    problem = problem_of(config, network, data, torch.device("cpu"))

    def after(num_epochs: int, state):
        while state.epoch < num_epochs:
            state, _ = method.step(problem, state, config)
        return state

    return config, problem, after


@pytest.mark.parametrize("method", STEPPED, ids=lambda method: method.name)
def test_a_method_goes_on_from_a_checkpoint(method, tmp_path):
    config, problem, after = set_up(method, NETWORK)
    (modes, *_) = method.modes(config)
    halfway = after(3, method.init(problem, config, modes))
    save_checkpoint(tmp_path / "checkpoint.npz", {"epoch": halfway.epoch}, tensors_of(halfway))
    counters, tensors = load_checkpoint(tmp_path / "checkpoint.npz", {}, problem.device)
    again = method.init(problem, config, modes)._replace(**tensors, epoch=counters["epoch"])
    whole, resumed = after(NUM_EPOCHS, halfway), after(NUM_EPOCHS, again)
    for name, tensor in tensors_of(whole).items():
        assert torch.equal(tensor, getattr(resumed, name)), name
    draws = [
        torch.stack(list(method.posterior(problem, state, config).draw(2, generator(1))))
        for state in (whole, resumed)
    ]
    assert draws[0].isfinite().all()
    assert torch.equal(*draws)


def left_by(method, network, num_modes: int):
    """Return the posterior of a training with so many modes, as the driver puts it together."""
    named = "num_members" if method.name == "ensemble" else "num_modes"
    config, problem, after = set_up(method, network, 20, **{named: num_modes})
    groups = [
        method.posterior(problem, after(NUM_EPOCHS, method.init(problem, config, modes)), config)
        for modes in method.modes(config)
    ]
    return groups[0] if len(groups) == 1 else Mixture(groups)


@pytest.mark.parametrize("network", [NETWORK, RESNET], ids=["mlp", "batch normalisation"])
@pytest.mark.parametrize("method", STEPPED, ids=lambda method: method.name)
def test_the_table_finds_as_many_modes_as_were_trained(method, network, tmp_path):
    if network.has_buffers and not method.takes_batch_norm:
        pytest.skip("does not take batch normalisation")
    for num_modes in (1, 2):
        posterior, place = left_by(method, network, num_modes), tmp_path / str(num_modes)
        assert len(modes_of(posterior)) == num_modes
        place.mkdir()
        posterior.save(place)
        again = open_posterior(place, fewest=1)
        assert len(modes_of(again)) == num_modes
        assert len(modes_of(again.moved(random_transformation(network, generator(2))))) == num_modes


@pytest.fixture(scope="module")
def standard():
    """Return what the table compares with: 18 networks that are not trained."""
    random = generator(0, "standard")
    networks = torch.stack([NETWORK.initial_weights(random) for _ in range(19)])
    halves = split_networks(modes_of(Points(networks, NETWORK)), 100, seed=0)
    inside, outside = torch.rand(2, 30, 6, generator=random)
    images = ImageSets(inside, torch.randint(3, (30,), generator=random), outside, "noise")
    return fit_references(NETWORK, images, {INDEPENDENT: halves}, networks[-1], 10, 99, 3, 0)


def predictions_of_modes(samples, images) -> list[torch.Tensor]:
    """Return the average prediction [N, classes] of each mode's samples."""
    if isinstance(samples, LinearisedSet):
        return [linearised_forecast([mode], images).average for mode in samples.modes]
    weights = samples.weights().unflatten(0, (len(samples.modes), -1))
    return [NETWORK.outputs(each, images.inside).double().softmax(-1).mean(0) for each in weights]


@pytest.mark.parametrize("num_modes", [1, 2])
@pytest.mark.parametrize("method", STEPPED, ids=lambda method: method.name)
def test_a_row_of_several_modes_is_the_mean_of_its_modes(method, num_modes, standard):
    """It has the scores of their average prediction; of a single mode, all that this one has."""
    trained = with_derived({"x": Trained(modes_of(left_by(method, NETWORK, num_modes)))})
    rows = rows_of(trained, {}, num_samples=8, num_modes=4, seed=0)
    assert {row.modes for row in rows} == ({ONE} if num_modes == 1 else {ONE, SEVERAL})

    def compared(row) -> dict:
        return compare_row(row, standard, lambda name, compute: compute())

    for row in rows:
        if num_modes > 1 and row.modes == ONE:
            continue
        several = compared(row._replace(modes=SEVERAL))
        average = sum(predictions_of_modes(row.sets[0], standard.images)) / num_modes
        labels = standard.images.labels
        assert several["scores"]["brier"] == pytest.approx(brier(average, labels), abs=1e-6)
        assert several["scores"]["nll"] == pytest.approx(mean_nll(average, labels), abs=1e-6)
        truth = standard.truths[INDEPENDENT]
        variation = (average - truth).abs().sum(-1).mean().item() / 2
        assert several["beside"][INDEPENDENT]["total_variation"] == pytest.approx(variation)
        if num_modes == 1:
            one = compared(row)
            for part in ("scores", "confidence"):
                for name, value in one[part].items():
                    assert value == pytest.approx(several[part][name], nan_ok=True), name
            assert one["beside"][INDEPENDENT] == pytest.approx(several["beside"][INDEPENDENT])
            for reference, spaces in one["distances"].items():
                for space, cell in spaces.items():
                    assert cell["value"] == pytest.approx(
                        several["distances"][reference][space]["value"], nan_ok=True
                    )


def test_the_table_finds_the_chains_of_hmc(script, tmp_path):
    for count in (1, 2):
        toy = ("--num_chains", count, "--num_samples", 3, "--num_burnin", 1, "--num_steps", 2)
        done = script(
            "train", "--method", "hmc", "--config_name", "quick", "--hidden_sizes", 4,
            "--num_train", 100, "--trajectory_length", "none", "--step_size", 0.003, *toy,
            "--run_name", count,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        place = tmp_path / "default" / f"HMC-MNIST-quick-{count}"
        assert len(open_modes(place, open_posterior(place)).modes) == count
