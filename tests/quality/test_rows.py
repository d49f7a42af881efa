"""Which samples the rows of the table have."""

from dataclasses import replace

from utils.networks.mlp import MLP
from utils.posteriors.block_gaussian import BlockGaussian, WeightBlock
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRank
from utils.posteriors.samples import Points
from utils.quality.modes import sample_modes
from utils.quality.references import HMC_SAMPLES, INDEPENDENT, Halves
from utils.quality.rows import Trained, rows_of, with_derived
from utils.settings.errors import UserError

import pytest
import torch

NETWORK = MLP((4, 3, 3))
SIZE = NETWORK.num_weights


def points(count: int) -> Points:
    return Points(torch.randn(count, SIZE), NETWORK)


def gaussians(count: int) -> list[Gaussian]:
    return [Gaussian(torch.zeros(SIZE), torch.ones(SIZE), NETWORK) for _ in range(count)]


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (gaussians(12), {"one": (4, 1, 10), "multi": (1, 4, 8), "each": (1, 10, 10)}),
        (gaussians(9), {"one": (4, 1, 10), "multi": (1, 4, 8)}),
        (gaussians(4), {"one": (4, 1, 10), "multi": (1, 4, 8)}),
        (gaussians(1), {"one": (1, 1, 10)}),
        ([points(5) for _ in range(12)],
         {"one": (4, 1, 5), "multi": (1, 4, 4), "each": (1, 5, 5)}),
        ([points(3) for _ in range(12)], {"one": (4, 1, 3), "multi": (1, 3, 3)}),
        ([points(1) for _ in range(12)],
         {"one": (4, 1, 1), "multi": (1, 4, 4), "each": (1, 10, 10)}),
        ([points(1) for _ in range(7)], {"one": (4, 1, 1), "multi": (1, 4, 4), "each": (1, 7, 7)}),
    ],
)  # fmt: skip
def test_rows_of_a_posterior_have_equally_many_samples(modes, expected):
    rows = rows_of({"x": Trained(modes, 2.0)}, {}, num_samples=10, num_modes=4, seed=0)
    shapes = {row.modes: (len(row.sets), len(row.sets[0].modes), len(row.sets[0])) for row in rows}
    assert shapes == expected
    for row in rows:
        assert row.about["training_seconds"] == 2.0 * row.about["num_modes"]


def test_swag_has_a_mean_and_laplace_linearised_predictions():
    mean = torch.arange(SIZE) / SIZE
    block = WeightBlock(torch.zeros(1, 1, dtype=int), torch.eye(1), torch.eye(1), torch.ones(1, 1))
    given = {
        "swag": Trained([LowRank(mean, torch.ones(2, SIZE), network=NETWORK)], 3.0),
        "laplace": Trained([BlockGaussian(mean, [block], NETWORK)] * 12),
        "vi": Trained(gaussians(2)),
        "draws": Trained([replace(points(4), mean=mean)]),
        "networks": Trained([points(4)]),
    }
    with pytest.raises(UserError, match="swag_mean is the name of a row that swag has"):
        with_derived(given | {"swag_mean": given["vi"]})
    trained = with_derived(given)
    derived = {name: each.source for name, each in trained.items() if each.source}
    assert trained.keys() - derived.keys() == given.keys()
    assert derived == {"swag_mean": "swag", "laplace_linearised": "laplace", "draws_mean": "draws"}
    for name in ("swag_mean", "draws_mean"):
        (swa,) = trained[name].modes
        assert swa.weights.equal(mean[None])
    assert trained["swag_mean"].core_seconds == 3.0
    assert [name for name, each in trained.items() if each.linearised] == ["laplace_linearised"]
    rows = rows_of({"x": trained["laplace_linearised"]}, {}, num_samples=10, num_modes=4, seed=0)
    assert [len(row.sets[0].modes) for row in rows] == [1, 4, 10]
    assert rows[0].about["samples"] is None
    assert rows[0].about["source"] == "laplace"


def test_the_last_row_of_a_reference_is_its_other_half():
    modes = [points(1) for _ in range(21)]
    chains = [points(6), points(6)]
    sets_of_ten = [sample_modes("n", modes[k : k + 10], 10, 0) for k in (0, 10)]
    both = [sample_modes("h", [chain], 6, 0) for chain in chains]
    halves = {
        INDEPENDENT: Halves(*sets_of_ten, modes[20:], sets_of_ten[0]),
        HMC_SAMPLES: Halves(*both, [], both[0]),
    }
    trained = {INDEPENDENT: Trained(modes, 1.0), HMC_SAMPLES: Trained(chains, 8.0)}
    rows = rows_of(trained, halves, num_samples=10, num_modes=4, seed=0)
    assert rows[2].sets[0].weights().equal(halves[INDEPENDENT].second.weights())
    assert rows[3].sets[0] is halves[HMC_SAMPLES].second
    assert [row.about["training_seconds"] for row in rows] == [1, 4, 10, 8]
