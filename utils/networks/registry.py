"""Networks by name: as a script's config describes them, and as network.json does."""

import json
import operator
from pathlib import Path

from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.runs.errors import UserError

NETWORK_EXAMPLE = '{"sizes": [784, 512, 10], "activation": "relu"}'  # a network.json


def network_for(config, data) -> Network:
    """Return the network that a script's config describes, for this data set."""
    return MLP((data.num_pixels, *config.hidden_sizes, data.num_classes), config.activation)


def load_network(path: Path) -> Network:
    """Read a network.json, which a user may have written."""
    try:
        content = json.loads(Path(path).read_text())
        sizes = tuple(operator.index(size) for size in content["sizes"])
        return MLP(sizes, str(content["activation"]))
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} does not describe a network; it should look like this: {NETWORK_EXAMPLE}"
        ) from None
