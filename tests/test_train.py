"""train.py: which settings a command line means."""

import runpy
from pathlib import Path

from utils.settings.config import config_names, load_config

import pytest

TRAIN = runpy.run_path(str(Path(__file__).resolve().parent.parent / "train.py"))
CONFIGS = {
    "sgd": "sgd",
    "sgd --network mlp": "sgd",
    "sgd --network optunet": "optunet",
    "sgd --network=lenet": "lenet",
    "swag --network lenet": "swag_lenet",
    "swag --network resnet18": "swag_resnet18",
    "swag --network resnet8_frn": "swag",  # has no settings of its own
}


@pytest.mark.parametrize("given", CONFIGS)
def test_the_network_chooses_the_settings(given):
    arguments = f"--method {given}".split()
    assert TRAIN["config_class"](arguments)().config_name == CONFIGS[given]


@pytest.mark.parametrize("name", [n for n in config_names("train") if "_resnet" in n])
def test_settings_for_residual_networks_are_known_to_their_methods(name):
    method, _, network = name.partition("_")
    arguments = ["--method", method, "--network", network]
    config = load_config(TRAIN["config_class"](arguments), "train", arguments, "")
    assert (config.config_name, config.network) == (name, network)


def test_every_method_for_several_modes_has_settings_for_both_networks():
    names = set(config_names("train"))
    for method in ("dropout", "laplace", "sghmc", "sgld", "snapshot", "swag", "vi"):
        assert {method, f"{method}_optunet", f"{method}_lenet"} <= names
