"""A script's settings: dataclass defaults, then a YAML file, then the command line.

Every script declares a frozen dataclass that extends `Config`. Its fields, made with `option`, are
both the YAML keys and the command-line flags. A user's mistake is a `UserError`: one sentence that
names the key, where it came from and what is allowed.
"""

import argparse
import dataclasses
import math
import os
import typing
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from utils.settings.errors import UserError
from utils.settings.values import SWEEP_ADVICE, convert, plain_type, read_yaml, unknown_key

DEVICES = ("auto", "cpu", "cuda")
# Settings that name a config, or say how to begin with it, cannot be in the config itself.
COMMAND_LINE_ONLY = ("config", "config_name", "resume", "overwrite")
CONFIG_ROOT = Path(__file__).resolve().parents[2] / "configs"


def option(
    default, help, *, choices=None, metavar=None,
    minimum=None, above=None, below=None, changeable=False, may_grow=False, revisable=False,
    belongs_to=None,
):  # fmt: skip
    """Declare a config field.

    `changeable` settings may differ when a run is resumed. `may_grow` numbers may then be larger:
    what the run has made stays valid, and more of it is made. `revisable` settings only choose from
    what it has made: a finished run is then finished again.
    """
    metadata = {
        "help": help, "choices": choices, "metavar": metavar,
        "minimum": minimum, "above": above, "below": below, "changeable": changeable,
        "may_grow": may_grow, "revisable": revisable, "belongs_to": belongs_to,
    }  # fmt: skip
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of every script."""

    config_name: str = option("paper", "named settings: configs/<script>/NAME.yaml", metavar="NAME")
    config: str | None = option(
        None, "YAML file with settings, instead of --config_name", metavar="FILE"
    )
    dataset: str = option(
        "MNIST", "data set: MNIST, FashionMNIST, KMNIST, CIFAR10, …; CIFAR10_0-5: classes 0 to 5"
    )
    seed: int = option(0, "seed of every random stream of the run", minimum=0)
    run_name: str = option(
        "", "suffix of the run's directory, to keep several runs apart", metavar="NAME"
    )
    run_batch_name: str = option(
        "default", "batch of the run: runs/<batch>/, wandb's group", metavar="NAME"
    )
    out_dir: str = option("runs", "folder for run directories", changeable=True, metavar="DIR")
    data_dir: str = option("data", "folder of the data sets", changeable=True, metavar="DIR")
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
    overwrite: bool = option(
        False, "delete what an earlier run of this name left, and start again", changeable=True
    )


# ---- comparing settings


def changed_fields(config, recorded: dict) -> dict[str, tuple]:
    """Return {name: (recorded, now)} of the settings that make this another run.

    Left out are settings that may change, and those that let it go on. A setting that an earlier
    version did not have counts as recorded with its default.
    """
    now, left_out = asdict(config), ["config", *reopening_fields(config, recorded)]
    recorded = asdict(type(config)()) | recorded
    fixed = [f.name for f in fields(config) if not f.metadata["changeable"]]
    return {
        name: (recorded[name], now[name])
        for name in fixed
        if name not in left_out and recorded[name] != now[name]
    }


def changes(config, recorded: dict) -> list[str]:
    """Describe each of `changed_fields`."""
    changed = changed_fields(config, recorded)
    return [f"{name} was {before} and is {after}" for name, (before, after) in changed.items()]


def reopening_fields(config, recorded: dict) -> list[str]:
    """Return the names of the settings with which even a finished run goes on.

    These are numbers that may grow and are larger than recorded, and revised settings.
    """

    def reopens(field: dataclasses.Field) -> bool:
        value = getattr(config, field.name)
        if field.metadata["may_grow"]:
            return value > recorded.get(field.name, math.inf)
        return field.metadata["revisable"] and value != recorded.get(field.name, value)

    return [field.name for field in fields(config) if reopens(field)]


def unnamed_settings(config, script: str) -> dict[str, tuple]:
    """Return {name: (named, now)} of the settings that differ from the config's YAML file.

    The run's directory is named after that file (and the data set), so its name does not say them.
    """
    given = {"config": config.config} if config.config else {"config_name": config.config_name}
    named = asdict(type(config)(**_read_yaml(type(config), script, given)))
    named |= {name: getattr(config, name) for name in COMMAND_LINE_ONLY}
    named |= {name: getattr(config, name) for name in ("dataset", "run_name", "run_batch_name")}
    return changed_fields(config, named)


# ---- reading them


def load_config(config_class, script: str, arguments: list[str], description: str = ""):
    """Return the settings of one run: the script's defaults, its YAML file, the command line."""
    given = _read_command_line(config_class, script, arguments, description)
    values = _read_yaml(config_class, script, given)
    values |= {name: _convert(config_class, name, v, f"--{name}") for name, v in given.items()}
    for name in given:
        _refuse_foreign(config_class, name, values)
    agent_run = wandb_agent_run()
    if agent_run:  # its own batch, and its own run in it
        sweep_id = os.environ["WANDB_SWEEP_ID"]
        values = {"run_batch_name": f"sweep-{sweep_id}", "resume": True} | values
        values["run_name"] = "-".join(filter(None, [values.get("run_name"), agent_run]))
    if values.get("config"):
        values["config_name"] = Path(values["config"]).stem
    config = config_class(**values)
    if config.resume and config.overwrite and not agent_run:
        raise UserError("--resume and --overwrite exclude each other: give one of them.")
    for name in ("config_name", "run_name", "run_batch_name"):
        if "/" in getattr(config, name) or getattr(config, name).startswith("."):
            raise UserError(f"{name} is part of a path: no '/' and no leading '.' in it, please.")
    if not config.run_batch_name:
        raise UserError("run_batch_name must not be empty; leave it out for 'default'.")
    return config


