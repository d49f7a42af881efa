"""References in halves: what distances say of the other half, of others, and of planted changes."""

import json
from dataclasses import replace

from utils.distances.mmd import linear_kernel
from utils.networks.mlp import MLP
from utils.posteriors.files import open_posterior
from utils.posteriors.samples import Points
from utils.quality.forecasts import ImageSets
from utils.quality.modes import modes_of
from utils.quality.references import fit_reference, mean_squares, split_chains, split_networks
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch

NETWORK = MLP((4, 3, 3))
RANDOM = torch.Generator().manual_seed(0)
WEIGHTS = torch.randn(41, NETWORK.num_weights, generator=RANDOM)
IMAGES = ImageSets(
    torch.randn(20, 4, generator=RANDOM), torch.zeros(20, dtype=torch.long),
    torch.randn(20, 4, generator=RANDOM), "far",
)  # fmt: skip


@pytest.fixture(scope="module")
def halves():
    return split_networks(modes_of(Points(WEIGHTS, NETWORK)), 100, seed=0)


@pytest.fixture(scope="module")
def reference(halves):
    return fit_reference(
        "networks", NETWORK, halves.first, WEIGHTS[40], IMAGES, 10, permutations=99, seed=0
    )


def test_halves_have_nothing_in_common(halves):
    rows = torch.cat([halves.first.weights(), halves.second.weights()])
    assert len(rows.unique(dim=0)) == 40
    (rest,) = halves.rest[0].draw(1, torch.Generator())
    assert rest.equal(WEIGHTS[40])


@pytest.mark.parametrize("count", [1, 2])
def test_chains_are_split_by_chain_or_in_time(count, tmp_path):
    draws = torch.arange(40.0)[:, None].expand(-1, NETWORK.num_weights)
    Points(draws.contiguous(), NETWORK).save(tmp_path)
    (tmp_path / "chains.json").write_text(json.dumps({"num_chains": count}))
    halves = split_chains(modes_of(open_posterior(tmp_path)), 8, seed=0)
    assert halves.first.weights().max() < 20 <= halves.second.weights().min()
    assert len(halves.first.modes) == len(halves.second.modes) > 4


def test_the_other_half_is_within_the_null(halves, reference):
    found = reference.distances(halves.second.weights(), halves.second.blocks, NETWORK)
    assert set(found) == {*(space.name for space in reference.spaces), "classifier"}
    for name, each in found.items():
        assert each["p"] > 0.01, name
        assert name == "classifier" or each["low"] < each["value"] < each["high"]


def test_others_are_found_whatever_is_compared(reference):
    others = 0.2 * torch.randn(20, NETWORK.num_weights, generator=RANDOM) + 0.5
    found = reference.distances(others, np.arange(20), NETWORK)
    assert all(each["p"] == pytest.approx(0.01) for name, each in found.items()
               if name != "classifier")  # fmt: skip
    assert found["classifier"]["value"] > 0.9
    one_mode = reference.distances(others, np.zeros(20, dtype=int), NETWORK)
    assert "classifier" not in one_mode
    assert np.isnan(one_mode["weights"]["p"])
    assert one_mode["weights"]["value"] == pytest.approx(found["weights"]["value"])


def test_power_is_of_every_space_and_change(halves, reference):
    tables = reference.power(halves.second.weights(), 10)
    for table in tables["halves"], tables["modes"]:
        assert set(table) == {space.name for space in reference.spaces}
        for powers in table.values():
            assert all(0 <= power <= 1 for power in powers.values())
            assert powers["means + 0.01 sd"] < 0.3  # hardly a change


def test_power_of_ten_modes_beside_twenty(reference):
    """It is 1 if changed ones are far away, and 0.05 on average without a change."""
    made = replace(reference, permutations=199)
    kernel = torch.block_diag(*[torch.ones(40, 40, dtype=torch.float64)] * 2)
    blocks, random = np.arange(40), np.random.default_rng(0)
    assert made._power_of_modes(kernel, blocks, 10, random) == 1
    assert np.isnan(made._power_of_modes(kernel, blocks, 4, random))  # too few for a null
    points = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kernel = linear_kernel(torch.cat([points, points]))
    found = [made._power_of_modes(kernel, blocks, 10, random) for _ in range(6)]
    assert 0 < np.mean(found) < 0.12


def test_what_weight_space_sees():
    squares = mean_squares(NETWORK, WEIGHTS)
    assert squares["squared norm of the mean"] == pytest.approx(
        WEIGHTS.double().mean(0).square().sum().item()
    )
    first = NETWORK.slots[0]
    assert squares[first.name] == pytest.approx(first.of(WEIGHTS).double().square().mean().item())


def test_few_networks_are_refused():
    with pytest.raises(UserError, match="at least 9"):
        split_networks(modes_of(Points(WEIGHTS[:5], NETWORK)), 10, seed=0)
