"""Settings from defaults, YAML and command line, and the sentences for what a user gets wrong."""

from dataclasses import dataclass

from utils.networks.registry import NetworkConfig
from utils.settings import config
from utils.settings.config import (
    Config,
    changes,
    load_config,
    option,
    unnamed_settings,
)
from utils.settings.errors import UserError

import pytest


@dataclass(frozen=True, kw_only=True)
class ToyConfig(Config):
    config_name: str = option("base", "")
    step_size: float = option(0.1, "how far", above=0)
    num_epochs: int = option(3, "how often", minimum=1)
    by_activation: bool = option(True, "which way")
    hidden_sizes: list[int] = option([8], "units", minimum=1)
    num_train: int | None = option(None, "images", minimum=1)
    mode: str = option("a", "", choices=("a", "b"))


@pytest.fixture(autouse=True)
def _config_root(tmp_path, monkeypatch):
    (tmp_path / "Toy").mkdir()
    write(tmp_path, "base", "step_size: 0.2\n")
    monkeypatch.setattr(config, "CONFIG_ROOT", tmp_path)


def write(tmp_path, name, text):
    (tmp_path / "Toy" / f"{name}.yaml").write_text(text)


def load(*arguments):
    return load_config(ToyConfig, "Toy", list(arguments))


def test_yaml_overrides_defaults_and_the_command_line_overrides_yaml():
    assert load().step_size == 0.2
    assert load().num_epochs == 3
    assert load("--step_size", "0.3").step_size == 0.3


def test_values_take_the_type_of_their_field(tmp_path):
    # PyYAML reads 1e-3 as a text
    write(tmp_path, "types", "step_size: 1e-3\nhidden_sizes: [4, 5]\nnum_train: 7\n")
    loaded = load("--config_name", "types", "--no-by_activation")
    assert loaded.step_size == 0.001
    assert loaded.hidden_sizes == [4, 5]
    assert loaded.num_train == 7
    assert loaded.by_activation is False
    assert load("--hidden_sizes", "6", "7").hidden_sizes == [6, 7]
    assert load("--num_train", "none").num_train is None
    assert load("--seed", "9007199254740993").seed == 9007199254740993  # no float holds it


def test_a_file_can_be_given_by_its_path(tmp_path):
    (tmp_path / "mine.yaml").write_text("num_epochs: 9\n")
    loaded = load("--config", str(tmp_path / "mine.yaml"))
    assert (loaded.num_epochs, loaded.config_name) == (9, "mine")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config_name", "nope"], "no config 'nope' for Toy; there are: base"),
        (["--lr", "1"], "Unknown setting --lr; --help lists all settings"),
        (["--step_sise", "1"], "Unknown setting --step_sise; the nearest there is: --step_size"),
        (["--num_epochs", "-1"], "--num_epochs must be at least 1, got -1"),
        (["--num_epochs", "1" + 20 * "0"], "--num_epochs must be less than 2^63"),
        (["--num_epochs", "2.5"], "--num_epochs must be a whole number, got '2.5'"),
        (["--num_epochs", "many"], "--num_epochs must be a whole number, got 'many'"),
        (["--step_size", "0"], "--step_size must be greater than 0"),
        (["--step_size", "nan"], "--step_size must be a number"),
        (["--hidden_sizes", "4", "0"], "--hidden_sizes must be at least 1"),
        (["--mode", "c"], "--mode must be one of a, b, got 'c'"),
        (["--num_epochs"], "--num_epochs: expected one argument"),
        (
            ["--hidden_sizes", "512,512"],
            "Separate the values of --hidden_sizes by spaces: --hidden_sizes 512 512",
        ),
        (["stray"], "Unexpected argument 'stray'"),
        (["--config_name", "base", "--config", "x"], "exclude each other"),
        (["--config", "missing.yaml"], "Cannot read the config missing.yaml: No such"),
        (["--run_name", "a/b"], "run_name is part of a path"),
        (["--config_name", "../Toy/base"], "config_name is part of a path"),
        (["--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
    ],
)
def test_mistakes_on_the_command_line(arguments, sentence):
    with pytest.raises(UserError) as caught:
        load(*arguments)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("step_sizes: 1\n", ["step_sizes in", "bad.yaml", "nearest there is: step_size"]),
        ("num_epochs: true\n", ["num_epochs in", "bad.yaml must be a whole number, got True"]),
        ("by_activation: 1\n", ["must be true or false, got 1"]),
        ("hidden_sizes: 4\n", ["hidden_sizes in", "must be a list, got 4"]),
        ("a: [1\n", ["bad.yaml is not valid YAML: ", "expected ',' or ']', but got", "line 2"]),
        ("seed: 2023-99-99\n", ["bad.yaml is not valid YAML: month must be in"]),
        ("a: \0\n", ["bad.yaml is not valid YAML: ", "special characters are not allowed"]),
        ("resume: true\n", ["resume has no meaning in", "give --resume on the command line"]),
        ("- 1\n", ["must hold 'key: value' lines"]),
        ("sweep:\n  seed: [1]\n", ["bad.yaml has a 'sweep'", "list them in a sweep file"]),
        ("step_size: [0.1, 0.2]\n", ["number, got [0.1, 0.2]", "list them in a sweep file"]),
    ],
)
def test_mistakes_in_a_yaml_file(tmp_path, text, sentences):
    write(tmp_path, "bad", text)
    with pytest.raises(UserError) as caught:
        load("--config_name", "bad")
    for sentence in sentences:
        assert sentence in str(caught.value)


