"""Each format against bytes made by hand."""

import io
import tarfile

from utils.data.formats import (
    cifar10_records,
    cifar100_records,
    icon_sheet,
    idx_images,
    svhn_matrix,
)

import numpy as np
from PIL import Image
from scipy.io import savemat


def pixels(*shape) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_idx():
    images = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6])
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])
    parsed, numbers = idx_images([images, labels])
    assert parsed.tolist() == [[[[1, 2, 3]]], [[[4, 5, 6]]]]
    assert numbers.tolist() == [7, 9]


def test_cifar10_batches_follow_each_other():
    images = pixels(3, 3, 32, 32)
    records = [bytes([label]) + images[label].tobytes() for label in range(3)]
    parsed, labels = cifar10_records([records[0] + records[1], records[2]])
    assert np.array_equal(parsed, images)
    assert labels.tolist() == [0, 1, 2]


def test_cifar100_has_the_fine_labels():
    images = pixels(2, 3, 32, 32)
    content = b"".join(bytes([9, label]) + images[k].tobytes() for k, label in enumerate((42, 99)))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("cifar-100-binary/test.bin")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    parsed, labels = cifar100_records([packed.getvalue()], "cifar-100-binary/test.bin")
    assert np.array_equal(parsed, images)
    assert labels.tolist() == [42, 99]


def test_svhn_calls_zero_ten():
    images = pixels(3, 3, 32, 32)
    file = io.BytesIO()
    savemat(file, {"X": images.transpose(2, 3, 1, 0), "y": np.array([[1], [10], [9]])})
    parsed, labels = svhn_matrix([file.getvalue()])
    assert np.array_equal(parsed, images)
    assert labels.tolist() == [1, 0, 9]


def test_icons_lie_on_white_and_empty_cells_are_left_out():
    sheet = np.zeros((8, 8, 4), np.uint8)  # 2×2 cells of 2×2 pixels, and their borders
    sheet[1:3, 5:7] = (10, 20, 30, 255)
    sheet[5, 1] = (0, 0, 0, 51)  # a fifth black
    file = io.BytesIO()
    Image.fromarray(sheet).save(file, "PNG")
    images, labels = icon_sheet([file.getvalue()], size=2)
    assert images.shape == (2, 3, 2, 2)
    assert images[0].reshape(3, 4).T.tolist() == [[10, 20, 30]] * 4
    assert images[1, 0].tolist() == [[204, 255], [255, 255]]
    assert labels.tolist() == [0, 0]
