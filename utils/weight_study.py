"""What posteriors over weights look like before and after rebasin, and what rebasin does to noise.

Weights behind dead pixels, those that are zero in all training images, cannot matter: their
posterior is the prior N(0, 1), whatever the network. They are the known answer in every run.
"""

from utils.compact import Moments
from utils.diagnostics import FEWEST_DRAWS, diagnose
from utils.mlp import Network
from utils.seeding import generator
from utils.vi import GaussianPosterior

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

NUM_WATCHED = 64  # weights of each group whose chains are diagnosed
FEWEST_DEAD = 1000  # weights whose quantiles can stand for the prior's
PRIOR_SHARE = 0.95  # of weights that follow the prior, inside the band
LARGEST_Z = 4.0  # passes all but 1 in 16,000 checks of a correct sampler
FEWEST_EFFECTIVE = 10  # samples, below which a chain cannot be checked against the prior


# ---- groups of weights


def dead_weights(network: Network, images: Tensor) -> Tensor:
    """Which weights [d] lead from a pixel that is zero in all images."""
    dead = torch.zeros(network.num_weights, dtype=torch.bool, device=images.device)
    network.layers(dead)[0][0][:] = ~images.any(0)
    return dead


def weight_groups(network: Network, dead: Tensor) -> dict[str, Tensor]:
    """Masks [d] of the first layer's weights, dead and alive, and of every other tensor."""
    groups = {}
    for number in range(len(network.shapes)):
        for part, name in enumerate((f"W{number + 1}", f"b{number + 1}")):
            mask = torch.zeros_like(dead)
            network.layers(mask)[number][part].fill_(True)
            groups[name] = mask
    groups["dead pixels"] = dead
    groups["W1"] = groups["W1"] & ~dead
    return {name: mask for name, mask in groups.items() if mask.any()}


def choose_watched(groups: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Indices of some weights of every group, drawn at random."""
    chosen = {}
    for name, mask in groups.items():
        indices = mask.nonzero().squeeze(1)
        order = torch.randperm(len(indices), generator=generator(seed, "watched", name))
        chosen[name] = indices[order[:NUM_WATCHED].to(indices.device)]
    return chosen


# ---- mixing


def mixing(values: np.ndarray, groups: dict[str, int], num_chains: int) -> dict[str, dict]:
    """R-hat and ESS of weights [samples, watched], their columns being groups of these sizes."""
    chains = values.reshape(num_chains, -1, values.shape[1])
    if chains.shape[1] < FEWEST_DRAWS:
        return {}
    each = [diagnose(chains[:, :, column]) for column in range(chains.shape[2])]
    summaries, start = {}, 0
    for name, size in groups.items():
        members, start = each[start : start + size], start + size
        moving = [m for m in members if np.isfinite(m["ess_bulk"])]  # others are constant
        if moving:
            summaries[name] = {
                "median_rhat": float(np.median([m["rhat"] for m in moving])),
                "largest_rhat": float(max(m["rhat"] for m in moving)),
                "median_ess": float(np.median([m["ess_bulk"] for m in moving])),
                "smallest_ess": float(min(m["ess_bulk"] for m in moving)),
            }
    return summaries


# ---- beside the prior


def check_dead_weights(moments: Moments, dead: Tensor, effective: float) -> dict | None:
    """Are the dead weights of HMC's samples draws from N(0, 1)? None if there are no such weights.

    The average of w² over a chain has the expectation 1, however strongly the samples depend on
    each other; dead weights are independent of one another, so its spread between them gives
    the standard error. Their variance falls short of 1 by what the mean of a finite chain holds,
    1 / ESS. `effective` is their ESS, found from how samples follow each other and not from their
    size, and trusted to within a half. Of a chain that has hardly moved from where it began none
    of this tells anything ("passed" is None): it may have begun at a draw from the prior.
    """
    if dead.sum() < 2:
        return None
    mean, variance = moments.mean[dead], moments.variance()[dead].mean().item()
    count = moments.count
    second_moment = moments.squares[dead] / count + mean.square()
    error = (second_moment.std() / len(mean) ** 0.5).item()
    z = (second_moment.mean().item() - 1) / error
    expected, passed = float("nan"), None
    if effective >= FEWEST_EFFECTIVE:
        expected = (1 - 1 / effective) * count / (count - 1)
        doubt = LARGEST_Z * error + 0.5 / effective
        passed = abs(z) < LARGEST_Z and abs(variance - expected) < doubt
    return {
        "weights": len(mean),
        "mean_square": second_moment.mean().item(),
        "standard_error": error,
        "z": z,
        "effective_samples": effective,
        "std": variance**0.5,
        "std_expected": expected**0.5,
        "passed": passed,
    }


def prior_band(
    direct: GaussianPosterior, groups: dict[str, Tensor], num_samples: int
) -> np.ndarray:
    """Between which σ lie PRIOR_SHARE of weights that follow the prior, with HMC's sampling error.

    These are the dead ones' before rebasin (by weight it aligns them, too), or where these are few,
    independent draws'.
    """
    tail = (1 - PRIOR_SHARE) / 2
    dead = groups.get("dead pixels")
    if dead is not None and dead.sum() >= FEWEST_DEAD:
        return np.quantile(direct.std[dead].cpu().numpy(), [tail, 1 - tail])
    return np.sqrt(chi2.ppf([tail, 1 - tail], num_samples - 1) / (num_samples - 1))


def share_at_prior(
    posterior: GaussianPosterior, groups: dict[str, Tensor], band: np.ndarray
) -> dict:
    """Share of weights of every group whose σ lies in the band, so may be the prior's."""
    inside = (posterior.std >= float(band[0])) & (posterior.std <= float(band[1]))
    return {"band": band, "share": averages(inside, groups)}


def averages(values: Tensor, groups: dict[str, Tensor]) -> dict[str, float]:
    """Averages over the weights of every group, and over all but the dead ones."""
    dead = groups.get("dead pixels")
    alive = torch.ones_like(groups["W1"]) if dead is None else ~dead
    masks = {"alive": alive} | groups
    return {name: values[mask].double().mean().item() for name, mask in masks.items()}


# ---- posteriors beside each other


def correlation(first: Tensor, second: Tensor) -> float:
    """Pearson's, over weights; NaN if one of them is constant."""
    pair = torch.stack([first, second]).double()
    return torch.corrcoef(pair)[0, 1].item()


def correlations(
    posteriors: dict[str, GaussianPosterior], mask: Tensor
) -> dict[str, dict[str, float]]:
    """Of the means, and of the deviations, of every pair of posteriors over the masked weights."""
    names = list(posteriors)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    return {
        f"{a} and {b}": {
            "mean": correlation(posteriors[a].mean[mask], posteriors[b].mean[mask]),
            "std": correlation(posteriors[a].std[mask], posteriors[b].std[mask]),
        }
        for a, b in pairs
    }
