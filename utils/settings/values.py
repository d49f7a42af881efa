"""Values that users write, in YAML files or on the command line: read, converted and checked.

Every mistake is a `UserError` that names the setting, where it came from and what is allowed.
"""

import dataclasses
import difflib
import math
import typing
from contextlib import suppress
from pathlib import Path

from utils.settings.errors import UserError, reason

import yaml

SWEEP_ADVICE = (
    "to try several values, list them in a sweep file and run it, as in the first lines of "
    "configs/sweeps/vi_learning_rate.yaml"
)


def read_yaml(path: Path) -> dict:
    """Return the mapping in a YAML file that the user has written."""
    try:
        with open(path) as file:
            content = yaml.load(file, _UniqueKeyLoader) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the config {path}: {reason(error)}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a 13th month
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold 'key: value' lines.")
    return content


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuse a key given twice; plain loaders silently keep the last one."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise UserError(f"{self.name} has {key!r} twice: keep one of them.")
        return super().construct_mapping(node, deep)


def convert(value, field: dataclasses.Field, source: str):
    """Return `value` as the field's type and within its limits; errors name the `source`."""
    value = _to_type(value, field.type, source)
    for number in value if isinstance(value, list) else [value]:
        _check_limits(number, field.metadata, source)
    return value


def unknown_key(key: str, source: str, names: list[str]) -> UserError:
    nearest = difflib.get_close_matches(str(key), names, n=1, cutoff=0.75)
    advice = f"the nearest there is: {nearest[0]}" if nearest else "--help lists all settings"
    return UserError(f"Unknown setting {source}; {advice}.")


def _check_limits(value, limits: dict, source: str) -> None:
    if limits["choices"] and value not in limits["choices"]:
        raise UserError(f"{source} must be one of {', '.join(limits['choices'])}, got {value!r}.")
    if value is None or isinstance(value, (str, bool)):
        return
    if isinstance(value, int) and value >= 2**63:
        raise UserError(f"{source} must be less than 2^63, got {value}.")  # no array is as large
    for words, limit, holds in (
        ("at least", limits["minimum"], lambda limit: value >= limit),
        ("greater than", limits["above"], lambda limit: value > limit),
        ("less than", limits["below"], lambda limit: value < limit),
    ):
        if limit is not None and not holds(limit):
            raise UserError(f"{source} must be {words} {limit}, got {value}.")


NUMBERS = float | list[float]  # one number, or several
_TYPE_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def plain_type(kind) -> type:
    """Return int for list[int] and for int | None."""
    return next((a for a in typing.get_args(kind) if a is not type(None)), kind)


def _to_type(value, kind, source: str):
    """Return `value`, from YAML or as a text from the command line, as `kind`."""
    if kind == NUMBERS:
        return _to_numbers(value, source)
    plain = plain_type(kind)
    if type(None) in typing.get_args(kind) and str(value).lower() == "none":
        return None
    if typing.get_origin(kind) is list:
        return [_to_type(item, plain, source) for item in _items(value, source)]
    advice = f"; {SWEEP_ADVICE}" if isinstance(value, list) else ""
    wrong = UserError(f"{source} must be {_TYPE_NAMES[plain]}, got {value!r}{advice}.")
    if plain is bool or isinstance(value, bool):
        if plain is bool and isinstance(value, bool):
            return value
        raise wrong
    if plain is str:
        if isinstance(value, (str, int, float)):
            return str(value)
        raise wrong
    try:
        if plain is int and isinstance(value, (int, str)):
            return int(value)
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if not math.isfinite(number) or number != plain(number):
        raise wrong
    return plain(number)


def _to_numbers(value, source: str) -> float | list[float]:
    """Return a number, or a list of them from a list or a text such as 1,0.5 or [1, 0.5]."""
    if isinstance(value, str) and ("," in value or value.startswith("[")):
        value = [item for item in value.strip("[]").split(",") if item.strip()]
    if not isinstance(value, list):
        return _to_type(value, float, source)
    if not value:
        raise UserError(f"{source} must be a number or several, got an empty list.")
    return [_to_type(item, float, source) for item in value]


def _items(value, source: str) -> list:
    """Return the items of a list, which wandb agents write as one word, "[64, 64]"."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        if value[0].startswith("["):
            with suppress(yaml.YAMLError):
                value = yaml.safe_load(value[0])
        elif "," in value[0]:
            spaced = value[0].replace(",", " ")
            raise UserError(f"Separate the values of {source} by spaces: {source} {spaced}")
    if not isinstance(value, list):
        raise UserError(f"{source} must be a list, got {value!r}.")
    return value
