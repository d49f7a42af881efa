"""wandb as a listener that hears what a run measures.

wandb's runs are grouped by batch. `auto` logs online if the user is logged in, and nowhere
otherwise. `offline` logs into the run's directory; the printed `wandb sync` command sends these
records later. Nothing there is needed to read a run: metrics.jsonl and summary.json are complete.
The environment variables WANDB_PROJECT and WANDB_ENTITY say where runs go. A process started by a
wandb agent (`wandb sweep`, `wandb agent`) logs to the run that the agent made for it.
"""

import netrc
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from utils.runs.script import STOPPED_BY_USER
from utils.settings.config import wandb_agent_run
from utils.settings.errors import UserError

PROJECT = "bnn-compact-representation"
WANDB_MODES = ("online", "offline", "disabled")
ANSWER_TIMEOUT = 30  # seconds to wait for wandb's server


def new_id() -> str:
    """Return the id of a new run: the one a wandb agent expects, or a random one."""
    return wandb_agent_run() or os.urandom(6).hex()


def choose_mode(config) -> str:
    """Return online, offline or disabled, as the config and the environment ask."""
    mode = config.wandb
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or ("online" if logged_in() else "disabled")
        if mode not in WANDB_MODES:
            raise UserError(f"WANDB_MODE is {mode!r}; it must be one of {', '.join(WANDB_MODES)}.")
    if mode == "disabled" and config.wandb_samples:
        raise UserError("--wandb_samples needs wandb: `wandb login`, or give --wandb offline.")
    return mode


def start(
    config, kind: str, directory: Path, run_id: str, mode: str, begun: bool = False
) -> "WandbRun | NoWandb":
    """Open the wandb side of a run; continue it if it was `begun` before."""
    if mode == "disabled":
        return NoWandb()
    try:
        return WandbRun(config, kind, directory, run_id, mode, begun)
    except ConnectionError as error:
        if config.wandb != "auto":
            raise UserError(f"{error}: give --wandb offline and send the run later.") from None
        print(f"{error}: logging offline instead.", file=sys.stderr)
        return WandbRun(config, kind, directory, run_id, "offline", begun)


def logged_in() -> bool:
    """Return whether wandb would find an API key, in the environment or from `wandb login`."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class WandbRun:
    def __init__(self, config, kind: str, directory: Path, run_id: str, mode: str, begun: bool):
        import wandb  # takes a second: only where it is used

        self._wandb, self._directory, self._mode, self._axes = wandb, directory, mode, set()
        identity = {"id": run_id, "project": os.environ.get("WANDB_PROJECT", PROJECT)}
        if wandb_agent_run():  # the agent has chosen them
            identity = {}
        try:
            self._run = wandb.init(
                **identity, group=config.run_batch_name, job_type=kind, name=directory.name,
                resume="allow" if begun and mode == "online" else None, mode=mode,
                dir=directory, config=asdict(config),
                settings=wandb.Settings(silent=True, init_timeout=ANSWER_TIMEOUT),
            )  # fmt: skip
        except wandb.errors.Error as error:
            wandb.teardown()  # otherwise the run's id stays in use
            reason = str(error).splitlines()[0]
            raise ConnectionError(f"wandb cannot log online ({reason})") from None

    def log(self, record: dict) -> None:
        axis, *names = record
        for name in names:
            if (axis, name) not in self._axes:
                self._run.define_metric(name, step_metric=axis)
                self._axes.add((axis, name))
        self._run.log(record)

    def catch_up(self, records: Iterable[dict]) -> None:
        """Log the records of earlier sessions, unless wandb's server has them.

        When `wandb sync` sends several offline sessions of a run, the last replaces the others.
        """
        if not self._run.resumed:
            for record in records:
                self.log(record)

    # Figures and tables have sections: if one shared its name with a number of the summary, wandb
    # would keep only the last of the two.

    def log_image(self, name: str, path: Path) -> None:
        self._run.log({f"figures/{name}": self._wandb.Image(str(path))})

    def log_table(self, name: str, columns: list[str], rows: list[list]) -> None:
        self._run.log({f"tables/{name}": self._wandb.Table(columns=columns, data=rows)})

    def log_weights(self, files: list[Path]) -> None:
        """Upload files as the run's artifact; offline, `wandb sync` reads them where they are."""
        artifact = self._wandb.Artifact(f"weights-{self._run.id}", type="weights")
        for path in files:
            artifact.add_file(str(path.resolve()), policy="immutable")  # without a copy
        self._run.log_artifact(artifact)

    def finish(self, summary: dict) -> None:
        self._run.summary.update(summary)
        self.close(exit_code=0)

    def close(self, exit_code: int = STOPPED_BY_USER) -> None:
        """End this session; by default the run is not finished."""
        self._run.finish(exit_code)
        if self._mode == "offline":
            session = Path(self._run.settings.sync_dir).name
            print(f"To send the records to wandb: wandb sync '{self._directory}/wandb/{session}'")


class NoWandb:
    """Stands in for wandb when it is disabled: has all its methods, which do nothing."""

    def __getattr__(self, method: str):
        return lambda *arguments: None
