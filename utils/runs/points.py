"""The runs of a sweep: how far they have come, and sweep.json, which says so."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from utils.runs.files import last_values, read_mapping, save_json
from utils.runs.run import flat
from utils.settings.config import Config, reopening_fields
from utils.settings.errors import UserError
from utils.settings.sweeps import Sweep, point_label

import yaml


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    settings: dict  # those that vary
    arguments: list[str]
    config: Config
    directory: Path

    @property
    def label(self) -> str:
        return point_label(self.settings)

    @property
    def recorded(self) -> dict:
        """Return the settings that its run was begun with, {} if it was not."""
        return read_mapping(self.directory / "config.yaml", yaml.safe_load)

    @property
    def finished(self) -> bool:
        done = (self.directory / "DONE").exists()
        return done and not reopening_fields(self.config, self.recorded)

    @property
    def metrics(self) -> dict[str, float | None]:
        """Return what a finished run has in wandb's summary: the last values of all metrics.

        Names of nested numbers in summary.json are joined by dots. None is NaN or infinity.
        """
        if not self.finished:
            return {}
        logged = read_mapping(self.directory / "metrics.jsonl", last_values)
        numbers = logged | flat(read_mapping(self.directory / "summary.json"), ".")
        return {name: v for name, v in numbers.items() if v is None or type(v) in (int, float)}

    def check_unchanged(self) -> None:
        """Refuse a run of other settings, or of other inputs, which a resumed run may have."""
        recorded = self.recorded
        free = {field.name for field in fields(Config) if field.metadata["changeable"]}
        free |= {"config", *reopening_fields(self.config, recorded)}
        changed = [
            f"{name} was {recorded[name]} and is {value}"
            for name, value in asdict(self.config).items()
            if name in recorded.keys() - free and recorded[name] != value
        ]
        if changed:
            raise UserError(
                f"{self.directory} was begun with other settings ({', '.join(changed)}): "
                "give this sweep another --run_batch_name."
            )


def save_progress(path: Path, sweep: Sweep, points: Sequence[Point]) -> list[dict]:
    """Save what the runs have reached so far, in sweep.json; return them, the best first."""
    runs = [
        {
            "directory": point.directory.name,
            "settings": point.settings,
            "finished": point.finished,
            "value": point.metrics.get(sweep.metric),
            "seconds": read_mapping(point.directory / "meta.json").get("seconds"),
        }
        for point in points
    ]
    content = {
        "file": str(sweep.path), "program": sweep.program, "method": sweep.method,
        "metric": sweep.metric, "goal": sweep.goal, "varied": list(sweep.axes), "runs": runs,
    }  # fmt: skip
    save_json(path, content)
    sign = -1 if sweep.goal == "maximize" else 1
    return sorted(runs, key=lambda run: (run["value"] is None, sign * (run["value"] or 0)))
