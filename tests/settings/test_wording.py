"""Words in sentences."""

from utils.settings.wording import plural

import pytest


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 draws"), (1, "1 draw"), (2, "2 draws"), (1000, "1,000 draws")]
)
def test_one_thing_is_singular(count, expected):
    assert plural(count, "draw") == expected
