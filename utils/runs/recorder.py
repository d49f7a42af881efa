"""The measurements of a run: metrics.jsonl, and wandb as a listener that hears the same."""

from pathlib import Path

from utils.runs.files import RecordFile, save_figure
from utils.runs.wandb_log import NoWandb, WandbRun

# Files of weights that --wandb_samples uploads, where a run leaves them.
WEIGHTS = ("samples.npy", "posterior.npz", "compact.npz", "network.json")


class Recorder:
    """Writes records to metrics.jsonl, and passes records, figures and tables on to wandb."""

    def __init__(self, directory: Path, wandb: WandbRun | NoWandb):
        self._directory, self._wandb = directory, wandb
        self._metrics = RecordFile(directory / "metrics.jsonl")

    def log(self, record: dict) -> None:
        self._metrics.append(record)
        self._wandb.log(record)

    def sync(self) -> int:
        """Put the records on disk and return the length of their file."""
        return self._metrics.sync()

    def go_on(self, length: int | None) -> None:
        """Keep the first `length` bytes of earlier records (None: all) and send them to wandb."""
        if length is not None:
            self._metrics.truncate(length)
        self._wandb.catch_up(self._metrics.records())

    def save_figure(self, name: str, figure) -> None:
        save_figure(self._directory / name, figure)
        self._wandb.log_image(name, self._directory / f"{name}.png")

    def log_table(self, name: str, columns: list[str], rows: list[list]) -> None:
        self._wandb.log_table(name, columns, rows)

    def upload_weights(self) -> None:
        files = [path for name in WEIGHTS if (path := self._directory / name).exists()]
        if files:
            self._wandb.log_weights(files)
        else:
            print("--wandb_samples: this run leaves no weights that could go to wandb.")

    def finish(self, summary: dict) -> None:
        self._wandb.finish(summary)
        self._metrics.close()

    def stop(self) -> None:
        """End this session of an unfinished run."""
        self._wandb.close()
