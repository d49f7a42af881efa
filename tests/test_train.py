"""train.py: which settings a command line means."""

from tests.conftest import REPOSITORY
from utils.methods.registry import METHODS
from utils.runs.script import settings_for
from utils.settings.config import config_names

import pytest

TRAIN = REPOSITORY / "train.py"
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
    config, kind = settings_for(TRAIN, f"--method {given}".split())
    assert (config.config_name, kind) == (CONFIGS[given], METHODS[config.method].kind)


@pytest.mark.parametrize("name", [n for n in config_names("train") if "_resnet" in n])
def test_settings_for_residual_networks_are_known_to_their_methods(name):
    method, _, network = name.partition("_")
    config, _ = settings_for(TRAIN, ["--method", method, "--network", network])
    assert (config.config_name, config.network) == (name, network)


def test_every_method_for_several_modes_has_settings_for_both_networks():
    names = set(config_names("train"))
    for method in ("dropout", "laplace", "sghmc", "sgld", "snapshot", "swag", "vi"):
        assert {method, f"{method}_optunet", f"{method}_lenet"} <= names
