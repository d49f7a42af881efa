"""Train any method on any network and data set.

    python train.py --method swag                           the method's settings, configs/train/
    python train.py --method swag --network optunet         its settings for OptuNet
    python train.py --method swag --config_name quick       a small network, in seconds
    python train.py --method swag --num_modes 5             five modes, each with a Gaussian
    python train.py --method swag --help                    all settings of a method

Leaves in runs/<batch>/<method>-<dataset>-<config_name>/ the posterior (posterior.json names its
class), network.json, metrics.jsonl, training.png and .pdf, and summary.json. MNIST_eval.py takes it
as --posteriors swag=DIRECTORY.
"""

import sys
from dataclasses import make_dataclass

from utils.driver.run_method import run_method
from utils.methods.registry import METHODS
from utils.runs.script import ends_in_a_sentence, run_script
from utils.settings.config import config_names, option
from utils.settings.errors import UserError


def main() -> None:
    if {"-h", "--help"} & set(sys.argv[1:]) and "--method" not in " ".join(sys.argv[1:]):
        print(f"{__doc__}\nMethods: {', '.join(METHODS)}.")
        return
    with ends_in_a_sentence("train", "python train.py --method NAME"):
        method = METHODS[chosen_method(sys.argv[1:])]
    config_class, _ = choose_settings(sys.argv[1:])

    def train(config) -> None:
        if config.config_name not in (method.name, value_of("--config_name", sys.argv[1:])):
            print(f"Settings of configs/train/{config.config_name}.yaml, on {config.dataset}")
        run_method(method, config)

    run_script(train, config_class, __file__, __doc__)


def chosen_method(arguments: list[str]) -> str:
    """Find --method NAME in the command line: it decides which other settings there are."""
    names = ", ".join(METHODS)
    name = value_of("--method", arguments)
    if name is None:
        raise UserError(f"Give a method: --method {names.replace(', ', '|')}.")
    if name not in METHODS:
        raise UserError(f"There is no method {name!r}; choose from {names}.")
    return name


def value_of(flag: str, arguments: list[str]) -> str | None:
    """Return what a command line gives with a flag, as `--flag value` or `--flag=value`."""
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == flag:
            return value if equals else "".join(arguments[place + 1 : place + 2])
    return None


def default_config(method: str, network: str | None) -> str:
    """Return the name of a method's config for a network, or else of its usual one."""
    name = network if method == "sgd" else f"{method}_{network}"
    return name if name in config_names("train") else method


def choose_settings(arguments: list[str]) -> tuple[type, str]:
    """Return the settings, with their own default config, and kind of the method that is named."""
    method = METHODS[chosen_method(arguments)]
    config_name = default_config(method.name, value_of("--network", arguments))
    fields = [
        ("method", str, option(method.name, "method of approximating the posterior")),
        ("config_name", str, option(config_name, "named settings: configs/train/NAME.yaml")),
    ]
    options = {"frozen": True, "kw_only": True}
    return make_dataclass("TrainConfig", fields, bases=(method.Config,), **options), method.kind


if __name__ == "__main__":
    main()
