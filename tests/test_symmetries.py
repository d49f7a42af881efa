"""symmetries.py prints the table that docs/networks.md shows."""

import subprocess
import sys
from pathlib import Path

import symmetries

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_documentation_shows_the_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["symmetries.py"])
    symmetries.main()
    printed = capsys.readouterr().out
    assert (
        "\n".join(map(str.rstrip, printed.splitlines())) in (ROOT / "docs/networks.md").read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--network", "optunet"], "c2: 2 × 5  10     4.16                10        0"),
        (["--network", "lenet", "--width", "12"], "c1: 12   12"),
        (["--network", "mlp", "--hidden_sizes", "5", "4", "--activation", "tanh"], "h2: 4"),
        (["--network", "resnet18", "--input_shape", "1", "28", "28"], "stage4: 512"),
    ],
)
def test_the_groups_of_one_network(arguments, line, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["symmetries.py", *arguments])
    symmetries.main()
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--network", "lenet", "--width", "0"], "a width of at least 1"),
        (["--network", "optunet", "--width", "3"], "leave --width out"),
        (["--network", "lenet", "--hidden_sizes", "5"], "leave --hidden_sizes out"),
        (["--network", "mlp", "--width", "5"], "leave --width out"),
        (["--hidden_sizes", "5"], "give its --network"),
        (["--network", "vgg"], "invalid choice: 'vgg'"),
    ],
)
def test_mistakes_end_in_a_sentence(arguments, sentence):
    command = [sys.executable, "symmetries.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
