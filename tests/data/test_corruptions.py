"""Corruptions: stronger is further from the image, the same seed gives the same images."""

from utils.data.out_of_distribution import CORRUPTIONS, corrupt
from utils.settings.errors import UserError

import pytest
import torch


@pytest.fixture(scope="module")
def images():
    """Smooth colour images, each with a bright spot in every channel on black."""
    random = torch.Generator().manual_seed(0)
    places = torch.rand(40, 3, 2, 1, 1, generator=random) * 12 + 10
    axis = torch.arange(32.0)
    squares = (axis[:, None] - places[:, :, 0]) ** 2 + (axis - places[:, :, 1]) ** 2
    return (250 * (-squares / 20).exp()).to(torch.uint8)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_strength_moves_images_further_away(images, corruption):
    distances = []
    for strength in range(1, 6):
        corrupted = corrupt(images, corruption, strength)
        assert corrupted.dtype == torch.uint8
        assert corrupted.shape == images.shape
        distances.append((corrupted.float() - images.float()).abs().mean().item())
    assert distances[0] > 0
    assert distances == sorted(distances)
    assert len(set(distances)) == 5


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corruption_is_the_same_every_time(images, corruption):
    once, again = (corrupt(images, corruption, 3) for _ in range(2))
    assert once.equal(again)


def test_noise_has_the_amount_it_says():
    grey = torch.full((20, 1, 28, 28), 128, dtype=torch.uint8)
    deviation = corrupt(grey, "noise", 5).double().std(correction=0)
    assert deviation / 255 == pytest.approx(0.1, rel=0.02)


def test_contrast_shrinks_deviations_from_the_mean():
    images = torch.tensor([100, 100, 200, 200], dtype=torch.uint8).view(1, 1, 2, 2)
    assert corrupt(images, "contrast", 2).flatten().tolist() == [125, 125, 175, 175]


def test_blur_keeps_the_sum_and_spreads_a_point():
    point = torch.zeros(1, 1, 15, 15, dtype=torch.uint8)
    point[0, 0, 7, 7] = 255
    blurred = corrupt(point, "blur", 5).double()
    assert blurred.sum() == pytest.approx(255, rel=0.03)
    offsets = torch.arange(15) - 7
    assert (blurred[0, 0] * offsets**2).sum() / blurred.sum() == pytest.approx(1.0, rel=0.1)


def test_rotation_turns_by_the_angle_to_either_side():
    """A point to the right of the centre moves by 45° up or down."""
    points = torch.zeros(30, 1, 33, 33, dtype=torch.uint8)
    points[:, 0, 15:18, 25:28] = 255  # around 10 pixels from the centre
    rotated = corrupt(points, "rotation", 3)[:, 0].double()
    axis = torch.arange(33.0, dtype=torch.float64) - 16
    total = rotated.sum((1, 2))
    across, down = (rotated.sum(1) @ axis) / total, (rotated.sum(2) @ axis) / total
    assert across.tolist() == pytest.approx([10 * 0.5**0.5] * 30, abs=0.05)
    assert down.abs().tolist() == pytest.approx([10 * 0.5**0.5] * 30, abs=0.05)
    assert 5 < (down > 0).sum() < 25


def test_unknown_corruptions_and_strengths_are_refused(images):
    with pytest.raises(UserError, match="Unknown corruption 'fog'; there are: noise, blur"):
        corrupt(images, "fog", 1)
    with pytest.raises(UserError, match="strength of blur is 1 to 5, not 6"):
        corrupt(images, "blur", 6)
