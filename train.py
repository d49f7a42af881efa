"""Train any method on any network and data set.

    python train.py --method swag                           the method's settings, configs/train/
    python train.py --method swag --config_name quick       a small network, in seconds
    python train.py --method swag --num_modes 5             five modes, each with a Gaussian
    python train.py --method swag --help                    all settings of a method

Leaves in runs/<batch>/<method>-<dataset>-<config_name>/ the posterior (posterior.json names its
class), network.json, metrics.jsonl, training.png and .pdf, and summary.json. MNIST_eval.py takes it
as --posteriors swag=DIRECTORY.
"""

import sys
from dataclasses import make_dataclass

from utils.methods.driver import run_method
from utils.methods.registry import METHODS
from utils.runs.config import option
from utils.runs.errors import UserError
from utils.runs.script import ends_in_a_sentence, run_script


def main() -> None:
    if {"-h", "--help"} & set(sys.argv[1:]) and "--method" not in " ".join(sys.argv[1:]):
        print(f"{__doc__}\nMethods: {', '.join(METHODS)}.")
        return
    with ends_in_a_sentence("train", "python train.py --method NAME"):
        method = METHODS[chosen_method(sys.argv[1:])]
    settings = config_class(sys.argv[1:])
    run_script(lambda config: run_method(method, config), settings, __file__, __doc__)


def chosen_method(arguments: list[str]) -> str:
    """Find --method NAME in the command line: it decides which other settings there are."""
    names = ", ".join(METHODS)
    for place, word in enumerate(arguments):
        flag, equals, name = word.partition("=")
        if flag == "--method":
            name = name if equals else "".join(arguments[place + 1 : place + 2])
            if name in METHODS:
                return name
            raise UserError(f"There is no method {name!r}; choose from {names}.")
    raise UserError(f"Give a method: --method {names.replace(', ', '|')}.")


def config_class(arguments: list[str]) -> type:
    """Return the settings of the method that a command line names, with its own default config."""
    method = METHODS[chosen_method(arguments)]
    fields = [
        ("method", str, option(method.name, "method of approximating the posterior")),
        ("config_name", str, option(method.name, "named settings: configs/train/NAME.yaml")),
    ]
    options = {"frozen": True, "kw_only": True}
    return make_dataclass("TrainConfig", fields, bases=(method.Config,), **options)


if __name__ == "__main__":
    main()
