"""The formats that data sets come in. Each function returns uint8 images [N, C, H, W] and labels
[N] as NumPy arrays. No format needs pickle."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np

GZIP_MAGIC = b"\x1f\x8b"

Arrays = tuple[np.ndarray, np.ndarray]


def idx_images(contents: list[bytes]) -> Arrays:
    """Read an IDX file of grey images and one of labels, compressed or not."""
    images, labels = map(_idx_array, contents)
    return images[:, None], labels


def _idx_array(content: bytes) -> np.ndarray:
    """Read IDX: two zero bytes, type, number of dimensions, sizes (big-endian), values."""
    if content.startswith(GZIP_MAGIC):
        content = gzip.decompress(content)
    num_dimensions = content[3]
    shape = np.frombuffer(content, ">i4", num_dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * num_dimensions).reshape(shape)


def cifar10_records(contents: list[bytes]) -> Arrays:
    """Read CIFAR-10's binary batches: a label and the red, green and blue planes per image."""
    return _cifar_records(b"".join(contents), num_label_bytes=1)


def cifar100_records(contents: list[bytes], member: str) -> Arrays:
    """Read a file of CIFAR-100's binary archive: its images have a coarse and a fine label."""
    with tarfile.open(fileobj=io.BytesIO(contents[0])) as archive:
        return _cifar_records(archive.extractfile(member).read(), num_label_bytes=2)


def _cifar_records(content: bytes, num_label_bytes: int) -> Arrays:
    records = np.frombuffer(content, np.uint8).reshape(-1, num_label_bytes + 3 * 32 * 32)
    images = records[:, num_label_bytes:].reshape(-1, 3, 32, 32)
    return images, records[:, num_label_bytes - 1]


def svhn_matrix(contents: list[bytes]) -> Arrays:
    """Read SVHN's MATLAB file: X [H, W, C, N], and y [N, 1] in which 10 is the digit 0."""
    from scipy.io import loadmat

    matrix = loadmat(io.BytesIO(contents[0]))
    return matrix["X"].transpose(3, 2, 0, 1), matrix["y"][:, 0] % 10


def icon_sheet(contents: list[bytes], size: int = 32) -> Arrays:
    """Cut a sheet of icons into images on a white background, leaving out empty cells.

    Each cell has a border of one pixel. The icons have no classes: all labels are 0.
    """
    from PIL import Image

    sheet = np.array(Image.open(io.BytesIO(contents[0])).convert("RGBA"))
    rows, columns = (length // (size + 2) for length in sheet.shape[:2])
    cells = sheet.reshape(rows, size + 2, columns, size + 2, 4).swapaxes(1, 2)
    icons = cells[:, :, 1:-1, 1:-1].reshape(-1, size, size, 4)
    icons = icons[icons[..., 3].any((1, 2))].astype(np.float32)
    alpha = icons[..., 3:] / 255
    images = (alpha * icons[..., :3] + (1 - alpha) * 255).round().astype(np.uint8)
    return images.transpose(0, 3, 1, 2), np.zeros(len(images), np.uint8)


def tiny_imagenet(folder: Path, part: str) -> Arrays:
    """Read a part of TinyImageNet's folder; classes are numbered in the order of their ids."""
    ids = (folder / "wnids.txt").read_text().split()
    classes = {name: number for number, name in enumerate(sorted(ids))}
    if part == "train":
        paths = sorted(folder.glob("train/*/images/*.JPEG"))
        labels = [classes[path.parent.parent.name] for path in paths]
    else:
        lines = (folder / "val" / "val_annotations.txt").read_text().splitlines()
        rows = [line.split("\t") for line in lines]
        paths = [folder / "val" / "images" / row[0] for row in rows]
        labels = [classes[row[1]] for row in rows]
    if len(set(labels)) != len(classes):
        raise ValueError(f"it has images of {len(set(labels))} of {len(classes)} classes")
    images = np.empty((len(paths), 3, 64, 64), np.uint8)
    for image, path in zip(images, paths, strict=True):
        image[:] = _rgb(path).transpose(2, 0, 1)
    return images, np.array(labels)


def _rgb(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))
