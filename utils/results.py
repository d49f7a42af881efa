"""What the runs of a batch came to, read back from their directories for the report."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml


class Missing(Exception):
    """A result that no run has left yet; its text says which run would."""


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
        return self.json("meta.json")["seconds"] if self.begun else 0.0

    def path(self, name: str) -> Path:
        path = self.directory / name
        if not path.exists():
            raise Missing(f"{self.directory.name} has no {name} yet")
        return path

    def json(self, name: str) -> dict:
        return json.loads(self.path(name).read_text())

    def records(self, name: str) -> list[dict]:
        return [json.loads(line) for line in self.path(name).read_text().splitlines()]

    @cached_property
    def config(self) -> dict:
        return yaml.safe_load(self.path("config.yaml").read_text())


@dataclass(frozen=True)
class Results:
    """All runs of a batch, by kind, whether they were begun or not."""

    preset: str
    dataset: str
    runs: dict[str, RunResult]

    def begun(self) -> list[RunResult]:
        return [run for run in self.runs.values() if run.begun]

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
