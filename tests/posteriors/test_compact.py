"""The compact form as a file."""

from tests.symmetry.planted import same
from utils.networks.mlp import MLP
from utils.posteriors.compact import Compact, load_compact
from utils.posteriors.gaussian import Gaussian
from utils.symmetry.transformation import Transformation, random_transformation

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


def test_signs_of_tanh_units_are_saved_too(tmp_path):
    network = MLP((5, 4, 3, 2), "tanh")
    weights = network.initial_weights(torch.Generator().manual_seed(0))
    drawn = [random_transformation(network, torch.Generator().manual_seed(k)) for k in range(3)]
    Compact(Gaussian(weights, weights.abs()), drawn, weights).save(tmp_path / "compact.npz")
    loaded = load_compact(tmp_path / "compact.npz", network).transformations
    for found, expected in zip(loaded, drawn, strict=True):
        assert torch.equal(found.apply(weights), expected.apply(weights))
