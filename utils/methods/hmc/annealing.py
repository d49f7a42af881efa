"""Annealed chains: an estimate of how much of the posterior lies where each has ended.

Chains that stay in different regions should count as much as their regions hold. Annealed
importance sampling estimates that, with an error of several nats or, along short paths, of tens.
So a chain is left out only if its potential differs too, and its weight by far more than weights of
chains that agree (`compare_annealed`).
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from utils.evaluation.diagnostics import MAX_RHAT, MIN_DRAWS, rhat
from utils.methods.hmc.adaptation import HMCSettings

import numpy as np
from scipy.special import stdtrit

PREDICTION_LEVEL = 0.99  # one-sided, that a region's weight is below those of chains that agree
NEGLIGIBLE = math.log(100)  # nats: a region that holds less than 1 % of another's mass


def log_weights(
    records: Iterable[dict], settings: HMCSettings, num_chains: int, temperature: float = 1.0
) -> np.ndarray:
    """Return the estimated log w of every chain from the records of its transitions.

    While the likelihood's temperature falls from T_0 = anneal_from · T to the posterior's T, a
    chain collects the weight of annealed importance sampling (Neal 2001)

        log w = −Σ_t (1/T_t − 1/T_{t−1}) NLL(θ_t),   t = 1, 2, …

    where θ_t is its state after t transitions, the last of them at temperature T_{t−1}. At the end
    T_t = T.

    This path starts from the hottest distribution, N(0, T s²) exp(−NLL/T_0), as if the first
    transition from a draw θ_0 of the prior led there. A path from the prior itself would have the
    further factor exp(−NLL(θ_0)/T_0). With it the mean of w is the evidence; without it, the
    evidence divided by that at T_0, if chains reach equilibrium there. It is not included because
    it only adds noise to a comparison of regions: a hot chain soon forgets θ_0. (For OptuNet on
    1,000 images its logarithm has a standard deviation of 10 nats.)

    The mass and the step size are learnt along the path, so weights are not exactly unbiased.
    """
    inverse = [
        1 / (temperature * settings.heat_at(t)) for t in range(settings.hot_transitions + 1)
    ]  # 1/T_t
    weights = np.zeros(num_chains)
    for record in records:
        t = record["iteration"]
        if t <= settings.hot_transitions:
            weights[record["chain"]] -= (inverse[t] - inverse[t - 1]) * record["nll"]
    return weights


class AnnealedChains(NamedTuple):
    """Annealed chains beside the best one, which has the largest estimated log weight."""

    log_weights: list[float]
    potential_rhats: list[float]  # of each chain and the best one together
    log_weight_spread: float | None  # standard deviation over chains that agree; None: only one
    log_weight_gap: float | None  # from their mean to the chains left out; None: there are none
    left_out: list[int]


def compare_annealed(weights: np.ndarray, potentials: np.ndarray) -> AnnealedChains:
    """Decide which chains to leave out, by log weights [C] and potentials after burn-in [C, draws].

    A chain is left out if both hold:

    - It disagrees with the best chain: R-hat of the two chains' potentials is above MAX_RHAT, as
      where means differ by half a standard deviation. Copies of a region have the same potential,
      and Monte Carlo errors alone reach this R-hat only with fewer than about 20 effective samples.
    - Its log weight is more than NEGLIGIBLE below the prediction limit of Student's t,

          mean − t_{n−1} s √(1 + 1/n),

      for another chain like the n that agree with the best one. Mean and standard deviation s are
      theirs. If n = 1 the spread is unknown, and no chain is left out.
    """
    best = int(weights.argmax())
    rhats = np.ones(len(weights))
    if potentials.shape[1] >= MIN_DRAWS:
        others = [k for k in range(len(weights)) if k != best]
        rhats[others] = [rhat(potentials[[k, best]]) for k in others]
    disagree = rhats > MAX_RHAT
    agreeing, spread, gap, left_out = weights[~disagree], None, None, np.array([], dtype=int)
    n = len(agreeing)
    if n > 1:
        spread = float(agreeing.std(ddof=1))
        limit = agreeing.mean() - stdtrit(n - 1, PREDICTION_LEVEL) * spread * math.sqrt(1 + 1 / n)
        left_out = np.flatnonzero(disagree & (weights < limit - NEGLIGIBLE))
    if len(left_out):
        gap = float(agreeing.mean() - weights[left_out].max())
    return AnnealedChains(weights.tolist(), rhats.tolist(), spread, gap, left_out.tolist())
