"""A script's settings: dataclass defaults, then a YAML file, then the command line.

Every script declares a frozen dataclass that extends `Config`; its fields, made with `option`,
are at once the YAML keys and the command-line flags. Whatever a user gets wrong here is a
`UserError`: one sentence that names the key, where it came from and what is allowed.
"""

import argparse
import dataclasses
import difflib
import math
import os
import typing
from dataclasses import dataclass
from pathlib import Path

from utils.runs.errors import UserError, reason

import yaml

DEVICES = ("auto", "cpu", "cuda")
# What names a config or how to begin with it cannot stand in the config itself.
COMMAND_LINE_ONLY = ("config", "config_name", "resume", "overwrite")
SWEEP_ADVICE = (
    "to try several values, list them in a sweep file such as configs/sweeps/vi_learning_rate.yaml "
    "and run it with `python sweep.py FILE`"
)
CONFIG_ROOT = Path(__file__).resolve().parents[2] / "configs"


def option(
    default, help, *, unit=None, choices=None,
    minimum=None, above=None, below=None, changeable=False, may_grow=False,
):  # fmt: skip
    """A config field.

    `changeable` marks what may differ when a run is resumed, `may_grow` numbers that may then be
    larger: what is there already is what it would be, and more of it is made.
    """
    metadata = {
        "help": help, "unit": unit, "choices": choices,
        "minimum": minimum, "above": above, "below": below, "changeable": changeable,
        "may_grow": may_grow,
    }  # fmt: skip
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The fields that every script has."""

    config_name: str = option("paper", "named settings: configs/<script>/NAME.yaml")
    config: str | None = option(None, "settings from this YAML file instead of --config_name")
    dataset: str = option("MNIST", "data set", choices=("MNIST", "FashionMNIST", "KMNIST"))
    seed: int = option(0, "seed of every random stream of the run", minimum=0)
    run_name: str = option("", "suffix of the run's directory, to keep several runs apart")
    run_batch_name: str = option("default", "batch of the run: runs/<batch>/, wandb's group")
    out_dir: str = option("runs", "where run directories are made", changeable=True)
    data_dir: str = option("data", "where data sets are kept", changeable=True)
    device: str = option("auto", "where to compute", choices=DEVICES, changeable=True)
    matmul: str = option(
        "default",
        "CPU kernel of matrix products; auto: the fastest accurate one, which may change the bits",
        choices=("auto", "default", "onednn"),
        changeable=True,
    )
    wandb: str = option(
        "auto",
        "wandb logging; auto: online if logged in, else disabled; the environment variables "
        "WANDB_PROJECT and WANDB_ENTITY say where runs go",
        choices=("auto", "online", "offline", "disabled"),
        changeable=True,
    )
    wandb_samples: bool = option(
        False, "upload weights and samples to wandb, as an artifact", changeable=True
    )
    resume: bool = option(False, "go on with this run if it was begun before", changeable=True)
    overwrite: bool = option(False, "delete what this run left before and start", changeable=True)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Config):
    """What scripts that train or sample networks have besides."""

    hidden_sizes: list[int] = option([512], "units of each hidden layer", minimum=1)
    activation: str = option("relu", "of the hidden layers", choices=("relu", "tanh"))
    num_train: int | None = option(None, "use only the first so many training images", minimum=1)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(NetworkConfig):
    """What scripts that train networks have besides."""

    optimizer: str = option("SGD", "of every network", choices=("SGD", "Adam"))
    learning_rate: float = option(1e-3, "step size of the optimiser", above=0)
    momentum: float = option(0.9, "of SGD; Adam has its own", minimum=0)
    batch_size: int = option(64, "images per step", minimum=1)
    num_epochs: int = option(50, "passes over the training images", minimum=1)


@dataclass(frozen=True, kw_only=True)
class PermutationConfig(TrainingConfig):
    """What scripts that permute the networks' hidden units need besides: that there are some."""

    def __post_init__(self):
        if not self.hidden_sizes:
            raise UserError(
                "hidden_sizes must have at least one hidden layer: without hidden units there is "
                "nothing to permute."
            )


