"""How the weights of posteriors mix, compare with the prior, and compare with each other.

A pixel is dead if it is zero in all training images. The data say nothing about its weights: their
posterior is the prior, whatever the network. No force of the likelihood reaches them, so they check
moments and rebasin, and not the sampler.
"""

from utils.evaluation.diagnostics import MIN_DRAWS, diagnose, ess_mean
from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.moments import Moments
from utils.runs.seeding import generator

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

NUM_WATCHED = 64  # weights of each group whose chains are diagnosed
MIN_DEAD = 1000  # weights whose quantiles can stand for the prior's
PRIOR_SHARE = 0.95  # of weights that follow the prior, inside the band
MAX_Z = 4.0  # 1 in 16,000 checks of a correct sampler exceeds it
MIN_EFFECTIVE = 10  # samples; with fewer a chain cannot be compared with the prior


# ---- groups of weights


def dead_weights(network: Network, images: Tensor) -> Tensor:
    """Return the mask [d] of the weights that lead from a pixel that is zero in all images."""
    dead = torch.zeros(network.num_weights, dtype=torch.bool, device=images.device)
    if network.pixel_slot:
        network.pixel_slot.of(dead)[:] = ~images.any(0).flatten()
    return dead


def weight_groups(network: Network, dead: Tensor) -> dict[str, Tensor]:
    """Return masks [d] of the weights of every slot without the dead ones, and of these."""
    groups = {}
    for slot in network.slots:
        mask = torch.zeros_like(dead)
        slot.of(mask).fill_(True)
        groups[slot.name] = mask & ~dead
    groups["dead pixels"] = dead
    return {name: mask for name, mask in groups.items() if mask.any()}


def alive_weights(groups: dict[str, Tensor]) -> Tensor:
    """Return the mask [d] of the weights that are not behind dead pixels."""
    dead = groups.get("dead pixels")
    return torch.ones_like(next(iter(groups.values()))) if dead is None else ~dead


def averages(values: Tensor, groups: dict[str, Tensor]) -> dict[str, float]:
    """Return averages over the weights of every group, and over all but the dead ones."""
    masks = {"alive": alive_weights(groups)} | groups
    return {name: values[mask].double().mean().item() for name, mask in masks.items()}


