"""Earlier runs: finding the one a script needs, describing and identifying it."""

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from utils.runs.files import read_mapping
from utils.settings.config import config_names
from utils.settings.errors import UserError

import yaml

NEWEST, LEFT_OUT = "newest", "none"  # what options that take a run accept besides a path


def check_kind(path: Path, kinds: Sequence[str], remedy: str) -> None:
    """Refuse a run of another kind than these; a folder of a user's own has none."""
    kind = PastRun(path).kind
    if kind not in (None, *kinds):
        raise UserError(f"{path} is a run of kind {kind}, not {' or '.join(kinds)}: {remedy}.")


def run_directory(config, kind: str) -> Path:
    name = config.config_name if config.config_name != kind.lower() else ""
    parts = [kind, config.dataset, name, config.run_name]
    return Path(config.out_dir) / config.run_batch_name / "-".join(filter(None, parts))


@dataclass(frozen=True)
class PastRun:
    """What the run directory `path`, or the one that the file `path` lies in, says about itself.

    Runs of earlier versions have no kind, network and data in their meta.json: their directory's
    name, network.json and config.yaml say the same. What a folder of a user's own does not say is
    None, or empty.
    """

    path: Path

    @property
    def directory(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def meta(self) -> dict:
        return read_mapping(self.directory / "meta.json")

    @cached_property
    def config(self) -> dict:
        if not (self.directory / "meta.json").exists():
            return {}  # a user's folder: its config.yaml, if any, is about something else
        return read_mapping(self.directory / "config.yaml", yaml.safe_load)

    @property
    def kind(self) -> str | None:
        before, dataset, _ = self.directory.name.partition(f"-{self.config.get('dataset')}-")
        return self.meta.get("kind", before if dataset else None)

    @property
    def dataset(self) -> str | None:
        return self.data.get("name")

    @property
    def data(self) -> dict:
        """Name of the data set, and num_train if the run chose that (None: all)."""
        names = {"dataset": "name", "num_train": "num_train"}
        recorded = {new: self.config[old] for old, new in names.items() if old in self.config}
        return self.meta.get("data", recorded)

    @cached_property
    def network(self) -> dict:
        """The content of network.json."""
        return read_mapping(self.directory / "network.json") or self.meta.get("network", {})

    @property
    def summary(self) -> dict:
        """The content of summary.json, {} before the run has finished."""
        return read_mapping(self.directory / "summary.json")

    @property
    def core_seconds(self) -> float | None:
        """The seconds that all processors together have spent; None if it was not recorded."""
        own, parts = self.meta.get("core_seconds"), self.meta.get("core_seconds_of_parts")
        if own is None or (parts is None and any(self.directory.glob("mode-*"))):
            return None
        return own + (parts or 0)

    def matches(self, other: "PastRun") -> bool:
        """Return whether both have the same network and training images, as far as known."""
        pairs = ((self.network, other.network), (self.data, other.data))
        return all(a[key] == b[key] for a, b in pairs for key in a.keys() & b.keys())

    def __str__(self) -> str:
        name = "-".join(map(str, self.network.get("sizes", []))) or self.network.get("network", "")
        num_train = self.data.get("num_train")
        images = f"{num_train} training images" if num_train else ""
        details = ", ".join(filter(None, [name, images]))
        return f"{self.directory} ({details})" if details else f"{self.directory}"


def locate(
    config, given: str, kind: str, script: str, like: PastRun | None = None,
    optional: bool = False, flag: str | None = None,
) -> Path | None:  # fmt: skip
    """Return the path that the option of a script asks for: a run of this kind, or None.

    The option is `flag`, or is named after the kind. NEWEST asks for the batch's finished run of
    the kind, which must match `like`; LEFT_OUT for none.
    """
    if given == LEFT_OUT:
        return None
    if given == NEWEST:
        return find_run(config, kind, script, flag or f"--{kind.lower()}", like, optional)
    return existing(config, given)


def existing(config, given: str) -> Path:
    """Return a path that a user gave; refuse one that is missing or a run on another data set."""
    path = Path(given)
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    dataset = PastRun(path).dataset or config.dataset
    if dataset != config.dataset:
        raise UserError(f"{path} is a run on {dataset}: give --dataset {dataset}.")
    return path


def find_run(
    config, kind: str, script: str, flag: str, like: PastRun | None = None, optional: bool = False
) -> Path:
    """Return the finished run of this kind, in the config's batch and on its data set.

    It must match `like`. Of several, the one with this config's name is chosen, if there is one.
    `flag` is the option that takes a path instead, or "none" if the run is `optional`.
    """
    batch = Path(config.out_dir) / config.run_batch_name
    finished = _finished(batch, kind, config.dataset)
    matching = [run for run in finished if like is None or run.matches(like)]
    named = [run for run in matching if run.config.get("config_name") == config.config_name]
    for run_name in (config.run_name, ""):
        candidates = [run for run in named if run.config["run_name"] == run_name]
        if len(candidates) == 1:
            return candidates[0].directory
    or_none = f", or {flag} none" if optional else ""
    if len(matching) == 1:
        if like is None and not named:
            print(f"Only {matching[0]} is there, of another config than {config.config_name}.")
        return matching[0].directory
    if matching:
        raise UserError(
            f"Several {kind} runs could be meant: {_listed(matching)}. "
            f"Give the path of one with {flag}{or_none}."
        )
    missing = f"There is no finished {kind} run on {config.dataset} in {batch}"
    if finished:
        raise UserError(
            f"{missing} that matches {like}, but: {_listed(finished)}. "
            f"Make one of the same network and data with python {script}{or_none}."
        )
    elsewhere = _finished(batch.parent, f"*/{kind}", config.dataset)
    if elsewhere:
        missing += f", but there are: {_listed(elsewhere)}"
        instead = f"its path with {flag}, or --run_batch_name {elsewhere[0].directory.parent.name}"
        raise UserError(f"{missing}. Give {instead}{or_none}.")
    raise UserError(
        f"{missing}: make one with {_command_for(config, script)}, "
        f"or give the path of one with {flag}{or_none}."
    )


def _finished(folder: Path, kind: str, dataset: str) -> list[PastRun]:
    return [PastRun(done.parent) for done in sorted(folder.glob(f"{kind}-{dataset}-*/DONE"))]


def _listed(runs: list[PastRun]) -> str:
    return "; ".join(map(str, runs))


def _command_for(config, script: str) -> str:
    """Return the command that makes a run where this config looks for it."""
    words = ["python", *script.split(), "--run_batch_name", config.run_batch_name]
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    known = config_names(words[1].removesuffix(".py"))
    for name in ("config_name", "dataset", "out_dir", "data_dir"):
        if f"--{name}" in words:
            continue
        value = getattr(config, name)
        if value != defaults[name] and (name != "config_name" or value in known):
            words += [f"--{name}", value]
    return shlex.join(words)


# ---- the runs that a run is made of: an evaluation of samples, a pruning of an evaluation


def identify(path: Path) -> dict:
    """Identify the run of a directory, or of a file in it, and how far it has come.

    The identity stays with the run wherever its directory is moved to.
    """
    run = PastRun(path)
    return {
        # Every run draws an id, with wandb or without; other samples have none.
        "run": run.meta.get("wandb_id") or run.directory.resolve().name,
        "seconds": run.meta.get("seconds"),
        "finished": (run.directory / "DONE").exists(),
    }


def other_inputs(recorded: dict[str, dict], now: dict[str, dict]) -> dict[str, str]:
    """Return, by kind, how the runs that a run was made of differ from those now."""
    differences = {}
    for kind in {**recorded, **now}:
        before, after = recorded.get(kind), now.get(kind)
        if before == after:
            continue
        if before is None:
            differences[kind] = f"it does not say which {kind} it is of"
        elif after is None:
            differences[kind] = f"there is no {kind} now"
        elif before["run"] != after["run"]:
            differences[kind] = f"{kind} is another one now"
        else:
            differences[kind] = f"{kind} has gone on since"
    return differences


def check_inputs(directory: Path, inputs: dict[str, dict]) -> None:
    """Refuse to continue a run that was begun with other inputs."""
    meta = read_mapping(directory / "meta.json")
    differences = other_inputs(meta.get("inputs", {}), inputs) if meta else {}
    if differences:
        raise UserError(
            f"{directory} was begun with other runs ({', '.join(differences.values())}): give "
            "--overwrite to make it again, another --run_name, or the paths of the runs it was "
            "begun with."
        )
