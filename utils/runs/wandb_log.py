"""wandb as a listener to a run: the same records, grouped by batch, online or offline.

`auto` logs online if the user is logged in, and otherwise into the run's directory, from where
the printed `wandb sync` line sends it later. Nothing here is needed to read a run: metrics.jsonl
and summary.json hold it all.

A process that a wandb agent has started (`wandb sweep`, `wandb agent`) logs to the run that the
agent has made for it.
"""

import netrc
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from utils.runs.config import wandb_agent_run
from utils.runs.errors import UserError

PROJECT = "bnn-compact-representation"
MODES = ("online", "offline", "disabled")
ANSWER_TIMEOUT = 30  # seconds that wandb's server has to answer


def new_id() -> str:
    """The id of a new run: of its own, or the one that a wandb agent expects."""
    return wandb_agent_run() or os.urandom(6).hex()


def start(config, kind: str, directory: Path, run_id: str, begun=False) -> "WandbRun | NoWandb":
    """The wandb side of a run, as `config.wandb` asks; `begun` before, it goes on."""
    mode = config.wandb
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or ("online" if logged_in() else "offline")
        if mode not in MODES:
            raise UserError(f"WANDB_MODE is {mode!r}; it must be one of {', '.join(MODES)}.")
    if mode == "disabled":
        if config.wandb_samples:
            raise UserError("Without wandb no samples go there: take out --wandb_samples.")
        return NoWandb()
    try:
        return WandbRun(config, kind, directory, run_id, mode, begun)
    except ConnectionError as error:
        if config.wandb != "auto":
            raise UserError(f"{error}: give --wandb offline, and send the run later.") from None
        print(f"{error}: logging offline instead.", file=sys.stderr)
        return WandbRun(config, kind, directory, run_id, "offline", begun)


def logged_in() -> bool:
    """Whether wandb would find an API key: in the environment, or where `wandb login` puts it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class WandbRun:
    def __init__(self, config, kind: str, directory: Path, run_id: str, mode: str, begun: bool):
        import wandb  # takes a second, which a run without it need not wait

        self._wandb, self._directory, self._mode, self._axes = wandb, directory, mode, set()
        # An agent has said already which run of which project this is.
        own = (
            {}
            if wandb_agent_run()
            else {"id": run_id, "project": os.environ.get("WANDB_PROJECT", PROJECT)}
        )
        try:
            self._run = wandb.init(
                **own, group=config.run_batch_name, job_type=kind, name=directory.name,
                resume="allow" if begun and mode == "online" else None, mode=mode,
                dir=directory, config=asdict(config),
                settings=wandb.Settings(silent=True, init_timeout=ANSWER_TIMEOUT),
            )  # fmt: skip
        except wandb.errors.Error as error:
            wandb.teardown()  # which otherwise keeps the run's id in use
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
        """Log what earlier sessions have logged, unless wandb's server has it.

        Of several offline sessions of a run, `wandb sync` lets the last one replace the others.
        """
        if not self._run.resumed:
            for record in records:
                self.log(record)

    # Figures and tables have sections, lest one of them and a number of the summary share a name:
    # to wandb these would be one thing, of which the last is kept.

    def log_image(self, name: str, path: Path) -> None:
        self._run.log({f"figures/{name}": self._wandb.Image(str(path))})

    def log_table(self, name: str, columns: list[str], rows: list[list]) -> None:
        self._run.log({f"tables/{name}": self._wandb.Table(columns=columns, data=rows)})

    def log_weights(self, files: list[Path]) -> None:
        """Upload files as the run's artifact; offline, `wandb sync` takes them from their place."""
        artifact = self._wandb.Artifact(f"weights-{self._run.id}", type="weights")
        for path in files:
            artifact.add_file(str(path.resolve()), policy="immutable")  # not by way of a copy
        self._run.log_artifact(artifact)

    def finish(self, summary: dict) -> None:
        self._run.summary.update(summary)
        self.close()

    def close(self) -> None:
        """End this session of the run, finished or not."""
        self._run.finish()
        if self._mode == "offline":
            session = Path(self._run.settings.sync_dir).name
            print(f"To send the records to wandb: wandb sync '{self._directory}/wandb/{session}'")


class NoWandb:
    """`--wandb disabled`."""

    def log(self, record: dict) -> None: ...

    def catch_up(self, records: Iterable[dict]) -> None: ...

    def log_image(self, name: str, path: Path) -> None: ...

    def log_table(self, name: str, columns: list[str], rows: list[list]) -> None: ...

    def log_weights(self, files: list[Path]) -> None: ...

    def finish(self, summary: dict) -> None: ...

    def close(self) -> None: ...
