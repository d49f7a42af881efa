"""The card of a published set of networks: what they are, how good, and how to load them."""

import inspect
import shlex
import sys
from dataclasses import fields
from typing import NamedTuple

from utils.data.datasets import CovarianceRoot
from utils.networks.mlp import MLP
from utils.networks.network import Network
from utils.networks.state_dicts import default_layout
from utils.posteriors.named_samples import FILE
from utils.report.tables import Table
from utils.settings.config import Config
from utils.settings.wording import plural

import torch
from torch import Tensor

# What torch computes with a network's tensors t and images x, for those without our code.
FORWARD = {
    "mlp": """def outputs(t, x):
    layers = sorted({int(name.split(".")[0]) for name in t})
    x = x.flatten(1)
    for layer in layers:
        x = F.linear(x if layer == 0 else ACTIVATION(x), t[f"{layer}.weight"], t[f"{layer}.bias"])
    return x""",
    "optunet": """def outputs(t, x):
    x = F.max_pool2d(F.conv2d(x, t["conv1.weight"]).relu(), 3)
    x = F.conv2d(x, t["conv2.weight"], groups=2).relu().mean((2, 3))
    return F.linear(x, t["fc.weight"], t["fc.bias"])""",
    "lenet": """def outputs(t, x):
    for name in ("conv1", "conv2"):
        x = F.max_pool2d(F.conv2d(x, t[f"{name}.weight"], t[f"{name}.bias"]).relu(), 2)
    x = x.flatten(1)
    for name in ("fc1", "fc2"):
        x = F.linear(x, t[f"{name}.weight"], t[f"{name}.bias"]).relu()
    return F.linear(x, t["fc3.weight"], t["fc3.bias"])""",
}
LOCAL = ("out_dir", "data_dir", "wandb", "device", "jobs", "resume", "overwrite")
OF_NO_INTEREST = {field.name for field in fields(Config)} | {"method", "jobs", "num_draws"}


class NetworkSet(NamedTuple):
    """What a card says of a set of networks."""

    name: str
    network: Network
    count: int
    dtype: torch.dtype
    licence: str
    config: dict  # the settings of the run they are from, or empty
    meta: dict  # and its meta.json
    dataset: str | None = None
    failed: int | None = None  # networks that the run left out
    inputs: str = ""  # how images are prepared
    accuracies: Tensor | None = None  # [K], on the test images
    nlls: Tensor | None = None  # [K]
    average: tuple[float, float] | None = None  # accuracy and NLL of the average prediction
    sampling: str = ""  # sections on posterior, sampler and checks, if a chain made them


