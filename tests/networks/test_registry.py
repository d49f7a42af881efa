"""Networks read from a file, and made for a data set."""

import math
from types import SimpleNamespace

from utils.networks.lenet import LeNet
from utils.networks.mlp import MLP
from utils.networks.registry import conv_network, conv_networks, load_network, network_for
from utils.settings.errors import UserError

import pytest


def config_with(**settings) -> SimpleNamespace:
    usual = {"network": "mlp", "hidden_sizes": (512,), "activation": "relu", "width": None}
    usual |= {"normalise": False}
    return SimpleNamespace(**usual | settings)


def data_of(*image_shape) -> SimpleNamespace:
    num_pixels = math.prod(image_shape)
    return SimpleNamespace(num_pixels=num_pixels, num_classes=5, image_shape=image_shape)


def test_a_config_gives_the_hidden_layers_and_the_data_the_others():
    config = config_with(hidden_sizes=(30, 20), activation="tanh")
    assert network_for(config, data_of(64)) == MLP((64, 30, 20, 5), "tanh")


def test_convolutional_networks_have_the_datas_images_and_a_width():
    lenet = network_for(config_with(network="lenet"), data_of(3, 32, 32))
    assert lenet == LeNet((3, 32, 32), 5)
    assert network_for(config_with(network="lenet", width=12), data_of(3, 32, 32)).width == 12


REFUSED = {
    "flat images": ({"network": "lenet"}, (784,), r"lenet cannot take inputs of shape \[784\]"),
    "colour": ({"network": "optunet"}, (3, 32, 32), "optunet cannot take.*grey"),
    "a wide MLP": ({"width": 3}, (784,), "give --hidden_sizes"),
    "a wide OptuNet": ({"network": "optunet", "width": 3}, (1, 28, 28), "leave --width out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_networks_and_data_that_do_not_fit_are_refused(name):
    settings, shape, sentence = REFUSED[name]
    with pytest.raises(UserError, match=sentence):
        network_for(config_with(**settings), data_of(*shape))


SAVED = [
    *(MLP((4, 3, 2), activation) for activation in ("relu", "tanh", "silu")),
    *(conv_network(name, (1, 28, 28), 7) for name in conv_networks()),
    LeNet((3, 40, 32), 4, width=9),
]


@pytest.mark.parametrize("network", SAVED, ids=str)
def test_a_saved_network_is_loaded(tmp_path, network):
    network.save(tmp_path / "network.json")
    assert load_network(tmp_path / "network.json") == network


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"sizes": [4, 3, 2]}', '{"sizes": 4, "activation": "relu"}',
        '{"sizes": [4, "3", 2], "activation": "relu"}',
        '{"sizes": [4, 2.5], "activation": "relu"}', '{"network": "lenet"}',
        '{"network": "lenet", "input_shape": [1, 28, 28], "depth": 3}',
        '{"network": "lenet", "input_shape": [1, 28, 28.5]}',
    ],
)  # fmt: skip
def test_a_network_json_that_describes_none_is_refused_with_an_example(tmp_path, content):
    path = tmp_path / "network.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r'network.json does not .*"sizes": \[784, 512, 10\]'):
        load_network(path)
    path.write_text('{"sizes": [4, 3, 2], "activation": "tanh"}')
    assert load_network(path) == MLP((4, 3, 2), "tanh")


def test_a_network_json_of_an_impossible_network_names_the_file(tmp_path):
    path = tmp_path / "network.json"
    path.write_text('{"network": "lenet", "input_shape": [1, 9, 9]}')
    with pytest.raises(UserError, match=r"network.json: lenet cannot take.*16 × 16"):
        load_network(path)
