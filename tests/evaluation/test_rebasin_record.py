"""An interrupted evaluation goes on with the samples it was begun with, and with no others."""

import json
from dataclasses import replace

from tests.posteriors.test_samples import NETWORK, make_samples
from tests.runs.test_run import CPU, ToyConfig, die
from utils.evaluation.alignment import Aligned, RebasinRecord
from utils.posteriors.samples import open_samples
from utils.runs.run import open_run
from utils.runs.script import Stopped
from utils.settings.errors import UserError
from utils.symmetry.transformation import Transformation

import numpy as np
import pytest
import torch


@pytest.fixture
def chain(tmp_path):
    """Two chains of ten samples, of which four are there."""
    directory = make_samples(tmp_path / "chain", 20, num_chains=2)
    store(directory, 4)
    return directory


def store(directory, count: int) -> None:
    layout = {"num_chains": 2, "samples_per_chain": 10, "stored_per_chain": count}
    (directory / "chains.json").write_text(json.dumps(layout))


@pytest.fixture
def interrupted(tmp_path, chain) -> ToyConfig:
    """The config to go on with, of a run that has rebased five samples of the eight."""
    config = ToyConfig(out_dir=str(tmp_path), wandb="disabled", matmul="default")
    run, samples = open_run(config, "eval", CPU), open_samples(chain)
    record = RebasinRecord(run, samples, "hmc")
    aligned = Aligned(NETWORK, samples[0], len(samples))
    for number in range(5):
        rolled = Transformation(NETWORK, {"h1": torch.tensor([0, 1, 2]).roll(number)})
        aligned.enter(rolled, torch.empty(0), torch.empty(0))
    run.stop_requested = True
    with pytest.raises(Stopped):
        record.keep(aligned)
    die(run)
    return replace(config, resume=True)


def test_it_goes_on_where_it_was(interrupted, chain):
    record = RebasinRecord(open_run(interrupted, "eval", CPU), open_samples(chain), "hmc")
    assert [known.to_row().tolist() for known in record.known[:3]] == [
        [0, 1, 2],
        [2, 0, 1],
        [1, 2, 0],
    ]
    assert len(record.known) == 5


def test_not_when_the_chain_has_grown(interrupted, chain):
    store(chain, 6)  # the fifth sample is now of the first chain, and was of the second
    with pytest.raises(UserError, match=r"has other samples .* --overwrite"):
        RebasinRecord(open_run(interrupted, "eval", CPU), open_samples(chain), "hmc")


def test_not_when_the_chain_was_made_again(interrupted, chain):
    np.save(chain / "samples.npy", 1 + np.load(chain / "samples.npy"))
    with pytest.raises(UserError, match="has other samples"):
        RebasinRecord(open_run(interrupted, "eval", CPU), open_samples(chain), "hmc")
