"""What the runs of a batch came to, read back from their directories for the report."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from utils.runs.errors import UserError
from utils.runs.files import read_mapping
from utils.runs.lookup import identify, other_inputs

import yaml


class Missing(UserError):
    """A result that no run has left yet, or not whole; its text says which run."""


@dataclass(frozen=True)
class RunResult:
    """A run's directory, finished or not."""

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
        """Spent in it so far."""
        return self._meta.get("seconds", 0.0)

    @property
    def inputs(self) -> dict[str, dict]:
        """The runs that it is made of, as `identify` tells them, by kind."""
        return self._meta.get("inputs", {})

    @property
    def _meta(self) -> dict:
        return read_mapping(self.directory / "meta.json", json.loads)

    def path(self, name: str) -> Path:
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
        """Without a last one that a running script, or one that was killed, has half written."""

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
    """All runs of a batch, by kind, whether they were begun or not."""

    preset: str
    dataset: str
    runs: dict[str, RunResult]

    def begun(self) -> list[RunResult]:
        return [run for run in self.runs.values() if run.begun]

    def other_inputs(self, kind: str, needs: Iterable[str] = ()) -> dict[str, str]:
        """Why a run is not of the runs that there are now, by their kinds; {} if it is.

        Of those in `needs` it has to be, of others only if it says so.
        """
        recorded = self.runs[kind].inputs
        asked = [run for run in self.begun() if run.kind in {*recorded, *needs}]
        return other_inputs(recorded, {run.kind: identify(run.directory) for run in asked})

    def outdated(self, kind: str) -> str:
        """A sentence to be read with a run that was made of others than those beside it, or ''."""
        try:
            told = self.other_inputs(kind)
        except UserError:  # of a damaged one, which is told where it is shown
            return ""
        if not told:
            return ""
        name, why = self.runs[kind].directory.name, ", ".join(told.values())
        return (
            f"{name} was made of other runs than those here: {why}. "
            "reproduce.py with --overwrite makes it anew."
        )

    def summary(self, kind: str) -> dict:
        return self.runs[kind].json("summary.json")

    @property
    def table(self) -> dict:
        """Table 1: {column: {row: value}}"""
        return self.runs["eval"].json("table1.json")

    @property
    def errors(self) -> dict:
        """Standard errors of Table 1."""
        return self.runs["eval"].json("table1_errors.json")

    @property
    def diagnostics(self) -> dict:
        """Of the evaluation; the chain's own are in its run."""
        return self.runs["eval"].json("diagnostics.json")

    @property
    def pruning(self) -> dict:
        return self.runs["eval_pruning"].json("pruning.json")


def open_results(batch: Path, preset: str, dataset: str, names: dict[str, str]) -> Results:
    """The runs of a batch, whose directories have these names by kind."""
    runs = {kind: RunResult(kind, batch / name) for kind, name in names.items()}
    return Results(preset, dataset, runs)
