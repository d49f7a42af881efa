"""Files in the data directory and from sources: found, checked, fetched, kept, and missing."""

import gzip
import hashlib
import subprocess
import sys
from dataclasses import replace

from tests.conftest import REPOSITORY
from utils.data import sources
from utils.data.datasets import load_dataset
from utils.data.formats import idx_images
from utils.data.sources import SOURCES, Files, Source, read_part
from utils.settings.errors import UserError

import numpy as np
import pytest
from PIL import Image

NUM_IMAGES = {"train": 12, "t10k": 5}
PARTS = [*SOURCES["MNIST"].train.md5, *SOURCES["MNIST"].test.md5]


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


def source_for(contents, fetchers, num_classes=10) -> Source:
    """A source of these four files."""
    md5 = {file: hashlib.md5(content).hexdigest() for file, content in contents.items()}
    train, test = (
        Files({file: md5[file] for file in md5 if file.startswith(part)}, idx_images)
        for part in ("train", "t10k")
    )
    return Source(num_classes, (0.5,), (0.25,), train, test, fetchers)


@pytest.fixture
def toy(monkeypatch):
    """Toy files that pass as MNIST, from a source that remembers what was missing."""
    contents, calls = toy_files(), []

    def fetch(folder, missing):
        calls.append(missing)
        put(folder, contents)

    monkeypatch.setitem(SOURCES, "MNIST", source_for(contents, {"a toy source": fetch}))
    return contents, calls


def use_fetchers(monkeypatch, **fetchers):
    monkeypatch.setitem(SOURCES, "MNIST", replace(SOURCES["MNIST"], fetchers=fetchers))


