"""What a run has told wandb offline, read back from the file that `wandb sync` would send."""

import json
import struct
import time
from dataclasses import dataclass
from pathlib import Path

import yaml
from wandb.proto.wandb_internal_pb2 import Record, RunRecord


@dataclass(frozen=True)
class OfflineRun:
    """A session of a run."""

    start: RunRecord
    config: dict
    rows: list[dict]  # what was logged, in order
    axes: dict[str, str]  # metric: what it is drawn over
    summary: dict
    artifacts: dict[str, list[str]]  # type: the files in it
    directory: Path  # of what is sent besides
    exit_code: int

    def table(self, name: str) -> tuple[list, list]:
        """Headings and lines."""
        key = f"tables/{name}"
        assert self.summary[f"{key}._type"] == "table-file"
        content = json.loads((self.directory / "files" / self.summary[f"{key}.path"]).read_text())
        return content["columns"], content["data"]

    @property
    def images(self) -> dict[str, Path]:
        """What the run's page shows, by name."""
        keys = [key for key in self.summary if self.summary[key] == "image-file"]
        keys = [key.removesuffix("._type") for key in keys]
        return {
            key.removeprefix("figures/"): self.directory / "files" / self.summary[f"{key}.path"]
            for key in keys
        }

    @property
    def files(self) -> list[str]:
        """The names of everything that is sent besides records and artifacts."""
        return [path.name for path in (self.directory / "files").rglob("*")]


def read_offline_run(directory: Path, session: int = -1) -> OfflineRun:
    """The offline run in a run's directory; the last of its sessions, unless another is given."""
    file = sorted(directory.glob("wandb/offline-run-*/run-*.wandb"))[session]
    records = _complete_records(file)
    (start,) = (r.run for r in records if r.WhichOneof("record_type") == "run")
    artifacts = {}
    for record in records:
        if record.WhichOneof("record_type") == "artifact":
            paths = [content.path for content in record.artifact.manifest.contents]
            artifacts.setdefault(record.artifact.type, []).extend(paths)
    summary = {}
    for record in records:
        if record.HasField("summary"):
            summary |= _values(record.summary.update)
    return OfflineRun(
        start,
        config=_values(start.config.update),
        rows=[_values(r.history.item) for r in records if r.HasField("history")],
        axes={r.metric.name: r.metric.step_metric for r in records if r.HasField("metric")},
        summary=summary,
        artifacts=artifacts,
        directory=file.parent,
        exit_code=next(r.exit.exit_code for r in records if r.HasField("exit")),
    )


def check_told(directory: Path, table: str, rows: int) -> None:
    """Check that wandb has been told whose run this is, its settings, figures and this table."""
    told = read_offline_run(directory)
    kind = json.loads((directory / "meta.json").read_text())["kind"]
    assert (told.start.run_group, told.start.job_type) == ("default", kind)
    assert told.start.display_name == directory.name
    config = yaml.safe_load((directory / "config.yaml").read_text())
    assert config.items() <= told.config.items()
    assert told.exit_code == 0
    assert told.images.keys() == {path.stem for path in directory.glob("*.png")}
    columns, lines = told.table(table)
    assert len(lines) == rows
    numbers = [value for line in lines for value in line if isinstance(value, float)]
    assert numbers
    assert len(columns) == len(set(columns)) > 1


def _values(items) -> dict:
    keys = (".".join(item.nested_key) or item.key for item in items)
    return dict(zip(keys, (json.loads(item.value_json) for item in items), strict=True))


def _complete_records(file: Path) -> list[Record]:
    """wandb's service may write on for a moment after the run's end."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        records = _read_records(file)
        if any(r.WhichOneof("record_type") == "exit" for r in records):
            return records
        time.sleep(0.05)
    raise AssertionError(f"{file} was not completed")


def _read_records(path: Path) -> list[Record]:
    """Records of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    content, position, parts, records = path.read_bytes(), 7, b"", []
    while position + 7 <= len(content):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(parts))
            parts = b""
    return records
