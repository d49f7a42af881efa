"""Which annealed chains have ended in regions that hold next to nothing of the posterior.

A chain whose likelihood cools down from temperature T_0 to T_1, T_2, … carries the weight

    log w = −Σ_t (1/T_{t+1} − 1/T_t) NLL(θ_t)

of annealed importance sampling (Neal 2001), where θ_t is its state after a transition at T_t. Such
weights estimate how much of the posterior lies where a chain has ended, and those of chains from
one region differ by a few nats. A chain far below the best is stuck where the posterior is not.
"""

from collections.abc import Iterable

from utils.methods.hmc.adaptation import HMCSettings

import numpy as np

NEGLIGIBLE = 12.0  # nats below the best chain, much more than weights of one region vary


def log_weights(
    records: Iterable[dict], settings: HMCSettings, num_chains: int, temperature: float = 1.0
) -> np.ndarray:
    """Return the chains' log w from the records of their transitions: 0 without annealing.

    Likelihoods cool down to the temperature of the posterior.
    """
    weights = np.zeros(num_chains)
    for record in records:
        made = record["iteration"]  # transitions, this one included
        if made <= settings.hot_transitions:
            cooling = 1 / settings.heat_at(made) - 1 / settings.heat_at(made - 1)
            weights[record["chain"]] -= cooling * record["nll"] / temperature
    return weights


def negligible_chains(weights: np.ndarray) -> list[int]:
    """Return the chains whose weights say that their regions hold nothing."""
    return np.flatnonzero(weights < weights.max() - NEGLIGIBLE).tolist()