def changed_fields(config, recorded: dict) -> dict[str, tuple]:
    """Return {name: (recorded, now)} of the settings that make this another run.

    Left out are settings that may change, and numbers that may grow and have grown.
    """
    now, left_out = dataclasses.asdict(config), ["config", *grown_fields(config, recorded)]
    return {
        f.name: (recorded.get(f.name), now[f.name])
        for f in dataclasses.fields(config)
        if not f.metadata["changeable"]
        and f.name not in left_out
        and recorded.get(f.name) != now[f.name]
    }


def changes(config, recorded: dict) -> list[str]:
    """Describe each of `changed_fields`."""
    changed = changed_fields(config, recorded)
    return [f"{name} was {before} and is {after}" for name, (before, after) in changed.items()]


def grown_fields(config, recorded: dict) -> list[str]:
    """Names of the fields that may grow and are larger than recorded for the run."""
    growing = [f.name for f in dataclasses.fields(config) if f.metadata["may_grow"]]
    return [name for name in growing if getattr(config, name) > recorded.get(name, math.inf)]


def load_config(config_class, script: str, arguments: list[str], description: str = ""):
    """Return the settings of one run: the script's defaults, its YAML file, the command line."""
    given = _read_command_line(config_class, script, arguments, description)
    settings = _read_yaml(config_class, script, given)
    command_line = {k: _convert(config_class, k, v, f"--{k}") for k, v in given.items()}
    agent_id = wandb_agent_run()
    merged = _agent_settings(agent_id) | settings | command_line
    merged["run_name"] = "-".join(filter(None, [merged.get("run_name", ""), agent_id]))
    return _build(config_class, merged)


def wandb_agent_run() -> str | None:
    """The id of the run that a wandb agent has started this process for, if one has."""
    return os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_SWEEP_ID") else None


def _agent_settings(agent_id: str | None) -> dict:
    """Return the defaults of a wandb agent's run: its sweep's own batch, resumed."""
    if agent_id is None:
        return {}
    return {"run_batch_name": f"sweep-{os.environ['WANDB_SWEEP_ID']}", "resume": True}


def _build(config_class, values: dict):
    if values.get("config"):
        values = values | {"config_name": Path(values["config"]).stem}
    config = config_class(**values)
    if config.resume and config.overwrite and not wandb_agent_run():
        raise UserError("--resume and --overwrite exclude each other: give one of them.")
    for name in ("config_name", "run_name", "run_batch_name"):
        if "/" in getattr(config, name) or getattr(config, name).startswith("."):
            raise UserError(f"{name} is part of a path: no '/' and no leading '.' in it, please.")
    if not config.run_batch_name:
        raise UserError("run_batch_name must not be empty; leave it out for 'default'.")
    return config


def _read_yaml(config_class, script: str, given: dict) -> dict:
    """Return the settings in the YAML file that the command line (or the default) names."""
    path = _yaml_path(config_class, script, given)
    content = read_yaml(path)
    if "sweep" in content:
        raise UserError(f"{path} has a 'sweep', but a config describes one run: {SWEEP_ADVICE}.")
    for key in COMMAND_LINE_ONLY:
        if key in content:
            raise UserError(f"{key} has no meaning in {path}: give --{key} on the command line.")
    return {k: _convert(config_class, k, v, f"{k} in {path}") for k, v in content.items()}


def read_yaml(path: Path) -> dict:
    """The mapping in a YAML file that the user has written."""
    try:
        content = yaml.load(path.read_text(), _OneOfEachKey) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the config {path}: {reason(error)}.") from None
    except _RepeatedKey as error:
        raise UserError(f"{path} has {error}: keep one of them.") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1
        raise UserError(f"{path} is not valid YAML: {error.problem} in line {line}.") from None
    except yaml.reader.ReaderError as error:
        raise UserError(f"{path} is not valid YAML: {error.reason}.") from None
    except (ValueError, KeyError, AttributeError, RecursionError) as error:  # of a 13th month, say
        raise UserError(f"{path} has a value that YAML cannot read: {error}.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold 'key: value' lines.")
    return content