def test_flags_of_an_mlp_are_refused_with_other_networks(tmp_path):
    def load_network(*arguments):
        return load_config(NetworkConfig, "Toy", [*arguments])

    write(tmp_path, "paper", "hidden_sizes: [8]\n")  # in a file they may stand for other runs
    assert load_network("--network", "lenet").network == "lenet"
    for flag in (("--hidden_sizes", "5"), ("--activation", "tanh")):
        with pytest.raises(UserError, match=f"{flag[0]} belongs to --network mlp"):
            load_network("--network", "lenet", *flag)
        load_network(*flag)


def test_changes_are_of_settings_that_decide_the_result():
    recorded = vars(load("--seed", "1", "--out_dir", "here"))
    assert changes(load("--seed", "2", "--out_dir", "there"), recorded) == ["seed was 1 and is 2"]


def test_settings_that_a_configs_name_does_not_tell(tmp_path):
    assert unnamed_settings(load(), "Toy") == {}
    config = load(
        "--hidden_sizes", "64", "--out_dir", "x", "--dataset", "KMNIST", "--run_name", "y"
    )
    assert unnamed_settings(config, "Toy") == {"hidden_sizes": ([8], [64])}
    assert unnamed_settings(load("--step_size", "0.2"), "Toy") == {}  # as in base.yaml
    (tmp_path / "mine.yaml").write_text("num_epochs: 9\n")
    config = load("--config", str(tmp_path / "mine.yaml"), "--seed", "4")
    assert unnamed_settings(config, "Toy") == {"seed": (0, 4)}


def test_help_names_every_field_with_unit_and_default(capsys):
    with pytest.raises(SystemExit):
        load("--help")
    text = capsys.readouterr().out
    # what a bare command takes: the default config's 0.2, where it says nothing the field's 3
    for expected in (
        "--step_size FLOAT", "how far", "(default: 0.2)", "--num_epochs INT", "(default: 3)",
        "--mode a|b", "--hidden_sizes INT [INT", "--out_dir DIR", "configs: base",
    ):  # fmt: skip
        assert expected in text


def test_a_key_given_twice_is_named_with_its_file(tmp_path):
    write(tmp_path, "bad", "step_size: 0.2\nseed: 1\n\nstep_size: 0.3\n")
    with pytest.raises(UserError, match=r"bad.yaml has 'step_size' twice"):
        load("--config_name", "bad")
    write(tmp_path, "good", "base: &base {}\nseed: 1\n")  # anchors are no keys
    with pytest.raises(UserError, match="Unknown setting base"):
        load("--config_name", "good")


def test_values_as_wandb_agents_write_them():
    """One word each, as Python prints the value: the agent's ${args}."""
    loaded = load("--by_activation=False", "--hidden_sizes=[6, 7]", "--num_train=None", "--seed=3")
    assert loaded.by_activation is False
    assert (loaded.hidden_sizes, loaded.num_train, loaded.seed) == ([6, 7], None, 3)
    assert load("--by_activation=True").by_activation is True
    assert load("--hidden_sizes=8").hidden_sizes == [8]
    with pytest.raises(UserError, match="--by_activation"):
        load("--by_activation=maybe")
    with pytest.raises(UserError, match=r"--hidden_sizes must be a whole number, got 'x'"):
        load("--hidden_sizes=[6, x]")


@pytest.fixture
def _agent(monkeypatch):
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    monkeypatch.setenv("WANDB_RUN_ID", "r9")


@pytest.mark.usefixtures("_agent")
def test_a_run_of_a_wandb_agent_has_a_directory_of_its_own():
    loaded = load()
    assert (loaded.run_name, loaded.run_batch_name, loaded.resume) == ("r9", "sweep-s1", True)
    named = load("--run_name", "mine", "--run_batch_name", "monday", "--overwrite")
    assert (named.run_name, named.run_batch_name, named.overwrite) == ("mine-r9", "monday", True)


def test_a_setting_that_an_earlier_version_did_not_have_was_its_default():
    recorded = {k: v for k, v in vars(load()).items() if k not in ("mode", "hidden_sizes")}
    assert changes(load(), recorded) == []
    assert changes(load("--mode", "b"), recorded) == ["mode was a and is b"]
