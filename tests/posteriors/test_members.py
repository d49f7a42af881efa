"""Sets of networks read as chains or as independent networks."""

from utils.networks.mlp import MLP
from utils.posteriors.files import open_members
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.posterior import Mixture
from utils.posteriors.samples import Points
from utils.settings.errors import UserError

import pytest
import torch

NETWORK = MLP((3, 2, 2))


def draw(count: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(count)
    return torch.randn(count, NETWORK.num_weights, generator=random)


def test_networks_are_independent_unless_they_are_said_to_be_chains(tmp_path):
    weights = draw(6)
    Points(weights, NETWORK).save(tmp_path)
    members = open_members(tmp_path)
    assert members.independent
    assert torch.equal(members.weights, weights.unsqueeze(1))
    (tmp_path / "chains.json").write_text('{"num_chains": 2}')
    members = open_members(tmp_path)
    assert not members.independent
    assert torch.equal(members.weights, weights.view(2, 3, -1))
    assert members.network == NETWORK


def test_modes_are_put_together(tmp_path):
    parts = [draw(2), draw(3)]
    Mixture([Points(part, NETWORK) for part in parts]).save(tmp_path)
    assert torch.equal(open_members(tmp_path).weights[:, 0], torch.cat(parts))


def test_distributions_of_weights_are_refused(tmp_path):
    Gaussian(draw(1)[0], torch.ones(NETWORK.num_weights), NETWORK).save(tmp_path)
    with pytest.raises(UserError, match="no set of networks"):
        open_members(tmp_path)
