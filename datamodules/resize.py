"""Resize image arrays, and fit images of one shape into another."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

Size = int | tuple[int, int]
"""Height and width in pixels; one number for squares."""

Fit = Literal["squash", "crop", "letterbox"]
"""How an image of another shape is brought to a size: stretched, cut evenly at the edges, or framed
evenly by black bars."""

_CHUNK = 4096
"""Images resized at a time, to limit the working memory."""


def resize_images(images: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """Resize uint8 images bilinearly and with antialiasing.

    Args:
        images: (n, channels, height, width), values 0..255.
        size: The new height and width in pixels.

    Returns:
        uint8 (n, channels, *size), contiguous; `images` itself if it has that size.
    """
    wanted = (size, size) if isinstance(size, int) else size
    count, channels, height, width = images.shape
    if (height, width) == wanted:
        return images
    resized = np.empty((count, channels, *wanted), dtype=np.uint8)
    for start in range(0, count, _CHUNK):
        chunk = torch.from_numpy(np.ascontiguousarray(images[start : start + _CHUNK]))
        single = wanted == (1, 1)  # PyTorch 2.15 fails on uint8 colour images here
        chunk = chunk.float() if single else chunk
        small = functional.interpolate(
            chunk, size=wanted, mode="bilinear", antialias=True, align_corners=False
        )
        resized[start : start + _CHUNK] = (small.round() if single else small).numpy()
    return resized


def fit_images(images: NDArray[np.uint8], size: Size, fit: Fit) -> NDArray[np.uint8]:
    """Bring uint8 images (n, channels, height, width) to a size, as `resize_images` does."""
    wanted = (size, size) if isinstance(size, int) else size
    height, width = images.shape[2:]
    if fit == "squash" or height * wanted[1] == width * wanted[0]:
        return resize_images(images, wanted)
    if fit == "crop":
        scale = min(height / wanted[0], width / wanted[1])
        rows, columns = (max(1, round(side * scale)) for side in wanted)
        top, left = (height - rows) // 2, (width - columns) // 2
        return resize_images(images[:, :, top : top + rows, left : left + columns], wanted)
    scale = min(wanted[0] / height, wanted[1] / width)
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    top, left = (wanted[0] - rows) // 2, (wanted[1] - columns) // 2
    boxed = np.zeros((*images.shape[:2], *wanted), dtype=np.uint8)
    boxed[:, :, top : top + rows, left : left + columns] = resize_images(images, (rows, columns))
    return boxed
