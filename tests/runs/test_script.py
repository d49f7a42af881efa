"""How scripts end, whatever happens in them."""

import errno
import subprocess
import sys

from tests.conftest import REPOSITORY
from utils.runs.script import Finished, Stopped, run_script
from utils.settings.config import Config
from utils.settings.errors import UserError

import pytest
import torch


def run_failing(monkeypatch, tmp_path, error) -> int:
    """The exit code of a script whose main raises `error`."""
    (tmp_path / "Toy").mkdir()
    (tmp_path / "Toy" / "paper.yaml").write_text("")
    monkeypatch.setattr("utils.settings.config.CONFIG_ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["Toy.py", "--seed", "3", "--overwrite"])

    def main(config):
        raise error

    try:
        run_script(main, Config, "Toy.py", "")
    except SystemExit as ended:
        return ended.code
    return 0


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UserError("This is wrong."), 2, "Toy: This is wrong."),
        (OSError(errno.ENOSPC, "full"), 2, "The disk, or your quota, is full. What"),
        (PermissionError(errno.EACCES, "denied", "there"), 2, "Cannot use there: denied"),
        (OSError(errno.EROFS, "read-only", "there"), 2, "Cannot use there: read-only"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "there"), 2, "Cannot use there: Is a"),
        (OSError(errno.ENAMETOOLONG, "too long", "there"), 2, "another --out_dir, --data_dir or"),
        (FileNotFoundError(errno.ENOENT, "No such file", "there"), 2, "Cannot use there: No such"),
        (MemoryError(), 2, "not have enough memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: ..."), 2, "not have enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory."), 2, "The GPU does not have enough memory"),
        (Stopped(), 130, "Go on with: python Toy.py --seed 3 --resume"),
        (KeyboardInterrupt(), 130, "Go on with: python Toy.py --seed 3 --resume"),
    ],
)
def test_how_a_script_ends(monkeypatch, tmp_path, capsys, error, code, sentence):
    assert run_failing(monkeypatch, tmp_path, error) == code
    assert sentence in capsys.readouterr().err


def test_a_finished_run_ends_its_script_without_an_error(monkeypatch, tmp_path, capsys):
    assert run_failing(monkeypatch, tmp_path, Finished()) == 0
    assert not capsys.readouterr().err


def test_torch_without_memory_ends_in_a_sentence(monkeypatch, tmp_path, capsys):
    with pytest.raises(RuntimeError) as lacking:
        torch.empty(1 << 60)
    assert run_failing(monkeypatch, tmp_path, lacking.value) == 2
    assert "does not have enough memory" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("a bug"), RuntimeError("a bug"), OSError("a bug")])
def test_a_programming_error_keeps_its_traceback(monkeypatch, tmp_path, error):
    with pytest.raises(type(error), match="a bug"):
        run_failing(monkeypatch, tmp_path, error)


@pytest.mark.parametrize(("named", "rank"), [(False, "0"), (True, "0"), (False, "1")])
def test_settings_that_the_runs_name_does_not_tell_are_named(
    monkeypatch, tmp_path, capsys, named, rank
):
    (tmp_path / "Toy").mkdir()
    (tmp_path / "Toy" / "paper.yaml").write_text("")
    monkeypatch.setattr("utils.settings.config.CONFIG_ROOT", tmp_path)
    monkeypatch.setenv("RANK", rank)
    name = ["--run_name", "mine"] if named else []
    monkeypatch.setattr(sys, "argv", ["Toy.py", "--seed", "3", "--out_dir", "here", *name])
    run_script(lambda config: None, Config, "Toy.py", "")
    message = "Not the settings of config 'paper' (seed 3, not 0): --run_name"
    assert (message in capsys.readouterr().out) == (not named and rank == "0")


def test_windows_is_told_of_wsl():
    """Before anything is imported that Windows lacks."""
    code = "import sys; sys.platform = 'win32'; import utils.runs.run"
    ended = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True)
    assert ended.returncode == 2
    assert ended.stderr.decode().startswith("This project runs on Linux and macOS. On Windows")