class _RepeatedKey(Exception):
    """A key that a mapping has twice; of plain YAML loaders the last one wins, silently."""


class _OneOfEachKey(yaml.SafeLoader):
    def construct_mapping(self, node, deep=False):
        lines = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise _RepeatedKey(f"{key.value!r} twice, in lines {lines[key.value]} and {line}")
            lines[key.value] = line
        return super().construct_mapping(node, deep)


def _yaml_path(config_class, script: str, given: dict) -> Path:
    if "config" in given:
        if "config_name" in given:
            raise UserError("--config and --config_name exclude each other: give one of them.")
        return Path(given["config"])
    default = next(f.default for f in dataclasses.fields(config_class) if f.name == "config_name")
    name = given.get("config_name", default)
    path = CONFIG_ROOT / script / f"{name}.yaml"
    if not path.is_file():
        there = ", ".join(config_names(script)) or "none"
        raise UserError(f"There is no config {name!r} for {script}; there are: {there}.")
    return path


def config_names(script: str) -> list[str]:
    """The named configs of a script."""
    return sorted(path.stem for path in (CONFIG_ROOT / script).glob("*.yaml"))


def _convert(config_class, key: str, value, source: str):
    """`value` as the type of field `key`, within its limits, or a `UserError` naming `source`."""
    fields = {f.name: f for f in dataclasses.fields(config_class)}
    if key not in fields:
        raise UserError(_unknown_key(key, source, list(fields)))
    field = fields[key]
    value = _to_type(value, field.type, source)
    for number in value if isinstance(value, list) else [value]:
        _check_limits(number, field.metadata, source)
    return value


def _unknown_key(key: str, source: str, names: list[str]) -> str:
    nearest = _nearest(str(key), names)
    advice = f"the nearest there is: {nearest}" if nearest else "--help tells what there is"
    return f"Unknown setting {source}; {advice}."


def _nearest(key: str, names: list[str]) -> str | None:
    """The name that is meant by a misspelt one; else one with words of it, as of --by_weight."""
    for misspelt in difflib.get_close_matches(key, names, n=1, cutoff=0.8):
        return misspelt

    def likeness(name: str) -> tuple[int, float]:
        bare = [text.lstrip("-") for text in (name, key)]
        words = (set(text.split("_")) for text in bare)
        return len(set.intersection(*words)), difflib.SequenceMatcher(None, *bare).ratio()

    nearest = max(names, key=likeness)
    return nearest if likeness(nearest) > (0, 0.6) else None


def _check_limits(value, limits: dict, source: str) -> None:
    if limits["choices"] and value not in limits["choices"]:
        raise UserError(f"{source} must be one of {', '.join(limits['choices'])}, got {value!r}.")
    if value is None or isinstance(value, (str, bool)):
        return
    if limits["minimum"] is not None and not value >= limits["minimum"]:
        raise UserError(f"{source} must be at least {limits['minimum']}, got {value}.")
    if limits["above"] is not None and not value > limits["above"]:
        raise UserError(f"{source} must be greater than {limits['above']}, got {value}.")
    if limits["below"] is not None and not value < limits["below"]:
        raise UserError(f"{source} must be less than {limits['below']}, got {value}.")


