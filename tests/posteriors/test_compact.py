"""The compact form as a file."""

from tests.symmetry.planted import same
from utils.networks.mlp import MLP
from utils.posteriors.compact import Compact, load_compact
from utils.posteriors.gaussian import Gaussian
from utils.symmetry.transformation import Transformation

import numpy as np
import torch


def test_what_is_saved_is_loaded(tmp_path):
    network = MLP((5, 4, 3, 2))
    transformations = [
        Transformation(network, {"h1": torch.tensor(first), "h2": torch.tensor(second)})
        for first, second in (([1, 0, 2, 3], [0, 1, 2]), ([1, 2, 3, 0], [2, 1, 0]))
    ]
    mean, std, reference = torch.rand(3, network.num_weights)
    Compact(Gaussian(mean, std), transformations, reference).save(tmp_path / "compact.npz")
    arrays = np.load(tmp_path / "compact.npz")
    assert arrays["transpositions"].tolist() == [[1, 0], [3, 1]]
    assert arrays["permutations"].tolist() == [[1, 0, 2, 3, 0, 1, 2], [1, 2, 3, 0, 2, 1, 0]]
    loaded = load_compact(tmp_path / "compact.npz", network)
    assert torch.equal(loaded.posterior.mean, mean)
    assert torch.equal(loaded.posterior.std, std)
    assert torch.equal(loaded.reference, reference)
    for found, expected in zip(loaded.transformations, transformations, strict=True):
        assert same(found, expected)
