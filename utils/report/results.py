"""What the runs of a batch have left, read back from their directories."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from utils.runs.files import UNREADABLE, read_mapping
from utils.runs.lookup import identify, other_inputs
from utils.settings.errors import UserError

import yaml

# What reading results raises if they are incomplete or in the format of another version.
DAMAGED = (*UNREADABLE, IndexError)


class Missing(UserError):
    """A result that no run has left; the text names the run."""


@dataclass(frozen=True)
class RunResult:
    """A run's directory, whether the run is finished, begun or neither."""

    kind: str
    directory: Path

    @property
    def finished(self) -> bool:
        return (self.directory / "DONE").exists()

    @property
    def begun(self) -> bool:
        return (self.directory / "meta.json").exists()

    @property
    def seconds(self) -> float:
        """Seconds spent so far."""
        return self._meta.get("seconds", 0.0)

    @property
    def inputs(self) -> dict[str, dict]:
        """The runs that this one was made from, by kind, as `identify` describes them."""
        return self._meta.get("inputs", {})

    @property
    def _meta(self) -> dict:
        return read_mapping(self.directory / "meta.json")

    def path(self, name: str) -> Path:
        """Return the path of a file, which must exist."""
        path = self.directory / name
        if path.exists():
            return path
        if self.finished:
            raise Missing(f"{self.directory.name} has no {name}")
        state = "finished" if self.begun else "begun"
        raise Missing(f"Needs {self.directory.name}, which is not {state}")

    def json(self, name: str) -> dict:
        return self._parsed(name, json.loads)

    def records(self, name: str) -> list[dict]:
        """Return the records of a JSON-lines file, without a last line that is half written."""

        def parse(text: str) -> list[dict]:
            return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

        return self._parsed(name, parse)

    @property
    def config(self) -> dict:
        return self._parsed("config.yaml", yaml.safe_load)

    def _parsed(self, name: str, parse: Callable):
        try:
            return parse(self.path(name).read_text())
        except (ValueError, yaml.YAMLError):
            raise Missing(f"{self.directory.name} has a damaged {name}") from None


@dataclass(frozen=True)
class Results:
    """A paper's runs in one preset, by kind, whether they were begun or not."""

    preset: str
    dataset: str
    runs: dict[str, RunResult]

    def begun(self) -> list[RunResult]:
        return [run for run in self.runs.values() if run.begun]

    def json(self, kind: str, name: str) -> dict:
        """Return the content of a run's JSON file."""
        return self.runs[kind].json(name)

    def other_inputs(self, kind: str, needs: Iterable[str] = ()) -> dict[str, str]:
        """Say by kind why a run was not made from the runs that exist now; {} if it was.

        The run must be made from the kinds in `needs`; others count only if it recorded them.
        """
        recorded = self.runs[kind].inputs
        compared = [run for run in self.begun() if run.kind in {*recorded, *needs}]
        return other_inputs(recorded, {run.kind: identify(run.directory) for run in compared})

    def outdated(self, kind: str) -> str:
        """Return a sentence if a run was made from other runs than those beside it, else ""."""
        try:
            reasons = self.other_inputs(kind)
        except UserError:  # of a damaged run, which is reported where its results are shown
            return ""
        if not reasons:
            return ""
        some = list(reasons.values())[:3]
        more = f" and {len(reasons) - len(some)} more" if len(reasons) > len(some) else ""
        return (
            f"{self.runs[kind].directory.name} was made from other runs than those beside it: "
            f"{', '.join(some)}{more}. Redo it with --overwrite."
        )


def open_results(batch: Path, preset: str, dataset: str, names: dict[str, str]) -> Results:
    """Return the runs of a batch, given the names of their directories by kind."""
    runs = {kind: RunResult(kind, batch / name) for kind, name in names.items()}
    return Results(preset, dataset, runs)


def why_not(error: Exception, *runs: RunResult) -> str:
    """Say in a sentence why nothing can be shown of these runs."""
    if isinstance(error, Missing):
        return f"{error}."
    names = ", ".join(run.directory.name for run in runs)
    return (
        f"{f'One of {names}' if len(runs) > 1 else names} was left by another version or is "
        "damaged: move it away and run it again."
    )


def or_none(read: Callable):
    """Return what `read` returns, or None if the results are missing or damaged."""
    try:
        return read()
    except (Missing, *DAMAGED):
        return None
