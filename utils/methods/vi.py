"""Mean-field Gaussian variational inference with the prior N(0, 1) on every weight and bias.

q(w) = N(μ, diag σ²) minimises E_q[−log p(data | w)] + KL(q ‖ N(0, 1)) by stochastic gradients,
with one weight sample w = μ + σ ε per batch (the reparameterisation trick). σ is parameterised
by its log and kept at SMALLEST_STD or above.
"""

import math
from dataclasses import dataclass

from utils.methods.training import adam_update, check_finite, data_order
from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian
from utils.runs.seeding import generator

import torch
from torch import Tensor

SMALLEST_STD = 1e-5


@dataclass(frozen=True)
class VIState:
    """After `epoch` epochs: μ and log σ as the two rows of each tensor, and Adam's moments."""

    parameters: Tensor  # [2, d]
    momentum: Tensor  # [2, d]
    second_moment: Tensor  # [2, d]
    epoch: int = 0

    @property
    def posterior(self) -> Gaussian:
        return Gaussian(self.parameters[0], self.parameters[1].exp())

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint has to hold, besides the epoch."""
        names = ("parameters", "momentum", "second_moment")
        return {name: getattr(self, name) for name in names}


def start_vi(mean: Tensor, std: float) -> VIState:
    """The state before the first step: the given means, the same deviation everywhere."""
    parameters = torch.stack([mean, torch.full_like(mean, math.log(std))])
    return VIState(parameters, torch.zeros_like(parameters), torch.zeros_like(parameters))


def kl_to_standard_normal(mean: Tensor, log_std: Tensor) -> float:
    """KL(N(mean, std²) ‖ N(0, 1)), summed over weights, in nats."""
    variance = (2 * log_std).double().exp()
    return (0.5 * (variance + mean.double().square() - 1) - log_std.double()).sum().item()


def train_vi_epoch(
    network: Network,
    state: VIState,
    images: Tensor,
    labels: Tensor,
    *,
    learning_rate: float,
    batch_size: int,
    seed: int,
) -> tuple[VIState, float]:
    """The state an epoch later, and the mean NLL of the training images along the way."""
    parameters, momentum, second_moment = (tensor.clone() for tensor in state.tensors().values())
    mean, log_std = parameters
    num_points, num_steps = len(images), -(-len(images) // batch_size)
    steps_done = torch.tensor(float(state.epoch * num_steps), device=images.device)
    noise_stream = generator(seed, "weight_noise", state.epoch, device=images.device)
    noise, std, weights = (torch.empty_like(mean) for _ in range(3))
    gradient = torch.empty_like(parameters)
    mean_gradient, log_std_gradient = gradient
    rows = min(batch_size, num_points)
    find_gradient = network.gradient(weights[None], mean_gradient[None], rows)
    total_nll = torch.zeros((), dtype=torch.float64, device=images.device)
    order = data_order(num_points, seed, "vi", state.epoch).to(images.device)
    for indices in order.split(batch_size):
        torch.exp(log_std, out=std)
        noise.normal_(generator=noise_stream)
        torch.addcmul(mean, std, noise, out=weights)
        scale = num_points / len(indices)
        nll = find_gradient(images[indices][None], labels[indices][None], scale=scale, keep=0)
        total_nll += nll.sum()
        # ∂/∂log σ = (g ε + σ) σ − 1 and ∂/∂μ = g + μ, where g is the likelihood's gradient
        torch.addcmul(std, mean_gradient, noise, out=log_std_gradient).mul_(std).sub_(1)
        mean_gradient.add_(mean)
        adam_update(parameters, gradient, momentum, second_moment, steps_done, learning_rate)
        log_std.clamp_(min=math.log(SMALLEST_STD))
    check_finite(parameters.sum(), f"epoch {state.epoch + 1}")
    state = VIState(parameters, momentum, second_moment, state.epoch + 1)
    return state, total_nll.item() / num_points
