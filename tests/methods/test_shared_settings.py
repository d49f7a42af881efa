"""The prior as users write it, and what they get wrong."""

import dataclasses

from utils.methods.shared_settings import PriorConfig
from utils.settings.errors import UserError
from utils.settings.values import convert

import pytest

PRIOR_STD = next(each for each in dataclasses.fields(PriorConfig) if each.name == "prior_std")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("0.5", 0.5), ("1,0.5", [1.0, 0.5]), ("[1, 0.5]", [1.0, 0.5]), ([1, 2], [1.0, 2.0])],
    ids=str,
)
def test_one_number_or_several(given, expected):
    """As they come from the command line, from wandb and from YAML."""
    assert convert(given, PRIOR_STD, "--prior_std") == expected


@pytest.mark.parametrize("given", ["1,-2", "x", "1,y", "", [], [[1.0]], None, True], ids=str)
def test_other_than_numbers_above_zero_are_refused(given):
    with pytest.raises(UserError, match="--prior_std must"):
        convert(given, PRIOR_STD, "--prior_std")


def test_a_posterior_has_one_prior():
    with pytest.raises(UserError, match="one prior"):
        PriorConfig(prior_std=0.5, weight_decay=1e-3)
