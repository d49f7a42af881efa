"""The prior N(0, s²) on weights and biases, wherever a formula contains it.

Weight decay λ with the mean cross-entropy of N images is the prior with s = (N λ)^−½. At
temperature T the posterior is exp(−U/T), so its prior is N(0, T s²). Running statistics have no
prior: s = ∞.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from utils.networks.network import Network
from utils.settings.errors import UserError
from utils.settings.wording import plural

import torch
from torch import Tensor

MAX_STD = 1e9  # float32 holds its square, and the inverse of that, at any temperature, too
SAME_STD = 1e-3  # relative difference between numbers that mean the same σ


@dataclass(frozen=True)
class Prior:
    std: float | Tensor = 1.0  # s: one number, or one of every weight [d]; ∞: no prior

    @property
    def precision(self) -> float | Tensor:
        return 1 / (self.std * self.std)

    def tempered(self, temperature: float) -> "Prior":
        """Return N(0, T s²)."""
        return Prior(self.std * math.sqrt(temperature))

    def potential(self, weights: Tensor) -> float:
        """Return ½ Σ w²/s² in float64."""
        scaled = weights.double() / self.std
        return 0.5 * scaled.dot(scaled).item()

    def add_gradient(self, gradient: Tensor, weights: Tensor) -> None:
        """Add w/s² to the gradient, in place."""
        if isinstance(self.std, Tensor):
            gradient.addcmul_(weights, self.precision)
        else:
            gradient.add_(weights, alpha=self.precision)

    def kl(self, mean: Tensor, log_std: Tensor) -> float:
        """Return KL(N(mean, std²) ‖ N(0, s²)), summed over weights with a prior, in nats."""
        varies = isinstance(self.std, Tensor)
        variance = (2 * log_std).double().exp()
        log_ratio = log_std.double() - (self.std.log() if varies else math.log(self.std))
        scaled = (variance + mean.double().square()) * self.precision
        each = 0.5 * (scaled - 1) - log_ratio
        return (each[self.std.isfinite()] if varies else each).sum().item()

    def draw(self, network: Network, generator: torch.Generator) -> Tensor:
        """Draw weights [d] from the prior; running statistics are those of a new network."""
        std = self.std.cpu() if isinstance(self.std, Tensor) else self.std
        weights = torch.randn(network.num_weights, generator=generator) * std
        for slot in network.slots:
            if slot.role == "buffer":
                slot.of(weights).fill_(slot.center)
        return weights


def prior_of(
    settings: Mapping, network: Network, num_points: int, device: torch.device | str = "cpu"
) -> Prior:
    """Return the prior in the settings of a method, or in the config.yaml that a run recorded.

    It is N(0, 1) if they do not say. `num_points` is the number of training images.
    """
    std = std_in(settings, num_points)
    if isinstance(std, float | int) and not network.has_buffers:
        return Prior(float(std))
    return Prior(by_layer(network, std).to(device))


def std_in(settings: Mapping, num_points: int) -> float | list[float]:
    """Return s as settings say it: one number, or one for each layer."""
    std = settings.get("prior_std") or 1.0
    if settings.get("weight_decay") is not None:
        precision = num_points * settings["weight_decay"]
        std = precision**-0.5 if precision else math.inf
    if settings.get("prior_precision") is not None:  # a setting of earlier versions
        raise UserError("A run with prior_precision cannot be read: train it again with prior_std.")
    refuse_extreme(std)
    return std


class StatedPrior(NamedTuple):
    """The prior that settings state, to be compared with others and printed."""

    stds: tuple[float, ...]  # of each layer, or one number if all have the same
    empcov: bool = False  # with the covariance of the inputs on first-layer weights

    def matches(self, other: "StatedPrior") -> bool:
        """Return whether both are the same, but for the rounding of what users write."""
        if self.empcov != other.empcov or len(self.stds) != len(other.stds):
            return False
        pairs = zip(self.stds, other.stds, strict=True)
        return all(math.isclose(*pair, rel_tol=SAME_STD) for pair in pairs)

    def __str__(self) -> str:
        empcov = " with EmpCov" if self.empcov else ""
        return f"σ = {', '.join(f'{std:.4g}' for std in self.stds)}{empcov}"


def stated_prior(settings: Mapping, num_points: int) -> StatedPrior:
    """Return the prior that settings, or the config.yaml of a run, state for so many images."""
    std = std_in(settings, num_points)
    stds = tuple(std) if isinstance(std, list) else (std,)
    same = len(set(stds)) == 1
    return StatedPrior(stds[:1] if same else stds, settings.get("prior") == "empcov")


def refuse_extreme(std: float | list[float]) -> None:
    """Refuse deviations whose squares or inverse squares float32 cannot hold."""
    for each in std if isinstance(std, list) else [std]:
        if not (1 / MAX_STD <= each <= MAX_STD or each == math.inf):
            raise UserError(
                f"The prior would have the deviation {each:.3g}: choose prior_std, or "
                f"weight_decay, such that it is between {1 / MAX_STD:g} and {MAX_STD:g}."
            )


def by_layer(network: Network, std: float | list[float]) -> Tensor:
    """Return s of every weight [d] from one number, or one for each layer.

    A layer is a matrix or convolution with the biases and normalisations behind it.
    """
    stds, layer = torch.empty(network.num_weights), -1
    layers = _beginnings(network)
    each = std if isinstance(std, list) else [std] * sum(layers)
    if len(each) != sum(layers):
        raise UserError(
            f"prior_std has {plural(len(each), 'value')}, but {network} has "
            f"{plural(sum(layers), 'layer')}: give one for each layer, or a single one."
        )
    for slot, begins in zip(network.slots, layers, strict=True):
        layer += begins
        slot.of(stds).fill_(math.inf if slot.role == "buffer" else each[max(layer, 0)])
    return stds


def num_layers(network: Network) -> int:
    return sum(_beginnings(network))


def _beginnings(network: Network) -> list[bool]:
    """Return of every slot if a layer begins with it."""
    return [len(slot.shape) > 1 and slot.role == "weight" for slot in network.slots]
