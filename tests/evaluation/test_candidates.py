"""Posteriors that users ask to compare: opened, or refused in a sentence."""

from dataclasses import dataclass

from tests.posteriors.test_samples import make_samples
from utils.data.datasets import Dataset
from utils.evaluation.evaluate import (
    Candidate,
    check_candidates,
    check_data,
    check_names,
    named_or_newest,
    named_paths,
    open_candidate,
    sets_option,
)
from utils.networks.mlp import MLP
from utils.posteriors.gaussian import Gaussian
from utils.posteriors.samples import Points
from utils.runs.lookup import PastRun
from utils.settings.config import Config
from utils.settings.errors import UserError

import pytest
import torch


@dataclass(frozen=True, kw_only=True)
class AnyConfig(Config):
    posteriors: list[str] = sets_option()


def candidate(tmp_path, posterior, name: str = "some") -> Candidate:
    return Candidate(name, name, posterior, PastRun(tmp_path), {}, "give another")


def points(network: MLP) -> Points:
    return Points(torch.zeros(2, network.num_weights), network)


def test_without_names_the_batch_s_finished_runs_are_taken(tmp_path):
    config = AnyConfig(out_dir=str(tmp_path), config_name="quick")
    made_by = {"HMC": "sample.py", "ensemble": "train.py"}
    with pytest.raises(UserError, match="make one with python sample"):
        named_or_newest(config, made_by)
    runs = {kind: tmp_path / "default" / f"{kind}-MNIST-quick" for kind in ("HMC", "ensemble")}
    for run in runs.values():
        run.mkdir(parents=True)
        (run / "DONE").touch()
    assert named_or_newest(config, made_by) == runs
    given = AnyConfig(out_dir=str(tmp_path), posteriors=[f"mine={runs['HMC']}"])
    assert named_or_newest(given, made_by) == {"mine": runs["HMC"]}


@pytest.mark.parametrize("name", ["my swag", "1st", "a=b", "", "rebased"])
def test_a_name_must_fit_into_keys(name):
    with pytest.raises(UserError, match="cannot name a posterior"):
        check_names(["hmc", name])


@pytest.mark.parametrize("name", ["hmc_rebased", "HMC"])
def test_names_must_not_give_the_same_key(name):
    with pytest.raises(UserError, match="too alike"):
        check_names(["hmc", name])
    check_names(["hmc", "hmc_multi", "swag2"])


def test_paths_are_given_with_names(tmp_path):
    config = AnyConfig(out_dir=str(tmp_path))
    given = [f"a={tmp_path}", f"b={tmp_path}"]
    assert named_paths(config, given) == {"a": tmp_path, "b": tmp_path}
    for wrong in (["a"], ["a="], [given[0], given[0]]):
        with pytest.raises(UserError, match="takes name=PATH"):
            named_paths(config, wrong)
    with pytest.raises(UserError, match="does not exist"):
        named_paths(config, [f"a={tmp_path / 'nowhere'}"])


def test_what_is_opened_is_described(tmp_path):
    opened = open_candidate("a", "a", make_samples(tmp_path / "a", 10, num_chains=2), most=4)
    assert str(opened) == "4 weight vectors, 2 chains"
    assert opened.identity["run"] == "a"


@pytest.mark.parametrize("sizes", [(784, 10), (100, 5, 10), (784, 5, 3)])
def test_networks_of_other_data_are_refused(sizes, tmp_path):
    data = Dataset("MNIST", torch.zeros(2, 784), *[torch.zeros(2)] * 3)
    check_data(candidate(tmp_path, points(MLP((784, 5, 10)))), data)
    with pytest.raises(UserError, match=f"{sizes[0]}-.*784 inputs, hidden units and 10 outputs"):
        check_data(candidate(tmp_path, points(MLP(sizes))), data)


def test_all_are_of_the_truths_network_and_the_truth_is_a_set(tmp_path):
    one, other = MLP((4, 3, 2)), MLP((4, 5, 2))
    gaussian = Gaussian(*torch.ones(2, one.num_weights), one)
    candidates = {"a": candidate(tmp_path, points(one)), "b": candidate(tmp_path, gaussian)}
    check_candidates(candidates, "a")
    with pytest.raises(UserError, match="but b is a Gaussian: give another --truth"):
        check_candidates(candidates, "b")
    candidates["b"] = candidate(tmp_path, points(other))
    with pytest.raises(UserError, match=r"of the network 4-5-2 .* but .* of 4-3-2"):
        check_candidates(candidates, "a")
