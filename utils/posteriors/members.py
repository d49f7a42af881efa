"""The weight vectors of a posterior that is a set of them, all in memory."""

from pathlib import Path
from typing import NamedTuple

from utils.networks.network import Network
from utils.posteriors.files import open_posterior
from utils.posteriors.mixture import Mixture, is_set
from utils.runs.errors import UserError

import torch
from torch import Tensor


class Members(NamedTuple):
    """Weights [chains, draws, d]; independent networks are chains of one draw each."""

    network: Network
    weights: Tensor

    @property
    def independent(self) -> bool:
        return self.weights.shape[1] == 1


def open_members(path: Path) -> Members:
    """Read all weight vectors of a run, or of a samples.npy.

    They are draws of chains if chains.json says so, else independent networks.
    """
    posterior = open_posterior(path, fewest=1)
    if not is_set(posterior):
        raise UserError(f"{path} has no set of networks, but a distribution of weights.")
    parts = posterior.components if isinstance(posterior, Mixture) else [posterior]
    is_chain = all(part.path.with_name("chains.json").exists() for part in parts)
    chains = posterior.num_chains if is_chain else len(posterior)
    weights = torch.stack(list(posterior))
    return Members(posterior.network, weights.unflatten(0, (chains, -1)))
