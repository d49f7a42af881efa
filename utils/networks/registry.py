"""Networks by name: as a script's config describes them, and as network.json does."""

import json
import operator
from dataclasses import dataclass
from pathlib import Path

from utils.data.datasets import Dataset, load_dataset
from utils.networks.conv_network import ConvNetwork
from utils.networks.lenet import LeNet
from utils.networks.mlp import ACTIVATIONS, MLP
from utils.networks.network import Network
from utils.networks.optunet import OptuNet
from utils.networks.resnet import ResNet8FRN, ResNet18, ResNet20FRN
from utils.settings.config import Config, option
from utils.settings.errors import UserError, reason

import torch

ARCHITECTURES: dict[str, type[Network]] = {
    each.name: each for each in (MLP, OptuNet, LeNet, ResNet8FRN, ResNet20FRN, ResNet18)
}
MLP_ONLY = ("network", MLP.name)
COLOUR = ("resnet8_frn", "resnet20_frn", "resnet18")  # usually trained on CIFAR-10
NETWORK_EXAMPLES = (
    '{"sizes": [784, 512, 10], "activation": "relu"} or '
    '{"network": "lenet", "input_shape": [1, 28, 28], "num_classes": 10, "width": 6}'
)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Config):
    """The further settings of scripts that train or sample networks."""

    num_modes = jobs = 1  # no settings, unless a method declares them as such

    network: str = option("mlp", "architecture, see docs/networks.md", choices=ARCHITECTURES)
    width: int | None = option(
        None, "channels of the first convolution, if not as usual", minimum=1
    )
    normalise: bool = option(
        False, "shift and scale images by the data set's published mean and deviation"
    )
    hidden_sizes: list[int] = option(
        [512], "units of each hidden layer of an mlp", minimum=1, belongs_to=MLP_ONLY
    )
    activation: str = option(
        "relu", "activation function of an mlp", choices=tuple(ACTIVATIONS), belongs_to=MLP_ONLY
    )
    num_train: int | None = option(None, "training images to use, from the first on", minimum=1)


def network_for(config, data) -> Network:
    """Return the network that a script's config describes, for this data set."""
    empcov = getattr(config, "prior", "independent") == "empcov"
    if config.network == MLP.name:
        if config.width is not None:
            raise UserError("An mlp has no width: give --hidden_sizes.")
        if config.normalise:
            raise UserError("An mlp takes pixels in [0, 1] as they are: leave --normalise out.")
        sizes = (data.num_pixels, *config.hidden_sizes, data.num_classes)
        return MLP(sizes, config.activation, len(data.train_images) if empcov else 0)
    if empcov:
        raise UserError("EmpCov is a prior of what units read of all pixels: give --network mlp.")
    return conv_network(
        config.network, data.image_shape, data.num_classes, config.width, config.normalise
    )


def network_and_data(config, device: torch.device) -> tuple[Network, Dataset]:
    """Return the network that a script's config describes, and its data set as it takes it."""
    data = load_dataset(config.dataset, config.data_dir, config.num_train)
    network = network_for(config, data)
    return network, inputs_for(network, data).to(device)


def conv_networks() -> list[str]:
    """Return the names of convolutional networks."""
    return [name for name in ARCHITECTURES if name != MLP.name]


def conv_network(
    name: str, input_shape: tuple[int, ...] = (1, 28, 28), num_classes: int = 10,
    width: int | None = None, normalise: bool = False,
) -> ConvNetwork:  # fmt: skip
    """Return a convolutional network, of its usual width if none is given."""
    if name not in conv_networks():
        raise UserError(f"There is no network {name!r}; choose from {', '.join(ARCHITECTURES)}.")
    widths = {} if width is None else {"width": width}
    if widths and not hasattr(ARCHITECTURES[name], "width"):
        raise UserError(f"{name} comes in one width only: leave --width out.")
    return ARCHITECTURES[name](tuple(input_shape), num_classes, bool(normalise), **widths)


def usual_shape(name: str) -> tuple[int, int, int]:
    """Return the shape of images that a convolutional network is shown with."""
    return (3, 32, 32) if name in COLOUR else (1, 28, 28)


def inputs_for(network: Network, data: Dataset) -> Dataset:
    """Return the data set as the network takes it: in its shape, normalised if it wants that."""
    return data.inputs(network.input_shape, data.normalisation(network.normalisation))


def network_from(description: dict) -> Network:
    """Return the network that `Network.describe` has described."""
    content = dict(description)
    name = content.pop("network", MLP.name)
    if name == MLP.name:
        sizes = tuple(operator.index(size) for size in content["sizes"])
        return MLP(sizes, str(content["activation"]), operator.index(content.get("empcov", 0)))
    shape = tuple(operator.index(size) for size in content.pop("input_shape"))
    rest = {key: operator.index(value) for key, value in content.items()}
    return conv_network(name, shape, **rest)


def load_network(path: Path) -> Network:
    """Read a network.json, which a user may have written."""
    try:
        return network_from(json.loads(Path(path).read_text()))
    except OSError as error:
        raise UserError(f"Cannot read {path}: {reason(error)}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{path} does not describe a network; it should look like this: {NETWORK_EXAMPLES}"
        ) from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