def card(networks: NetworkSet) -> str:
    """Return the card in Markdown."""
    data = f" on {networks.dataset}" if networks.dataset else ""
    precision = str(networks.dtype).removeprefix("torch.")
    sections = [
        f"# {networks.name}",
        f"{plural(networks.count, 'network')}: {networks.network}{data}. Weights are in "
        f"{precision}.",
        "## Architecture\n\n" + architecture(networks.network),
        networks.sampling or recipe(networks),
        accuracies(networks),
        "## Loading\n\n" + loading(networks),
        f"## Licence\n\n{networks.licence}",
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def architecture(network: Network) -> str:
    """Return what the network's module says, and its tensors."""
    text = inspect.getdoc(sys.modules[type(network).__module__])
    if isinstance(network, MLP):
        text = f"Linear layers {'-'.join(map(str, network.sizes))} with {network.activation}."
    layout = default_layout(network)
    tensors = layout.state_dict(torch.zeros(network.num_weights))
    rows = [
        [f"`{name}`", " × ".join(map(str, each.shape)) or "1"] for name, each in tensors.items()
    ]
    return f"{text}\n\n{Table(['tensor', 'shape'], rows).markdown()}"


def recipe(networks: NetworkSet) -> str:
    """Return how the networks were trained, if their run is known."""
    if not networks.config:
        return ""
    sessions = networks.meta.get("sessions") or [{}]
    first = sessions[0]
    rows = [[name, _listed(value)] for name, value in settings(networks).items()]
    versions = first.get("versions", {})
    return (
        f"## Recipe\n\n    {portable(first.get('command', ''))}\n\n"
        f"{Table(['setting', 'value'], rows).markdown()}\n\n"
        f"A network's start and data order are drawn from seed {networks.config.get('seed')} and "
        "its number among those trained (`number` in networks.csv). "
        f"Commit {first.get('git_commit')}, PyTorch {versions.get('torch')}, "
        f"{first.get('processor')}."
    )


def portable(command: str) -> str:
    """Return a command without the options that only its user's machine needs."""
    words, kept = iter(shlex.split(command)), []
    for word in words:
        name = word.partition("=")[0].removeprefix("--")
        if name not in LOCAL:
            kept.append(word)
        elif "=" not in word and name not in ("resume", "overwrite"):
            next(words, None)
    return shlex.join(kept)


def settings(networks: NetworkSet) -> dict:
    """Return the settings of the run that have had an effect on its networks."""
    config, ignored = networks.config, set(OF_NO_INTEREST)
    if networks.network.name != MLP.name:
        ignored |= {"hidden_sizes", "activation"}
    if config.get("weight_decay") is not None:
        ignored.add("prior_std")
    if config.get("optimizer") == "Adam":
        ignored |= {"momentum", "nesterov"}
    if config.get("schedule") != "step":
        ignored |= {"milestones", "gamma"}
    return {
        name: value
        for name, value in config.items()
        if name not in ignored and value is not None and value is not False and value != []
    }


def accuracies(networks: NetworkSet) -> str:
    """Return how accurate the networks are, as they are in the file."""
    if networks.accuracies is None:
        return ""
    levels = {"lowest": 0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95,
              "highest": 1}  # fmt: skip
    points = torch.tensor(list(levels.values()), dtype=torch.float64)
    percent = (100 * networks.accuracies.double()).quantile(points).tolist()
    nlls = networks.nlls.double().quantile(points).tolist()
    percent.append(100 * networks.accuracies.mean().item())
    nlls.append(networks.nlls.mean().item())
    rows = [
        ["test accuracy (%)", *(f"{value:.2f}" for value in percent)],
        ["test NLL (nats)", *(f"{value:.4f}" for value in nlls)],
    ]
    hits, nll = networks.average
    failed = plural(networks.failed or 0, "network")
    return (
        f"## Accuracies\n\nOn the test images of {networks.dataset}, of each network as it is in "
        f"the file (`networks.csv`):\n\n{Table(['', *levels, 'mean'], rows).markdown()}\n\n"
        f"The average of all predictions: {100 * hits:.2f} %, {nll:.4f} nats."
        + (f" Left out by the recipe: {failed}." if networks.failed else "")
    )


def _listed(value) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def loading(networks: NetworkSet) -> str:
    """Return code that loads the networks, with this repository and without."""
    ours = (
        "from pathlib import Path\n\nfrom utils.posteriors.files import open_posterior\n\n"
        "posterior = open_posterior(Path(DIRECTORY))\n"
        "weights = posterior[0]  # [d] in float32\n"
        "logits = posterior.network.outputs(weights, images)"
    )
    forward = FORWARD.get(networks.network.name, "").replace(
        "ACTIVATION", f"F.{getattr(networks.network, 'activation', '')}"
    )
    theirs = (
        "import torch.nn.functional as F\n"
        "from safetensors.torch import load_file\n\n"
        f'networks = load_file(DIRECTORY + "/{FILE}")  # tensors [{networks.count}, …]\n'
        "state_dict = {name: tensor[0].float() for name, tensor in networks.items()}"
    )
    if forward:
        theirs += f"\n\n{forward}\n\nlogits = outputs(state_dict, images)"
    inputs = f"{networks.inputs} " if networks.inputs else ""
    return (
        f"DIRECTORY is this folder. {inputs}With this repository:\n\n```python\n{ours}\n```\n\n"
        f"With PyTorch and safetensors alone:\n\n```python\n{theirs}\n```"
    )


def preparation(network: Network, dataset: str, normalisation) -> str:
    """Say how images are prepared for a network."""
    shape = " × ".join(map(str, network.input_shape))
    images = f"Images of {dataset} are [N, {shape}], with pixels in [0, 1]"
    if normalisation is None:
        return f"{images}."
    if isinstance(normalisation, CovarianceRoot):
        return f"{images}, times the root of the covariance of the training images."
    mean, std = (", ".join(map(str, each)) for each in normalisation)
    return f"{images}, less {mean} and divided by {std}."
