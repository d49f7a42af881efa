"""Means and deviations of posteriors in one frame, and what earlier evaluations left of them."""

from tests.posteriors.test_samples import NETWORK, make_samples
from utils.evaluation.weight_space import marginal_gaussian, open_weight_space
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRank
from utils.posteriors.posterior import Mixture
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch


def test_only_posteriors_with_a_mean_and_deviations_have_marginals():
    mean, std = torch.rand(2, NETWORK.num_weights, generator=torch.Generator().manual_seed(0))
    gaussian = Gaussian(mean, std, NETWORK)
    low_rank = LowRank(mean, std[None], network=NETWORK, diagonal=std)
    assert torch.equal(marginal_gaussian(gaussian).std, std)
    torch.testing.assert_close(marginal_gaussian(low_rank).std, 2**0.5 * std)
    assert torch.equal(marginal_gaussian(low_rank).mean, mean)
    assert marginal_gaussian(Mixture([gaussian, gaussian])) is None


def test_an_evaluation_is_given_by_its_directory_or_its_file(tmp_path):
    run = make_samples(tmp_path / "a", 3)
    arrays = {f"hmc_{frame}_{part}": np.ones(23) for frame in ("before", "after")
              for part in ("mean", "std")}  # fmt: skip
    arrays |= {"hmc_single": np.ones(23), "alive": np.ones(23, bool)}
    np.savez(run / "weight_space.npz", **arrays)
    for path in (run, run / "weight_space.npz"):
        space = open_weight_space(path, torch.device("cpu"))
        assert space.gaussians["after"].keys() == {"hmc"}


@pytest.mark.parametrize("name", ["alive", "hmc_single", "hmc_after_mean"])
def test_an_evaluation_of_another_version_is_said_to_be_one(tmp_path, name):
    run = make_samples(tmp_path / "a", 3)
    needed = {"alive", "hmc_single", "hmc_after_mean"} - {name}
    np.savez(run / "weight_space.npz", **{other: np.ones(23) for other in needed})
    with pytest.raises(UserError, match=r"another version: .* --overwrite"):
        open_weight_space(run, torch.device("cpu"))


def test_no_evaluation_no_pruning(tmp_path):
    run = make_samples(tmp_path / "a", 3)
    (tmp_path / "notes.md").write_text("no arrays")
    for path in (run, tmp_path / "notes.md"):
        with pytest.raises(UserError, match=r"an evaluation makes it"):
            open_weight_space(path, torch.device("cpu"))