def put(folder, contents, compressed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in contents.items():
        if compressed:
            (folder / f"{part}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / part).write_bytes(content)


def check(loaded, contents):
    """Compare with the bytes of the files."""
    images = next(content for file, content in contents.items() if "train-images" in file)
    labels = next(content for file, content in contents.items() if "t10k-labels" in file)
    assert loaded.train_images.shape == (12, 1, 2, 3)
    assert bytes(loaded.train_images.numpy()) == images[16:]
    assert loaded.test_labels.tolist() == list(labels[8:])


def test_missing_files_are_fetched_once_and_kept(toy, tmp_path):
    contents, calls = toy
    check(load_dataset("MNIST", tmp_path), contents)
    check(load_dataset("MNIST", tmp_path), contents)
    assert calls == [PARTS[:2]]  # the source brought the test part as well
    assert {p.name for p in (tmp_path / "MNIST" / "raw").iterdir()} == set(PARTS)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("folder", ["MNIST/raw", "."])
def test_files_in_the_data_directory_are_used_without_writing(
    toy, tmp_path, monkeypatch, folder, compressed
):
    contents, calls = toy
    put(tmp_path / folder, contents, compressed)

    def refuse(*arguments, **settings):
        raise PermissionError(13, "Read-only file system")

    monkeypatch.setattr(sources, "write_atomically", refuse)
    monkeypatch.setattr(sources.Path, "mkdir", refuse)
    check(load_dataset("MNIST", tmp_path), contents)
    assert calls == []


@pytest.mark.parametrize("damage", [lambda c: c[: len(c) // 2], lambda c: c[:-1] + b"\x00", len])
def test_damaged_files_are_fetched_again(toy, tmp_path, damage):
    contents, calls = toy
    raw = tmp_path / "MNIST" / "raw"
    put(raw, contents)
    part = PARTS[0]
    harmed = damage(contents[part])
    (raw / part).write_bytes(harmed if isinstance(harmed, bytes) else b"")
    check(load_dataset("MNIST", tmp_path), contents)
    assert calls == [[part]]
    assert (raw / part).read_bytes() == contents[part]


def test_half_a_download_is_not_put_in_place(toy, tmp_path, monkeypatch):
    contents, _ = toy

    def half(folder, missing):
        put(folder, {part: content[:9] for part, content in contents.items()})
        (folder / f"{PARTS[0]}.gz").write_bytes(gzip.compress(contents[PARTS[0]])[:20])

    use_fetchers(monkeypatch, bad=half)
    with pytest.raises(UserError, match="MNIST is not complete"):
        load_dataset("MNIST", tmp_path)
    assert not (tmp_path / "MNIST").exists()


def test_the_next_source_fills_what_the_first_lacks(toy, tmp_path, monkeypatch):
    contents, _ = toy

    def fail(folder, missing):
        put(folder, {PARTS[0]: contents[PARTS[0]]})
        raise UserError("out of order")

    def rest(folder, missing):
        assert missing == [PARTS[1]]
        put(folder, {part: contents[part] for part in PARTS[1:]}, compressed=True)

    use_fetchers(monkeypatch, first=fail, second=rest)
    check(load_dataset("MNIST", tmp_path), contents)


@pytest.mark.parametrize("name", SOURCES)
def test_without_any_source_the_error_names_every_way(tmp_path, monkeypatch, name):
    def fail(folder, missing):
        raise UserError("no network")

    source = SOURCES[name]
    fetchers = dict.fromkeys(source.fetchers, fail)
    monkeypatch.setitem(SOURCES, name, replace(source, fetchers=fetchers))
    with pytest.raises(UserError) as caught:
        read_part(name, "test", tmp_path)
    message = str(caught.value)
    files = [file for part in (source.train, source.test) if part for file in part.md5]
    expected = [str(tmp_path / name), "--data_dir", source.archive, *files]
    expected += [f"from {description} (no network)" for description in source.fetchers]
    assert "\n" not in message
    assert all(words in message for words in expected), message


def test_the_error_tells_damaged_files_from_good_ones(toy, tmp_path, monkeypatch):
    contents, _ = toy
    use_fetchers(monkeypatch)
    put(tmp_path / "MNIST" / "raw", {PARTS[0]: contents[PARTS[0]], PARTS[1]: b"1234"})
    with pytest.raises(UserError) as caught:
        load_dataset("MNIST", tmp_path)
    message = str(caught.value)
    assert PARTS[0] not in message
    assert f"{PARTS[2]}, {PARTS[3]} (missing), {PARTS[1]} (damaged)" in message


def test_compressed_sets_are_kept_compressed(tmp_path, monkeypatch):
    packed = {f"{part}.gz": gzip.compress(content) for part, content in toy_files().items()}
    source = source_for(packed, {"a": lambda folder, missing: put(folder, packed)})
    monkeypatch.setitem(SOURCES, "KMNIST", source)
    for _ in range(2):
        check(load_dataset("KMNIST", tmp_path), toy_files())
    assert {p.name for p in (tmp_path / "KMNIST" / "raw").iterdir()} == set(packed)


def test_unknown_names_get_the_nearest_one():
    with pytest.raises(UserError, match=r"Unknown data set 'CIFAR-10'.*Did you mean CIFAR10\?"):
        read_part("CIFAR-10", "test", "data")


def test_a_set_of_ones_own_is_one_entry(toy, tmp_path, monkeypatch):
    """An entry in SOURCES is enough to load one, with its own number of classes."""
    contents, _ = toy
    monkeypatch.setitem(SOURCES, "Own", source_for(contents, {}, num_classes=26))
    with pytest.raises(UserError) as caught:
        load_dataset("Own", tmp_path)
    message = str(caught.value)
    assert f"{PARTS[3]} (missing)" in message
    assert message.endswith("or point --data_dir to a folder that has them.")
    put(tmp_path / "Own" / "raw", contents)
    own = load_dataset("Own", tmp_path)
    check(own, contents)
    assert own.num_classes == 26


LOAD_FROM_A_COPY = """
import shutil, sys
from dataclasses import replace
from utils.data.datasets import load_dataset
from utils.data.sources import SOURCES

source, data_dir = sys.argv[1:]
copy = lambda folder, missing: shutil.copytree(source, folder, dirs_exist_ok=True)
SOURCES["MNIST"] = replace(SOURCES["MNIST"], fetchers={"a copy": copy})
print(len(load_dataset("MNIST", data_dir).train_images))
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


@pytest.fixture
def tiny_imagenet(tmp_path):
    """A folder like TinyImageNet's, with 3 classes of 2 training images and 1 test image each."""
    root = tmp_path / "TinyImageNet" / "tiny-imagenet-200"
    (root / "val" / "images").mkdir(parents=True)
    ids = ["n3", "n1", "n2"]
    (root / "wnids.txt").write_text("\n".join(ids))
    lines = []
    for grey, name in enumerate(ids):
        (root / "train" / name / "images").mkdir(parents=True)
        mode, colour = [("L", 9), ("RGB", (99, 0, 0)), ("RGB", (0, 200, 0))][grey]
        paths = [root / "train" / name / "images" / f"{name}_{k}.JPEG" for k in range(2)]
        for path in [*paths, root / "val" / "images" / f"val_{grey}.JPEG"]:
            Image.new(mode, (64, 64), colour).save(path, quality=100)
        lines.append(f"val_{grey}.JPEG\t{name}\t0\t0\t9\t9")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines))
    return root


def test_tiny_imagenet_is_read_from_its_folder(tiny_imagenet, tmp_path):
    data = load_dataset("TinyImageNet", tmp_path)
    assert data.train_images.shape == (6, 3, 64, 64)
    assert data.train_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.test_labels.tolist() == [2, 0, 1]
    assert data.test_images[0].unique().tolist() == [9]  # grey, in all three channels
    assert data.test_images[1, :, 5, 5].tolist() == pytest.approx([99, 0, 0], abs=2)
    assert data.num_classes == 200
    beside = load_dataset("TinyImageNet", tmp_path / "TinyImageNet")
    assert beside.train_images.equal(data.train_images)


@pytest.mark.parametrize("damaged", ["train/n1/images/n1_0.JPEG", "wnids.txt", "train/n2"])
def test_a_damaged_folder_is_named(tiny_imagenet, tmp_path, damaged):
    path = tiny_imagenet / damaged
    if path.is_dir():
        path.rename(tmp_path / "elsewhere")
    elif path.suffix == ".JPEG":
        path.write_bytes(path.read_bytes()[:200])
    else:
        path.unlink()
    with pytest.raises(UserError, match=r"is not the complete TinyImageNet .*unpack .*zip again"):
        load_dataset("TinyImageNet", tmp_path)
