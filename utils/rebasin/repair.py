"""Give hidden units the mean and deviation over images that they have in other networks.

Averages of networks, networks drawn around them and pruned networks have units that hardly vary
over images, or far too much. REPAIR (Jordan et al. 2023) shifts and scales every unit's value
before its activation, which its incoming weights and its bias can do, to a given mean and
deviation: here the averages over the aligned networks that the network stands for.
"""

from dataclasses import dataclass

from utils.networks.mlp import ACTIVATIONS, MLP
from utils.networks.network import Network
from utils.networks.predictions import recompute_statistics
from utils.settings.errors import UserError

import torch
from torch import Tensor

SMALLEST_DEVIATION = 1e-6  # relative to the mean: units below it are constant, and are only shifted


@dataclass(frozen=True)
class UnitMoments:
    """Mean and deviation over images of every unit's value before its activation, by layer."""

    means: list[Tensor]  # [units] each
    deviations: list[Tensor]

    def averaged(self, others: list["UnitMoments"]) -> "UnitMoments":
        """Return the averages over this network and others, unit by unit."""
        every = [self, *others]
        return UnitMoments(
            *(
                [torch.stack(units).mean(0) for units in zip(*parts, strict=True)]
                for parts in ([each.means for each in every], [each.deviations for each in every])
            )
        )


def unit_moments(network: Network, weights: Tensor, images: Tensor) -> UnitMoments:
    """Return the moments of all hidden units."""
    means, deviations = [], []
    for values, _ in _hidden_layers(network, weights, images):
        means.append(values.mean(0))
        deviations.append(values.std(0, correction=0))
    return UnitMoments(means, deviations)


def repaired(network: Network, weights: Tensor, images: Tensor, target: UnitMoments) -> Tensor:
    """Return the network [d] whose units have the target's moments, from the input on."""
    if network.has_buffers:
        return recompute_statistics(network, weights, images)
    changed = weights.clone()
    for number, (values, (weight, bias)) in enumerate(_hidden_layers(network, changed, images)):
        mean, deviation = values.mean(0), values.std(0, correction=0)
        varies = deviation > SMALLEST_DEVIATION * (1 + mean.abs())
        factor = torch.where(varies, target.deviations[number] / deviation, 1).to(weight)
        shift = target.means[number] - factor.double() * (mean - bias.double())
        weight.mul_(factor.unsqueeze(-1))
        bias.copy_(shift)
    return changed


def _hidden_layers(network: Network, weights: Tensor, images: Tensor):
    """Yield each hidden layer's values before its activation, in float64, with weight and bias.

    What is done to a layer's weights shows in the layers above.
    """
    if not isinstance(network, MLP):
        raise UserError(
            f"REPAIR shifts and scales units of an mlp, or renews running statistics; {network} "
            "has neither."
        )
    inputs = images.to(weights.dtype)
    layers = network.layers(weights)[:-1]
    for weight, bias in layers:
        yield (inputs @ weight.T + bias).double(), (weight, bias)
        inputs = ACTIVATIONS[network.activation](inputs @ weight.T + bias)
