"""Networks read from a file, and made for a data set."""

from types import SimpleNamespace

from utils.networks.mlp import MLP
from utils.networks.registry import load_network, network_for
from utils.runs.errors import UserError

import pytest


def test_a_config_gives_the_hidden_layers_and_the_data_the_others():
    config = SimpleNamespace(hidden_sizes=(30, 20), activation="tanh")
    data = SimpleNamespace(num_pixels=64, num_classes=5)
    assert network_for(config, data) == MLP((64, 30, 20, 5), "tanh")


@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
def test_a_saved_network_is_loaded(tmp_path, activation):
    network = MLP((4, 3, 2), activation)
    network.save(tmp_path / "network.json")
    assert load_network(tmp_path / "network.json") == network


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"sizes": [4, 3, 2]}', '{"sizes": 4, "activation": "relu"}',
        '{"sizes": [4, "3", 2], "activation": "relu"}',
        '{"sizes": [4, 2.5], "activation": "relu"}',
    ],
)  # fmt: skip
def test_a_network_json_that_describes_none_is_refused_with_an_example(tmp_path, content):
    path = tmp_path / "network.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r'network.json does not .*"sizes": \[784, 512, 10\]'):
        load_network(path)
    path.write_text('{"sizes": [4, 3, 2], "activation": "tanh"}')
    assert load_network(path) == MLP((4, 3, 2), "tanh")
