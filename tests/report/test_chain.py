"""What report and card say of a chain: whether trajectories came back, posterior and command."""

import dataclasses
import shlex
from types import SimpleNamespace

from utils.data.datasets import Dataset
from utils.methods.hmc.method import HMC
from utils.networks.mlp import MLP
from utils.networks.registry import conv_network
from utils.report import chain
from utils.report.chain import (
    OF_POSTERIOR,
    OF_SAMPLER,
    chain_sections,
    chain_tables,
    explicit_command,
)
from utils.settings.config import Config, load_config

import pytest
import torch


def record(**changes):
    usual = {
        "burnin": False, "chain": 0, "accept_prob": 0.5, "divergent": False, "delta_energy": 0.1,
        "num_steps": 10, "step_size": 0.1, "violations": 0, "followed_back": True,
        "reversal_miss": 1e-6, "reversal_gap": 0.01,
    }  # fmt: skip
    return usual | changes


RECORDS = [
    record(), record(reversal_gap=-1.5), record(reversal_miss=0.02),
    record(followed_back=False, reversal_gap=0.0), record(burnin=True, reversal_gap=9.0),
]  # fmt: skip


def test_the_report_says_how_many_trajectories_missed():
    found = {"groups": {}, "chains": 1, "draws_per_chain": 4, "hours": 1.0}
    run = SimpleNamespace(
        json=lambda name: found, records=lambda name: RECORDS, finished=True, directory=None
    )
    rows = dict(chain_tables(run)[0].rows)
    assert rows["trajectories followed back"].startswith("3 followed back, 2 missed and rejected")
    assert rows["trajectories followed back"].endswith("1.5 nats")


def facts_of(monkeypatch, architecture, **config):
    """Return the facts of a run with these settings, whose chains are not looked at."""
    checks = {
        "chains": 1, "samples_per_chain": 8, "groups": {}, "acceptance": 0.5, "divergences": 0,
        "leapfrog_steps": 10, "step_size": 0.1, "violations_per_step": 0.0, "shortfalls": [],
        "energy_balance": [1.0, 0.1],
        "ways_back": {"followed": 13, "missed": 2, "largest_gap": 1.64},
    }  # fmt: skip
    monkeypatch.setattr(chain, "_checks", lambda *run: checks)
    run = SimpleNamespace(
        config=config, meta={}, dataset="MNIST", data={"num_train": config.get("num_train")}
    )
    images, labels = torch.zeros(2, 1, 28, 28), torch.zeros(2).long()
    return chain.chain_facts(run, architecture, Dataset("MNIST", images, labels, images, labels))


def test_a_card_says_how_pixels_are_scaled_and_how_many_missed(monkeypatch):
    published = conv_network("optunet", normalise=True)
    card = chain_sections(facts_of(monkeypatch, published, network="optunet", prior_std=[1, 0.5]))
    assert "pixels in [0, 1], less 0.1307 and divided by 0.3081." in card
    assert "σ = 1, 0.5 of the layers in turn" in card
    assert "13 followed back, 2 missed and rejected" in card
    card = chain_sections(facts_of(monkeypatch, MLP(), num_valid=500, fixed_share=0.9))
    assert "all but the last 500 training images" in card
    assert "pixels in [0, 1] as they are." in card
    assert "A share of 0.9 of the weights" in card


@pytest.mark.parametrize(
    "given",
    [
        "--config_name tiny --prior_std 1,0.5",
        "--config_name laptop --num_steps 9 --trajectory_length none --hidden_sizes 8 6",
        "--config_name optunet --weight_decay 0.0002 --prior_std 1.0 --no-normalise",
    ],
)
def test_the_command_has_all_settings(given):
    """It says what a config says, whatever the defaults are, and no setting is forgotten."""
    config = load_config(HMC.Config, "MNIST_HMC", given.split())
    command = shlex.split(explicit_command("python MNIST_HMC.py", dataclasses.asdict(config)))
    again = load_config(HMC.Config, "MNIST_HMC", ["--config_name", "quick", *command[2:]])
    for name in (*OF_POSTERIOR, *OF_SAMPLER):
        foreign = name in chain.OF_MLP and config.network != "mlp"
        assert foreign or getattr(again, name) == getattr(config, name), name
    ours = {field.name for field in dataclasses.fields(HMC.Config)}
    ours -= {field.name for field in dataclasses.fields(Config)}
    without_effect = {"parallel", "checkpoint_seconds", "num_modes", "jobs"}
    assert ours - without_effect <= {*OF_POSTERIOR, *OF_SAMPLER}
