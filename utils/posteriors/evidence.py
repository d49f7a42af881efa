"""The evidence lower bound (ELBO) of a Gaussian over weights.

log p(D) ≥ E_q log p(D | w) − KL(q ‖ p), with equality if q is the posterior. Numbers of different
approximations of one posterior can be compared; the highest is nearest to it, in KL(q ‖ posterior).
"""

from collections.abc import Callable

from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.prior import Prior

import torch
from torch import Tensor


def log_likelihood(network: Network, weights: Tensor, images: Tensor, labels: Tensor) -> float:
    """Return Σ_n log p(y_n | x_n, w), in float64."""
    total = 0.0
    pairs = zip(images.split(network.chunk_rows), labels.split(network.chunk_rows), strict=True)
    for rows, answers in pairs:
        logits = network.outputs(weights, rows).double()
        total -= torch.nn.functional.cross_entropy(logits, answers, reduction="sum").item()
    return total


def elbo_estimates(
    posterior: Gaussian,
    prior: Prior,
    likelihood: Callable[[Tensor], float],
    num_draws: int,
    random: torch.Generator,
) -> Tensor | None:
    """Return an estimate of the ELBO for each draw; `likelihood` is Σ_n log p(y_n | x_n, w).

    None if a weight with a prior has no deviation: then KL(q ‖ p) is infinite.
    """
    divergence = prior.kl(posterior.mean, posterior.std.log())
    if not torch.tensor(divergence).isfinite():
        return None
    expected = [likelihood(weights) for weights in posterior.draw(num_draws, random)]
    return torch.tensor(expected, dtype=torch.float64) - divergence
