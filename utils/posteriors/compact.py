"""The compact form: a Gaussian over rebased weights, with the rebasin that it was fitted to."""

from dataclasses import dataclass
from pathlib import Path

from utils.networks.network import Network
from utils.posteriors.gaussian import Gaussian
from utils.runs.files import save_arrays
from utils.symmetry.transformation import Transformation, from_row, has_signs

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Compact:
    posterior: Gaussian
    transformations: list[Transformation]  # of every sample
    reference: Tensor  # [d]

    def save(self, path: Path) -> None:
        """Write mean, std, reference [d]; permutations [K, units]; transpositions [K, groups].

        The permutations of several groups of units stand one after the other in a row. With tanh
        units there are also signs [K, units], ±1 by the units before they are moved.
        """
        counts = [list(each.transpositions().values()) for each in self.transformations]
        signs = torch.stack([each.sign_row() for each in self.transformations])
        save_arrays(
            path,
            mean=self.posterior.mean,
            std=self.posterior.std,
            permutations=torch.stack([each.to_row() for each in self.transformations]),
            transpositions=np.array(counts),
            reference=self.reference,
            **({"signs": signs} if has_signs(self.transformations[0].network) else {}),
        )


def load_compact(path: Path, network: Network) -> Compact:
    with np.load(path) as archive:
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}
    transformations = from_rows(network, arrays["permutations"], arrays.get("signs"))
    posterior = Gaussian(arrays["mean"], arrays["std"], network)
    return Compact(posterior, transformations, arrays["reference"])


def from_rows(
    network: Network, permutations: Tensor, signs: Tensor | None = None
) -> list[Transformation]:
    """Return the transformation of every row [units] of permutations, and of signs if any."""
    signs = torch.ones_like(permutations) if signs is None else signs
    pairs = zip(permutations.cpu(), signs.cpu(), strict=True)
    return [from_row(network, *pair) for pair in pairs]
