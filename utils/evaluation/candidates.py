"""Posteriors to compare: the runs that options of a script ask for, by name."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from utils.data.datasets import Dataset
from utils.evaluation.predictions import columns_of
from utils.posteriors.files import open_posterior
from utils.posteriors.mixture import is_set
from utils.posteriors.posterior import Posterior
from utils.posteriors.prior import Prior, prior_of
from utils.runs.errors import UserError
from utils.runs.lookup import PastRun, existing, find_run, identify

import torch

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")  # of a posterior: part of keys in files
RESERVED = ("rebased",)  # dead_pixels_rebased in diagnostics.json is about the truth


@dataclass(frozen=True)
class Candidate:
    name: str  # part of keys in files
    title: str  # in tables and figures
    posterior: Posterior
    run: PastRun
    identity: dict  # of the run when it was opened
    remedy: str  # what a user can give instead

    def __str__(self) -> str:
        if not is_set(self.posterior):
            return type(self.posterior).__name__
        chains = self.posterior.num_chains
        several = f", {chains} chains" if chains > 1 else ""
        return f"{len(self.posterior)} weight vectors{several}"


def open_candidate(name: str, title: str, path: Path, remedy: str = "", **thinning) -> Candidate:
    """Open the posterior in a run directory, or in one of its files."""
    identity = identify(path)  # before its samples are read: a chain may still run
    posterior = open_posterior(path, **thinning)
    return Candidate(name, title, posterior, PastRun(path), identity, remedy)


def named_paths(config, given: Sequence[str]) -> dict[str, Path]:
    """Read texts name=PATH."""
    paths = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not path or name in paths:
            raise UserError(f"--posteriors takes name=PATH with different names, got {text!r}.")
        paths[name] = existing(config, path)
    return paths


def named_or_newest(config, given: Sequence[str], scripts: dict[str, str]) -> dict[str, Path]:
    """Read texts name=PATH; without any, find the batch's finished run of each kind."""
    if given:
        return named_paths(config, given)
    flag = "--posteriors NAME=PATH"
    return {kind: find_run(config, kind, script, flag) for kind, script in scripts.items()}


def check_names(names: Iterable[str]) -> None:
    """Refuse names that cannot be parts of keys, or would make two of them equal."""
    names = list(names)
    for name in names:
        if not NAME.fullmatch(name) or name in RESERVED:
            raise UserError(
                f"{name!r} cannot name a posterior: names have letters, digits and underscores, "
                f"begin with a letter, and are not {RESERVED[0]!r}."
            )
    keys = [key.lower() for name in names for key in columns_of([name])]
    if len(set(keys)) < len(keys):
        raise UserError(f"The names {', '.join(names)} are too alike: choose others.")


def check_candidates(candidates: dict[str, Candidate], truth: str) -> None:
    """Refuse a truth that is a distribution, and posteriors of different networks."""
    true = candidates[truth]
    if not is_set(true.posterior):
        raise UserError(
            f"Posteriors are compared with a set of weight vectors, but {truth} is a {true}: give "
            "another --truth."
        )
    for candidate in candidates.values():
        if candidate.posterior.network != true.posterior.network:
            raise UserError(
                f"{candidate.run.path} is of the network {candidate.posterior.network}, but "
                f"{true.run.path} of {true.posterior.network}: {candidate.remedy}."
            )


def check_data(candidate: Candidate, data: Dataset) -> None:
    """Refuse a network without hidden units, or for other images and classes."""
    network = candidate.posterior.network
    fits = math.prod(network.input_shape) == data.num_pixels
    if not network.groups or not fits or network.num_classes != data.num_classes:
        raise UserError(
            f"{candidate.run.path} is of the network {network}: give samples of one with "
            f"{data.num_pixels} inputs, hidden units and {data.num_classes} outputs, as "
            f"{data.name} needs it."
        )


def prior_in(candidate: Candidate, num_points: int, device="cpu") -> Prior:
    """Return the prior of the potential of a run, N(0, 1) for those that do not say."""
    return prior_of(candidate.run.config, candidate.posterior.network, num_points, device)


def temperature_of(candidate: Candidate) -> float:
    return candidate.run.config.get("temperature", 1.0)


def warn_of_other_priors(candidates: Iterable[Candidate], num_points: int) -> None:
    """Say so if runs have other priors: then not even their modes are the same."""
    stds = {each.title: torch.as_tensor(prior_in(each, num_points).std) for each in candidates}
    first, *others = stds.values()
    if any(other.shape != first.shape or not other.allclose(first) for other in others):
        listed = ", ".join(f"{title} σ = {std.median():.4g}" for title, std in stds.items())
        print(f"Warning: these are posteriors with different priors ({listed}).")


def warn_of_other_data(candidates: Iterable[Candidate]) -> None:
    """Say so if runs have seen different numbers of images: their posteriors differ."""
    data = {candidate.title: candidate.run.data for candidate in candidates}
    counts = {title: each["num_train"] for title, each in data.items() if "num_train" in each}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{title} {count or 'all'}" for title, count in counts.items())
        print(f"Warning: these are posteriors of different training images ({listed}).")
