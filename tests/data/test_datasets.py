"""What the data sets are known to be, their classes, and inputs for networks."""

from utils.data.datasets import (
    Dataset,
    Normalisation,
    load_dataset,
    load_part,
    load_pixels,
    network_inputs,
    split_name,
)
from utils.data.sources import SOURCES
from utils.settings.errors import UserError

import numpy as np
import pytest
import torch


@pytest.fixture(scope="module")
def mnist(data_dir):
    return load_dataset("MNIST", data_dir)


@pytest.fixture(scope="module")
def cifar10(data_dir):
    return load_or_skip("CIFAR10", data_dir)


def load_or_skip(name, data_dir) -> Dataset:
    """Load a data set that is there, or else is fetched if the test machine can."""
    try:
        return load_dataset(name, data_dir)
    except UserError as error:
        pytest.skip(str(error).splitlines()[0])


def random_images(*shape) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def moments_of(images: torch.Tensor) -> Normalisation:
    """Mean and standard deviation of each channel of uint8 images, from counts of the values."""
    values = np.arange(256) / 255
    shares = np.array([np.bincount(each.flatten(), minlength=256) for each in images.unbind(1)])
    shares = shares / images[:, 0].numel()
    mean = shares @ values
    std = np.sqrt(shares @ values**2 - mean**2)
    return Normalisation(tuple(mean.tolist()), tuple(std.tolist()))


def test_mnist_is_what_it_is_known_to_be(mnist):
    assert mnist.train_images.shape == (60_000, 1, 28, 28)
    assert mnist.test_images.shape == (10_000, 1, 28, 28)
    assert (mnist.image_shape, mnist.num_pixels) == ((1, 28, 28), 784)
    assert torch.bincount(mnist.train_labels)[[0, 1, 9]].tolist() == [5923, 6742, 5949]
    assert (mnist.train_images.amax(0) == 0).sum() == 67  # pixels that are always black
    assert np.allclose(moments_of(mnist.train_images), [(0.1307,), (0.3081,)], atol=5e-5)


def test_cifar10_is_what_it_is_known_to_be(cifar10):
    assert cifar10.train_images.shape == (50_000, 3, 32, 32)
    assert cifar10.train_images.dtype == torch.uint8
    assert torch.bincount(cifar10.train_labels).tolist() == [5000] * 10
    assert torch.bincount(cifar10.test_labels).tolist() == [1000] * 10
    assert cifar10.train_labels[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, car
    assert cifar10.test_labels[:5].tolist() == [3, 8, 8, 0, 6]
    mean, std = moments_of(cifar10.train_images)
    assert mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=5e-5)
    assert std == pytest.approx((0.2470, 0.2435, 0.2616), abs=5e-5)
    assert cifar10.normalisation("published") == (SOURCES["CIFAR10"].mean, SOURCES["CIFAR10"].std)


def test_fashion_mnist_is_what_it_is_known_to_be(data_dir):
    fashion = load_or_skip("FashionMNIST", data_dir)
    assert torch.bincount(fashion.train_labels).tolist() == [6000] * 10
    measured = moments_of(fashion.train_images)
    assert np.allclose(measured, fashion.normalisation("published"), atol=1e-4)


def test_pixels_are_bytes_divided_by_255_in_float32(mnist, data_dir):
    pixels = load_pixels("MNIST", data_dir, 500)
    expected = mnist.train_images[:500].numpy().reshape(500, 784).astype(np.float32) / np.float32(
        255
    )
    assert np.array_equal(pixels.train_images.numpy(), expected)
    assert pixels.num_pixels == 784
    every_byte = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    exact = np.arange(256, dtype=np.float32) / np.float32(255)
    assert np.array_equal(network_inputs(every_byte, [256])[0].numpy(), exact)


@pytest.mark.parametrize("scale", [1, 255])
def test_normalised_images_have_mean_0_and_std_1(scale):
    images = random_images(500, 3, 4, 5) // torch.tensor([1, 2, 5]).view(3, 1, 1)
    moments = moments_of(images)
    given = images if scale == 1 else images / 255  # bytes, or floats in [0, 1]
    inputs = network_inputs(given, (3, 4, 5), moments)
    assert inputs.dtype == torch.float32
    assert inputs.mean((0, 2, 3)).abs().max() < 1e-6
    assert (inputs.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6
    assert given.max() == (images.max() if scale == 1 else images.max() / 255)  # left as it was


def toy_data() -> Dataset:
    labels = torch.zeros(4, dtype=torch.long)
    return Dataset("toy", random_images(4, 3, 2, 2), labels, random_images(4, 3, 2, 2), labels)


def test_test_images_are_normalised_as_training_images():
    data = toy_data()
    inputs = data.inputs((3, 2, 2), Normalisation((0.5, 0.5, 0.5), (0.25, 0.5, 1.0)))
    expected = (data.test_images.double() / 255 - 0.5) / torch.tensor([0.25, 0.5, 1]).view(3, 1, 1)
    assert torch.allclose(inputs.test_images.double(), expected)
    assert data.inputs([12]).test_images.shape == (4, 12)
    assert data.to(torch.device("cpu")).num_classes == data.num_classes
    assert data.normalisation("none") is None


@pytest.mark.parametrize("shape", [(784,), (1, 28, 28), (2, 3, 2)])
def test_a_network_for_other_images_is_refused(shape):
    with pytest.raises(UserError, match="but images of toy are 3×2×2"):
        toy_data().inputs(shape)


def test_some_classes_of_a_data_set(mnist, data_dir):
    some = load_dataset("MNIST_1_7-9", data_dir, num_train=1000)
    kept = np.isin(mnist.train_labels, [1, 7, 8, 9])
    assert some.num_classes == 4
    assert some.train_images.equal(mnist.train_images[kept][:1000])
    original = torch.tensor([1, 7, 8, 9])
    assert original[some.train_labels].equal(mnist.train_labels[kept][:1000])
    rest, _, num_rest = load_part("MNIST_0_2-6", "test", data_dir)
    assert num_rest == 6
    assert len(rest) + len(some.test_labels) == 10_000
    assert some.normalisation("published") == ((0.1307,), (0.3081,))


@pytest.mark.parametrize("name", ["CIFAR10_8-3", "CIFAR10_5-12", "CIFAR10_0-9999999999"])
def test_classes_that_do_not_exist_are_refused(name):
    with pytest.raises(UserError, match="does not name classes of CIFAR10: they are 0 to 9"):
        split_name(name)


@pytest.mark.parametrize("name", ["CIFAR_0-5", "MNIST_", "MNIST_0-", "MNIST-0", "mnist", ""])
def test_names_that_make_no_sense_are_refused(name):
    with pytest.raises(UserError, match="Unknown data set"):
        split_name(name)


def test_a_data_set_may_be_named_like_classes(monkeypatch):
    monkeypatch.setitem(SOURCES, "my_digits_2", SOURCES["MNIST"])
    assert split_name("my_digits_2") == ("my_digits_2", None)


def test_more_images_than_there_are_and_sets_without_training_images(data_dir):
    with pytest.raises(UserError, match="num_train is 60001, but MNIST has 60000"):
        load_dataset("MNIST", data_dir, num_train=60_001)
    with pytest.raises(UserError, match="emoji has only test images"):
        load_dataset("emoji", data_dir)
    with pytest.raises(UserError, match="MNIST_3 has a single class, so there is nothing to learn"):
        load_dataset("MNIST_3", data_dir)
