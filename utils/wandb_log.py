"""wandb as a listener to a run: the same records, grouped by batch, online or offline.

`auto` logs online if the user is logged in, and otherwise into the run's directory, from where
the printed `wandb sync` line sends it later. Nothing here is needed to read a run: metrics.jsonl
and summary.json hold it all.
"""

import netrc
import os
import sys
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from utils.config import UserError

PROJECT = "bnn-compact-representation"
MODES = ("online", "offline", "disabled")
ANSWER_TIMEOUT = 30  # seconds that wandb's server has to answer


def start(config, kind: str, directory: Path, run_id: str) -> "WandbRun | NoWandb":
    """The wandb side of a run, as `config.wandb` asks."""
    mode = config.wandb
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or ("online" if logged_in() else "offline")
        if mode not in MODES:
            raise UserError(f"WANDB_MODE is {mode!r}; it must be one of {', '.join(MODES)}.")
    if mode == "disabled":
        return NoWandb()
    try:
        return WandbRun(config, kind, directory, run_id, mode)
    except ConnectionError as error:
        if config.wandb != "auto":
            raise UserError(f"{error}: give --wandb offline, and send the run later.") from None
        print(f"{error}: logging offline instead.", file=sys.stderr)
        return WandbRun(config, kind, directory, run_id, "offline")


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
    def __init__(self, config, kind: str, directory: Path, run_id: str, mode: str):
        import wandb  # takes a second, which a run without it need not wait

        self._wandb, self._directory, self._mode, self._axes = wandb, directory, mode, set()
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                group=config.run_batch_name, job_type=kind, name=directory.name,
                id=run_id, resume="allow" if mode == "online" else None, mode=mode,
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

    def log_image(self, name: str, path: Path) -> None:
        self._run.log({name: self._wandb.Image(str(path))})

    def log_table(self, name: str, columns: list[str], rows: list[list]) -> None:
        self._run.log({name: self._wandb.Table(columns=columns, data=rows)})

    def finish(self, summary: dict) -> None:
        self._run.summary.update(summary)
        self.close()

    def close(self) -> None:
        """End this session of the run, finished or not."""
        self._run.finish()
        if self._mode == "offline":
            print(f"To send the records to wandb: wandb sync '{self._directory}'/wandb/offline-*")


class NoWandb:
    """`--wandb disabled`."""

    def log(self, record: dict) -> None: ...

    def log_image(self, name: str, path: Path) -> None: ...

    def log_table(self, name: str, columns: list[str], rows: list[list]) -> None: ...

    def finish(self, summary: dict) -> None: ...

    def close(self) -> None: ...
