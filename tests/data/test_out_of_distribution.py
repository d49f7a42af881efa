"""Out-of-distribution images: which, in which shape, and from where if the usual is missing."""

from dataclasses import replace

from utils.data import out_of_distribution
from utils.data.datasets import load_part
from utils.data.out_of_distribution import (
    as_shape,
    corrupt,
    load_other_images,
    load_usual_images,
    usual_names,
)
from utils.data.sources import SOURCES
from utils.settings.errors import UserError

import pytest
import torch


def test_usual_pairs():
    assert usual_names("MNIST") == ("FashionMNIST",)
    assert usual_names("FashionMNIST") == ("MNIST",)
    assert usual_names("CIFAR10") == ("SVHN", "emoji", "FashionMNIST", "MNIST")
    assert usual_names("CIFAR10_0-5") == ("CIFAR10_6_7_8_9",)
    assert usual_names("MNIST_0-9") == ("FashionMNIST",)
    assert all(name in SOURCES for source in SOURCES.values() for name in source.others)


def test_mnist_as_colour_images(data_dir):
    """MNIST next to CIFAR-10: three equal channels, resized."""
    other = load_other_images("MNIST", (3, 32, 32), data_dir)
    assert other.name == "MNIST"
    assert other.images.shape == (10_000, 3, 32, 32)
    assert other.images.dtype == torch.uint8
    assert other.images[:, 0].equal(other.images[:, 2])
    digits = load_part("MNIST", "test", data_dir)[0]
    means = (images.double().mean((1, 2, 3)) for images in (digits, other.images))
    assert torch.allclose(*means, rtol=0.05, atol=1)


def test_corruptions_by_name(data_dir):
    images = load_part("MNIST_0-1", "test", data_dir)[0]
    other = load_other_images("MNIST_0-1-contrast-4", (1, 28, 28), data_dir)
    assert other.name == "MNIST_0-1-contrast-4"
    assert other.images.equal(corrupt(images, "contrast", 4))
    for name, sentence in (
        ("MNIST-noise-6", "The strength of noise is 1 to 5, not 6"),
        ("MNIST-fog-1", "Unknown corruption 'fog'; there are: noise, blur, contrast, rotation"),
        ("MNST-noise-1", "Did you mean MNIST"),
    ):
        with pytest.raises(UserError, match=sentence):
            load_other_images(name, (1, 28, 28), data_dir)


def test_images_of_the_right_shape_stay_as_they_are():
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    assert as_shape(images, (3, 8, 8)).equal(images)
    assert as_shape(images[:, :1], (3, 8, 8)).equal(images[:, :1].repeat(1, 3, 1, 1))


def test_colours_become_grey_by_their_brightness():
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]], dtype=torch.uint8)
    grey = as_shape(colours.view(4, 3, 1, 1).expand(-1, -1, 5, 5), (1, 4, 4))
    assert grey.shape == (4, 1, 4, 4)
    assert grey[:, 0, 2, 2].tolist() == [76, 150, 29, 9]


@pytest.fixture
def available(monkeypatch):
    """Data sets that can be loaded, all others being missing."""
    names = set()

    def load(name, part, data_dir):
        assert part == "test"
        if name not in names:
            raise UserError(f"{name} is incomplete")
        return torch.zeros(2, 1, 28, 28, dtype=torch.uint8), torch.zeros(2), 10

    monkeypatch.setattr(out_of_distribution, "load_part", load)
    return names


def test_the_first_that_is_available_is_used_and_named(available, capsys):
    available |= {"emoji", "MNIST"}
    other = load_usual_images("CIFAR10", (3, 32, 32), "data")
    assert other.name == "emoji"
    assert other.images.shape == (2, 3, 32, 32)
    assert "SVHN is not available" in capsys.readouterr().err


def test_if_none_is_available_each_is_explained(available, monkeypatch):
    with pytest.raises(UserError) as caught:
        load_usual_images("CIFAR10", (3, 32, 32), "data")
    assert all(f"{name} is incomplete" in str(caught.value) for name in SOURCES["CIFAR10"].others)
    monkeypatch.setitem(SOURCES, "Own", replace(SOURCES["MNIST"], others=()))
    with pytest.raises(UserError, match="No out-of-distribution data set for Own is available"):
        load_usual_images("Own", (1, 28, 28), "data")


def test_emoji_are_colour_icons(data_dir):
    try:
        other = load_other_images("emoji", (3, 32, 32), data_dir)
    except UserError as error:
        pytest.skip(str(error).splitlines()[0])
    assert other.images.shape == (3660, 3, 32, 32)
    assert other.images[:, :, 0, 0].float().mean() > 240  # white corners
