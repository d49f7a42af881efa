"""Checks of memory and disk before the start, and durations."""

from utils.runs import progress
from utils.settings.errors import UserError

import pytest


def test_too_little_disk_is_said_before_the_start(tmp_path):
    with pytest.raises(UserError, match=r"This needs .* MB of disk"):
        progress.check_space(tmp_path, memory_bytes=0, disk_bytes=1e18)


@pytest.mark.parametrize(
    ("seconds", "text"), [(39.6, "40 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_as_people_say_them(seconds, text):
    assert progress.duration(seconds) == text


def test_more_memory_than_is_free_is_warned_of(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "available_memory", lambda: 2e9)
    progress.check_space(tmp_path, memory_bytes=1.9e9, disk_bytes=1)
    assert capsys.readouterr().err == ""
    progress.check_space(tmp_path, memory_bytes=3e9, disk_bytes=1)
    assert "3.0 GB more memory are needed, and 2.0 GB are free" in capsys.readouterr().err
