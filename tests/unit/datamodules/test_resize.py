"""Resizing against Pillow, whose bilinear filter is antialiased too."""

import numpy as np
import pytest
from PIL import Image

from coterie.datamodules import resize
from coterie.datamodules.resize import resize_images


@pytest.mark.parametrize("shape", [(28, 28, 32), (28, 28, 7), (16, 24, 20), (8, 8, 40)])
@pytest.mark.parametrize("channels", [1, 3])
def test_equals_pillow_to_one_level(shape, channels, monkeypatch):
    height, width, size = shape
    monkeypatch.setattr(resize, "_CHUNK", 2)
    images = np.random.default_rng(0).integers(0, 256, (5, channels, height, width), np.uint8)
    resized = resize_images(images, size)
    assert resized.dtype == np.uint8
    assert resized.flags.c_contiguous
    assert resized.shape == (5, channels, size, size)
    flat, flat_resized = images.reshape(-1, height, width), resized.reshape(-1, size, size)
    for image, got in zip(flat, flat_resized, strict=True):
        wanted = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)
        assert np.abs(np.asarray(wanted, dtype=int) - got).max() <= 1


def test_the_same_size_changes_nothing():
    images = np.zeros((2, 1, 8, 8), np.uint8)
    assert resize_images(images, 8) is images


def test_no_images_stay_none():
    assert resize_images(np.zeros((0, 3, 8, 8), np.uint8), 4).shape == (0, 3, 4, 4)


@pytest.mark.parametrize("channels", [1, 3])
def test_one_pixel_is_the_mean(channels):
    """PyTorch's kernel for uint8 fails there."""
    images = np.random.default_rng(0).integers(0, 256, (4, channels, 6, 9), dtype=np.uint8)
    found = resize_images(images, 1)
    assert (found.shape, found.dtype) == ((4, channels, 1, 1), np.uint8)
    assert np.abs(found[..., 0, 0] - images.mean(axis=(2, 3))).max() < 25