def _to_type(value, kind, source: str):
    """`value`, from YAML or as a command-line string, as `kind`."""
    arguments = typing.get_args(kind)
    if type(None) in arguments:
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        kind = next(a for a in arguments if a is not type(None))
    if typing.get_origin(kind) is list:
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
            value = _list_in_one_word(value)
        if not isinstance(value, list):
            raise UserError(f"{source} must be a list, got {value!r}.")
        return [_to_type(item, typing.get_args(kind)[0], source) for item in value]
    advice = f"; {SWEEP_ADVICE}" if isinstance(value, list) else ""
    wrong = UserError(f"{source} must be {_TYPE_NAMES[kind]}, got {value!r}{advice}.")
    if kind is bool or isinstance(value, bool):
        if kind is bool and isinstance(value, bool):
            return value
        raise wrong
    if kind is str:
        if isinstance(value, (str, int, float)):
            return str(value)
        raise wrong
    try:
        if kind is int and isinstance(value, (int, str)):
            return int(value)
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if not math.isfinite(number) or number != kind(number):
        raise wrong
    return kind(number)


def _list_in_one_word(words: list[str]) -> list:
    """The list of --hidden_sizes="[64, 64]", as wandb agents write it; others as they are."""
    try:
        content = yaml.safe_load(words[0])
    except yaml.YAMLError:
        return words
    return content if isinstance(content, list) else words


_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}


class Parser(argparse.ArgumentParser):
    """One whose complaints are a sentence; it takes no abbreviations, for options may be added."""

    def __init__(self, **settings):
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=formatter, allow_abbrev=False, **settings)

    def error(self, message):
        raise UserError(f"{message[0].upper()}{message[1:]}; see --help.")


def _read_command_line(config_class, script: str, arguments: list[str], description: str) -> dict:
    """The flags that were given, as {field: text, bool or list of texts}."""
    parser = Parser(
        prog=f"{script}.py",
        description=f"{description}\nnamed configs: {', '.join(config_names(script)) or 'none'}",
        argument_default=argparse.SUPPRESS,
    )
    groups = {
        True: parser.add_argument_group("settings of every script"),
        False: parser.add_argument_group(f"settings of {script}"),
    }
    shared = {f.name for f in dataclasses.fields(Config)}
    asks = bool({"-h", "--help"} & set(arguments))
    defaults = _defaults(config_class, script) if asks else {}
    for field in dataclasses.fields(config_class):
        _add_flag(groups[field.name in shared], field, defaults.get(field.name))
    known, unknown = parser.parse_known_args(_plain_switches(config_class, arguments))
    if unknown:
        flag = unknown[0].split("=")[0]
        if not flag.startswith("-"):
            raise UserError(f"Unexpected argument {flag!r}; settings are given as --name value.")
        names = [f"--{f.name}" for f in dataclasses.fields(config_class)]
        raise UserError(_unknown_key(flag, flag, names))
    return vars(known)


def _plain_switches(config_class, arguments: list[str]) -> list[str]:
    """The arguments, with --name=True and --name=False of wandb agents as --name and --no-name."""
    plain = {}
    for field in dataclasses.fields(config_class):
        if field.type is bool:
            plain |= {f"--{field.name}=true": f"--{field.name}"}
            plain |= {f"--{field.name}=false": f"--no-{field.name}"}
    return [plain.get(argument.lower(), argument) for argument in arguments]


def _defaults(config_class, script: str) -> dict:
    """What every setting is where the command line says nothing at all."""
    fields = {f.name: f for f in dataclasses.fields(config_class)}
    values = {
        name: field.default_factory() if field.default is dataclasses.MISSING else field.default
        for name, field in fields.items()
    }
    path = CONFIG_ROOT / script / f"{values['config_name']}.yaml"
    return values | (read_yaml(path) if path.is_file() else {})


def _add_flag(group, field, default) -> None:
    if isinstance(default, list):
        default = " ".join(map(str, default))
    shown = repr(default) if default == "" else default
    unit = f" [{field.metadata['unit']}]" if field.metadata["unit"] else ""
    text = f"{field.metadata['help']}{unit} (default: {shown})".replace("%", "%%")
    flag = f"--{field.name}"
    if field.type is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
    elif typing.get_origin(field.type) is list:
        group.add_argument(flag, nargs="+", metavar="N", help=text)
    else:
        choices = field.metadata["choices"]
        group.add_argument(flag, metavar="|".join(choices) if choices else "VALUE", help=text)
