"""Every command about sweeps and wandb in README, docs and sweep files is run, at toy size."""

import itertools
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

SWEEP_FILES = sorted((REPOSITORY / "configs" / "sweeps").glob("*.yaml"))
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")), *SWEEP_FILES]
LINES = [line.removeprefix("#").strip() for page in PAGES for line in page.read_text().splitlines()]


def commands(start: str) -> list[str]:
    """Return the lines that begin with these words, without comments; there is one at least."""
    lines = {line.partition("#")[0].strip() for line in LINES if line.startswith(start)}
    assert lines
    return sorted(lines)


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


@pytest.mark.parametrize("command", commands("python sweep.py"))
def test_sweeps_run_here(command, run_here, made_up_runs, tmp_path, data_dir):
    words = [*command.split()[1:], "--out_dir", str(tmp_path), "--data_dir", str(data_dir)]
    words = [str(REPOSITORY / words[0]), str(REPOSITORY / words[1]), *words[2:]]
    metric = yaml.safe_load(Path(words[1]).read_text())["metric"]["name"]
    directories = made_up_runs(words, ({metric: k} for k in itertools.count(1)))
    done = run_here(words)
    assert done.returncode == 0, done.stderr
    name = Path(words[1]).stem
    assert {directory.parent for directory in directories} == {tmp_path / name}
    for file in ("sweep.json", "sweep.png"):
        assert (tmp_path / name / f"sweep-{name}" / file).exists()


def test_samples_are_uploaded_and_what_was_kept_is_found(script, tmp_path):
    (command,) = (c for c in commands("python MNIST_VI.py") if "wandb" in c)
    done = script("MNIST_VI", *command.split()[2:], *TOY)
    assert done.returncode == 0, done.stderr
    told = read_offline_run(tmp_path / "default" / "VI-MNIST-quick")
    assert sorted(told.artifacts["weights"]) == ["network.json", "posterior.npz"]
    (command,) = commands("wandb sync")
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


@pytest.mark.parametrize("command", commands("wandb sweep"))
def test_wandb_makes_a_sweep_of_our_file(server, tmp_path, command):
    address, sent = server
    words = command.split()[1:]
    done = wandb_command(
        words, WANDB_BASE_URL=address, WANDB_API_KEY=40 * "0", WANDB_DIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert "Run sweep agent with: wandb agent" in done.stderr
    assert [yaml.safe_load(text) for text in sent] == [
        yaml.safe_load((REPOSITORY / words[1]).read_text())
    ]
