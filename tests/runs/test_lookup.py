"""Earlier runs: which one is found, what is said when none or several are, what they are."""

from dataclasses import dataclass

from utils.runs.files import save_json
from utils.runs.lookup import PastRun, find_run, locate
from utils.settings.config import Config
from utils.settings.errors import UserError

import pytest

WIDE, NARROW = {"sizes": [784, 512, 10]}, {"sizes": [784, 64, 10]}


@dataclass(frozen=True, kw_only=True)
class AnyConfig(Config):
    pass


@pytest.fixture
def config(tmp_path) -> AnyConfig:
    return AnyConfig(out_dir=str(tmp_path), config_name="laptop")


@pytest.fixture
def make_run(tmp_path):
    """Make a finished run; with network and num_train as this version records them or earlier."""

    def make(kind, config_name, run_name="", batch="default", network=WIDE, num_train=None,
             earlier_version=False):  # fmt: skip
        parts = filter(None, (kind, "MNIST", config_name, run_name))
        directory = tmp_path / batch / "-".join(parts)
        directory.mkdir(parents=True)
        recorded = {"dataset": "MNIST", "config_name": config_name, "run_name": run_name}
        meta = {"wandb_id": "x"}
        if earlier_version:
            recorded["num_train"] = num_train
            save_json(directory / "network.json", network)
        else:
            data = {"name": "MNIST", "num_train": num_train}
            meta |= {"kind": kind, "network": network, "data": data}
        save_json(directory / "config.yaml", recorded)  # JSON is YAML
        save_json(directory / "meta.json", meta)
        (directory / "DONE").touch()
        return directory

    return make


def find(config, kind="HMC", like=None, optional=False):
    script = {"HMC": "MNIST_HMC.py", "VI": "MNIST_VI.py"}[kind]
    return find_run(config, kind, script, f"--{kind.lower()}", like, optional)


def ask(config, given: str, kind: str = "HMC", optional: bool = False):
    return locate(config, given, kind, f"MNIST_{kind}.py", optional=optional)


def test_the_batchs_finished_run_is_found_or_none_is_wanted(config, make_run):
    run = make_run("HMC", "paper")
    assert ask(config, "newest") == run
    assert ask(config, "none") is None
    with pytest.raises(UserError, match=r"MNIST_VI\.py .* with --vi, or --vi none\.$"):
        ask(config, "newest", "VI", optional=True)


def test_a_path_must_exist_and_be_of_the_data_set(config, make_run, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        ask(config, str(tmp_path / "nowhere"))
    run = make_run("HMC", "a")
    save_json(run / "meta.json", {"data": {"name": "KMNIST"}})
    (run / "samples.npy").touch()
    for path in (run, run / "samples.npy"):
        with pytest.raises(UserError, match="give --dataset KMNIST"):
            ask(config, str(path))


def test_a_config_of_the_users_own_does_not_matter_and_a_runs_own_does(config, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.yaml").write_text("- a list")
    assert ask(config, str(own)) == own
    (own / "meta.json").write_text("{}")
    with pytest.raises(UserError, match=r"config\.yaml is damaged"):
        ask(config, str(own))


def test_of_several_runs_that_of_the_same_config_is_found(config, make_run):
    wanted = make_run("HMC", "laptop")
    make_run("HMC", "laptop", run_name="again")
    make_run("HMC", "quick")
    make_run("VI", "laptop")
    make_run("HMC", "laptop", batch="other")
    (make_run("HMC", "unfinished") / "DONE").unlink()
    assert find(config) == wanted


def test_a_run_of_the_same_run_name_comes_first(config, make_run):
    make_run("HMC", "laptop")
    named = make_run("HMC", "laptop", run_name="again")
    assert find(AnyConfig(out_dir=config.out_dir, config_name="laptop", run_name="again")) == named


def test_a_single_run_of_another_config_is_taken_and_named(config, make_run, capsys):
    run = make_run("HMC", "quick")
    assert find(config) == run
    assert f"Only {run} (784-512-10) is there, of another config" in capsys.readouterr().out


def test_several_runs_that_could_be_meant_are_listed(config, make_run):
    make_run("HMC", "paper")
    make_run("HMC", "quick", network=NARROW, num_train=3000)
    with pytest.raises(UserError) as raised:
        find(config)
    for part in (
        "Several HMC runs could be meant",
        "HMC-MNIST-paper (784-512-10);",
        "HMC-MNIST-quick (784-64-10, 3000 training images). Give the path of one with --hmc.",
    ):
        assert part in str(raised.value)


@pytest.mark.parametrize("earlier_version", [False, True])
def test_a_run_must_match_in_network_and_data(config, make_run, earlier_version):
    shared = {"earlier_version": earlier_version}
    hmc = PastRun(make_run("HMC", "quick", network=NARROW, num_train=3000, **shared))
    make_run("VI", "laptop", **shared)
    make_run("VI", "all", network=NARROW, **shared)
    with pytest.raises(UserError, match=r"that matches .*HMC-MNIST-quick \(784-64-10, 3000"):
        find(config, "VI", like=hmc)
    wanted = make_run("VI", "few", network=NARROW, num_train=3000)
    assert find(config, "VI", like=hmc) == wanted


def test_runs_of_other_batches_are_named(config, make_run):
    run = make_run("HMC", "quick", batch="quick")
    with pytest.raises(UserError) as raised:
        find(config)
    assert f"but there are: {run} " in str(raised.value)
    assert "Give its path with --hmc, or --run_batch_name quick." in str(raised.value)


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({}, ""),
        (
            {"dataset": "KMNIST", "config_name": "quick", "data_dir": "my data"},
            " --config_name quick --dataset KMNIST",
        ),
        ({"config_name": "nobody_has_it"}, ""),
    ],
)
def test_the_command_makes_a_run_where_it_is_looked_for(tmp_path, given, command):
    out_dir = tmp_path / "runs"
    config = AnyConfig(out_dir=str(out_dir), **given)
    places = f" --out_dir {out_dir}" + (" --data_dir 'my data'" if "data_dir" in given else "")
    expected = f"python MNIST_VI.py --run_batch_name default{command}{places}, or give the path of"
    with pytest.raises(UserError) as raised:
        find(config, "VI", optional=True)
    assert f"{expected} one with --vi, or --vi none." in str(raised.value)


def test_what_a_run_says_of_itself(make_run, tmp_path):
    for earlier_version in (False, True):
        directory = make_run("VI", "a", f"b{earlier_version}", num_train=7,
                             earlier_version=earlier_version)  # fmt: skip
        run = PastRun(directory / "posterior.npz")
        assert (run.kind, run.dataset, run.network) == ("VI", "MNIST", WIDE)
        assert run.data["num_train"] == 7
    folder = PastRun(tmp_path)  # not a run
    assert (folder.kind, folder.dataset, folder.network, folder.data) == (None, None, {}, {})
