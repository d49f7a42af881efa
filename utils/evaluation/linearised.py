"""Predictions of a Gaussian with the network linearised at its mean.

With the Jacobian J of the logits f there, an image's logits are N(f, J Σ Jᵀ). This "GLM predictive"
is what the Gauss-Newton approximation assumes (Immer et al. 2021), and often predicts better than
the network itself does with weights drawn from the Gaussian.
"""

import math
from collections.abc import Iterator, Sequence

from utils.networks.jacobians import LayerSlopes, in_chunks, jacobians, linear_layers
from utils.posteriors.block_gaussian import BlockGaussian
from utils.posteriors.posterior import Mixture, Posterior

import torch
from torch import Tensor

LAST_LAYER_ROWS = 200  # images at a time where only the last layer's weights vary


def linearised_predictions(
    posterior: Posterior, images: Tensor, num_draws: int, random: torch.Generator
) -> dict[str, Tensor]:
    """Return class probabilities [N, classes] in closed form, and averaged over drawn logits.

    A mixture averages over its modes.
    """
    modes = posterior.components if isinstance(posterior, Mixture) else [posterior]
    parts = {"probit": [], "draws": []}
    for moments in moments_by_rows(modes, images):
        drawn = [averaged_draws(*each, num_draws, random) for each in moments]
        parts["probit"].append(sum(probit(*each) for each in moments) / len(modes))
        parts["draws"].append(sum(drawn) / len(modes))
    return {name: torch.cat(each) for name, each in parts.items()}


def probit_predictions(posterior: Posterior, images: Tensor) -> Tensor:
    """Return class probabilities [N, classes] of a Gaussian in closed form, in float64."""
    return torch.cat([probit(*moments) for (moments,) in moments_by_rows([posterior], images)])


def moments_by_rows(
    modes: Sequence[Posterior], images: Tensor
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield every mode's moments of logits, of as many images as Jacobians fit into memory for."""
    only_last = all(map(only_last_varies, modes))
    chunks = ((rows,) for rows in images.split(LAST_LAYER_ROWS))
    for (rows,) in chunks if only_last else in_chunks(modes[0].network, images):
        yield [logit_moments(mode, rows, only_last) for mode in modes]


def only_last_varies(posterior: Posterior) -> bool:
    """Return whether a Gaussian's blocks are all of the last layer's weight and bias."""
    if not isinstance(posterior, BlockGaussian):
        return False
    first = min(slot.start for slot in posterior.network.slots[-2:])
    return all(block.places.min().item() >= first for block in posterior.blocks)


def logit_moments(
    posterior: Posterior, images: Tensor, only_last: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the mean [N, C] and covariance [N, C, C] of logits, in float64."""
    network, posterior = posterior.network, posterior.to(images.device)
    layers, logits = linear_layers(network, posterior.mean, images, only_last=only_last)
    covariance = covariance_by_layers(posterior, layers)
    if covariance is None:
        slopes, _ = jacobians(network, posterior.mean, images, only_last=only_last)
        covariance = posterior.output_covariance(slopes)
    return logits.double(), covariance.double()


def covariance_by_layers(posterior: Posterior, layers: list[LayerSlopes]) -> Tensor | None:
    """Return the covariance [N, C, C] of logits if every block is a layer with one scale.

    Of Kronecker blocks the factors of the Jacobian are rotated, which are much smaller than itself.
    """
    if not isinstance(posterior, BlockGaussian):
        return None
    blocks = {block.places[0, 0].item(): block for block in posterior.blocks}
    scales = torch.ones_like(posterior.mean) if posterior.scales is None else posterior.scales
    total = 0
    for layer in layers:
        for group, places in enumerate(layer.places):
            block = blocks.pop(places[0, 0].item(), None)
            if block is None or (scales[places] != scales[places[0, 0]]).any():
                return None
            if torch.equal(block.places, places.flatten()[None]):
                parts = layer.product()[:, :, group].flatten(2) * scales[places[0, 0]]
                parts = parts @ block.right * block.std
                total = total + parts @ parts.mT
                continue
            if not torch.equal(block.places, places):
                return None
            errors = block.left.T @ layer.errors[:, :, group] * scales[places[0, 0]]
            inputs = block.right.T @ layer.inputs[:, group]
            total = total + block_covariance(errors, inputs, block.std)
    return None if blocks else total


def block_covariance(errors: Tensor, inputs: Tensor, std: Tensor) -> Tensor:
    """Return the covariance by errors [N, C, m, T] and inputs [N, n, T] along eigenvectors."""
    if inputs.shape[-1] == 1:
        variance = inputs[..., 0].square() @ std.square().T  # [N, m]
        errors = errors[..., 0]
        return (errors * variance.unsqueeze(1)) @ errors.mT
    parts = (errors @ inputs.mT.unsqueeze(1) * std).flatten(2)
    return parts @ parts.mT


def probit(logits: Tensor, covariance: Tensor) -> Tensor:
    """Return softmax(f / √(1 + π/8 diag)), MacKay's approximation (1992) of the mean softmax."""
    variance = covariance.diagonal(dim1=1, dim2=2)
    return (logits / (1 + math.pi / 8 * variance).sqrt()).softmax(-1)


def averaged_draws(
    logits: Tensor, covariance: Tensor, num_draws: int, random: torch.Generator
) -> Tensor:
    """Return the average softmax of logits drawn from N(f, covariance)."""
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(1)
    total = torch.zeros_like(logits)
    for _ in range(num_draws):
        noise = torch.randn(*logits.shape, 1, generator=random, dtype=logits.dtype)
        total += (logits + (root @ noise.to(root.device)).squeeze(-1)).softmax(-1)
    return total / num_draws
