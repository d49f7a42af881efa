"""Every registered method goes on from a checkpoint as if it had never stopped."""

from utils.data.datasets import Dataset
from utils.methods.method import problem_of, tensors_of
from utils.methods.registry import METHODS
from utils.networks.mlp import MLP
from utils.runs.files import load_checkpoint, save_checkpoint
from utils.runs.seeding import generator

import pytest
import torch

NETWORK, NUM_EPOCHS = MLP((6, 5, 3)), 5
OWN = {  # settings that five epochs need
    "swag": {"num_pretrain_epochs": 1, "rank": 3},
    "sgld": {"num_burnin": 1},
    "sghmc": {"num_burnin": 1},
    "snapshot": {"num_cycles": 5},
}
STEPPED = [method for method in METHODS.values() if not hasattr(method, "run")]


@pytest.mark.parametrize("method", STEPPED, ids=lambda method: method.name)
def test_a_method_goes_on_from_a_checkpoint(method, tmp_path):
    config = method.Config(num_epochs=NUM_EPOCHS, batch_size=10, **OWN.get(method.name, {}))
    images = torch.rand(45, 6, generator=generator(0, "images"))
    labels = torch.randint(3, (45,), generator=generator(0, "labels"))
    data = Dataset("toy", images, labels, images[:9], labels[:9], NETWORK.num_classes)
    problem = problem_of(config, NETWORK, data, torch.device("cpu"))

    def after(num_epochs: int, state):
        while state.epoch < num_epochs:
            state, _ = method.step(problem, state, config)
        return state

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
