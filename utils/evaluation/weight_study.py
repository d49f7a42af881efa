"""What posteriors over weights look like before and after rebasin, and what rebasin does to noise.

Weights behind dead pixels, those that are zero in all training images, cannot matter: their
posterior is the prior N(0, 1), whatever the network. They are the known answer in every run.
"""

from utils.evaluation.diagnostics import FEWEST_DRAWS, diagnose, ess_mean
from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.moments import Moments
from utils.runs.seeding import generator

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
    if network.pixel_slot:
        network.pixel_slot.of(dead)[:] = ~images.any(0)
    return dead


def weight_groups(network: Network, dead: Tensor) -> dict[str, Tensor]:
    """Masks [d] of the first layer's weights, dead and alive, and of every other tensor."""
    groups = {}
    for slot in network.slots:
        mask = torch.zeros_like(dead)
        slot.of(mask).fill_(True)
        groups[slot.name] = mask & ~dead
    groups["dead pixels"] = dead
    return {name: mask for name, mask in groups.items() if mask.any()}


def alive_weights(groups: dict[str, Tensor]) -> Tensor:
    """Which weights [d] are not behind dead pixels."""
    dead = groups.get("dead pixels")
    return torch.ones_like(next(iter(groups.values()))) if dead is None else ~dead


def choose_watched(groups: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Indices of some weights of every group, drawn at random."""
    chosen = {}
    for name, mask in groups.items():
        indices = mask.nonzero().squeeze(1)
        order = torch.randperm(len(indices), generator=generator(seed, "watched", name))
        chosen[name] = indices[order[:NUM_WATCHED].to(indices.device)]
    return chosen


# ---- mixing


def by_group(values: np.ndarray, groups: dict[str, int], num_chains: int) -> dict[str, np.ndarray]:
    """Weights [samples, watched] of groups of these sizes, each as [chains, draws, weights].

    The samples are those of one chain after the other.
    """
    chains = values.reshape(num_chains, -1, values.shape[1])
    parts = np.split(chains, np.cumsum(list(groups.values()))[:-1], axis=2)
    return dict(zip(groups, parts, strict=True))


def mixing(groups: dict[str, np.ndarray]) -> dict[str, dict]:
    """R-hat and ESS of the weights of every group [chains, draws, weights]."""
    summaries = {}
    for name, chains in groups.items():
        if chains.shape[1] < FEWEST_DRAWS:
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
    """How many independent samples the means of the first layer's weights are worth.

    All of them, where that is not known because chains are short or stand still.
    """
    median = groups.get("W1", {}).get("median_ess", num_samples)
    return int(min(max(round(median), 2), num_samples))


# ---- beside the prior


def check_dead_weights(
    moments: Moments, dead: Tensor, effective: float, error: float | None = None
) -> dict | None:
    """Are the dead weights of HMC's samples draws from N(0, 1)? None if there are no such weights.

    The average of w² over a chain has the expectation 1, however strongly the samples depend on
    each other; dead weights are independent of one another, so its spread between them gives
    the standard error. Their variance falls short of 1 by what the mean of a finite chain holds,
    1 / ESS. `effective` is their ESS, found from how samples follow each other and not from their
    size, and trusted to within a half. Of a chain that has hardly moved from where it began none
    of this tells anything ("passed" is None): it may have begun at a draw from the prior.

    After rebasin the same numbers lie in other places, which are no longer independent of one
    another, so that the `error` of before has to be given.
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


def check_dead_pixels(
    moments: dict[str, Moments], mixed: dict, vi: Gaussian | None, dead: Tensor
) -> dict[str, dict | None]:
    """Weights of dead pixels beside the prior: HMC's before and after rebasin, and VI's.

    Rebasin by activation does not look at them, so that they follow the prior after it as before,
    and where a chain tells nothing before, it does not after. VI's tell whether it has converged.
    """
    effective = {when: mixed[when].get("dead pixels", {}).get("median_ess", 0.0) for when in mixed}
    before, after = check_dead_weights(moments["before"], dead, effective["before"]), None
    if before and "after" in moments:
        trusted = 0.0 if before["passed"] is None else effective["after"]
        after = check_dead_weights(moments["after"], dead, trusted, before["standard_error"])
    return {
        "dead_pixels": before,
        "dead_pixels_rebased": after,
        "dead_pixels_vi": describe_dead(vi, dead) if vi else None,
    }


def describe_dead(posterior: Gaussian, dead: Tensor) -> dict | None:
    """Of a Gaussian's dead weights: their average σ and the root of the mean of μ²; exact: 1 and 0.

    None if there are no such weights.
    """
    if not dead.any():
        return None
    mean, std = posterior.mean[dead].double(), posterior.std[dead].double()
    return {
        "std": std.mean().item(),
        "root_mean_square": mean.square().mean().sqrt().item(),
    }


def prior_band(
    direct: Gaussian,
    groups: dict[str, Tensor],
    watched: dict[str, np.ndarray],
    dead_follow_prior: bool,
) -> np.ndarray | None:
    """Between which σ lie PRIOR_SHARE of weights that follow the prior, with HMC's sampling error.

    These are the dead ones' before rebasin (by weight it aligns them, too), if they have been
    found to follow the prior. Where these are few, or do not, it is what a Gaussian weight's would
    be, whose chain has the effective sizes of the dead ones `watched` [chains, draws, weights], or
    of the others in the first layer: its σ² is about chi² with as many degrees of freedom as
    squared deviations are effective, less one, and falls short of 1 by what the mean takes. None
    where chains are too short, or stand still, for that.
    """
    tails = [(1 - PRIOR_SHARE) / 2, (1 + PRIOR_SHARE) / 2]
    dead = groups.get("dead pixels")
    if dead_follow_prior and dead.sum() >= FEWEST_DEAD:
        return np.quantile(direct.std[dead].cpu().numpy(), tails)
    chains = watched["dead pixels" if "dead pixels" in watched else "W1"]
    of_mean, of_squares = _effective_sizes(chains)
    if not of_squares > 2:  # NaN is not, either
        return None
    count = chains.shape[0] * chains.shape[1]
    expected = (1 - 1 / of_mean) * count / (count - 1)
    freedom = min(of_squares, count) - 1  # squares of a Gaussian chain are never antithetic
    return np.sqrt(expected * chi2.ppf(tails, freedom) / freedom)


def _effective_sizes(chains: np.ndarray) -> tuple[float, float]:
    """Medians over weights of the effective sizes of their values, and of squared deviations."""
    if chains.shape[1] < FEWEST_DRAWS:
        return float("nan"), float("nan")
    squares = np.square(chains - chains.mean((0, 1)))
    both = [[ess_mean(v[:, :, k]) for k in range(v.shape[2])] for v in (chains, squares)]
    return tuple(float(np.median(sizes)) for sizes in both)


def share_at_prior(posterior: Gaussian, groups: dict[str, Tensor], band: np.ndarray) -> dict:
    """Share of weights of every group whose σ lies in the band, so may be the prior's."""
    inside = (posterior.std >= float(band[0])) & (posterior.std <= float(band[1]))
    return {"band": band, "share": averages(inside, groups)}


def averages(values: Tensor, groups: dict[str, Tensor]) -> dict[str, float]:
    """Averages over the weights of every group, and over all but the dead ones."""
    masks = {"alive": alive_weights(groups)} | groups
    return {name: values[mask].double().mean().item() for name, mask in masks.items()}


# ---- posteriors beside each other


def describe_frames(
    frames: dict[str, dict[str, Gaussian]],
    groups: dict[str, Tensor],
    band: np.ndarray | None,
) -> dict[str, dict]:
    """Posteriors by frame, then by method: HMC's σ beside the prior's, averages, correlations."""
    alive = alive_weights(groups)
    return {
        "at_prior": {
            frame: share_at_prior(gaussians["hmc"], groups, band)
            for frame, gaussians in frames.items()
            if band is not None
        },
        "average_std": {
            frame: {name: averages(g.std, groups) for name, g in gaussians.items()}
            for frame, gaussians in frames.items()
        },
        "correlations": {
            frame: correlations(gaussians, alive) for frame, gaussians in frames.items()
        },
    }


def correlation(first: Tensor, second: Tensor) -> float:
    """Pearson's, over weights; NaN if one of them is constant."""
    pair = torch.stack([first, second]).double()
    return torch.corrcoef(pair)[0, 1].item()


def correlations(posteriors: dict[str, Gaussian], mask: Tensor) -> dict[str, dict[str, float]]:
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