def choose_watched(groups: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Draw the indices of some weights of every group."""
    chosen = {}
    for name, mask in groups.items():
        indices = mask.nonzero().squeeze(1)
        order = torch.randperm(len(indices), generator=generator(seed, "watched", name))
        chosen[name] = indices[order[:NUM_WATCHED].to(indices.device)]
    return chosen


# ---- mixing


def by_group(values: np.ndarray, groups: dict[str, int], num_chains: int) -> dict[str, np.ndarray]:
    """Split weights [samples, watched] into groups of these sizes, each [chains, draws, weights].

    The samples are those of one chain after the other.
    """
    chains = values.reshape(num_chains, -1, values.shape[1])
    parts = np.split(chains, np.cumsum(list(groups.values()))[:-1], axis=2)
    return dict(zip(groups, parts, strict=True))


def mixing(groups: dict[str, np.ndarray]) -> dict[str, dict]:
    """Return R-hat and ESS of the weights of every group [chains, draws, weights]."""
    summaries = {}
    for name, chains in groups.items():
        if chains.shape[1] < MIN_DRAWS:
            continue
        members = [diagnose(chains[:, :, column]) for column in range(chains.shape[2])]
        moving = [m for m in members if np.isfinite(m["ess_bulk"])]  # others are constant
        if moving:
            summaries[name] = {
                "median_rhat": float(np.median([m["rhat"] for m in moving])),
                "largest_rhat": float(max(m["rhat"] for m in moving)),
                "median_ess": float(np.median([m["ess_bulk"] for m in moving])),
                "smallest_ess": float(min(m["ess_bulk"] for m in moving)),
            }
    return summaries


def num_effective(groups: dict[str, dict], num_samples: int) -> int:
    """Return how many independent samples the means of the first tensor's weights are worth.

    Where mixing is unknown, because chains are short or constant, all samples count.
    """
    first = next(iter(groups.values()), {})
    return int(min(max(round(first.get("median_ess", num_samples)), 2), num_samples))


# ---- beside the prior


def check_dead_weights(
    moments: Moments, dead: Tensor, effective: float, error: float | None = None
) -> dict | None:
    """Compare the dead weights of samples, in units of the prior's σ, with draws from N(0, 1).

    Return None if there are no such weights.

    The average of w² over a chain has the expectation 1, however strongly the samples depend on
    each other. Dead weights are independent of one another, so the spread between them gives the
    standard error. Their variance is below 1 by the variance of a finite chain's mean, 1 / ESS.
    `effective` is their ESS. It is found from how samples follow each other and not from their
    size, and trusted to within a half. A chain that has hardly moved may have begun at a draw from
    the prior, so the check cannot tell: "passed" is None.

    Rebasin moves the same numbers to other places, where they are no longer independent of one
    another. Therefore the `error` from before rebasin is passed for the check after it.
    """
    if dead.sum() < 2:
        return None
    mean, variance = moments.mean[dead], moments.variance()[dead].mean().item()
    count = moments.count
    second_moment = moments.squares[dead] / count + mean.square()
    if error is None:
        error = (second_moment.std() / len(mean) ** 0.5).item()
    z = (second_moment.mean().item() - 1) / error
    expected, passed = float("nan"), None
    if effective >= MIN_EFFECTIVE:
        expected = (1 - 1 / effective) * count / (count - 1)
        tolerance = MAX_Z * error + 0.5 / effective
        passed = abs(z) < MAX_Z and abs(variance - expected) < tolerance
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


def check_dead_pixels(
    moments: dict[str, Moments], mixed: dict, dead: Tensor
) -> dict[str, dict | None]:
    """Compare the dead weights of samples with the prior, before and after rebasin.

    Rebasin by activation ignores these weights, so they follow the prior after it as before. If the
    check is inconclusive before rebasin, so it is after.
    """
    effective = {when: mixed[when].get("dead pixels", {}).get("median_ess", 0.0) for when in mixed}
    before, after = check_dead_weights(moments["before"], dead, effective["before"]), None
    if before and "after" in moments:
        trusted = 0.0 if before["passed"] is None else effective["after"]
        after = check_dead_weights(moments["after"], dead, trusted, before["standard_error"])
    return {"dead_pixels": before, "dead_pixels_rebased": after}


def describe_dead(posterior: Gaussian, dead: Tensor) -> dict | None:
    """Return the average σ of a Gaussian's dead weights and the root mean square of their μ.

    The exact values are 1 and 0. None if there are no such weights.
    """
    if not dead.any():
        return None
    mean, std = posterior.mean[dead].double(), posterior.std[dead].double()
    return {"std": std.mean().item(), "root_mean_square": mean.square().mean().sqrt().item()}


def prior_band(
    direct: Gaussian, groups: dict[str, Tensor], watched: dict[str, np.ndarray], dead_follow_prior:
    bool,
) -> np.ndarray | None:  # fmt: skip
    """Return the two σ between which PRIOR_SHARE of weights lie that follow the prior.

    The band includes the sampling error of σ. If the dead weights follow the prior and are many,
    it is made of their quantiles before rebasin (rebasin by weight aligns them, too). Otherwise it
    is that of a Gaussian weight whose chain has the effective sizes of the dead ones `watched`
    [chains, draws, weights], or of the first tensor's: σ² is about chi² with as many degrees of
    freedom as squared deviations are effective, less one, and smaller by what the mean takes.
    None if chains are too short or constant.
    """
    tails = [(1 - PRIOR_SHARE) / 2, (1 + PRIOR_SHARE) / 2]
    dead = groups.get("dead pixels")
    if dead_follow_prior and dead.sum() >= MIN_DEAD:
        return np.quantile(direct.std[dead].cpu().numpy(), tails)
    chains = watched["dead pixels" if "dead pixels" in watched else next(iter(watched))]
    of_mean, of_squares = _effective_sizes(chains)
    if not of_squares > 2:  # also if NaN
        return None
    count = chains.shape[0] * chains.shape[1]
    expected = (1 - 1 / of_mean) * count / (count - 1)
    freedom = min(of_squares, count) - 1  # squares of a Gaussian chain are never antithetic
    return np.sqrt(expected * chi2.ppf(tails, freedom) / freedom)


def _effective_sizes(chains: np.ndarray) -> tuple[float, float]:
    """Return the medians over weights of the ESS of values and of squared deviations."""
    if chains.shape[1] < MIN_DRAWS:
        return float("nan"), float("nan")
    squares = np.square(chains - chains.mean((0, 1)))
    both = [[ess_mean(v[:, :, k]) for k in range(v.shape[2])] for v in (chains, squares)]
    return tuple(float(np.median(sizes)) for sizes in both)


def share_at_prior(posterior: Gaussian, groups: dict[str, Tensor], band: np.ndarray) -> dict:
    """Return the share of weights of every group whose σ lies in the band, as the prior's may."""
    inside = (posterior.std >= float(band[0])) & (posterior.std <= float(band[1]))
    return {"band": band, "share": averages(inside, groups)}


# ---- posteriors beside each other


def correlation(first: Tensor, second: Tensor) -> float:
    """Return Pearson's correlation over weights; NaN if one of them is constant."""
    pair = torch.stack([first, second]).double()
    return torch.corrcoef(pair)[0, 1].item()


def correlations(posteriors: dict[str, Gaussian], mask: Tensor) -> dict[str, dict[str, float]]:
    """Correlate means, and deviations, of every pair of posteriors over the masked weights."""
    names = list(posteriors)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    return {
        f"{a} and {b}": {
            "mean": correlation(posteriors[a].mean[mask], posteriors[b].mean[mask]),
            "std": correlation(posteriors[a].std[mask], posteriors[b].std[mask]),
        }
        for a, b in pairs
    }