def wandb_agent_run() -> str | None:
    """Return the id of the run that a wandb agent has started this process for, if one has."""
    return os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_SWEEP_ID") else None


def config_names(script: str) -> list[str]:
    """Return the names of a script's configs."""
    return sorted(path.stem for path in (CONFIG_ROOT / script).glob("*.yaml"))


def _fields(config_class) -> dict[str, dataclasses.Field]:
    return {field.name: field for field in fields(config_class)}


def _convert(config_class, key: str, value, source: str):
    known = _fields(config_class)
    if key not in known:
        raise unknown_key(key, source, list(known))
    return convert(value, known[key], source)


def _refuse_foreign(config_class, key: str, values: dict) -> None:
    """Refuse a setting that belongs to another value of another setting."""
    known = _fields(config_class)
    if known[key].metadata["belongs_to"]:
        owner, needed = known[key].metadata["belongs_to"]
        chosen = values.get(owner, known[owner].default)
        if chosen != needed:
            raise UserError(f"--{key} belongs to --{owner} {needed}: {chosen} has its own.")


def _read_yaml(config_class, script: str, given: dict) -> dict:
    """Return the settings in the YAML file that the command line (or the default) names."""
    if "config" in given and "config_name" in given:
        raise UserError("--config and --config_name exclude each other: give one of them.")
    name = given.get("config_name", _fields(config_class)["config_name"].default)
    path = Path(given.get("config", CONFIG_ROOT / script / f"{name}.yaml"))
    if "config" not in given and not path.is_file():
        names = ", ".join(config_names(script)) or "none"
        raise UserError(f"There is no config {name!r} for {script}; there are: {names}.")
    content = read_yaml(path)
    if "sweep" in content:
        raise UserError(f"{path} has a 'sweep', but a config describes one run: {SWEEP_ADVICE}.")
    for key in COMMAND_LINE_ONLY:
        if key in content:
            raise UserError(f"{key} has no meaning in {path}: give --{key} on the command line.")
    return {k: _convert(config_class, k, v, f"{k} in {path}") for k, v in content.items()}


# ---- the command line


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UserError` and takes no abbreviations."""

    def __init__(self, **settings):
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=formatter, allow_abbrev=False, **settings)

    def error(self, message):
        raise UserError(f"{message[0].upper()}{message[1:]}; see --help.")


def _read_command_line(config_class, script: str, arguments: list[str], description: str) -> dict:
    """Return the flags that were given, as {field: text, bool or list of texts}."""
    parser = Parser(
        prog=f"{script}.py",
        description=f"{description}\nnamed configs: {', '.join(config_names(script)) or 'none'}",
        argument_default=argparse.SUPPRESS,
    )
    shared = parser.add_argument_group("settings of every script")
    own = parser.add_argument_group(f"settings of {script}")
    known = _fields(config_class)
    defaults = _defaults(config_class, script) if {"-h", "--help"} & set(arguments) else {}
    switches = {}  # wandb agents write --name=True and --name=False
    for name, field in known.items():
        group = shared if name in _fields(Config) else own
        _add_flag(group, field, defaults.get(name))
        if field.type is bool:
            switches |= {f"--{name}=true": f"--{name}", f"--{name}=false": f"--no-{name}"}
    words = [switches.get(word.lower(), word) for word in arguments]
    given, unknown = parser.parse_known_args(words)
    if unknown:
        flag = unknown[0].split("=")[0]
        if not flag.startswith("-"):
            raise UserError(f"Unexpected argument {flag!r}; settings are given as --name value.")
        raise unknown_key(flag, flag, [f"--{name}" for name in known])
    return vars(given)


def add_shared_flags(parser: Parser, defaults: dict[str, str]) -> None:
    """Add some settings of every script, as None if not given; `defaults` are for the help."""
    for name, default in defaults.items():
        _add_flag(parser, _fields(Config)[name], default)


def _defaults(config_class, script: str) -> dict:
    """Return the settings of a command without flags."""
    values = asdict(config_class())
    path = CONFIG_ROOT / script / f"{values['config_name']}.yaml"
    return values | (read_yaml(path) if path.is_file() else {})


def _add_flag(group, field, default) -> None:
    details, flag = field.metadata, f"--{field.name}"
    if isinstance(default, list):
        default = " ".join(map(str, default))
    default = "''" if default == "" else default
    text = f"{details['help']} (default: {default})".replace("%", "%%")
    if field.type is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        return
    plain = plain_type(field.type)
    shown = "|".join(details["choices"] or ()) or details["metavar"] or plain.__name__.upper()
    several = {"nargs": "+"} if typing.get_origin(field.type) is list else {}
    group.add_argument(flag, metavar=shown.replace("STR", "TEXT"), help=text, **several)
