"""The README's section on sweeps and wandb: each of its commands is run, at toy size."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.offline_runs import read_offline_run

import pytest
import yaml

SECTION = (
    (REPOSITORY / "README.md").read_text().split("\n## Sweeps and wandb\n")[1].split("\n## ")[0]
)
COMMANDS = [
    line.partition("#")[0].strip()
    for block in re.findall(r"```\n(.*?)```", SECTION, re.DOTALL)
    for line in block.splitlines()
]
TOY = (
    "--config_name", "quick", "--hidden_sizes", "4", "--num_train", "100", "--num_epochs", "1",
    "--num_draws", "2", "--wandb", "offline",
)  # fmt: skip


def wandb_command(words: list[str], **environment) -> subprocess.CompletedProcess:
    program = str(Path(sys.executable).with_name("wandb"))
    return subprocess.run(
        [program, *words], cwd=REPOSITORY, env=os.environ | environment, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def test_there_are_no_other_commands():
    assert {" ".join(command.split()[:2]) for command in COMMANDS} == {
        "python sweep.py", "wandb sweep", "python MNIST_VI.py", "wandb sync",
    }  # fmt: skip
    assert len(SECTION.strip().splitlines()) <= 25


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python sweep.py")])
def test_sweeps_run_here(command, run_sweep, made_up_runs, tmp_path, data_dir):
    words = [*command.split()[1:], "--out_dir", str(tmp_path), "--data_dir", str(data_dir)]
    words = [str(REPOSITORY / words[0]), str(REPOSITORY / words[1]), *words[2:]]
    directories = made_up_runs(
        words, [{"test_nll": k} for k in range(15 if "--jobs" in words else 8)]
    )
    done = run_sweep(words)
    assert done.returncode == 0, done.stderr
    name = Path(words[1]).stem
    assert {directory.parent for directory in directories} == {tmp_path / name}
    for file in ("sweep.json", "sweep.png"):
        assert (tmp_path / name / f"sweep-{name}" / file).exists()


def test_samples_are_uploaded_and_what_was_kept_is_found(script, tmp_path):
    (command,) = (c for c in COMMANDS if c.startswith("python MNIST_VI.py"))
    done = script("MNIST_VI", *command.split()[2:], *TOY)
    assert done.returncode == 0, done.stderr
    told = read_offline_run(tmp_path / "default" / "VI-MNIST-quick")
    assert sorted(told.artifacts["weights"]) == ["network.json", "posterior.npz"]
    (command,) = (c for c in COMMANDS if c.startswith("wandb sync"))
    (pattern,) = shlex.split(command)[2:]
    found = [str(path) for path in tmp_path.glob(pattern.removeprefix("runs/"))]
    printed = re.search(r"wandb sync '(.*)'", done.stdout).group(1)
    for paths in (found, [printed]):
        said = wandb_command(["sync", "--dry-run", *paths]).stderr
        assert "Would sync 1 run(s)" in said


@pytest.fixture
def server():
    """So much of wandb's server as `wandb sweep` needs; the sweep files that it was sent."""
    sent = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            asked = json.loads(asked) if self.path == "/graphql" else {"query": ""}
            owner = {"id": "1", "name": "me"}
            data = {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}",
                               "teams": {"edges": []}}}  # fmt: skip
            if "upsertSweep" in asked["query"]:
                sent.append(asked["variables"]["config"])
                sweep = {"name": "s1", "project": {"id": "1", "name": "p", "entity": owner}}
                data = {"upsertSweep": {"sweep": sweep, "configValidationWarnings": []}}
            body = json.dumps({"data": data}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", sent
    server.shutdown()


def test_wandb_makes_a_sweep_of_our_file(server, tmp_path):
    address, sent = server
    (command,) = (c for c in COMMANDS if c.startswith("wandb sweep"))
    words = command.split()[1:]
    done = wandb_command(
        words, WANDB_BASE_URL=address, WANDB_API_KEY=40 * "0", WANDB_DIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert "Run sweep agent with: wandb agent" in done.stderr
    assert [yaml.safe_load(text) for text in sent] == [
        yaml.safe_load((REPOSITORY / words[1]).read_text())
    ]
