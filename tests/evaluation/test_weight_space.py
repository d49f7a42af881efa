"""Means and deviations of posteriors in one frame, and what earlier evaluations left of them."""

from dataclasses import replace

from tests.posteriors.test_samples import NETWORK, make_samples
from utils.evaluation.weight_space import (
    WeightSpace,
    marginal_gaussian,
    open_weight_space,
    rebased_blocks,
)
from utils.posteriors.compact import Compact
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.low_rank import LowRank
from utils.posteriors.moments import merge_all
from utils.posteriors.posterior import Mixture
from utils.posteriors.samples import Samples, open_samples
from utils.settings.errors import UserError
from utils.symmetry.transformation import random_transformation

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


def evaluated_samples(directory) -> tuple[WeightSpace, Samples]:
    """Samples, and the space and compact form of them with their units in random places."""
    make_samples(directory, 8)
    np.save(directory / "samples.npy", np.random.default_rng(0).normal(size=(8, 23)))
    samples = open_samples(directory)
    moves = [
        random_transformation(NETWORK, torch.Generator().manual_seed(k), log_scale=0)
        for k in range(8)
    ]
    rows = torch.stack([move.apply(each) for move, each in zip(moves, samples, strict=True)])
    truth = Gaussian(rows.mean(0), rows.std(0))
    Compact(truth, moves, samples[0]).save(directory / "compact.npz")
    frames = {frame: {"hmc": truth} for frame in ("before", "after")}
    return WeightSpace(NETWORK, frames, {}, torch.ones(len(rows[0]), dtype=torch.bool)), samples


def test_blocks_of_the_truths_samples_together_are_the_truths_gaussian(tmp_path):
    space, samples = evaluated_samples(tmp_path / "a")
    blocks = rebased_blocks(space, samples, tmp_path / "a" / "compact.npz")
    assert [block.count for block in blocks] == [1] * 8
    together = merge_all(blocks).gaussian()
    torch.testing.assert_close(together.mean, space.gaussians["after"]["hmc"].mean)
    torch.testing.assert_close(together.std, space.gaussians["after"]["hmc"].std)


def test_other_samples_than_the_truths_are_refused(tmp_path):
    space, samples = evaluated_samples(tmp_path / "a")
    compact = tmp_path / "a" / "compact.npz"
    shuffled = replace(samples, indices=samples.indices[:, ::-1])  # no longer in their places
    with pytest.raises(UserError, match="other samples now"):
        rebased_blocks(space, shuffled, compact)
    with pytest.raises(UserError, match="8 samples were evaluated, and there are 7"):
        rebased_blocks(space, replace(samples, indices=samples.indices[:, :7]), compact)
    with pytest.raises(UserError, match="too few"):
        rebased_blocks(space, replace(samples, indices=samples.indices[:, :3]), compact)
